"""Identified coordinates: the draws of proposals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from torch_lntm.latents.identified import (
    draw_noise,
    elliptical_draws,
    log_gamma_variates,
    noise_log_density,
)


@pytest.mark.parametrize("nu", [2.5, 5.0, math.inf])
def test_noise_has_the_stated_density(nu: float) -> None:
    noise = draw_noise(20_000, 3, (1, 2), nu)
    expected = stats.multivariate_t(np.zeros(3), df=nu)
    np.testing.assert_allclose(noise_log_density(noise[:50], nu), expected.logpdf(noise[:50]))
    # Each coordinate has the univariate density; false-failure rate 1e-6 per coordinate.
    for column in noise.numpy().T:
        assert stats.kstest(column, stats.t(nu).cdf).pvalue > 1e-6
    assert torch.equal(noise, draw_noise(20_000, 3, (1, 2), nu))
    assert not torch.equal(noise, draw_noise(20_000, 3, (2, 1), nu))


@pytest.mark.parametrize("nu", [5.0, math.inf])
def test_elliptical_draws_have_the_stated_density(nu: float) -> None:
    loc = torch.tensor([1.0, -2.0]).double()
    tril = torch.tensor([[2.0, 0.0], [0.5, 0.3]]).double()
    z, log_q = elliptical_draws(loc, tril, nu, 20, (7,))
    law = stats.multivariate_t(loc.numpy(), (tril @ tril.mT).numpy(), df=nu)
    np.testing.assert_allclose(log_q, law.logpdf(z))
    torch.testing.assert_close(z, loc + draw_noise(20, 2, (7,), nu) @ tril.mT)


@pytest.mark.parametrize("shape", [1e-3, 0.3, 4.0])
def test_logs_of_gamma_variates(shape: float) -> None:
    # False-failure rate 1e-6 each. The logs of small shapes are far below any float's.
    values = log_gamma_variates(np.random.default_rng(0), np.full(5000, shape)).numpy()
    assert stats.kstest(values, stats.loggamma(shape).cdf).pvalue > 1e-6
