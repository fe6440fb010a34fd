"""Dirichlet priors of theta in coordinates with a smooth, nearly standard normal density."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.space import LatentSpace, SpaceForm

#: Scale c in log σ(cz). With z = logit(U)/c and U uniform, z has variance 1.
_UNIT_LOGISTIC = math.pi / math.sqrt(3.0)


class LogGamma(NamedTuple):
    """Logs of gamma variates as a function of z, with derivatives; each has the shape of z.

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
    """Coordinates of theta ~ Dirichlet(α), with the same α for all documents.

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

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`; the space itself, since all documents share it."""
        return self


@dataclass(frozen=True, eq=False)
class GammaSpace(DirichletSpace):
    """theta ~ Dirichlet(α) as softmax(x(z)), with x_k(z_k) the log of a Gamma(α_k) variate.

    For small α the logs of the variates have a tail of length 1/α to the left of a steep wall,
    which the function

        x(z) = log σ(cz)/α + z/√(1 + α) + log(1 + α),    c = π/√3

    evens out. As α → 0 the tail tends to the law of log U/α with U uniform, and the first term then
    makes z logistic with unit variance. As α → ∞ the law of x tends to a normal around log α with
    variance 1/α, which the other terms give for standard normal z. The density of z is exact for
    any function x(z).

    Attributes:
        dtype: Floating-point type of draws. Constants of α are computed in float64.
    """

    dtype: torch.dtype = torch.float64

    conjugate = True

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.concentration)

    @property
    def form(self) -> SpaceForm:
        """See :attr:`LatentSpace.form`."""
        none = self.concentration.new_empty(0, self.num_topics, dtype=self.dtype)
        return SpaceForm(none, none, concentration=self.concentration)

    @cached_property
    def _log_normaliser(self) -> Tensor:
        """Log normaliser Σ log Γ(α_k) of the density exp(αx − e^x)/Γ(α) of x."""
        return torch.lgamma(self.concentration).sum()

    @cached_property
    def _coefficients(self) -> Tensor:
        """Coefficients 1/α, 1/√(1 + α) and log(1 + α), ``(3, num_topics)`` float64."""
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

        The start is the larger of two lower bounds: the solutions with cz, and with 0, in place of
        log σ(cz). A step is at most 4 times Newton's, which never overshoots from below because
        x(z) is concave.
        """
        inverse, slope, constant = self._coefficients
        excess = x.double() - constant
        z = torch.maximum(excess / (_UNIT_LOGISTIC * inverse + slope), excess / slope)
        # Steps of Halley's method to reach float64 rounding for α of 1e-12 and above. For α of 0.01
        # and above, 5 steps are enough.
        for _ in range(16):
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

        The sum of the variates, which is Gamma(Σα) and independent of theta, is drawn. So is a
        proportion below the smallest number of its dtype, from its distribution there, a power law.
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
