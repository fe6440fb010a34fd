"""Normal priors of eta in whitened coordinates.

The prior covariance is factored once in float64, Σ = LLᵀ, so that z = L⁻¹(eta − μ) is standard
normal. A document's posterior precision in z is B = I + (a positive semi-definite matrix from the
data). Because B ≥ I for every Σ, its Cholesky factor exists in float32, whereas that of Σ⁻¹ + N·H
may not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.linalg import inverse_of_lower
from torch_lntm.latents.metrics import Metric
from torch_lntm.latents.space import LatentSpace, LocatedSpace, SpaceForm


class StandardNormalSpace(LatentSpace):
    """Coordinates z whose prior is standard normal."""

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        return standard_normal_log_density(z)

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        return -z

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        return noise.normal(noise.fold_in(key, 0), self.dim).to(self.dtype)


class EtaSpace(StandardNormalSpace):
    """Standard normal coordinates z, with eta affine in z.

    Solvers of normal posteriors work in such a space, whose z may have more components than eta.
    """

    #: Whether the prior covariance of eta is AAᵀ + Λ⁻¹ with a diagonal Λ. The space is then a
    #: ``GaussianFactorSpace``, and posteriors can have low rank too.
    has_low_rank: ClassVar[bool] = False

    @property
    def eta_dim(self) -> int:
        """Dimension of eta: K, or K − 1 if anchored. Defaults to the dimension of z."""
        return self.dim

    @abstractmethod
    def lift(self, eta: Tensor) -> Tensor:
        """Logits ``(..., num_topics)`` of eta ``(..., eta_dim)``."""

    @abstractmethod
    def whiten(self, eta: Tensor) -> Tensor:
        """The shortest z ``(..., num_docs, dim)`` of eta ``(..., num_docs, eta_dim)``."""

    @abstractmethod
    def unwhiten(self, z: Tensor) -> Tensor:
        """Eta ``(..., num_docs, eta_dim)`` of z ``(..., num_docs, dim)``."""

    @abstractmethod
    def push(self, z: Tensor) -> Tensor:
        """Change ``(..., num_topics)`` of the logits with z ``(..., dim)``."""

    @abstractmethod
    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.pull`; ``z`` is unused, since logits are affine in z."""

    @abstractmethod
    def marginal(self) -> NormalSpace:
        """The prior of eta with a dense covariance factor."""

    @property
    def eta_variance(self) -> Tensor:
        """Prior variances of eta ``(eta_dim,)``, float64."""
        return self.marginal().tril.square().sum(-1)

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`."""
        return self.lift(self.unwhiten(z))

    def logits_at(self, z: Tensor, latents: Mapping[str, Tensor]) -> Tensor:
        """See :meth:`LatentSpace.logits_at`."""
        return self.lift(latents["eta"])

    @cached_property
    def form(self) -> SpaceForm:
        """See :attr:`LatentSpace.form`."""
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.centre.device)
        return SpaceForm(self.lift(self.centre), self.push(eye))


@dataclass(frozen=True, eq=False)
class NormalSpace(LocatedSpace, EtaSpace):
    """eta ~ Normal(loc, LLᵀ) in z = L⁻¹(eta − loc).

    Attributes:
        loc: ``(eta_dim,)`` mean, or ``(num_docs, eta_dim)`` if it depends on the document.
        tril: ``(eta_dim, eta_dim)`` float64 Cholesky factor L of the covariance.
        anchored: Whether logits are eta with an appended 0. Defaults to False: logits are eta.
    """

    tril: Tensor
    anchored: bool = False

    sites = ("eta",)

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return self.tril.shape[0]

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return self.eta_dim + self.anchored

    @cached_property
    def scale(self) -> Tensor:
        """L in the dtype of ``loc``."""
        return self.tril.to(self.dtype)

    @cached_property
    def factor(self) -> Tensor:
        """L lifted to logits ``(num_topics, eta_dim)``, with a row of zeros if anchored."""
        if not self.anchored:
            return self.scale
        return torch.cat([self.scale, self.scale.new_zeros(1, self.eta_dim)])

    @cached_property
    def precision(self) -> Tensor:
        """Σ⁻¹ ``(eta_dim, eta_dim)``, computed in float64."""
        return torch.cholesky_inverse(self.tril).to(self.dtype)

    def unit_metric(self) -> Metric:
        """See :meth:`LatentSpace.unit_metric`; W = L⁻¹."""
        return Metric(inverse_of_lower(self.tril).to(self.dtype))

    def lift(self, eta: Tensor) -> Tensor:
        """See :meth:`EtaSpace.lift`."""
        if not self.anchored:
            return eta
        return torch.cat([eta, eta.new_zeros(*eta.shape[:-1], 1)], -1)

    def whiten(self, eta: Tensor) -> Tensor:
        """See :meth:`EtaSpace.whiten`; L⁻¹(eta − loc), computed in float64."""
        centred = (eta - self.loc).double()
        z = torch.linalg.solve_triangular(self.tril.mT, centred, upper=True, left=False)
        return z.to(eta.dtype)

    def unwhiten(self, z: Tensor) -> Tensor:
        """See :meth:`EtaSpace.unwhiten`; loc + Lz."""
        return self.loc + z @ self.scale.mT

    def push(self, z: Tensor) -> Tensor:
        """See :meth:`EtaSpace.push`."""
        return z @ self.factor.mT

    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`EtaSpace.pull`."""
        return gradient @ self.factor

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`."""
        return {"eta": self.unwhiten(z)}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`."""
        return self.whiten(latents["eta"])

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        return replace(self, loc=self.loc.to(dtype))

    def marginal(self) -> NormalSpace:
        """See :meth:`EtaSpace.marginal`; the space itself."""
        return self


def standard_normal_log_density(z: Tensor, constant: float = 0.0) -> Tensor:
    """Log density ``(...)`` of independent standard normals, plus a constant, float64 nats.

    Args:
        z: ``(..., dim)``.
        constant: Number to add. Defaults to 0.
    """
    constant -= 0.5 * z.shape[-1] * math.log(2.0 * math.pi)
    return torch.rsub(z.double().square().sum(-1), constant, alpha=0.5)
