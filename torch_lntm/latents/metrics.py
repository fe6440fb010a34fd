"""Mass matrices of Hamiltonian Monte Carlo: factors of covariances of z, cheap to apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Metric(Protocol):
    """Factor W of the inverse mass matrix WWᵀ of z, for each document or for all documents."""

    #: Whether W = I.
    is_unit: ClassVar[bool]

    def push(self, momentum: Tensor) -> Tensor:
        """W r ``(num_chains, num_docs, dim)``, the velocity of z."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Wᵀ∇ ``(num_chains, num_docs, dim)``."""


class UnitMetric:
    """W = I: the metric of the whitened prior."""

    is_unit: ClassVar[bool] = True

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        return momentum

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        return gradient


@dataclass(frozen=True, eq=False)
class DenseMetric:
    """W as matrices.

    Attributes:
        factor: ``(dim, dim)`` W of all documents, or ``(num_docs, dim, dim)``.
    """

    is_unit: ClassVar[bool] = False

    factor: Tensor

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        if self.factor.dim() == 2:
            return momentum @ self.factor.mT
        return torch.einsum("dij,cdj->cdi", self.factor, momentum)

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        if self.factor.dim() == 2:
            return gradient @ self.factor
        return torch.einsum("dij,cdi->cdj", self.factor, gradient)
