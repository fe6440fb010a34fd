"""Priors of eta through a few independent sources, in coordinates with cheap maps.

The prior is eta = μ + A s + ε, with ε ~ N(0, Λ⁻¹), Λ diagonal, and sources s that are standard
normal or Laplace, ½e^{−|s|} each (*Putthividhya, Attias & Nagarajan 2009, §2*). The coordinates are
z = (s, e) with eta = μ + A s + Λ^{-½}e. They have L more components than eta, but no map costs more
than num_topics × num_sources per document.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.linalg import inverse_cholesky, triangular_factor
from torch_lntm.latents.metrics import Metric
from torch_lntm.latents.normal import EtaSpace, NormalSpace, standard_normal_log_density
from torch_lntm.latents.space import LatentSpace, LocatedSpace, SpaceForm

#: Number of matrix entries to factor together, as many as a CPU's cache holds. Larger blocks double
#: the time of each pass over the matrices.
BLOCK_ENTRIES = {"cpu": 2**17, "cuda": 2**26}


class LaplaceSourcesSpace(LatentSpace):
    """Coordinates z = (s, e) of independent Laplace sources s and standard normal e."""

    mixing: Tensor

    @property
    def num_sources(self) -> int:
        """Number of sources L."""
        return self.mixing.shape[1]

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        z = z.double()
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        noise_log_density = standard_normal_log_density(noise, -self.num_sources * math.log(2.0))
        return noise_log_density - source.abs().sum(-1)

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`; it jumps at a source of 0."""
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return -torch.cat([source.sign(), noise], -1)

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        z = noise.normal(noise.fold_in(key, 0), self.dim)
        z[..., : self.num_sources] = noise.laplace(noise.fold_in(key, 1), self.num_sources)
        return z.to(self.dtype)


