"""Symmetric matrices with an arrow of blocks: a dense block, and small blocks on the diagonal.

The information of a multinomial logit with an effect of each level on each of K topics has this
form, because a document has one level and the effects of different levels never meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BlockArrow:
    """The symmetric matrix ``[[dense, crossedᵀ], [crossed, block_diag(blocks)]]``.

    Args:
        dense: ``(num_dense, num_dense)``.
        crossed: ``(num_levels, size, num_dense)``.
        blocks: ``(num_levels, size, size)``.
    """

    dense: Tensor
    crossed: Tensor
    blocks: Tensor

    def plus(self, dense: Tensor, levels: Tensor) -> BlockArrow:
        """The sum with a diagonal matrix.

        Args:
            dense: ``(num_dense,)`` first part of its diagonal.
            levels: ``(num_levels, size)`` second part, or a part that broadcasts to this shape.
        """
        levels = levels.expand(self.blocks.shape[:2])
        return BlockArrow(
            self.dense + dense.diag(), self.crossed, self.blocks + torch.diag_embed(levels)
        )

    def times(self, dense: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Product with a matrix of the rows ``dense`` and ``levels``, in the same two parts.

        Args:
            dense: ``(num_dense, num_columns)``.
            levels: ``(num_levels, size, num_columns)``.
        """
        crossed = self.crossed.flatten(0, 1).mT @ levels.flatten(0, 1)
        return self.dense @ dense + crossed, self.crossed @ dense + self.blocks @ levels

    @cached_property
    def _inverses(self) -> Tensor:
        """Inverses of the blocks ``(num_levels, size, size)``."""
        inverses: Tensor = torch.cholesky_inverse(torch.linalg.cholesky(self.blocks))
        return inverses

    @cached_property
    def _ratio(self) -> Tensor:
        """blocks⁻¹ · crossed ``(num_levels, size, num_dense)``."""
        return self._inverses @ self.crossed

    @cached_property
    def _tril(self) -> Tensor:
        """Cholesky factor of the Schur complement ``(num_dense, num_dense)``."""
        complement = self.dense - self.crossed.flatten(0, 1).mT @ self._ratio.flatten(0, 1)
        tril: Tensor = torch.linalg.cholesky((complement + complement.mT) / 2)
        return tril

    @cached_property
    def dense_inverse(self) -> Tensor:
        """Dense block of the inverse ``(num_dense, num_dense)``."""
        inverse: Tensor = torch.cholesky_inverse(self._tril)
        return inverse

    def solve(self, dense: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Product of the inverse with the rows ``dense`` and ``levels``, in the same two parts.

        Args:
            dense: As for :meth:`times`.
            levels: As for :meth:`times`.
        """
        rest = dense - self._ratio.flatten(0, 1).mT @ levels.flatten(0, 1)
        first = torch.cholesky_solve(rest, self._tril)
        return first, self._inverses @ levels - self._ratio @ first

    def inverse_diagonal(self) -> tuple[Tensor, Tensor]:
        """Diagonal of the inverse: ``(num_dense,)`` and ``(num_levels, size)``."""
        spread = ((self._ratio @ self.dense_inverse) * self._ratio).sum(-1)
        levels = self._inverses.diagonal(dim1=-2, dim2=-1) + spread
        return self.dense_inverse.diagonal(), levels

    def sandwich_diagonal(self, inner: BlockArrow) -> tuple[Tensor, Tensor]:
        """Diagonal of inverse · inner · inverse, in the same two parts."""
        # The inverse is block_diag(0, blocks⁻¹) + Z dense_inverse Zᵀ with Z = [I; −ratio].
        crossed = inner.crossed - inner.blocks @ self._ratio
        mixed = inner.crossed.flatten(0, 1).mT @ self._ratio.flatten(0, 1)
        meat = inner.dense - mixed - self._ratio.flatten(0, 1).mT @ crossed.flatten(0, 1)
        middle = self.dense_inverse @ meat @ self.dense_inverse
        alone = (self._inverses @ inner.blocks * self._inverses).sum(-1)
        both = (self._inverses @ crossed @ self.dense_inverse * self._ratio).sum(-1)
        levels = alone - 2 * both + ((self._ratio @ middle) * self._ratio).sum(-1)
        return middle.diagonal(), levels
