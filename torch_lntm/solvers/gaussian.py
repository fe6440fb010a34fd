"""Gaussian priors and posteriors of eta, in whitened coordinates.

The prior is factored once in float64, Σ = LLᵀ, and a document's posterior precision is written in
z = L⁻¹(eta − μ), where the prior is standard normal: B = I + (something positive for the data).
B ≥ I whatever Σ, so its Cholesky factor exists in float32 where that of Σ⁻¹ + N·H does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from torch_lntm.errors import NumericalError
from torch_lntm.solvers.importance import draw_noise


class Coordinates(Protocol):
    """Whitened coordinates z of each document's eta, eta = μ + Fz; z may have more than eta."""

    def lift(self, eta: Tensor) -> Tensor:
        """Logits ``(..., num_topics)`` of eta ``(..., dim)``."""

    def unwhiten(self, z: Tensor) -> Tensor:
        """μ + Fz ``(..., dim)`` of z ``(..., z_dim)``."""

    def push(self, z: Tensor) -> Tensor:
        """Change of the logits ``(..., num_topics)`` with z ``(..., z_dim)``."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Gradients in z ``(..., z_dim)`` from those in the logits ``(..., num_topics)``."""

    def select(self, rows: Tensor) -> Coordinates:
        """The coordinates of some of the documents."""


class EtaPrior(Coordinates, Protocol):
    """A normal prior of eta in coordinates in which it is standard normal."""

    @property
    def dim(self) -> int:
        """Dimension of eta."""

    @property
    def anchored(self) -> bool:
        """Logits are eta with a 0 appended, instead of eta itself."""

    def whiten(self, eta: Tensor) -> Tensor:
        """The shortest z ``(..., z_dim)`` of eta ``(..., dim)``."""

    def marginal(self) -> GaussianPrior:
        """The same prior of eta with a dense factor."""


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """A normal prior of eta, factored.

    Attributes:
        loc: ``(latent_dim,)`` mean.
        tril: ``(latent_dim, latent_dim)`` float64 Cholesky factor L of the covariance.
        anchored: Logits are eta with a 0 appended, instead of eta itself.
    """

    loc: Tensor
    tril: Tensor
    anchored: bool = False

    @property
    def dim(self) -> int:
        """Dimension of eta."""
        return self.loc.shape[0]

    @cached_property
    def scale(self) -> Tensor:
        """L in the dtype of ``loc``."""
        return self.tril.to(self.loc.dtype)

    @cached_property
    def factor(self) -> Tensor:
        """``(num_topics, latent_dim)`` L lifted to logits: with a row of zeros if anchored."""
        if not self.anchored:
            return self.scale
        return torch.cat([self.scale, self.scale.new_zeros(1, self.dim)])

    @cached_property
    def precision(self) -> Tensor:
        """Σ⁻¹ ``(latent_dim, latent_dim)``, computed in float64."""
        return torch.cholesky_inverse(self.tril).to(self.loc.dtype)

    def lift(self, eta: Tensor) -> Tensor:
        """Logits ``(..., num_topics)`` of eta ``(..., latent_dim)``."""
        if not self.anchored:
            return eta
        return torch.cat([eta, eta.new_zeros(*eta.shape[:-1], 1)], -1)

    def whiten(self, eta: Tensor) -> Tensor:
        """Whitened coordinates z = L⁻¹(eta − μ) of eta ``(..., latent_dim)``."""
        centred = (eta - self.loc).double()
        z = torch.linalg.solve_triangular(self.tril.mT, centred, upper=True, left=False)
        return z.to(eta.dtype)

    def unwhiten(self, z: Tensor) -> Tensor:
        """The inverse of :meth:`whiten`, eta = μ + Lz of z ``(..., latent_dim)``."""
        return self.loc + z @ self.scale.mT

    def push(self, z: Tensor) -> Tensor:
        """Change ``(..., num_topics)`` of the logits with z ``(..., latent_dim)``."""
        return z @ self.factor.mT

    def pull(self, gradient: Tensor) -> Tensor:
        """Gradients in z ``(..., latent_dim)`` from those in the logits ``(..., num_topics)``."""
        return gradient @ self.factor

    def select(self, rows: Tensor) -> GaussianPrior:
        """The prior of some of the documents: itself, which all share."""
        return self

    def marginal(self) -> GaussianPrior:
        """Itself; priors of other forms have a dense one."""
        return self