@dataclass(frozen=True, eq=False)
class FactorSpace(LocatedSpace):
    """Coordinates z = (s, e) of sources and noise; see the module.

    Attributes:
        loc: ``(num_topics,)`` μ, or ``(num_docs, num_topics)`` if it depends on the document.
        mixing: ``(num_topics, num_sources)`` A.
        noise_precision: ``(num_topics,)`` diagonal of Λ, positive.
    """

    mixing: Tensor
    noise_precision: Tensor

    sites = ("source", "eta")
    #: Variance of a source under its prior.
    source_variance: ClassVar[float]
    #: Whether the sources of all documents have a common posterior covariance given eta.
    shares_source_covariance: ClassVar[bool]

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return self.mixing.shape[0]

    @property
    def num_sources(self) -> int:
        """Number of sources L."""
        return self.mixing.shape[1]

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return self.num_sources + self.num_topics

    @property
    def eta_dim(self) -> int:
        """Dimension of eta."""
        return self.num_topics

    @property
    def eta_variance(self) -> Tensor:
        """Prior variances of eta ``(num_topics,)``, float64."""
        spread = self.source_variance * self.mixing.double().square().sum(-1)
        return spread + self.noise_std.square()

    @abstractmethod
    def source_scale(self, second_moment: Tensor) -> Tensor | None:
        """|η|^½ of the normals N(0, |η|) in place of the sources' priors, for a posterior.

        Args:
            second_moment: ``(num_docs, num_sources)`` float64 E s².

        Returns:
            A tensor of the same shape, or None if the sources are standard normal.
        """

    @abstractmethod
    def source_divergence(self, second_moment: Tensor, log_volume: Tensor) -> Tensor:
        """KL(q(s) ‖ p(s)) of a normal q(s), or the least tractable upper bound on it.

        Args:
            second_moment: ``(num_docs, num_sources)`` float64 E s².
            log_volume: ``(num_docs,)`` float64 half the log determinant of q's covariance.

        Returns:
            ``(num_docs,)`` float64 nats.
        """

    def unit_metric(self) -> Metric:
        """See :meth:`LatentSpace.unit_metric`; e moves against the sources and eta is constant."""
        size = self.num_sources
        factor = torch.eye(self.dim, dtype=torch.float64, device=self.loc.device)
        factor[size:, :size] = -self.mixing.double() / self.noise_std[:, None]
        factor[size:, size:] = self.noise_std.reciprocal().diag_embed()
        return Metric(factor.to(self.dtype))

    @cached_property
    def noise_std(self) -> Tensor:
        """λ^{-½} ``(num_topics,)`` float64."""
        return self.noise_precision.double().rsqrt()

    @cached_property
    def gram(self) -> Tensor:
        """AᵀΛA ``(num_sources, num_sources)`` float64."""
        scaled = self.mixing.double() / self.noise_std[:, None]
        return scaled.mT @ scaled

    @cached_property
    def source_tril(self) -> Tensor:
        """Lower Cholesky factor of (AᵀΛA + I)⁻¹ ``(num_sources, num_sources)``, float64."""
        return self.source_tril_at(self.gram.new_ones(1, self.num_sources), None)[0]

    @cached_property
    def source_log_volume(self) -> Tensor:
        """½ log|(AᵀΛA + I)⁻¹|, scalar float64."""
        return self.source_tril.diagonal().log().sum()

    def source_tril_at(self, scale: Tensor, index: Tensor | None) -> Tensor:
        """Lower Cholesky factors of B⁻¹ = (AᵀΛA + diag 1/|η|)⁻¹ (*eq. 13*).

        Args:
            scale: ``(num_docs, num_sources)`` float64 |η|^½.
            index: ``(num_docs,)`` corpus positions, to name documents in an error. None uses
                positions in ``scale``.

        Returns:
            ``(num_docs, num_sources, num_sources)`` float64.

        Raises:
            NumericalError: B of some documents is not positive definite.
        """
        trils = scale.new_empty(*scale.shape, scale.shape[-1])
        for rows, tril in self._source_trils(scale, index):
            trils[rows] = tril
        return trils

    def source_normals(
        self, eta: Tensor, scale: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best sources N(s̄, B⁻¹) of given eta (*eqs 12–13*), without the full matrices B⁻¹.

        Args:
            eta: ``(num_docs, num_topics)``.
            scale: ``(num_docs, num_sources)`` float64 |η|^½.
            index: ``(num_docs,)`` corpus positions, to name documents in an error.

        Returns:
            Means s̄ and variances diag B⁻¹, both ``(num_docs, num_sources)``, and ½ log|B⁻¹|
            ``(num_docs,)``, all float64.

        Raises:
            NumericalError: B of some documents is not positive definite.
        """
        projected = self._projected(eta)
        mean, variance, log_volume = map(torch.empty_like, (projected, scale, scale[:, 0]))
        for rows, tril in self._source_trils(scale, index):
            mean[rows] = (projected[rows, None] @ tril @ tril.mT).squeeze(1)
            variance[rows] = tril.square().sum(2)
            log_volume[rows] = tril.diagonal(dim1=1, dim2=2).log().sum(1)
        return mean, variance, log_volume

    def _source_trils(self, scale: Tensor, index: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of :meth:`source_tril_at`: slices of the documents, with their factors."""
        if index is None:
            index = torch.arange(len(scale), device=scale.device)
        gram = self.gram.flip(0, 1)
        size = max(1, BLOCK_ENTRIES.get(scale.device.type, BLOCK_ENTRIES["cpu"]) // gram.numel())
        for first in range(0, len(scale), size):
            rows = slice(first, first + size)
            # The precision of s/|η|^½ is at least I. With the sources in reverse order, the inverse
            # of its Cholesky factor is the transpose of the lower factor of B⁻¹, in reverse order.
            reverse = scale[rows].flip(1)
            precision = (reverse[:, :, None] * reverse[:, None, :]).mul_(gram)
            precision.diagonal(dim1=1, dim2=2).add_(1.0)
            tril = inverse_cholesky(precision, index[rows]).mT.flip(1, 2)
            yield rows, tril.mul_(scale[rows, :, None])

    def lift(self, eta: Tensor) -> Tensor:
        """Logits of eta: eta itself."""
        return eta

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`."""
        return self.unwhiten(z)

    def sources(self, eta: Tensor, tril: Tensor) -> Tensor:
        """B⁻¹AᵀΛ(eta − μ), the best sources of given eta (*eqs 9 and 12*).

        Args:
            eta: ``(..., num_docs, num_topics)``.
            tril: ``(..., num_sources, num_sources)`` lower factor of B⁻¹.

        Returns:
            ``(..., num_docs, num_sources)`` float64.
        """
        return (self._projected(eta)[..., None, :] @ tril @ tril.mT).squeeze(-2)

    def _projected(self, eta: Tensor) -> Tensor:
        """AᵀΛ(eta − μ) ``(..., num_docs, num_sources)`` float64."""
        weighted_mixing = self.noise_precision.double()[:, None] * self.mixing.double()
        return (eta.double() - self.loc) @ weighted_mixing

    def noise(self, eta: Tensor, source: Tensor) -> Tensor:
        """Λ^½(eta − μ − A s) ``(..., num_docs, num_topics)`` float64."""
        residual = eta.double() - self.loc - source.double() @ self.mixing.double().mT
        return residual / self.noise_std

    def whiten(self, eta: Tensor) -> Tensor:
        """The shortest z ``(..., num_docs, dim)`` of eta ``(..., num_docs, num_topics)``."""
        source = self.sources(eta, self.source_tril)
        return torch.cat([source, self.noise(eta, source)], -1).to(eta.dtype)

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.place`; the sources are best for Gaussian sources."""
        return self.whiten(latent)

    def unwhiten(self, z: Tensor) -> Tensor:
        """The eta μ + A s + Λ^{-½}e of z = (s, e) ``(..., num_docs, dim)``."""
        return self.loc + self.push(z)

    def push(self, z: Tensor) -> Tensor:
        """A s + Λ^{-½}e ``(..., num_topics)`` of z ``(..., dim)``."""
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return torch.addcmul(source @ self.mixing.mT.to(z.dtype), noise, self.noise_std.to(z.dtype))

    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.pull`; ``z`` is unused, since logits are affine in z."""
        noise = gradient * self.noise_std.to(gradient.dtype)
        return torch.cat([gradient @ self.mixing.to(gradient.dtype), noise], -1)

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`."""
        return {"source": z[..., : self.num_sources], "eta": self.unwhiten(z)}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`."""
        eta, source = latents["eta"], latents["source"]
        return torch.cat([source.to(eta), self.noise(eta, source).to(eta)], -1)


class GaussianFactorSpace(FactorSpace, EtaSpace):
    """Factor space with standard normal sources, so that eta is N(loc, AAᵀ + Λ⁻¹)."""

    has_low_rank = True
    source_variance = 1.0
    shares_source_covariance = True

    def source_scale(self, second_moment: Tensor) -> Tensor | None:
        """See :meth:`FactorSpace.source_scale`; None."""
        return None

    def source_divergence(self, second_moment: Tensor, log_volume: Tensor) -> Tensor:
        """See :meth:`FactorSpace.source_divergence`; exact."""
        return 0.5 * (second_moment.sum(-1) - self.num_sources) - log_volume

    @cached_property
    def log_det(self) -> Tensor:
        """log|AAᵀ + Λ⁻¹|, scalar float64."""
        log_std = self.noise_std.log().sum()
        return 2.0 * (log_std - self.source_log_volume)

    def source_posterior(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        """Exact distribution of the sources given eta, N(B⁻¹AᵀΛ(eta − μ), B⁻¹) with B = AᵀΛA + I.

        Args:
            eta: ``(..., num_docs, num_topics)``.

        Returns:
            Mean ``(..., num_docs, num_sources)``, and Cholesky factor of the covariance
            ``(num_sources, num_sources)``, common to all eta. Both are in the dtype of ``eta``.
        """
        tril = self.source_tril
        return self.sources(eta, tril).to(eta.dtype), tril.to(eta.dtype)

    def source_moments(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior means and standard deviations of the sources from the moments of eta.

        p(s | eta) is normal. Its mean is affine in eta and its covariance is constant.

        Args:
            mean: ``(num_docs, num_topics)``.
            covariance: ``(num_docs, num_topics, num_topics)``.

        Returns:
            ``(num_docs, num_sources)`` each.
        """
        source, tril = self.source_posterior(mean)
        eye = torch.eye(self.num_topics, dtype=mean.dtype, device=mean.device)
        weighted = eye * self.noise_precision
        gain = (tril @ (tril.mT @ (weighted @ self.mixing)[..., None])).squeeze(-1)
        spread = torch.einsum("il,dij,jl->dl", gain, covariance, gain)
        return source, (tril.square().sum(-1) + spread).sqrt()

    @cached_property
    def _marginal(self) -> NormalSpace:
        factor = torch.cat([self.mixing.double(), self.noise_std.diag_embed()], 1)
        return NormalSpace(self.loc, triangular_factor(factor))

    def marginal(self) -> NormalSpace:
        """See :meth:`EtaSpace.marginal`; the sources are integrated out."""
        return self._marginal

    def compact(self) -> NormalSpace:
        """See :meth:`LatentSpace.compact`; the marginal, with the sources integrated out."""
        return self._marginal


class LaplaceFactorSpace(FactorSpace, LaplaceSourcesSpace):
    """Factor space with Laplace sources of density ½ exp(−|s|). eta is not normal."""

    source_variance = 2.0
    shares_source_covariance = False

    @cached_property
    def form(self) -> SpaceForm:
        """See :attr:`LatentSpace.form`."""
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.loc.device)
        return SpaceForm(self.loc, self.push(eye), self.num_sources)

    def source_scale(self, second_moment: Tensor) -> Tensor | None:
        """See :meth:`FactorSpace.source_scale`.

        The dual −|s| ≥ −|η|/2 − s²/(2|η|) is best at |η| = sqrt(E s²) (*eqs 2–3 and 14*).
        """
        return second_moment.pow(0.25)

    def source_divergence(self, second_moment: Tensor, log_volume: Tensor) -> Tensor:
        """See :meth:`FactorSpace.source_divergence`; the dual's bound, E|s| ≤ sqrt(E s²)."""
        constant = math.log(2.0) - 0.5 * math.log(2.0 * math.pi * math.e)
        return second_moment.sqrt().sum(-1) + self.num_sources * constant - log_volume
