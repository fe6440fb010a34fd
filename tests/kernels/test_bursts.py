"""Dirichlet-multinomial counts against urns filled token by token, and the layouts of words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.problems import make_batch
from torch.func import functional_call

from torch_lntm.kernels.chains import PaddedWords, SparseWords
from torch_lntm.kernels.likelihood import CellRows, log_likelihood_at
from torch_lntm.kernels.mixture import (
    expected_counts,
    expected_topic_counts,
    expected_word_counts,
    mixture_log_likelihood,
    word_probabilities,
)
from torch_lntm.models import DirichletMultinomial

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11}
A = 3.7


def problem(num_docs: int = 7, num_topics: int = 3, num_words: int = 11, seed: int = 0):
    """Theta, topics and counts that repeat; the first and the last document are empty."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.8, (num_docs, num_words)) * rng.integers(1, 5, (num_docs, num_words))
    counts[[0, -1]] = 0
    theta = rng.dirichlet(np.ones(num_topics), num_docs)
    return theta, rng.dirichlet(np.full(num_words, 0.5), num_topics), counts.astype(float)


def urn(q: np.ndarray, counts: np.ndarray, a: float) -> float:
    """Log probability of a document's tokens, token by token."""
    seen, total = np.zeros_like(q), 0.0
    for v in np.repeat(np.arange(len(q)), counts.astype(int)):
        total += math.log((seen[v] + a * q[v]) / (seen.sum() + a))
        seen[v] += 1
    return total


def repeats(device, a: float = A) -> DirichletMultinomial:
    return DirichletMultinomial(a, dtype=torch.float64).to(device).requires_grad_(False)


class _LogLikelihood(torch.nn.Module):
    """The log likelihood as a module, for ``functional_call``."""

    def __init__(self, words: DirichletMultinomial) -> None:
        super().__init__()
        self.words = words

    def forward(self, t, phi, batch):
        return mixture_log_likelihood(t, phi, batch, self.words)


def tensors(device, dtype, *arrays):
    return [torch.tensor(x, dtype=dtype, device=device) for x in arrays]


