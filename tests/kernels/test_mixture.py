"""The mixture operation against dense NumPy, enumeration of topics and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import mixture as oracle
from oracles.mixture import mixture_log_likelihood_reference
from support.memory import LargestStorage
from support.problems import make_batch

from torch_lntm.kernels import likelihood, mixture
from torch_lntm.kernels.likelihood import log_likelihood_at
from torch_lntm.kernels.mixture import (
    expected_counts,
    expected_topic_counts,
    expected_word_counts,
    mixture_log_likelihood,
    probability_floor,
    responsibility_covariance,
)

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def random_arrays(
    num_docs: int = 9, num_topics: int = 4, num_words: int = 13, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, topics and counts; the first, a middle and the last document are empty."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.7, (num_docs, num_words)).astype(float)
    counts[[0, num_docs // 2, -1]] = 0
    weights = rng.gamma(1.0, size=(num_docs, num_topics)) + 0.01
    return weights, rng.dirichlet(np.full(num_words, 0.5), num_topics), counts


def tensors(device, dtype, *arrays):
    return [torch.from_numpy(np.ascontiguousarray(a)).to(device, dtype) for a in arrays]


def close(actual: torch.Tensor, expected: object, tolerance: float) -> None:
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_equals_enumeration_of_the_topic_assignments(device, dtype) -> None:
    rng = np.random.default_rng(1)
    theta = rng.dirichlet(np.ones(3), 5)
    topics = rng.dirichlet(np.ones(6), 3)
    counts = np.stack([rng.multinomial(n, np.ones(6) / 6) for n in (0, 1, 4, 6, 5)]).astype(float)
    counts[2] = [0, 4, 0, 0, 0, 0]
    evidence, by_topic, by_word, covariance = oracle.enumerate_assignments(theta, topics, counts)

    t, phi = tensors(device, dtype, theta, topics)
    batch = make_batch(counts, device, dtype)
    got = expected_counts(t, phi, batch, word_counts=True)
    assert got.log_likelihood.dtype == torch.float64
    close(got.log_likelihood, evidence, TOLERANCE[dtype])
    close(mixture_log_likelihood(t, phi, batch), evidence, TOLERANCE[dtype])
    close(got.topic_counts, by_topic, TOLERANCE[dtype])
    close(expected_topic_counts(t, phi, batch), by_topic, TOLERANCE[dtype])
    close(got.word_counts, by_word, TOLERANCE[dtype])
    # The tokens of a document have independent topics: Cov = diag(E n) − Σ_v c_v ρ ρᵀ.
    pairs = np.stack([np.diag(n) for n in by_topic]) - covariance
    close(responsibility_covariance(t, phi, batch), pairs, 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(9, 4, 13), (3, 1, 5), (6, 5, 1)])
def test_the_sparse_kernel_equals_dense_and_reference(device, dtype, shape) -> None:
    weights, topics, counts = random_arrays(*shape)
    t, phi = tensors(device, dtype, weights, topics)
    batch = make_batch(counts, device, dtype)
    expected = oracle.log_likelihood(weights, topics, counts)
    close(mixture_log_likelihood(t, phi, batch), expected, TOLERANCE[dtype])
    close(mixture_log_likelihood_reference(t, phi, batch), expected, TOLERANCE[dtype])
    stacked = torch.stack([t, t.square(), t + 1]).reshape(3, 1, *t.shape)
    several = mixture_log_likelihood(stacked, phi, batch)
    assert several.shape == (3, 1, len(counts))
    close(several[1, 0], oracle.log_likelihood(weights**2, topics, counts), TOLERANCE[dtype])
    close(several, mixture_log_likelihood_reference(stacked, phi, batch).cpu(), TOLERANCE[dtype])


def test_gradients(device) -> None:
    weights, topics, counts = random_arrays(5, 3, 6)
    t, phi = tensors(device, torch.float64, weights, topics)
    batch = make_batch(counts, device)
    t.requires_grad_()
    phi.requires_grad_()
    stacked = torch.stack([t.detach(), 2 * t.detach() + 1]).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: mixture_log_likelihood(a, b, batch), (stacked, phi)
    )

    # The expected counts are the gradients in log t and log φ.
    fast = mixture_log_likelihood(t, phi, batch).sum()
    plain = mixture_log_likelihood_reference(t, phi, batch).sum()
    counted = expected_counts(t.detach(), phi.detach(), batch, word_counts=True)
    by_topic, by_word = torch.autograd.grad(plain, (t, phi))
    torch.testing.assert_close(counted.topic_counts, t.detach() * by_topic)
    torch.testing.assert_close(counted.word_counts, phi.detach() * by_word)
    assert torch.equal(expected_word_counts(t.detach(), phi.detach(), batch), counted.word_counts)
    for a, b in zip(torch.autograd.grad(fast, (t, phi)), (by_topic, by_word), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_derivatives_of_both_orders_in_both_inputs(device) -> None:
    weights, topics, counts = random_arrays(5, 3, 6)
    t, phi = tensors(device, torch.float64, weights, topics)
    batch = make_batch(counts, device)
    t.requires_grad_()
    phi.requires_grad_()

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        return mixture_log_likelihood(*inputs, batch)

    assert torch.autograd.gradcheck(function, (t, phi))
    assert torch.autograd.gradgradcheck(function, (t, phi))
    # With an input fixed, the graph differs.
    assert torch.autograd.gradgradcheck(lambda a: function(a, phi.detach()), t)
    assert torch.autograd.gradgradcheck(lambda b: function(t.detach(), b), phi)


@pytest.mark.slow
def test_gradients_by_torch_func(device) -> None:
    weights, topics, counts = random_arrays(4, 3, 6)
    t, phi = tensors(device, torch.float64, weights, topics)
    batch = make_batch(counts, device)
    for argument in (0, 1):
        found, expected = (
            torch.func.grad(lambda a, b, f=function: f(a, b, batch).sum(), argument)(t, phi)
            for function in (mixture_log_likelihood, mixture_log_likelihood_reference)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_second_derivatives_at_a_probability_of_zero_are_finite(device, dtype) -> None:
    t, phi = tensors(device, dtype, np.array([[1, 0], [0.5, 0.5]]), np.array([[0, 1], [1, 0.0]]))
    batch = make_batch(np.array([[1, 1], [2, 0.0]]), device, dtype)

    def total(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return mixture_log_likelihood(a, b, batch).sum()

    for row in torch.autograd.functional.hessian(total, (t, phi)):
        assert all(bool(block.isfinite().all()) for block in row)


@pytest.mark.parametrize("num_docs", [0, 3])
def test_no_tokens_at_all(device, num_docs) -> None:
    batch = make_batch(np.zeros((num_docs, 5)), device)
    t = torch.ones(num_docs, 2, dtype=torch.float64, device=device, requires_grad=True)
    phi = torch.full((2, 5), 0.2, dtype=torch.float64, device=device, requires_grad=True)
    value = mixture_log_likelihood(t, phi, batch)
    assert value.tolist() == [0.0] * num_docs
    value.sum().backward()
    assert t.grad.shape == t.shape
    assert not t.grad.any()
    assert not phi.grad.any()
    with torch.no_grad():
        got = expected_counts(t, phi, batch, word_counts=True)
        pairs = responsibility_covariance(t, phi, batch)
    assert got.topic_counts.shape == (num_docs, 2)
    assert got.word_counts.shape == (2, 5)
    assert pairs.shape == (num_docs, 2, 2)
    assert not got.word_counts.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1.0, 5.0, 1e6])
def test_a_word_of_probability_zero_costs_a_finite_number_of_nats(device, dtype, count) -> None:
    """Holds even if the count divided by the smallest normal number would overflow."""
    counts = np.array([[count, 1, 0], [count, 0, 2], [0, 1, 0]])
    theta = np.array([[1, 0], [0.5, 0.5], [0, 1]])
    topics = np.array([[0, 0.5, 0.5], [0, 1, 0.0]])
    t, phi = tensors(device, dtype, theta, topics)
    t.requires_grad_()
    phi.requires_grad_()
    batch = make_batch(counts, device, dtype)
    value = mixture_log_likelihood(t, phi, batch)
    floor = np.log(probability_floor(dtype))
    close(value, [count * floor + np.log(0.5), count * floor + 2 * np.log(0.25), 0], 1e-5)
    for gradient in torch.autograd.grad(value.sum(), (t, phi)):
        assert bool(gradient.isfinite().all())
    with torch.no_grad():
        for part in expected_counts(t, phi, batch, word_counts=True):
            assert bool(part.isfinite().all())
        assert bool(responsibility_covariance(t, phi, batch).isfinite().all())


@pytest.mark.parametrize("max_elements", [1, 60, 2**24])
def test_responsibility_covariance_equals_brute_force_for_any_chunks(
    device, max_elements, monkeypatch
) -> None:
    monkeypatch.setattr(mixture, "MAX_ELEMENTS", max_elements)
    weights, topics, counts = random_arrays(12)
    expected = np.zeros((12, 4, 4))
    for d, v in zip(*np.nonzero(counts), strict=True):
        rho = weights[d] * topics[:, v]
        rho /= rho.sum()
        expected[d] += counts[d, v] * np.outer(rho, rho)
    t, phi = tensors(device, torch.float64, weights, topics)
    got = responsibility_covariance(t, phi, make_batch(counts, device))
    close(got, expected, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_calls_agree_to_the_last_bit(device, dtype) -> None:
    weights, topics, counts = random_arrays(200, 30, 500)
    t, phi = tensors(device, dtype, weights, topics)
    batch = make_batch(counts, device, dtype)
    first = expected_counts(t, phi, batch, word_counts=True)
    for _ in range(3):
        again = expected_counts(t, phi, batch, word_counts=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("num_docs", "num_words", "num_topics", "per_doc", "forbidden"),
    [
        pytest.param(300, 20_000, 4, 20, 300 * 20_000, id="documents x words"),
        pytest.param(200, 200, 64, 100, 200 * 100 * 64, id="counts x topics"),
    ],
)
def test_no_large_table_is_formed(num_docs, num_words, num_topics, per_doc, forbidden) -> None:
    rng = np.random.default_rng(0)
    counts = np.zeros((num_docs, num_words))
    for row in counts:
        row[rng.choice(num_words, per_doc, replace=False)] = 1.0
    batch = make_batch(counts, torch.device("cpu"), torch.float32)
    phi = torch.softmax(torch.randn(num_words, num_topics), 0).mT
    theta = torch.softmax(torch.randn(num_docs, num_topics), 1).requires_grad_()
    with LargestStorage() as largest:
        expected_counts(theta.detach(), phi, batch, word_counts=True)
        mixture_log_likelihood(theta, phi, batch).sum().backward()
    assert 0 < largest.size < 0.4 * 4 * forbidden


def test_log_likelihood_at_equals_the_sparse_kernel_for_any_chunks(lee, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    topics = torch.rand(4, lee.num_words, generator=generator, dtype=torch.float64)
    topics /= topics.sum(1, keepdim=True)
    batch = lee[3].batch(dtype=torch.float64)
    repeated = batch.select(torch.zeros(50, dtype=torch.int64))
    expected = mixture_log_likelihood(torch.softmax(logits, -1), topics, repeated)
    words = topics.mT[batch.word_index]
    for max_elements in (1, 1000, 2**22):
        monkeypatch.setattr(likelihood, "MAX_ELEMENTS", max_elements)
        torch.testing.assert_close(log_likelihood_at(logits, words, batch), expected)
