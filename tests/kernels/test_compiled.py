"""Compiled kernels of a CPU against PyTorch's operations: noise, whole visits, bits and threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import without_fused_kernels
from torch import Tensor

import torch_lntm as lntm
from torch_lntm import noise
from torch_lntm.inference.chains.chains import Chains, HMCSettings

#: Sizes at which rows need padding, blocks end early, and documents are longer than a block.
NUM_DOCS, NUM_WORDS = 37, 61


def make_corpus(num_docs: int = NUM_DOCS, num_words: int = NUM_WORDS) -> lntm.Corpus:
    """Documents of very different lengths, one of them empty."""
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.5, size=(num_docs, 1))
    counts = rng.poisson(rates * rng.gamma(0.3, size=(num_docs, num_words)))
    counts[0], counts[4] = 3, 0
    return lntm.Corpus.from_matrix(counts, [f"w{i}" for i in range(num_words)])


MODELS: dict[str, Callable[[], lntm.models.TopicModel]] = {
    "free": lambda: lntm.models.ctm(5, NUM_WORDS, seed=0, dtype=torch.float64),
    "anchored": lambda: lntm.models.ctm(17, NUM_WORDS, seed=0, anchored=True, dtype=torch.float64),
    "sources": lambda: lntm.models.iftm(11, NUM_WORDS, num_sources=3, seed=0, dtype=torch.float64),
    "laplace sources": lambda: lntm.models.iftm(
        11, NUM_WORDS, num_sources=3, source="laplace", seed=0, dtype=torch.float64
    ),
    "dirichlet": lambda: lntm.models.lda(9, NUM_WORDS, seed=0, dtype=torch.float64),
    "bursty": lambda: lntm.models.ctm(5, NUM_WORDS, bursty=True, seed=0, dtype=torch.float64),
    "one topic": lambda: lntm.models.ctm(1, NUM_WORDS, seed=0, dtype=torch.float64),
}


def spread_(model: lntm.models.TopicModel) -> lntm.models.TopicModel:
    """Give a model different topics and correlated logits, in place."""
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(NUM_WORDS, 0.3), model.num_topics) + 1e-4
    model.topics.set_(torch.from_numpy(topics))
    dim = model.prior.latent_dim
    factor = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    if isinstance(model.prior, lntm.models.LogisticNormalPrior):
        model.prior.set_(covariance=torch.from_numpy(factor @ factor.T + np.eye(dim)))
    return model


@pytest.mark.parametrize("size", [1, 2, 5, 51])
def test_noise_has_the_same_bits_or_nearly(size: int, numba, monkeypatch) -> None:
    index = torch.tensor([0, 1, 7, 2**40])

    def made() -> tuple[Tensor, ...]:
        keys = noise.split(noise.document_keys(2**62 + 1, index, 3), 2)
        return keys, noise.uniform(keys, size), noise.normal(keys, size)

    compiled = made()
    without_fused_kernels(monkeypatch)
    expected = made()
    assert torch.equal(compiled[0], expected[0])
    assert torch.equal(compiled[1], expected[1])
    torch.testing.assert_close(compiled[2], expected[2], rtol=1e-14, atol=4e-15)


@pytest.mark.parametrize("num_chains", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_visit_equals_transitions_one_by_one(name, num_chains, numba, monkeypatch) -> None:
    """Warm-up, its end and frozen step sizes, in one call each, and a later visit."""
    model = spread_(MODELS[name]())
    batch = make_corpus().batch(dtype=torch.float64)
    settings = HMCSettings(num_chains, "prior", 5, seed=3)

    def visited() -> list[Tensor]:
        chains = Chains(model, settings, batch, warmup_steps=4)
        passed = chains.advance(3) + chains.advance(3)
        again = Chains(model, settings, batch, 4, chains.latents, chains.progress)
        passed += again.advance(2)
        values: list[Any] = [*chains.state, *again.state, *again.progress[:4]]
        values += [x for info, step_size in passed for x in (*info, step_size)]
        return [*values, chains.divergences, chains.moved, chains.mean_acceptance]

    compiled = visited()
    without_fused_kernels(monkeypatch)
    for got, expected in zip(compiled, visited(), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_elementary_functions_are_exact_to_rounding(numba) -> None:
    ops = pytest.importorskip("torch_lntm.kernels.numba_ops")
    from numba import njit

    @njit
    def of_all(function, x, y):
        for i in range(len(x)):
            y[i] = function(x[i])

    for dtype, error, lowest in ((np.float32, 1.3e-7, -87.0), (np.float64, 3e-16, -708.0)):
        name = "single" if dtype == np.float32 else "double"
        x = np.concatenate([np.linspace(lowest, 0.0, 5001), -np.logspace(-10, 1, 500)])[1:]
        x = x.astype(dtype)
        y = np.empty_like(x)
        of_all(getattr(ops, f"_exp_{name}"), x, y)
        exact = np.exp(x.astype(np.longdouble))
        assert np.abs(y / exact - 1).max() < error
        special = np.array([np.nan, -np.inf, -1e30, 0.0], dtype)
        of_all(getattr(ops, f"_exp_{name}"), special, y[:4])
        np.testing.assert_array_equal(y[:4], [np.nan, 0.0, 0.0, 1.0])
        smallest = -28 if dtype == np.float32 else -298
        x = np.concatenate([np.logspace(smallest, 3, 5001), 1 + np.linspace(-1e-3, 1e-3, 501)])
        x = x.astype(dtype)
        y = np.empty_like(x)
        of_all(getattr(ops, f"_log_{name}"), x, y)
        exact = np.log(x.astype(np.longdouble))
        assert (np.abs(y - exact) <= error * np.abs(exact)).all()
