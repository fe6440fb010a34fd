"""The bridge: a target in the coordinates of a normal, and the fit of this normal by chains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from oracles.factor import random_factor_problem
from support.problems import make_batch, random_problem
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.contrasts import ContrastSpace, SourceContrastSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.sampling import ais
from torch_lntm.sampling.bridge import Bridge

LENGTHS = (30, 1, 60, 3)


def make_bridge(kind: str, device: torch.device, seed: int = 0) -> Bridge:
    """A bridge from a normal unrelated to the posterior."""
    problem: Any
    if kind == "laplace":
        problem = random_factor_problem(lengths=LENGTHS, source="laplace")
        space: IdentifiedSpace = SourceContrastSpace.of(problem.space(device))
    else:
        problem = random_problem(lengths=LENGTHS)
        space = ContrastSpace.of(problem.space(device))
    rng = np.random.default_rng(seed)
    loc = 0.3 * rng.normal(size=(len(LENGTHS), space.dim))
    factor = np.tril(0.2 * rng.normal(size=(*loc.shape, space.dim)), -1) + np.eye(space.dim)
    return Bridge(
        space=space,
        topics=torch.from_numpy(problem.topics).to(device),
        batch=make_batch(problem.counts, device),
        padded=True,
        loc=torch.from_numpy(loc).to(device),
        factor=torch.from_numpy(factor).to(device),
    )


def draws(bridge: Bridge, num_chains: int = 3, seed: int = 0) -> Tensor:
    return bridge.draw_prior(noise.document_keys(seed, bridge.batch.index, num_chains))


def z_of(bridge: Bridge, u: Tensor) -> Tensor:
    return bridge.loc + torch.einsum("dij,cdj->cdi", bridge.factor, u)


each_kind = pytest.mark.parametrize("kind", ["normal", "laplace"])


@each_kind
def test_densities_add_up_to_the_density_of_the_space(kind: str, device: torch.device) -> None:
    bridge = make_bridge(kind, device)
    u = draws(bridge)
    z = z_of(bridge, u)
    plain = DocumentTarget(bridge.space, bridge.topics, bridge.batch)
    log_det = bridge.factor.diagonal(dim1=1, dim2=2).log().sum(1)
    log_prior, log_likelihood = plain.log_joint(z)
    expected = log_prior + log_likelihood + log_det
    torch.testing.assert_close(bridge.log_prior(u) + bridge.likelihood(u)[0], expected)
    torch.testing.assert_close(sum(bridge.log_joint(u)), expected)
    torch.testing.assert_close(bridge.theta(u), plain.theta(z))
    normal = torch.distributions.MultivariateNormal(bridge.loc, scale_tril=bridge.factor)
    torch.testing.assert_close(bridge.log_prior(u) - log_det, normal.log_prob(z))


@each_kind
def test_gradients_equal_finite_differences(kind: str, device: torch.device) -> None:
    bridge = make_bridge(kind, device)
    u, h = draws(bridge), 1e-6
    gradient = bridge.likelihood(u)[1]
    torch.testing.assert_close(bridge.likelihood_gradient(u), gradient)
    for unit in h * torch.eye(bridge.dim, dtype=u.dtype, device=device):
        k = int(unit.argmax())
        for density, slopes in (
            (bridge.log_prior, bridge.prior_gradient(u)),
            (lambda u: bridge.likelihood(u)[0], gradient),
        ):
            slope = (density(u + unit) - density(u - unit)) / (2 * h)
            torch.testing.assert_close(slopes[..., k], slope, rtol=1e-5, atol=1e-5)


@each_kind
def test_locate_inverts_the_map_to_sites(kind: str, device: torch.device) -> None:
    bridge = make_bridge(kind, device)
    u = draws(bridge)
    keys = noise.document_keys(1, bridge.batch.index, len(u))
    found = bridge.locate(bridge.space.latents(z_of(bridge, u)), keys)
    torch.testing.assert_close(found, u)


def test_a_moved_bridge_has_the_given_moments(device: torch.device) -> None:
    bridge = make_bridge("normal", device)
    mean, scale = draws(bridge)[0], draws(bridge)[1].abs() + 0.1
    moved = bridge.moved(mean, scale)
    u = draws(bridge, seed=2)
    torch.testing.assert_close(z_of(moved, u), z_of(bridge, mean + scale * u))
    # The density of the documents is unchanged.
    of_moved = moved.log_prior(u) + moved.likelihood(u)[0] - scale.log().sum(-1)
    inside = mean + scale * u
    torch.testing.assert_close(of_moved, bridge.log_prior(inside) + bridge.likelihood(inside)[0])


@pytest.mark.slow
@pytest.mark.stat
@each_kind
def test_chains_fit_the_normal_to_the_posterior(kind: str, device: torch.device) -> None:
    """Means of z against integration over prior draws, and weights that vary less."""
    bridge = make_bridge(kind, device)
    schedule = ais.make_schedule(32, from_prior=False)
    keys = noise.document_keys(0, bridge.batch.index, 2)
    fitted, transitions = ais.fit(bridge, schedule, keys, 4)
    # The fit depends on the document and the seed alone, for any number of chains.
    again, _ = ais.fit(bridge, schedule, keys[:1], 4)
    torch.testing.assert_close(again.loc, fitted.loc)
    assert bool((transitions.log_step_size <= math.log(math.pi / 8) + 1 / 32).all())
    plain = DocumentTarget(bridge.space, bridge.topics, bridge.batch, padded=True)
    z = plain.draw_prior(noise.document_keys(1, bridge.batch.index, 20_000))
    weights = torch.softmax(plain.log_joint(z)[1], 0)[..., None]
    exact = (weights * z).sum(0)
    spread = (weights * (z - exact).square()).sum(0).sqrt()
    # 192 draws, which are correlated if the first normal is far too narrow.
    assert float(((fitted.loc - exact) / spread).square().mean().sqrt()) < 0.5
    sizes = [
        1 / torch.softmax(b.likelihood(draws(b, 4000, seed=3))[0], 0).square().sum(0)
        for b in (bridge, fitted)
    ]
    assert bool((sizes[1] > 1.2 * sizes[0]).all())
