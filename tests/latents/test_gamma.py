"""Gamma coordinates of a Dirichlet prior: their law, and the way back from proportions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from torch_lntm import noise
from torch_lntm.latents import GammaSpace


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("concentration", [0.003, 0.3, 3.0, 300.0])
def test_gamma_coordinates_have_the_density_of_gamma_variates(concentration, device) -> None:
    """Quadrature of the density, and draws, against SciPy's distribution."""
    alpha = torch.tensor([concentration], dtype=torch.float64, device=device)
    space = GammaSpace(alpha)
    grid = torch.linspace(-12, 12, 60_001, dtype=torch.float64, device=device)[:, None]
    parts = space.log_gamma(grid)
    density = space.log_density(grid).exp() * float(grid[1] - grid[0])
    cdf = density.cumsum(0).cpu().numpy()
    assert cdf[-1] == pytest.approx(1, abs=1e-8)
    law = stats.gamma(concentration)
    x = parts.value[:, 0].cpu().numpy()
    # The range in which gamma variates can be represented. The sum is half a step late.
    seen = x > -600
    np.testing.assert_allclose(cdf[seen], law.cdf(np.exp(x[seen])), atol=1e-3)
    back = space.whiten(parts.value)
    near = (grid.abs() < 6)[:, 0]
    torch.testing.assert_close(space.logits(back)[near], parts.value[near])
    keys = noise.document_keys(0, torch.arange(3000, device=device), 1)[0]
    u = law.cdf(np.exp(space.logits(space.draw(keys)).cpu().numpy()))[:, 0]
    # False-failure rate 1e-6 in each of four cases. Below the smallest number all are equal.
    u = np.where(u > 0, u, law.cdf(1e-300) * np.linspace(0, 1, 3000))
    assert stats.kstest(u, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("concentration", [1e-12, 1e-8, 0.01, 1.0, 1e5])
def test_whiten_inverts_log_gamma(concentration: float, device: torch.device) -> None:
    """Holds between the tail and the wall too, where small α needs many steps."""
    x = torch.cat(
        [
            torch.linspace(-30.0, 20.0, 2001, dtype=torch.float64, device=device),
            torch.linspace(-40.0, 0.0, 2001, dtype=torch.float64, device=device) / concentration,
        ]
    )
    alpha = torch.full((len(x),), concentration, dtype=torch.float64, device=device)
    space = GammaSpace(alpha)
    torch.testing.assert_close(space.logits(space.whiten(x)), x, rtol=1e-12, atol=1e-12)


def test_locate_returns_coordinates_of_the_given_theta(device: torch.device) -> None:
    alpha = torch.tensor([0.02, 0.5, 3.0], dtype=torch.float64, device=device)
    space = GammaSpace(alpha)
    keys = noise.document_keys(1, torch.arange(4000, device=device), 1)
    theta = torch.softmax(space.logits(space.draw(noise.fold_in(keys, 0))), -1)
    z = space.locate({"theta": theta}, noise.fold_in(keys, 1))
    torch.testing.assert_close(torch.softmax(space.logits(z), -1), theta)
    # With theta from the prior, z is from the prior. This holds for theta rounded to 0 too.
    rounded = space.locate({"theta": theta.float()}, noise.fold_in(keys, 1))
    assert bool((theta.float() == 0).any())
    prior = space.draw(noise.fold_in(keys, 2))[0].cpu().numpy()
    for values in (z[0].cpu().numpy(), rounded[0].cpu().numpy()):
        for k in range(3):
            # Six tests at 1e-6.
            assert stats.ks_2samp(values[:, k], prior[:, k]).pvalue > 1e-6
