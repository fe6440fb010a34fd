"""Symmetric matrices with an arrow: a dense block, and a diagonal block beside it.

The Gram matrix of a design with a column for each level of a factor has this form. A document has
one level, so the columns of different levels never meet. Schur complements keep all work linear in
the number of levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Arrow:
    """The symmetric matrix ``[[dense, crossed], [crossedᵀ, diag(diagonal)]]``.

    Args:
        dense: ``(..., num_dense, num_dense)``.
        crossed: ``(..., num_dense, num_levels)``.
        diagonal: ``(..., num_levels)``.
    """

    dense: Tensor
    crossed: Tensor
    diagonal: Tensor

    def plus(self, dense: Tensor, levels: Tensor) -> Arrow:
        """The sum with a diagonal matrix.

        Args:
            dense: ``(..., num_dense)`` first part of its diagonal.
            levels: ``(..., num_levels)`` second part, or a part that broadcasts to this shape.
        """
        return Arrow(self.dense + torch.diag_embed(dense), self.crossed, self.diagonal + levels)

    def times(self, dense: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Product with a matrix of the rows ``dense`` and ``levels``, in the same two parts."""
        return (
            self.dense @ dense + self.crossed @ levels,
            self.crossed.mT @ dense + self.diagonal[..., None] * levels,
        )

    @cached_property
    def ratio(self) -> Tensor:
        """``crossed / diagonal`` ``(..., num_dense, num_levels)``."""
        return self.crossed / self.diagonal[..., None, :]

    @cached_property
    def tril(self) -> Tensor:
        """Cholesky factor of the Schur complement ``(..., num_dense, num_dense)``."""
        complement = self.dense - self.ratio @ self.crossed.mT
        tril: Tensor = torch.linalg.cholesky((complement + complement.mT) / 2)
        return tril

    @cached_property
    def dense_inverse(self) -> Tensor:
        """Dense block of the inverse ``(..., num_dense, num_dense)``."""
        inverse: Tensor = torch.cholesky_inverse(self.tril)
        return inverse

    @cached_property
    def log_det(self) -> Tensor:
        """Logarithm of the determinant ``(...)``."""
        complement = 2 * self.tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return complement + self.diagonal.log().sum(-1)

    def solve(self, dense: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Product of the inverse with the rows ``dense`` and ``levels``, in the same two parts.

        Args:
            dense: ``(..., num_dense, num_columns)``.
            levels: ``(..., num_levels, num_columns)``.
        """
        first = torch.cholesky_solve(dense - self.ratio @ levels, self.tril)
        return first, levels / self.diagonal[..., None] - self.ratio.mT @ first

    def inverse_diagonal(self) -> tuple[Tensor, Tensor]:
        """Diagonal of the inverse: ``(..., num_dense)`` and ``(..., num_levels)``."""
        spread = (self.ratio * (self.dense_inverse @ self.ratio)).sum(-2)
        return self.dense_inverse.diagonal(dim1=-2, dim2=-1), 1 / self.diagonal + spread

    def sandwich_diagonal(self, inner: Arrow) -> tuple[Tensor, Tensor]:
        """Diagonal of inverse · inner · inverse, in the same two parts."""
        # The first rows of the inverse are dense_inverse · [I, −ratio].
        crossed = inner.crossed - self.ratio * inner.diagonal[..., None, :]
        meat = inner.dense - inner.crossed @ self.ratio.mT - self.ratio @ crossed.mT
        weights = self.dense_inverse @ self.crossed
        dense = (self.dense_inverse @ meat * self.dense_inverse).sum(-1)
        levels = inner.diagonal - 2 * (crossed * weights).sum(-2)
        levels = levels + (weights * (meat @ weights)).sum(-2)
        return dense, levels / self.diagonal.square()

    def draw(self, dense: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with the inverse as covariance, from independent standard normal rows.

        Args:
            dense: ``(num_dense, num_columns)`` standard normal numbers.
            levels: ``(num_levels, num_columns)`` standard normal numbers.
        """
        first = torch.linalg.solve_triangular(self.tril.mT, dense, upper=True)
        return first, levels / self.diagonal.sqrt()[..., None] - self.ratio.mT @ first
