"""Likelihoods of words: what their constructors refuse."""

from __future__ import annotations

import pytest
import torch

from torch_lntm.errors import ConfigError
from torch_lntm.models import DirichletMultinomial


@pytest.mark.parametrize(
    "number", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([2.0, 3.0])]
)
def test_a_concentration_is_one_positive_number(number) -> None:
    with pytest.raises(ConfigError, match=r"concentration is .*; expected one positive number"):
        DirichletMultinomial(number)
