"""Quadrature on a space's grid says how far it may be from the truth."""

from __future__ import annotations

import math

import pytest
import torch
from oracles.grids import marginal_by_quadrature
from oracles.quadrature import log_marginals

from torch_lntm.corpus import Corpus
from torch_lntm.guides import LaplaceGuide, make_guide
from torch_lntm.guides.table import guides_suited
from torch_lntm.models import ctm


def integrate(model, corpus: Corpus, num_points: int) -> tuple[float, float]:
    batch = corpus.batch(dtype=torch.float64)
    space = model.prior.identified(batch)
    posterior = make_guide(guides_suited(model).centre, model).posterior(batch)
    words = model.topics.probs.detach().mT[batch.word_index]
    value, error = marginal_by_quadrature(space, posterior, 0, words, batch, num_points)
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


def test_a_grid_dominated_by_one_point_has_infinite_error() -> None:
    # The posterior of millions of tokens is far narrower than the spacing of 11 points. The grid is
    # placed by a posterior that is far too wide.
    topics = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
    model = ctm(2, 2, covariance=50.0 * torch.eye(2), topics=topics, dtype="float64")
    few = Corpus.from_matrix([[3, 2]]).batch(dtype=torch.float64)
    whole = Corpus.from_matrix([[60_000_000, 40_000_000]]).batch(dtype=torch.float64)
    words = model.topics.probs.detach().mT[whole.word_index]
    value, error = marginal_by_quadrature(
        model.prior.identified(whole), LaplaceGuide(model).posterior(few), 0, words,
        whole, 11,
    )  # fmt: skip
    assert math.isinf(error)
    assert math.isfinite(value)
