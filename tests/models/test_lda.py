"""The generative aspect model: its density, its M-step, and refused arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import digamma, gammaln, polygamma
from support.pairs import make_model, prior_draws, start_prior

from torch_lntm.models import lda


def test_draws_have_the_prior_distribution(device) -> None:
    """Marginals are beta: 4 Kolmogorov–Smirnov tests, false-failure rate 4e-6."""
    alpha = np.array([0.02, 0.5, 1.0, 7.0])
    model = make_model("lda", concentration=torch.from_numpy(alpha)).to(device)
    theta = prior_draws(model, 20_000, device)["theta"].cpu()
    torch.testing.assert_close(theta.sum(1), torch.ones(20_000).double())
    for k in range(4):
        beta = stats.beta(alpha[k], alpha.sum() - alpha[k])
        assert stats.kstest(theta[:, k].numpy(), beta.cdf).pvalue > 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiny_concentrations_still_draw_valid_proportions(dtype) -> None:
    model = lda(5, 4, concentration=1e-4, dtype=dtype)
    theta = prior_draws(model, 1000)["theta"]
    assert bool(torch.isfinite(theta).all())
    torch.testing.assert_close(theta.sum(1), torch.ones(1000, dtype=theta.dtype))


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_m_step_maximises_equation_30(symmetric) -> None:
    rng = np.random.default_rng(0)
    gamma = rng.gamma(2.0, size=(9, 3)) + 0.1
    mean_log = (digamma(gamma) - digamma(gamma.sum(1, keepdims=True))).sum(0)

    def loss(log_alpha: np.ndarray) -> float:
        alpha = np.exp(np.broadcast_to(log_alpha, 3))
        return -(9 * (gammaln(alpha.sum()) - gammaln(alpha).sum()) + (alpha - 1) @ mean_log)

    best = optimize.minimize(loss, np.zeros(1 if symmetric else 3), options={"gtol": 1e-9})
    model = lda(3, 5, symmetric=symmetric, dtype="float64")
    model.prior.m_step(9, log_theta_sum=torch.from_numpy(mean_log))
    expected = np.broadcast_to(np.exp(best.x), 3)
    np.testing.assert_allclose(model.prior.concentration.tolist(), expected, rtol=1e-5)


def test_a_fixed_concentration_is_unchanged_by_fits() -> None:
    model = lda(3, 5, concentration=0.7, learn_concentration=False)
    model.prior.m_step(4, log_theta_sum=torch.tensor([-1.0, -2.0, -9.0]))
    start_prior(model, torch.tensor([[0.8, 0.1, 0.1]]))
    assert model.prior.concentration.tolist() == pytest.approx([0.7] * 3)
    assert "prior.log_concentration" not in dict(model.named_parameters())
    assert "prior.log_concentration" in model.state_dict()


def test_topic_correlations_match_the_centred_log_proportions() -> None:
    model = make_model("lda")
    alpha = model.prior.concentration.detach().numpy()
    centre = np.eye(4) - 0.25
    covariance = np.diag(polygamma(1, alpha)) - polygamma(1, alpha.sum())
    np.testing.assert_allclose(
        model.prior.contrast_covariance().numpy(), centre @ covariance @ centre, atol=1e-12
    )
