"""Bounds on the expected log normaliser and on log p(w)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import gaussian as oracle
from oracles.quadrature import log_marginals
from scipy import optimize
from scipy.special import logsumexp, softmax
from support.problems import random_problem

from torch_lntm.errors import ConfigError
from torch_lntm.guides import GUIDES
from torch_lntm.latents import NormalSpace
from torch_lntm.solvers.bounds import tangent_log_normaliser, tilted_log_normaliser


def diagonal(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def normals(scale: float, num_topics: int = 3, count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(count, num_topics, num_topics)) * np.sqrt(scale)
    return rng.normal(size=(count, num_topics)) * 2, roots @ roots.mT


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_normalisers_against_direct_minimisation(device, scale) -> None:
    mean, covariance = normals(scale, count=2)
    m, v = torch.from_numpy(mean).to(device), torch.from_numpy(covariance).to(device)
    tangent = tangent_log_normaliser(m, diagonal(v)).tolist()
    tilted = tilted_log_normaliser(m, v).tolist()
    for d in range(len(mean)):
        zero = oracle.tilted(mean[d], covariance[d], np.zeros(3))
        assert tangent[d] == pytest.approx(oracle.tangent(mean[d], covariance[d]), rel=1e-12)
        assert tangent[d] == pytest.approx(zero, rel=1e-12)
        # The bound is convex in a, and its minimum lies in the simplex.
        best = min(
            optimize.minimize(
                lambda b: oracle.tilted(mean[d], covariance[d], softmax(b)),  # noqa: B023
                start,
                method="Nelder-Mead",
                options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 4000},
            ).fun
            for start in (np.zeros(3), mean[d])
        )
        assert tilted[d] <= best + 1e-8 * abs(best)
        assert tilted[d] == pytest.approx(best, rel=1e-4)


def test_normalisers_are_upper_bounds_and_tilted_ignores_a_common_shift() -> None:
    mean, covariance = normals(1.0)
    m, v = torch.from_numpy(mean), torch.from_numpy(covariance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = np.stack(np.meshgrid(nodes, nodes, nodes), -1).reshape(-1, 3)
    w = np.prod(np.meshgrid(weights, weights, weights), 0).ravel() / np.sqrt(2 * np.pi) ** 3
    tangent, tilted = tangent_log_normaliser(m, diagonal(v)), tilted_log_normaliser(m, v)
    for d in range(len(mean)):
        exact = w @ logsumexp(mean[d] + z @ np.linalg.cholesky(covariance[d]).T, axis=1)
        assert exact < tilted[d].item() < tangent[d].item()
    torch.testing.assert_close(tilted_log_normaliser(m, v + 1e4), tilted, rtol=1e-7, atol=0)
    assert bool((tangent_log_normaliser(m, diagonal(v) + 1e4) > tangent + 4000).all())


@pytest.mark.slow
@pytest.mark.parametrize("num_topics", [2, 3])
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize(
    "name", [n for n, g in GUIDES.items() if issubclass(NormalSpace, g.space_type)]
)
def test_the_tangent_bound_is_below_the_tilted_bound_and_log_p(
    device, name, anchored, num_topics
) -> None:
    problem = random_problem(
        num_topics, 12, lengths=(40, 1, 0, 9, 100), anchored=anchored, scale=2.0
    )
    model, batch = problem.model(device), problem.batch(device)
    guide = GUIDES[name](model, tolerance=1e-8)
    posterior = guide.posterior(batch)
    exact = log_marginals(problem.counts, problem.topics, *problem.lifted(), num_points=401)
    tangent = guide.bound(batch, posterior, "tangent").cpu().numpy()
    tilted = guide.bound(batch, posterior).cpu().numpy()
    assert np.all(tangent <= tilted + 1e-9)
    assert np.all(tilted <= exact + 1e-6)
    written = [
        oracle.tangent_elbo(m, v, c, problem.topics, problem.loc, problem.covariance)
        for m, v, c in zip(
            posterior.mean.cpu().numpy(),
            posterior.covariance.cpu().numpy(),
            problem.counts,
            strict=True,
        )
    ]
    np.testing.assert_allclose(tangent, written, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(guide.bound(batch), guide.bound(batch, posterior, "tilted"))


def test_an_unknown_kind_of_bound_is_refused() -> None:
    problem = random_problem()
    guide = GUIDES["taylor"](problem.model())
    with pytest.raises(ConfigError, match="bound kind 'jensen'; expected 'tangent' or 'tilted'"):
        guide.bound(problem.batch(), kind="jensen")
