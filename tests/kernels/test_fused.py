"""Triton's kernels of the sparse operation against the reference and the sparse products."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.mixture import mixture_log_likelihood_reference
from support.kernels import without_fused_kernels
from support.problems import make_batch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels import fused as fused_kernels
from torch_lntm.kernels.chains import SparseWords
from torch_lntm.kernels.mixture import (
    expected_counts,
    expected_topic_counts,
    expected_word_counts,
    probability_floor,
)

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def problem(
    device: torch.device,
    dtype: torch.dtype,
    num_docs: int,
    num_topics: int,
    num_words: int,
    rate: float = 0.7,
) -> tuple[Tensor, Tensor, DocumentBatch]:
    """Weights, topics and documents; the first and the last document are empty."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rate, (num_docs, num_words)).astype(float)
    counts[[0, -1]] = 0
    weights = torch.from_numpy(rng.gamma(1.0, size=(num_docs, num_topics)) + 0.01)
    topics = torch.from_numpy(rng.dirichlet(np.full(num_words, 0.5), num_topics) + 1e-3)
    batch = make_batch(counts, device, dtype)
    return weights.to(device, dtype), topics.to(device, dtype), batch


# A single topic; numbers of topics besides powers of two; several tiles of words; so many topics
# that a tile holds a single word.
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 1, 5), (6, 3, 13), (4, 33, 150), (3, 2049, 7)])
def test_fused_counts_equal_the_reference_and_the_sparse_products(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    fused: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, topics, batch = problem(fused, dtype, *shape)
    got = expected_counts(weights, topics, batch)
    assert got.log_likelihood.dtype == torch.float64
    assert got.word_counts is None

    exact = weights.double().requires_grad_()
    value = mixture_log_likelihood_reference(exact, topics.double(), batch)
    (slope,) = torch.autograd.grad(value.sum(), exact)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(got.log_likelihood, value.detach(), **close)
    torch.testing.assert_close(got.topic_counts.double(), (exact * slope).detach(), **close)
    torch.testing.assert_close(got.topic_counts.sum(1), batch.lengths, **close)

    without_fused_kernels(monkeypatch)
    sparse = expected_counts(weights, topics, batch)
    torch.testing.assert_close(got.log_likelihood, sparse.log_likelihood, **close)
    torch.testing.assert_close(got.topic_counts, sparse.topic_counts, **close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_below_the_floor_cost_the_floor(dtype: torch.dtype, fused: torch.device) -> None:
    topics = torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]], device=fused, dtype=dtype)
    batch = make_batch(np.array([[3.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), fused, dtype)
    weights = torch.tensor([[0.5, 0.5], [0.0, 1.0]], device=fused, dtype=dtype)
    got = expected_counts(weights, topics, batch)
    floor = float(np.log(probability_floor(dtype)))
    expected = torch.tensor([3 * floor + 2 * np.log(0.75), floor], dtype=torch.float64)
    torch.testing.assert_close(got.log_likelihood.cpu(), expected, rtol=1e-6, atol=0.0)
    counts = torch.tensor([[2 / 3, 4 / 3], [0.0, 0.0]], dtype=dtype)
    torch.testing.assert_close(got.topic_counts.cpu(), counts)


def test_several_chains_and_topics_stored_by_topic_or_by_word(fused: torch.device) -> None:
    weights, topics, batch = problem(fused, torch.float64, 4, 3, 9)
    theta = torch.stack([weights, 2.0 * weights, weights.flip(0)])
    by_word = topics.mT.contiguous().mT
    value, counts = SparseWords(by_word, batch).expected_counts(theta)
    for chain in range(3):
        one = expected_counts(theta[chain], topics, batch)
        torch.testing.assert_close(value[chain], one.log_likelihood, rtol=0, atol=0)
        torch.testing.assert_close(counts[chain], one.topic_counts, rtol=0, atol=0)
        alone = expected_topic_counts(theta[chain], topics, batch)
        torch.testing.assert_close(counts[chain], alone, rtol=0, atol=0)


def test_empty_batches_and_empty_documents(fused: torch.device) -> None:
    weights, topics, batch = problem(fused, torch.float32, 3, 2, 5, rate=0.0)
    got = expected_counts(weights, topics, batch)
    assert got.log_likelihood.tolist() == [0.0] * 3
    assert got.topic_counts.tolist() == [[0.0, 0.0]] * 3
    none = batch.select(torch.arange(0, device=fused))
    assert expected_counts(weights[:0], topics, none).topic_counts.shape == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 3, 9), (3, 1, 2), (70, 130, 12)])
