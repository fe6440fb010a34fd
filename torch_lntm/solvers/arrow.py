"""Symmetric matrices with an arrow: a dense block, and a diagonal block beside it.

The Gram matrix of a design with a column for each level of a factor has this form, because a
document has one level and the columns of different levels never meet. Schur complements then keep
all work linear in the number of levels.

With S = dense − crossed · diagonal⁻¹ · crossedᵀ, the Schur complement, and R = crossed / diagonal,
the inverse is

    [[S⁻¹, −S⁻¹R], [−RᵀS⁻¹, diagonal⁻¹ + RᵀS⁻¹R]] = diag(0, diagonal⁻¹) + Z S⁻¹ Zᵀ,   Z = [I; −Rᵀ].

Products, diagonals and draws follow from the second form, so only S is ever factored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
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
        # Rounding makes the product slightly asymmetric, but the Cholesky factor reads only one
        # half.
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
        # The first part has the covariance S⁻¹. Given it, the levels are independent, with the mean
        # −Rᵀ · first and the variances 1 / diagonal.
        first = torch.linalg.solve_triangular(self.tril.mT, dense, upper=True)
        return first, levels / self.diagonal.sqrt()[..., None] - self.ratio.mT @ first


class Levels:
    """Columns for the levels of several terms, in place of a dense design.

    The term with the most levels is the diagonal block of the Gram matrix. The dense block holds
    other columns first, and then the levels of all other terms.

    Args:
        sizes: Number of levels of each term.

    Attributes:
        sizes: Number of levels of each term.
        num_levels: Number of levels of all terms.
        num_other: Number of levels of all terms but the largest.
        largest: Number of levels of the largest term.
        main: Position of the largest term.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.num_levels = sum(sizes)
        self.main = int(np.argmax(self.sizes))
        self.largest = self.sizes[self.main]
        self.num_other = self.num_levels - self.largest
        self._pairs = list(combinations(range(len(self.sizes)), 2))

    @property
    def num_pairs(self) -> int:
        """Bound on the pairs of levels of two terms."""
        return self.num_other * self.num_levels

    def divide(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of all terms but the largest, and rows of the largest term.

        Args:
            rows: ``(num_levels, ...)`` rows of all terms, one term after the other.
        """
        parts = list(rows.split(self.sizes))
        main = parts.pop(self.main)
        return torch.cat([*parts, rows[:0]]), main

    def join(self, other: Tensor, main: Tensor) -> Tensor:
        """Inverse of :meth:`divide`."""
        sizes = [size for j, size in enumerate(self.sizes) if j != self.main]
        parts = list(other.split(sizes)) if sizes else []
        parts.insert(self.main, main)
        return torch.cat(parts)

    def repeat(self, values: Tensor) -> Tensor:
        """Values ``(..., num_terms)`` of the terms, for each of their levels."""
        sizes = torch.tensor(self.sizes, device=values.device)
        return values.repeat_interleave(sizes, -1, output_size=self.num_levels)

    def sums(self, values: Tensor, positions: Tensor) -> Tensor:
        """Sums of documents' values over each level ``(num_levels, num_columns)``.

        Args:
            values: ``(num_docs, num_columns)``.
            positions: ``(num_docs, num_terms)`` level of each document; -1 for none.
        """
        sums = []
        for size, at in zip(self.sizes, positions.mT, strict=True):
            total = values.new_zeros(size + 1, values.shape[1])
            sums.append(total.index_add_(0, at.where(at >= 0, size), values)[:-1])
        return torch.cat(sums)

    def pairs(self, weights: Tensor, positions: Tensor) -> Tensor:
        """Weights of the documents of each pair of levels of two terms, in one vector.

        Args:
            weights: ``(num_docs,)``.
            positions: As for :meth:`sums`.
        """
        tables = [weights[:0]]
        for i, j in self._pairs:
            used = (positions[:, i] >= 0) & (positions[:, j] >= 0)
            at = (positions[:, i] * self.sizes[j] + positions[:, j])[used]
            size = self.sizes[i] * self.sizes[j]
            tables.append(weights.new_zeros(size).index_add_(0, at, weights[used]))
        return torch.cat(tables)

    def gram(self, columns: Tensor, crossed: Tensor, counts: Tensor, pairs: Tensor) -> Arrow:
        """Gram matrix of a few columns and of all levels.

        Args:
            columns: ``(num_columns, num_columns)`` Gram matrix of the columns.
            crossed: ``(num_levels, num_columns)`` sums of the columns over each level.
            counts: ``(num_levels,)`` weights of the documents of each level.
            pairs: Result of :meth:`pairs`.
        """
        # The dense block holds the columns first, then the levels of every term but the largest.
        # Levels of one term share no documents, so their block is diagonal; levels of two terms
        # share the documents of their pair.
        size = len(columns)
        other, main = self.divide(crossed)
        dense = columns.new_zeros(size + self.num_other, size + self.num_other)
        dense[:size, :size] = columns
        dense[size:, :size], dense[:size, size:] = other, other.mT
        other_counts, main_counts = self.divide(counts)
        dense[size:, size:] = other_counts.diag()
        arrow = columns.new_zeros(size + self.num_other, self.largest)
        arrow[:size] = main.mT
        starts, start = {}, size
        for j, length in enumerate(self.sizes):
            if j != self.main:
                starts[j], start = slice(start, start + length), start + length
        tables = pairs.split([self.sizes[i] * self.sizes[j] for i, j in self._pairs])
        for (i, j), entries in zip(self._pairs, tables, strict=True):
            table = entries.view(self.sizes[i], self.sizes[j])
            if i == self.main:
                arrow[starts[j]] = table.mT
            elif j == self.main:
                arrow[starts[i]] = table
            else:
                dense[starts[i], starts[j]], dense[starts[j], starts[i]] = table, table.mT
        return Arrow(dense, arrow, main_counts)
