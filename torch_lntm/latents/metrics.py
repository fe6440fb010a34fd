"""Mass matrices of Hamiltonian Monte Carlo: factors of covariances of z, cheap to apply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Metric:
    """Factor W of the inverse mass matrix WWᵀ of z.

    Attributes:
        factor: ``(dim, dim)`` W of all documents, or ``(num_docs, dim, dim)``. Defaults to ``None``
            for W = I, the metric of the whitened prior.
    """

    factor: Tensor | None = None

    @property
    def is_unit(self) -> bool:
        """Whether W = I."""
        return self.factor is None

    def push(self, momentum: Tensor) -> Tensor:
        """W r ``(num_chains, num_docs, dim)``, the velocity of z."""
        if self.factor is None:
            return momentum
        if self.factor.dim() == 2:
            return momentum @ self.factor.mT
        return torch.einsum("dij,cdj->cdi", self.factor, momentum)

    def pull(self, gradient: Tensor) -> Tensor:
        """Wᵀ∇ ``(num_chains, num_docs, dim)``."""
        if self.factor is None:
            return gradient
        if self.factor.dim() == 2:
            return gradient @ self.factor
        return torch.einsum("dij,cdi->cdj", self.factor, gradient)