def inverse_cholesky(precision: Tensor, index: Tensor, recompute_float64: bool = True) -> Tensor:
    """R⁻¹ for the lower Cholesky factors of precisions B = RRᵀ ≥ I.

    Args:
        precision: ``(num_docs, dim, dim)``.
        index: ``(num_docs,)`` corpus positions, to name documents in an error.
        recompute_float64: Factor those that fail again in float64.

    Returns:
        ``(num_docs, dim, dim)`` lower triangular.

    Raises:
        NumericalError: A precision is not positive definite even in float64.
    """
    chol, info = torch.linalg.cholesky_ex(precision)
    failed = (info != 0).nonzero().squeeze(-1)
    if failed.numel():
        if precision.dtype == torch.float64 or not recompute_float64:
            documents = index[failed].tolist()
            raise NumericalError(
                f"posterior precision of {len(documents)} document(s) is not positive definite, "
                f"first at position {documents[0]}; check the prior covariance and the topics for "
                "extreme values",
                documents,
            )
        again = torch.linalg.cholesky_ex(precision[failed].double())
        if bool((again.info != 0).any()):
            inverse_cholesky(precision[failed].double(), index[failed], False)
        chol[failed] = again.L.to(chol.dtype)
    eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device).expand_as(chol)
    return torch.linalg.solve_triangular(chol, eye, upper=False)