def close(found: torch.Tensor, expected, tolerance: float) -> None:
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_likelihood_equals_that_of_polya_urns(device, dtype) -> None:
    theta, topics, counts = problem()
    expected = [urn(q, c, A) for q, c in zip(theta @ topics, counts, strict=True)]
    t, phi = tensors(device, dtype, theta, topics)
    batch = make_batch(counts, device, dtype)
    likelihood = repeats(device)
    close(mixture_log_likelihood(t, phi, batch, likelihood), expected, TOLERANCE[dtype])
    close(expected_counts(t, phi, batch, likelihood).log_likelihood, expected, TOLERANCE[dtype])
    chains = t.expand(2, -1, -1)
    for words in (SparseWords(phi, batch, likelihood), PaddedWords(phi, batch, likelihood)):
        close(words.log_likelihood(chains), [expected] * 2, TOLERANCE[dtype])
        close(words.expected_counts(chains)[0], [expected] * 2, TOLERANCE[dtype])
    logits = t.log()
    for d in range(len(counts)):
        entries = slice(int(batch.row_offsets[d]), int(batch.row_offsets[d + 1]))
        found = log_likelihood_at(
            logits[d : d + 1],
            phi.mT[batch.word_index[entries]],
            CellRows(batch.counts[entries], batch.word_index[entries]),
            likelihood,
        )
        close(found, expected[d : d + 1], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_the_expected_tokens_of_the_topics(device, dtype) -> None:
    theta, topics, counts = problem()
    rate = A * theta @ topics
    # A token after i tokens of its word came from the topics with probability x / (x + i).
    tables = np.zeros_like(rate)
    for i in range(int(counts.max())):
        tables += np.where(counts > i, rate / (rate + i), 0.0)
    shares = theta[:, :, None] * topics / (theta @ topics)[:, None]
    t, phi = tensors(device, dtype, theta, topics)
    batch = make_batch(counts, device, dtype)
    tolerance, likelihood = TOLERANCE[dtype], repeats(device)

    q = word_probabilities(t, phi, batch)
    found = likelihood.tokens(q, batch)
    at = (batch.row_index.cpu(), batch.word_index.cpu())
    close(found, tables[at], tolerance)
    by_topic = (shares * tables[:, None]).sum(2)
    by_word = (shares * tables[:, None]).sum(0)
    got = expected_counts(t, phi, batch, likelihood, word_counts=True)
    close(got.topic_counts, by_topic, tolerance)
    close(got.word_counts, by_word, tolerance)
    close(expected_topic_counts(t, phi, batch, likelihood), by_topic, tolerance)
    close(expected_word_counts(t, phi, batch, likelihood), by_word, tolerance)
    weights = torch.linspace(0.1, 2.0, len(counts), device=device, dtype=torch.float64)
    weighted = (shares * tables[:, None] * weights.cpu().numpy()[:, None, None]).sum(0)
    found = expected_word_counts(t, phi, batch, likelihood, shares=weights)
    close(found, weighted, tolerance)
    chains = t.expand(2, -1, -1)
    for words in (SparseWords(phi, batch, likelihood), PaddedWords(phi, batch, likelihood)):
        close(words.expected_topic_counts(chains), [by_topic] * 2, tolerance)
        close(words.expected_counts(chains)[1], [by_topic] * 2, tolerance)


def test_word_counts_take_shares_of_documents(device) -> None:
    theta, topics, counts = problem()
    t, phi = tensors(device, torch.float64, theta, topics)
    batch = make_batch(counts, device, torch.float64)
    weights = torch.linspace(0.1, 2.0, len(counts), device=device, dtype=torch.float64)
    each = [
        expected_word_counts(t[d : d + 1], phi, make_batch(counts[d : d + 1], device, t.dtype))
        for d in range(len(counts))
    ]
    expected = sum(w * x for w, x in zip(weights, each, strict=True))
    found = expected_word_counts(t, phi, batch, shares=weights)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_derivatives_of_every_argument() -> None:
    theta, topics, counts = problem(4, 2, 6)
    t, phi = (x.requires_grad_() for x in tensors("cpu", torch.float64, theta, topics))
    a = torch.tensor(math.log(A), dtype=torch.float64, requires_grad=True)
    likelihood = repeats("cpu")
    batch = make_batch(counts, torch.device("cpu"), torch.float64)

    def function(t, phi, a):
        program = _LogLikelihood(likelihood)
        return functional_call(program, {"words.log_concentration": a}, (t, phi, batch))

    assert torch.autograd.gradcheck(function, (t, phi, a))
    assert torch.autograd.gradgradcheck(function, (t, phi, a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_without_any_topic_cost_finite_nats(device, dtype) -> None:
    theta, topics, counts = problem()
    topics[:, 3] = 0.0
    counts[1, 3], counts[2, 3] = 1, 4
    t, phi = (x.requires_grad_() for x in tensors(device, dtype, theta, topics))
    batch = make_batch(counts, device, dtype)
    value = mixture_log_likelihood(t, phi, batch, repeats(device))
    assert bool(value.isfinite().all())
    assert float(value[1].detach()) < -60.0
    first = torch.autograd.grad(value.sum(), (t, phi), create_graph=True)
    second = torch.autograd.grad(sum((g * g.detach().sign()).sum() for g in first), (t, phi))
    assert all(bool(g.isfinite().all()) for g in (*first, *second))
    # A further token of such a word costs as much as under independent draws.
    alone = mixture_log_likelihood(t, phi, batch)
    assert float(value[1].detach()) == pytest.approx(float(alone[1].detach()), abs=20.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_concentration_tends_to_independent_draws(device, dtype) -> None:
    theta, topics, counts = problem()
    t, phi = tensors(device, dtype, theta, topics)
    independent = make_batch(counts, device, dtype)
    found = mixture_log_likelihood(t, phi, independent, repeats(device, 1e7))
    torch.testing.assert_close(
        found, mixture_log_likelihood(t, phi, independent), rtol=1e-5, atol=1e-4
    )


def test_views_of_a_batch_know_the_repeated_words(device) -> None:
    _, _, counts = problem()
    batch = make_batch(counts, device, torch.float64)
    rows = torch.tensor([2, 1], device=device)
    views = [batch.select(rows), batch.repeat(2), batch.to(dtype=torch.float32), batch.split(3)[1]]
    for view in (*views, batch.over(batch.words)):
        assert len(view.repeated[0]) == int((view.counts != 1).sum())
    other = batch.with_counts(batch.counts + 1.0)
    torch.testing.assert_close(other.lengths, batch.lengths + batch.row_offsets.diff())
    assert other.by_word is batch.by_word
