"""Contrasts and triangular factors."""

from __future__ import annotations

import pytest
import torch

from torch_lntm.latents.linalg import contrast_basis, inverse_of_lower, triangular_factor


@pytest.mark.parametrize("num_topics", [2, 3, 17])
def test_contrast_basis(num_topics: int) -> None:
    basis = contrast_basis(num_topics)
    assert basis.shape == (num_topics - 1, num_topics)
    torch.testing.assert_close(basis @ basis.T, torch.eye(num_topics - 1).double())
    torch.testing.assert_close(basis.sum(1), torch.zeros(num_topics - 1).double())


def test_triangular_factor() -> None:
    factor = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lower = triangular_factor(factor)
    torch.testing.assert_close(lower @ lower.mT, factor @ factor.mT)
    assert torch.equal(lower, lower.tril())
    assert bool((lower.diagonal(dim1=-2, dim2=-1) > 0).all())


def test_inverse_of_lower() -> None:
    lower = torch.arange(3.0 * 65 * 65).double().view(3, 65, 65).sin().tril()
    lower.diagonal(dim1=1, dim2=2).abs_().add_(65.0)
    inverse = inverse_of_lower(lower)
    assert torch.equal(inverse, inverse.tril())
    torch.testing.assert_close(inverse, torch.linalg.inv(lower))
