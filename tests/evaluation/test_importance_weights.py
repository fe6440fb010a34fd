"""The mean of importance weights, its error, and the Pareto fit of their tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch_lntm.solvers.contrasts import contrast_basis, log_likelihood_at, triangular_factor
from torch_lntm.solvers.importance import (
    draw_noise,
    noise_log_density,
    pareto_k,
    summarise_weights,
)


def pareto_draws(shape: float, rows: int, columns: int) -> torch.Tensor:
    """Logs of generalised Pareto draws, shifted to be positive."""
    rng = np.random.default_rng(0)
    return torch.tensor(
        np.log(stats.genpareto.rvs(shape, 1.0, size=(rows, columns), random_state=rng))
    )


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.3, 0.7, 1.2])
def test_pareto_k_recovers_the_shape(shape: float) -> None:
    # The tail of a generalised Pareto has the same shape. One fit to 300 draws has a standard
    # deviation of about (1 + k)/√300 ≤ 0.13, the mean of 200 of 0.009; the tolerance leaves room
    # for the prior at 0.5 (10 of 310 draws: at most 0.026) and bias of order 1/300.
    k = pareto_k(pareto_draws(shape, 200, 10_000))
    assert float(k.mean()) == pytest.approx(shape, abs=0.07)
    assert 0.5 < float(k.std()) / ((1 + max(shape, -0.5)) / math.sqrt(300)) < 2


def test_pareto_k_agrees_with_maximum_likelihood() -> None:
    log_weights = pareto_draws(0.5, 5, 4000)
    size = math.ceil(3 * math.sqrt(4000))
    for row, k in zip(log_weights, pareto_k(log_weights), strict=True):
        tail = np.sort(row.exp().numpy())[-size - 1 :]
        fitted, _, _ = stats.genpareto.fit(tail[1:] - tail[0], floc=0.0)
        assert (size * fitted + 5) / (size + 10) == pytest.approx(float(k), abs=0.03)


def test_pareto_k_does_not_depend_on_scale_or_company() -> None:
    log_weights = pareto_draws(0.5, 3, 1000)
    k = pareto_k(log_weights)
    torch.testing.assert_close(pareto_k(log_weights - 1e4), k, atol=1e-6, rtol=0)
    torch.testing.assert_close(pareto_k(log_weights[1:2]), k[1:2])


def test_pareto_k_without_a_tail_and_with_nothing_else() -> None:
    log_weights = torch.zeros(3, 100, dtype=torch.float64)
    log_weights[1, 0] = 1.0  # one weight above many equal ones
    log_weights[2] = -1e5
    log_weights[2, 7] = 0.0  # one weight is all there is
    k = pareto_k(log_weights)
    assert k[0] == -math.inf
    assert bool(torch.isfinite(k[1:]).all())
    assert float(k[2]) > 0.7


def test_too_few_weights() -> None:
    with pytest.raises(ValueError, match="at least 25"):
        pareto_k(torch.zeros(1, 24))


def test_summary_of_weights() -> None:
    rng = np.random.default_rng(3)
    log_weights = torch.tensor(rng.normal(-2000.0, 1.0, size=(4, 500)))
    log_weights[0] = -3.0
    summary = summarise_weights(log_weights)
    w = np.exp(log_weights[1:].numpy() + 2000.0)
    np.testing.assert_allclose(summary.log_mean[1:], np.log(w.mean(1)) - 2000.0)
    np.testing.assert_allclose(
        summary.standard_error[1:], stats.sem(w, axis=1) / w.mean(1), rtol=1e-10
    )
    np.testing.assert_allclose(
        summary.effective_sample_size[1:], w.sum(1) ** 2 / (w**2).sum(1), rtol=1e-10
    )
    same = [float(value[0]) for value in summary]
    assert same == [pytest.approx(-3.0), 0.0, 500.0, -math.inf]


@pytest.mark.parametrize("nu", [2.5, 5.0, math.inf])
def test_noise_has_its_density(nu: float) -> None:
    noise = draw_noise(20_000, 3, (1, 2), nu)
    expected = (
        stats.multivariate_normal(np.zeros(3))
        if math.isinf(nu)
        else stats.multivariate_t(np.zeros(3), df=nu)
    )
    np.testing.assert_allclose(noise_log_density(noise[:50], nu), expected.logpdf(noise[:50]))
    # Each coordinate has the univariate density; false-failure rate 1e-6 per coordinate.
    marginal = stats.norm if math.isinf(nu) else stats.t(nu)
    for column in noise.numpy().T:
        assert stats.kstest(column, marginal.cdf).pvalue > 1e-6
    assert torch.equal(noise, draw_noise(20_000, 3, (1, 2), nu))
    assert not torch.equal(noise, draw_noise(20_000, 3, (2, 1), nu))


@pytest.mark.parametrize("num_topics", [2, 3, 17])
def test_contrast_basis(num_topics: int) -> None:
    basis = contrast_basis(num_topics)
    assert basis.shape == (num_topics - 1, num_topics)
    torch.testing.assert_close(basis @ basis.T, torch.eye(num_topics - 1).double())
    torch.testing.assert_close(basis.sum(1), torch.zeros(num_topics - 1).double())


def test_triangular_factor() -> None:
    factor = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lower = triangular_factor(factor)
    torch.testing.assert_close(lower @ lower.mT, factor @ factor.mT)
    assert torch.equal(lower, lower.tril())
    assert bool((lower.diagonal(dim1=-2, dim2=-1) > 0).all())


def test_log_likelihood_at_is_the_kernel_in_any_chunks(lee) -> None:
    from torch_lntm.kernels import mixture_log_likelihood

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    topics = torch.rand(4, lee.num_words, generator=generator, dtype=torch.float64)
    topics /= topics.sum(1, keepdim=True)
    batch = lee[3].batch(dtype=torch.float64)
    repeated = batch.select(torch.zeros(50, dtype=torch.int64))
    expected = mixture_log_likelihood(torch.softmax(logits, -1), topics, repeated)
    words = topics.mT[batch.word_index]
    for max_elements in (1, 1000, 2**22):
        values = log_likelihood_at(logits, words, batch.counts, max_elements=max_elements)
        torch.testing.assert_close(values, expected)
