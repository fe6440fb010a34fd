"""Units of the distances between posteriors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from studies.scores.accuracy.accuracy import standardising
from torch_lntm.corpus import Corpus
from torch_lntm.models import ctm, iftm, lda


@pytest.mark.parametrize(
    "make",
    [
        lambda: ctm(4, 6, covariance=_covariance(4)),
        lambda: ctm(4, 6, anchored=True, covariance=_covariance(3)),
        lambda: iftm(4, 6, 2, mixing=torch.arange(8.0).view(4, 2).sin()),
        lambda: iftm(4, 6, 2, source="laplace", mixing=torch.arange(8.0).view(4, 2).sin()),
    ],
    ids=["free", "anchored", "gaussian sources", "laplace sources"],
)
def test_standardised_logits_have_prior_variance_1(make: Any) -> None:
    prior = make().double().prior
    batch = Corpus.from_matrix(np.ones((2, 6), int)).batch(dtype=torch.float64)
    standardiser = standardising(prior.identified(batch))
    covariance = standardiser.mT @ prior.covariance.detach().double() @ standardiser
    torch.testing.assert_close(covariance.diagonal(), torch.ones(4).double())
    # Centred: the common part of all topics is removed.
    if len(standardiser) == 4:
        torch.testing.assert_close(standardiser.sum(0), torch.zeros(4).double())


def test_standardised_theta_has_prior_variance_1() -> None:
    alpha = torch.tensor([0.3, 2.0, 0.7], dtype=torch.float64)
    model = lda(3, 6, concentration=alpha).double()
    batch = Corpus.from_matrix(np.ones((2, 6), int)).batch(dtype=torch.float64)
    standardiser = standardising(model.prior.identified(batch))
    variance = torch.distributions.Dirichlet(alpha).variance
    torch.testing.assert_close(standardiser.diagonal().square() * variance, torch.ones(3).double())


def _covariance(size: int) -> torch.Tensor:
    root = torch.arange(float(size**2)).view(size, size).cos()
    return root @ root.mT + 0.1 * torch.eye(size)
