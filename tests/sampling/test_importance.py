"""The mean of importance weights, its error, and the Pareto fit of their tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torch_lntm.sampling.importance import pareto_k, summarise_weights


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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [-0.2, 0.2, 0.6, 1.1])
@pytest.mark.parametrize("num_draws", [100, 1000, 4000])
def test_pareto_k_equals_arviz(shape: float, num_draws: int) -> None:
    # ArviZ makes the same fit on the same grid with the same weak prior. It takes the logs of the
    # weights up to a constant. Differences come from rounding and from its threshold between two
    # draws.
    arviz = pytest.importorskip("arviz")
    log_weights = pareto_draws(shape, 4, num_draws)
    expected = arviz.psislw(log_weights.numpy())[1]
    np.testing.assert_allclose(pareto_k(log_weights).numpy(), expected, atol=2e-3)


def test_pareto_k_depends_neither_on_scale_nor_on_other_rows() -> None:
    log_weights = pareto_draws(0.5, 3, 1000)
    k = pareto_k(log_weights)
    torch.testing.assert_close(pareto_k(log_weights - 1e4), k, atol=1e-6, rtol=0)
    torch.testing.assert_close(pareto_k(log_weights[1:2]), k[1:2])


def test_pareto_k_of_equal_weights_and_of_one_large_weight() -> None:
    log_weights = torch.zeros(3, 100, dtype=torch.float64)
    log_weights[1, 0] = 1.0  # one weight above many equal ones
    log_weights[2] = -1e5
    log_weights[2, 7] = 0.0  # one weight is all there is
    k = pareto_k(log_weights)
    assert k[0] == -math.inf
    assert bool(torch.isfinite(k[1:]).all())
    assert float(k[2]) > 0.7


def test_too_few_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 25"):
        pareto_k(torch.zeros(1, 24))


def test_summary_of_weights() -> None:
    rng = np.random.default_rng(3)
    log_weights = torch.tensor(rng.normal(-2000.0, 1.0, size=(4, 500)))
    log_weights[0] = -3.0
    summary = summarise_weights(log_weights, 1)
    for value, transposed in zip(summary, summarise_weights(log_weights.mT, 0), strict=True):
        torch.testing.assert_close(value, transposed)
    w = np.exp(log_weights[1:].numpy() + 2000.0)
    np.testing.assert_allclose(summary.log_mean[1:], np.log(w.mean(1)) - 2000.0)
    np.testing.assert_allclose(
        summary.standard_error[1:], stats.sem(w, axis=1) / w.mean(1), rtol=1e-10
    )
    np.testing.assert_allclose(
        summary.effective_sample_size[1:], w.sum(1) ** 2 / (w**2).sum(1), rtol=1e-10
    )
    same = [float(value[0]) for value in summary]
    assert same == [pytest.approx(-3.0), 0.0, 500.0]