def test_word_counts_equal_the_sparse_products(shape, dtype, fused, monkeypatch) -> None:
    """Several tiles of documents, and words without documents."""
    weights, topics, batch = problem(fused, dtype, *shape)
    topics = torch.cat([topics, topics[:, :2]], 1)
    batch = replace(batch, num_words=batch.num_words + 2)
    found = expected_counts(weights, topics, batch, word_counts=True)
    alone = expected_word_counts(weights, topics, batch)
    without_fused_kernels(monkeypatch)
    expected = expected_counts(weights, topics, batch, word_counts=True)
    for got, one_by_one in zip(found, expected, strict=True):
        torch.testing.assert_close(got, one_by_one, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(alone, found.word_counts)
    assert float(found.word_counts[:, -2:].abs().sum()) == 0.0
    # Stored word by word, as the sums over batches expect.
    assert found.word_counts.mT.is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5, 600])
def test_fused_noise_equals_separate_operations(size, triton, accelerator, monkeypatch) -> None:
    index = torch.tensor([0, 1, 7, 2**40], device=accelerator)

    def made() -> tuple[Tensor, ...]:
        keys = noise.split(noise.document_keys(2**62 + 1, index, 3), 2)
        return keys, noise.uniform(keys, size), noise.normal(keys, size), noise.laplace(keys, size)

    called = []
    normal = fused_kernels.normal
    monkeypatch.setattr(fused_kernels, "normal", lambda *args: (called.append(1), normal(*args))[1])
    in_one = made()
    assert called
    without_fused_kernels(monkeypatch)
    one_by_one = made()
    assert len(called) == 1
    for got, expected in zip(in_one, one_by_one, strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected.cpu(), rtol=1e-14, atol=1e-14)
    assert torch.equal(in_one[0], one_by_one[0])


@pytest.mark.parametrize("value", [None, "", "0"])
def test_triton_is_off_on_a_cpu(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNTM_COMPILED", "0")
    monkeypatch.delenv("LNTM_TRITON", raising=False)
    if value is not None:
        monkeypatch.setenv("LNTM_TRITON", value)
    assert not fused_kernels.kind(torch.ones(2))


def test_another_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNTM_COMPILED", "0")
    monkeypatch.setenv("LNTM_TRITON", "yes")
    with pytest.raises(ConfigError, match="LNTM_TRITON is 'yes'; expected 1 for Triton's kernels"):
        fused_kernels.kind(torch.ones(2))


_COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from torch_lntm.kernels import triton_ops

integers = {"num_docs", "num_topics", "dim", "num_steps", "loc_stride", "number", "size"}
whole = ("row_offsets", "word_index", "order", "doc_index", "word_offsets", "bits", "mixed", "keys")
double = ("log_prior", "log_likelihood", "new_log_prior", "new_log_likelihood",
          "acceptance_uniform", "step_uniform", "step_size", "temperature", "acceptance",
          "energy_error", "numbers")
pointers = dict.fromkeys(whole, "*i64") | dict.fromkeys(double, "*fp64")
pointers |= {"accepted": "*i8", "divergent": "*i8"}
constants = {"FLOOR": 1e-28, "BLOCK": 64, "TILE": 32, "BLOCK_Z": 64, "TILE_Z": 32}
constants |= {"KEEP": True, "JITTER": 0.2, "MAX_ERROR": 1000.0}
for name in ("expected_counts", "word_counts", "transition", "mixed", "uniform", "normal"):
    kernel = getattr(triton_ops, f"_{name}_kernel")
    names = kernel.arg_names
    known = {name: value for name, value in constants.items() if name in names}
    types = {name: "i32" if name in integers else pointers.get(name, "*fp32") for name in names}
    source = ASTSource(kernel, types | dict.fromkeys(known, "constexpr"), known)
    options = {"enable_fp_fusion": True}
    for capability in (80, 90):
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options=options)
        print(kernel.__name__, capability, len(compiled.asm["cubin"]))
"""


@pytest.mark.long
def test_the_kernels_compile_to_machine_code_without_a_gpu(triton, tmp_path) -> None:
    """The compiler accepts less than the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", _COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, capabilities, sizes = zip(*map(str.split, done.stdout.splitlines()), strict=True)
    kernels = ("expected_counts", "word_counts", "transition", "mixed", "uniform", "normal")
    assert names == tuple(f"_{name}_kernel" for name in kernels for _ in range(2))
    assert capabilities == ("80", "90") * 6
    assert min(map(int, sizes)) > 1000
