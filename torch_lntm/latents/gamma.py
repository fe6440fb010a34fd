"""Dirichlet priors of theta in coordinates in which they are smooth and near standard normal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.space import LatentSpace

if TYPE_CHECKING:
    from typing import Self

#: Scale c at which log σ(cz), z the logit of a uniform number over c, belongs to z of variance 1.
_UNIT_LOGISTIC = math.pi / math.sqrt(3.0)
#: Steps of Halley's method that reach float64's rounding for α from 1e-12 up; from 0.01, five do.
_HALLEY_STEPS = 16


class LogGamma(NamedTuple):
    """Logs of gamma variates as a function of z, each of the shape of z.

    Attributes:
        value: x(z).
        slope: x′(z), positive.
        curvature: x″(z).
    """

    value: Tensor
    slope: Tensor
    curvature: Tensor


@dataclass(frozen=True, eq=False)
class DirichletSpace(LatentSpace):
    """Coordinates of theta ~ Dirichlet(α), which all documents share.

    Attributes:
        concentration: ``(num_topics,)`` float64 α.
    """

    concentration: Tensor

    sites = ("theta",)

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return len(self.concentration)

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`; α/Σα."""
        return (self.concentration / self.concentration.sum()).to(self.dtype)

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`."""
        return {"theta": torch.softmax(self.logits(z), -1)}

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.place`."""
        return self.locate({"theta": latent}, key)

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`; itself, which all documents share."""
        return self


@dataclass(frozen=True, eq=False)
class GammaSpace(DirichletSpace):
    """theta ~ Dirichlet(α) as softmax(x(z)), x_k(z_k) the log of a Gamma(α_k) variate.

    Under small α the variates' logs have a tail of length 1/α to the left of a steep wall, which

        x(z) = log σ(cz)/α + z/√(1 + α) + log(1 + α),    c = π/√3

    evens out: as α → 0 the tail is that of log U/α, U uniform, which the first term makes logistic
    with unit variance; as α → ∞ x is normal around log α with variance 1/α, to which the others
    tend. The density of z is exact for any x(z).

    Attributes:
        dtype: Floating-point type of draws; what depends on α is computed in float64.
    """

    dtype: torch.dtype = torch.float64

    conjugate = True
    leapfrogs = 16  # tails of single topics are long, where words leave them alone

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.concentration)

    @cached_property
    def _log_normaliser(self) -> Tensor:
        """Σ log Γ(α_k), the log normaliser of the density exp(αx − e^x)/Γ(α) of x."""
        return torch.lgamma(self.concentration).sum()

    @cached_property
    def _coefficients(self) -> Tensor:
        """``(3, num_topics)`` float64 1/α, 1/√(1 + α) and log(1 + α)."""
        alpha = self.concentration
        return torch.stack([1.0 / alpha, (1.0 + alpha).rsqrt(), torch.log1p(alpha)])

    def log_gamma(self, z: Tensor) -> LogGamma:
        """The function x of z ``(..., num_topics)``, with derivatives, in the dtype of z."""
        inverse, slope, constant = self._coefficients.to(z.dtype)
        steep = _UNIT_LOGISTIC * inverse
        scaled = _UNIT_LOGISTIC * z
        below = torch.sigmoid(-scaled)
        return LogGamma(
            inverse * F.logsigmoid(scaled) + slope * z + constant,
            steep * below + slope,
            _UNIT_LOGISTIC * steep * below * (below - 1.0),
        )

    def whiten(self, x: Tensor) -> Tensor:
        """The z ``(..., num_topics)`` of logs of gamma variates, by Halley's method, float64.

        It starts from the solutions with cz and with 0 in the place of log σ(cz), which is below
        both. A step is at most four of Newton's, which never go too far from below, since x(z) is
        concave.
        """
        inverse, slope, constant = self._coefficients
        excess = x.double() - constant
        z = torch.maximum(excess / (_UNIT_LOGISTIC * inverse + slope), excess / slope)
        for _ in range(_HALLEY_STEPS):
            at_z = self.log_gamma(z)
            newton = (x - at_z.value) / at_z.slope
            bend = 1.0 + 0.5 * newton * at_z.curvature / at_z.slope
            z = z + newton / bend.clamp_min(0.25)
        return z

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`."""
        return self.log_gamma(z).value

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        x = self.log_gamma(z.double())
        terms = self.concentration * x.value - x.value.exp() + x.slope.log()
        return terms.sum(-1) - self._log_normaliser

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        x = self.log_gamma(z)
        excess = self.concentration.to(z.dtype) - x.value.exp()
        return excess * x.slope + x.curvature / x.slope

    def pull(self, gradient: Tensor, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.pull`."""
        return self.log_gamma(z).slope * gradient

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        shapes = self.concentration.expand(*key.shape, self.dim)
        return self.whiten(noise.log_gamma(key, shapes)).to(self.dtype)

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`.

        The variates' sum, Gamma(Σα), is independent of theta and is drawn. A proportion too small
        for its dtype is drawn from below the smallest number, where its law is a power.
        """
        assert key is not None, "theta does not determine z: locate needs keys"
        theta = latents["theta"]
        smallest = torch.finfo(theta.dtype).tiny
        shape = self.concentration.sum().expand(*key.shape, 1)
        total = noise.log_gamma(noise.fold_in(key, 0), shape)
        beyond = noise.uniform(noise.fold_in(key, 1), self.dim).log() / self.concentration
        log_theta = theta.double().clamp_min(smallest).log()
        log_theta = torch.where(theta > smallest, log_theta, log_theta + beyond)
        return self.whiten(log_theta + total).to(self.dtype)

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        return type(self)(self.concentration, dtype)
