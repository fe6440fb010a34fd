"""Quadrature on a space's grid: its error with few points, and the reach of the grid."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracles.grids import grid_around, marginal_by_quadrature
from oracles.quadrature import log_marginals

from torch_lntm.corpus import Corpus
from torch_lntm.guides import LaplaceGuide, make_guide
from torch_lntm.kernels.likelihood import Cells
from torch_lntm.latents import NormalSpace
from torch_lntm.latents.contrasts import ContrastSpace
from torch_lntm.latents.sticks import StickSpace
from torch_lntm.models import ctm, lda


def integrate(model, corpus: Corpus, num_points: int) -> tuple[float, float]:
    batch = corpus.batch(dtype=torch.float64)
    space = model.prior.identified(batch)
    posterior = make_guide(space.reference, model).posterior(batch)
    words = model.topics.probs.detach().mT[batch.word_index]
    value, error = marginal_by_quadrature(space, posterior, 0, words, Cells.of(batch), num_points)
    return float(value), float(error)


@pytest.mark.slow
def test_the_error_covers_the_distance_from_the_truth() -> None:
    topics = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    model = ctm(2, 3, loc=torch.tensor([0.5, -0.5]), topics=topics, dtype="float64")
    corpus = Corpus.from_matrix([[30, 4, 12]])
    truth = log_marginals(
        corpus.to_scipy().toarray(),
        model.topics.probs.detach().numpy(),
        model.prior.loc.detach().numpy(),
        model.prior.covariance.detach().numpy(),
        num_points=4001,
    )[0]
    for num_points in (11, 21, 51, 201):
        value, error = integrate(model, corpus, num_points)
        assert abs(value - truth) <= error + 1e-10
    assert error < 1e-8


@pytest.mark.parametrize("kind", ["ctm", "lda"])
def test_a_grid_dominated_by_one_point_has_infinite_error(kind: str) -> None:
    # The posterior of millions of tokens is far narrower than the spacing of 11 points. The grid is
    # placed by a posterior that is far too wide.
    topics = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
    corpus = Corpus.from_matrix([[60_000_000, 40_000_000]])
    if kind == "ctm":
        model = ctm(2, 2, covariance=50.0 * torch.eye(2), topics=topics, dtype="float64")
        wide = LaplaceGuide(model)
        batch = Corpus.from_matrix([[3, 2]]).batch(dtype=torch.float64)
    else:
        model = lda(2, 2, topics=topics, concentration=0.5, dtype="float64")
        wide = make_guide("vb", model)
        batch = Corpus.from_matrix([[3, 2]]).batch(dtype=torch.float64)
    posterior = wide.posterior(batch)
    whole = corpus.batch(dtype=torch.float64)
    space = model.prior.identified(whole)
    words = model.topics.probs.detach().mT[whole.word_index]
    value, error = marginal_by_quadrature(space, posterior, 0, words, Cells.of(whole), 11)
    assert math.isinf(error)
    assert math.isfinite(value)


def test_documents_may_have_their_own_prior_means() -> None:
    topics = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(6), 3))
    model = ctm(3, 6, topics=topics, dtype="float64")
    corpus = Corpus.from_matrix(np.random.default_rng(1).poisson(2.0, (3, 6)))
    batch = corpus.batch(dtype=torch.float64)
    shared = model.prior.identified(batch)
    loc = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = replace(shared, loc=loc)
    posterior = LaplaceGuide(model).posterior(batch)
    for row in range(3):
        alone = replace(shared, loc=loc[row])
        document = batch.select(torch.tensor([row]))
        words = model.topics.probs.detach().mT[document.word_index]
        values = [
            marginal_by_quadrature(space, posterior, row, words, Cells.of(document), 101)[0]
            for space in (own, alone)
        ]
        torch.testing.assert_close(*values, atol=1e-12, rtol=0)


def test_the_prior_is_negligible_outside_the_grid_of_contrasts() -> None:
    """Holds on the near side of a posterior far from the prior mean too."""
    zero, eye = torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    space = ContrastSpace.of(NormalSpace(zero, eye))
    mean = torch.tensor([[9.0, -4.0, -5.0]], dtype=torch.float64)
    posterior = SimpleNamespace(mean=mean, scale_tril=0.1 * eye[None])
    depth = torch.tensor(45.0, dtype=torch.float64)
    grid = grid_around(space, posterior, 0, lambda z: depth, 11)
    lowest = float(space.log_density(grid.centre) - depth)
    # Points all around the grid.
    corner = grid.ends.sinh()
    along = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)[:, None] * corner
    for end in (-1.0, 1.0):
        for axis in range(space.dim):
            side = along.clone()
            side[:, axis] = end * corner[axis]
            z = grid.centre + side @ grid.scale.mT
            assert float(space.log_density(z).max()) <= lowest


def test_the_prior_is_negligible_outside_the_grid_of_sticks() -> None:
    """Holds on the near side of a posterior far from the middle too."""
    alpha = torch.tensor([1.0, 1.0], dtype=torch.float64)
    space = StickSpace.of(alpha)
    posterior = SimpleNamespace(gamma=torch.tensor([[2000.0, 1.0]], dtype=torch.float64))
    depth = torch.tensor(45.0, dtype=torch.float64)
    grid = grid_around(space, posterior, 0, lambda z: depth, 11)
    lowest = space.log_density(grid.centre) - depth
    for end in (-grid.ends, grid.ends):
        z = grid.centre + grid.scale @ end.sinh()
        assert float(space.log_density(z)) <= float(lowest)