@dataclass(eq=False)
class GaussianPosterior:
    """Normal posteriors of the eta of a batch of documents; what fitting and transforming return.

    The covariance is held as a factor: either ``whitened``, the inverse Cholesky factor X of the
    whitened precision with its coordinates in reverse order (V = L̃ XᵀX L̃ᵀ, L̃ = L with its columns
    reversed; reversing makes L̃Xᵀ triangular, so the Cholesky factor of V needs no factorisation),
    or ``std`` where the posterior is diagonal.

    Attributes:
        prior: The prior it was solved under.
        mean: ``(num_docs, latent_dim)``.
        converged: ``(num_docs,)`` bool, the solver met its tolerance.
        iterations: ``(num_docs,)`` int64 outer iterations used.
        objective: ``(num_docs,)`` float64 nats, the solver's own objective at the solution.
        whitened: ``(num_docs, latent_dim, latent_dim)`` or None.
        std: ``(num_docs, latent_dim)`` or None.
        fallback: ``(num_docs,)`` bool, documents whose covariance is not the one asked for (an
            indefinite Laplace information, replaced by Taylor's); None where it cannot happen.
    """

    prior: EtaPrior
    mean: Tensor
    converged: Tensor
    iterations: Tensor
    objective: Tensor
    whitened: Tensor | None = None
    std: Tensor | None = None
    fallback: Tensor | None = None

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return self.mean.shape[0]

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(num_docs, latent_dim, latent_dim)``."""
        if self.whitened is None:
            assert self.std is not None
            return torch.diag_embed(self.std)
        return (self.prior.marginal().scale.flip(1) @ self.whitened.mT).flip(2)

    @property
    def covariance(self) -> Tensor:
        """Covariance of eta ``(num_docs, latent_dim, latent_dim)``."""
        return self.scale_tril @ self.scale_tril.mT

    @cached_property
    def variance(self) -> Tensor:
        """Marginal variances of eta ``(num_docs, latent_dim)``."""
        if self.std is not None:
            return self.std.square()
        return self.scale_tril.square().sum(-1)

    def covariance_sum(self) -> Tensor:
        """Σ_d V_d ``(latent_dim, latent_dim)`` float64, without forming any V_d."""
        if self.whitened is None:
            return self.variance.double().sum(0).diag_embed()
        stacked = self.whitened.flatten(0, 1)
        scale = self.prior.marginal().tril.flip(1)
        return scale @ (stacked.mT @ stacked).double() @ scale.mT

    def sums(self) -> dict[str, Tensor]:
        """What the prior's M-step takes, float64 sums over the documents.

        Returns:
            ``latent_sum`` ``(latent_dim,)`` Σ_d E eta and ``latent_outer``
            ``(latent_dim, latent_dim)`` Σ_d E eta etaᵀ.
        """
        mean = self.mean.double()
        return {
            "latent_sum": mean.sum(0),
            "latent_outer": mean.mT @ mean + self.covariance_sum(),
        }

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) of each document ``(num_docs,)`` float64 nats.

        ½[tr B⁻¹ + |L⁻¹(m − μ)|² − dim + log|B|], B the whitened precision.
        """
        z = self.prior.whiten(self.mean).double()
        if self.whitened is not None:
            x = self.whitened.double()
            trace = x.square().sum((-2, -1))
            log_det = -2.0 * x.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        else:
            assert self.std is not None
            tril = self.prior.marginal().tril
            trace = self.std.double().square() @ torch.cholesky_inverse(tril).diagonal()
            log_det = 2.0 * (tril.diagonal().log().sum() - self.std.double().log().sum(-1))
        return 0.5 * (trace + z.square().sum(-1) - self.prior.dim + log_det)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of eta ``(num_samples, num_docs, latent_dim)``."""
        noise = torch.randn(
            num_samples,
            *self.mean.shape,
            generator=generator,
            dtype=self.mean.dtype,
            device=self.mean.device,
        )
        if self.std is not None:
            return self.mean + self.std * noise
        return self.mean + (self.scale_tril @ noise[..., None]).squeeze(-1)

    def log_prob(self, eta: Tensor) -> Tensor:
        """Log density ``(..., num_docs)`` of eta ``(..., num_docs, latent_dim)``, nats."""
        if self.std is not None:
            z = (eta - self.mean) / self.std
            constant = 0.5 * self.prior.dim * math.log(2 * math.pi) + self.std.log().sum(-1)
            return -0.5 * z.square().sum(-1) - constant
        centred = (eta - self.mean)[..., None]
        z = torch.linalg.solve_triangular(self.scale_tril, centred, upper=False).squeeze(-1)
        log_det = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (z.square().sum(-1) + self.prior.dim * math.log(2 * math.pi)) - log_det

    def theta_mode(self) -> Tensor:
        """Topic proportions at the mean of eta ``(num_docs, num_topics)``."""
        return torch.softmax(self.prior.lift(self.mean), -1)

    def theta_samples(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draws of the topic proportions ``(num_samples, num_docs, num_topics)``.

        All documents share the same standard normal draws, so that a document's do not depend on
        its batch; draws of different documents are not independent of each other.
        """
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_samples, self._noise_dim, generator=generator, dtype=torch.float64)
        eta = self.mean + self._deviations(noise.to(self.mean), slice(None))
        return torch.softmax(self.prior.lift(eta), -1)

    def draw_theta(self, document: int, num_samples: int, key: Sequence[int]) -> Tensor:
        """Draws of one document's topic proportions, a function of ``key`` alone.

        Args:
            document: Its row.
            num_samples: Draws.
            key: Nonnegative integers that seed them, as (seed, position in the corpus).

        Returns:
            ``(num_samples, num_topics)`` float64.
        """
        rows = slice(document, document + 1)
        noise = draw_noise(num_samples, self._noise_dim, key).to(self.mean.device)
        eta = self.mean[document].double() + self._deviations(noise, rows).squeeze(1)
        return torch.softmax(self.prior.lift(eta), -1)

    @property
    def _noise_dim(self) -> int:
        """Standard normal numbers that a draw of eta takes."""
        return self.prior.dim

    def _deviations(self, noise: Tensor, rows: slice) -> Tensor:
        """What noise ``(num_samples, noise_dim)`` adds to the means of the documents ``rows``.

        Returns:
            ``(num_samples, num_rows, latent_dim)`` in the dtype of ``noise``.
        """
        if self.std is not None:
            return noise[:, None, :] * self.std[rows].to(noise.dtype)
        return torch.einsum("dij,sj->sdi", self.scale_tril[rows].to(noise.dtype), noise)

    def theta_mean(self, num_samples: int = 200, seed: int = 0) -> Tensor:
        """Posterior mean of the topic proportions ``(num_docs, num_topics)``, by sampling."""
        return self.theta_samples(num_samples, seed).mean(0)

    def theta_interval(
        self, level: float = 0.9, num_samples: int = 1000, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Equal-tailed intervals of the topic proportions, by sampling.

        Args:
            level: Probability each interval covers under this posterior.
            num_samples: Draws.
            seed: Seed of the draws.

        Returns:
            ``(lower, upper)``, each ``(num_docs, num_topics)``.
        """
        tail = (1.0 - level) / 2.0
        draws = self.theta_samples(num_samples, seed)
        lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).to(draws), dim=0)
        return lower, upper
