"""Noise of reference chains and of a guide's draws."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

from studies.scores.accuracy.reference import GUIDE_DRAWS, Reference


def test_noise_includes_the_guides_draws_of_theta() -> None:
    parts = {field.name: torch.zeros(1, 2).double() for field in fields(Reference)}
    parts["covariance"] = torch.eye(2).double()[None]
    parts["theta_error"] = torch.tensor([[0.003, 0.003]]).double()
    parts["theta_variance"] = torch.full((1, 2), 0.004**2 * GUIDE_DRAWS).double()
    reference = Reference(**parts)
    # Half the sum of two mean absolute deviations of normal errors.
    unit = math.sqrt(2.0 / math.pi)
    assert float(reference.noise(True).total_variation) == pytest.approx(0.003 * unit)
    assert float(reference.noise(False).total_variation) == pytest.approx(0.005 * unit)
