"""Normal posteriors of eta."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import ConfigError
from torch_lntm.latents.factor import FactorSpace, GaussianFactorSpace
from torch_lntm.latents.linalg import triangular_factor
from torch_lntm.latents.metrics import Metric
from torch_lntm.latents.normal import EtaSpace
from torch_lntm.latents.space import LatentSpace
from torch_lntm.posteriors.posterior import Moments, Posterior, Rows, SourceSums


@dataclass(eq=False, kw_only=True, repr=False)
class EtaPosterior(Posterior):
    """Posteriors of the eta of a batch of documents.

    Attributes:
        space: Coordinates of the prior.
        mean: ``(num_docs, latent_dim)`` posterior mean of eta.
    """

    space: EtaSpace | FactorSpace
    mean: Tensor

    @property
    def num_topics(self) -> int:
        """See :attr:`Posterior.num_topics`."""
        return self.space.num_topics

    def theta(self, latent: Tensor) -> Tensor:
        """See :meth:`Posterior.theta`."""
        return torch.softmax(self.space.lift(latent), -1)

    def topic_weights(self, inverse_temperature: float = 1.0) -> Tensor:
        """See :meth:`Posterior.topic_weights`; ∝ exp(T·E eta_k).

        *Ahmed & Xing 2007, eq. 12; Khan & Bouchard 2009, eq. 31; Putthividhya et al. 2009, eq. 5*.
        """
        return torch.softmax(inverse_temperature * self.space.lift(self.mean), -1)


@dataclass(eq=False, kw_only=True, repr=False)
class NormalPosterior(EtaPosterior):
    """Normal posteriors of the eta of a batch of documents.

    The covariance V is held as a factor. For a diagonal posterior it is ``std``, and for a full one
    ``whitened``, the inverse Cholesky factor X of the whitened precision with its coordinates in
    reverse order. Then V = L̃ XᵀX L̃ᵀ, where L̃ is L with reversed columns. The reversal makes L̃Xᵀ
    triangular, so that V's Cholesky factor follows without a factorisation.

    Attributes:
        whitened: ``(num_docs, latent_dim, latent_dim)``, or ``None``.
        std: ``(num_docs, latent_dim)``, or ``None``.
        fallback: ``(num_docs,)`` bool: the document has the Taylor covariance, because its observed
            information is indefinite. ``None`` for solvers without a fallback.

    Example:
        >>> posterior = guide.posterior(batch)
        >>> lower, upper = posterior.theta_interval(level=0.9)
        >>> theta = posterior.theta_mean()
        >>> bool(((lower <= theta) & (theta <= upper)).all())
        True
    """

    whitened: Tensor | None = None
    std: Tensor | None = None
    fallback: Tensor | None = None

    @classmethod
    def around(cls, means: EtaPosterior, **parts: Any) -> Self:
        """The posterior with the means of another, and the given parts."""
        kept = {field.name: getattr(means, field.name) for field in fields(EtaPosterior)}
        return cls(**kept | parts)

    @property
    def _marginal_tril(self) -> Tensor:
        """Cholesky factor of the prior covariance, float64."""
        return cast(EtaSpace, self.space).marginal().tril

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(num_docs, latent_dim, latent_dim)``."""
        if self.whitened is None:
            assert self.std is not None
            return torch.diag_embed(self.std)
        scale = self._marginal_tril.to(self.mean.dtype)
        return (scale.flip(1) @ self.whitened.mT).flip(2)

    @property
    def covariance(self) -> Tensor:
        """See :attr:`Posterior.covariance`."""
        return self.scale_tril @ self.scale_tril.mT

    @cached_property
    def variance(self) -> Tensor:
        """See :attr:`Posterior.variance`."""
        if self.std is not None:
            return self.std.square()
        return self.scale_tril.square().sum(-1)

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. Computed without forming documents' covariances."""
        if self.whitened is None:
            return self.variance.double().sum(0).diag_embed()
        scale = self._marginal_tril.flip(1)
        stacked = self.whitened.flatten(0, 1)
        return scale @ (stacked.mT @ stacked).double() @ scale.mT

    def square_sum(self) -> Tensor:
        """See :meth:`Moments.square_sum`."""
        return (self.mean.double().square() + self.variance.double()).sum(0)

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`. Normal posteriors have no closed form of it.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "E log theta, which a Dirichlet prior's M-step needs, has no closed form under a "
            "normal posterior of eta; use Draws or a DirichletPosterior"
        )

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) of each document ``(num_docs,)`` float64 nats.

        ½[tr B⁻¹ + |L⁻¹(m − μ)|² − dim + log|B|], for the whitened precision B.
        """
        z = self.space.whiten(self.mean).double()
        if self.whitened is not None:
            x = self.whitened.double()
            trace = x.square().sum((-2, -1))
            log_det = -2.0 * x.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        else:
            assert self.std is not None
            tril = self._marginal_tril
            trace = self.std.double().square() @ torch.cholesky_inverse(tril).diagonal()
            log_det = 2.0 * (tril.diagonal().log().sum() - self.std.double().log().sum(-1))
        return 0.5 * (trace + z.square().sum(-1) - self.space.eta_dim + log_det)

    def metric(self) -> Metric:
        """Mass matrix for chains in z: the posterior covariance of z, for a full posterior."""
        # For a standard normal r, z is Xᵀr with its coordinates in reverse order.
        assert self.whitened is not None
        return Metric(self.whitened.mT.flip(1).contiguous())

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`."""
        white = noise.normal(key, self.space.eta_dim)
        if self.std is not None:
            return self.mean[rows].double() + white * self.std[rows].double()
        scaled = torch.einsum("dij,...dj->...di", self.scale_tril[rows].double(), white)
        return self.mean[rows].double() + scaled


@dataclass(eq=False, kw_only=True, repr=False)
class ModePosterior(EtaPosterior):
    """Posterior of each document as a point at its mode.

    It is the Taylor or Laplace posterior without its covariances, which would cost num_topics³
    operations per document. Its mean and all its draws are the mode, and its covariance is 0.
    """

    @property
    def covariance(self) -> Tensor:
        """See :attr:`Posterior.covariance`. Zeros."""
        return self.variance.diag_embed()

    @property
    def variance(self) -> Tensor:
        """See :attr:`Posterior.variance`. Zeros."""
        return torch.zeros_like(self.mean)

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. Zeros."""
        dim = self.mean.shape[1]
        return self.mean.new_zeros(dim, dim, dtype=torch.float64)

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`. The value is log theta at the mode."""
        return torch.log_softmax(self.space.lift(self.mean).double(), -1)

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`. Every draw is the mode."""
        mode = self.mean[rows].double()
        return mode.expand(*key.shape[:-1], *mode.shape)


class SampledMoments(Moments):
    """Moments of documents, with the sum of covariances estimated from a sample of documents.

    It keeps only sums of the sample, so that a large one can be added part by part.

    Args:
        modes: Posteriors of all documents.
        weight: Number of documents that each sampled document represents.
    """

    def __init__(self, modes: Posterior, weight: float) -> None:
        self.mean = modes.mean
        self._modes, self._weight = modes, weight
        self._covariance_sum = modes.covariance_sum()
        self._objective = modes.objective.sum()

    def add(self, sample: Posterior, rows: Tensor) -> None:
        """Add documents to the sample.

        Args:
            sample: Their posteriors, with covariances.
            rows: ``(num_sampled,)`` int64 rows of the documents in ``modes``.
        """
        self._covariance_sum += self._weight * sample.covariance_sum()
        gains = sample.objective - self._modes.objective[rows]
        self._objective += self._weight * gains.sum()

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. An estimate."""
        return self._covariance_sum

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`. Values at the modes, ignoring covariances."""
        return self._modes.expected_log_theta()

    def objective(self) -> Tensor:
        """Sum of the posteriors' objectives (scalar, nats). Terms of covariances are estimates."""
        return self._objective


@dataclass(eq=False, kw_only=True, repr=False)
class LowRankPosterior(NormalPosterior):
    """Normal posteriors of eta with covariance diag(d) + WWᵀ, made dense only on demand.

    The precision is Σ⁻¹ + diag w − wwᵀ/N, with the marginal covariance Σ of eta and w = N·theta at
    the mean (*Ahmed & Xing 2007, eq. 9*). Divergences use it to avoid cancellation, whereas draws
    and variances use d and W.

    Attributes:
        space: Coordinates of the prior.
        diagonal: ``(num_docs, num_topics)`` d.
        loading: ``(num_docs, num_topics, num_sources + 1)`` W.
        weights: ``(num_docs, num_topics)`` w.
        log_det: ``(num_docs,)`` float64 log|Σ| − log|V|.
    """

    space: GaussianFactorSpace
    diagonal: Tensor
    loading: Tensor
    weights: Tensor
    log_det: Tensor

    @cached_property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(num_docs, num_topics, num_topics)``."""
        return triangular_factor(torch.cat([self.diagonal.sqrt().diag_embed(), self.loading], -1))

    @property
    def covariance(self) -> Tensor:
        """Covariance of eta ``(num_docs, num_topics, num_topics)``."""
        return self.diagonal.diag_embed() + self.loading @ self.loading.mT

    @cached_property
    def variance(self) -> Tensor:
        """Marginal variances of eta ``(num_docs, num_topics)``."""
        return self.diagonal + self.loading.square().sum(-1)

    def covariance_sum(self) -> Tensor:
        """Σ_d V_d ``(num_topics, num_topics)`` float64, without forming documents' covariances."""
        loading = self.loading.double().movedim(1, 0).flatten(1)
        return self.diagonal.double().sum(0).diag_embed() + loading @ loading.mT

    def kl(self) -> Tensor:
        """KL(posterior ‖ marginal prior of eta) of each document ``(num_docs,)`` float64 nats.

        ½[|z|² + log|Σ| − log|V| − tr NHV], with the whitened mean z and NH = diag w − wwᵀ/N.
        """
        z = self.space.whiten(self.mean.double())
        w, loading = self.weights.double(), self.loading.double()
        theta = w / w.sum(-1, keepdim=True).clamp_min(1.0)
        centred = loading - theta[:, None, :] @ loading
        trace = (w * self.diagonal * (1.0 - theta)).sum(-1)
        trace = trace + (w[..., None] * centred.square()).sum((-2, -1))
        return 0.5 * (z.square().sum(-1) + self.log_det - trace)

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`."""
        std, loading = self.diagonal[rows].double().sqrt(), self.loading[rows].double()
        white = noise.normal(key, self.num_topics + loading.shape[-1])
        shared = torch.einsum("dkj,...dj->...dk", loading, white[..., self.num_topics :])
        return self.mean[rows].double() + (white[..., : self.num_topics] * std + shared)


@dataclass(eq=False, kw_only=True, repr=False)
class FactorPosterior(NormalPosterior):
    """q(s) q(eta) of a batch of documents, with a diagonal normal posterior of eta.

    Attributes:
        space: Coordinates of the prior.
        source_mean: ``(num_docs, num_sources)`` s̄.
        source_root: ``(num_docs, num_sources, num_sources)`` float64 lower Cholesky factor of B⁻¹,
            the covariance of the sources. The paper writes N(s; s̄, B), but its B is the precision.
            With Gaussian sources all documents share one factor, and this tensor is an expanded
            view of it.

    Example:
        >>> iftm = lntm.models.iftm(12, corpus.num_words, num_sources=3)
        >>> lntm.guides.make_guide("factor", iftm).posterior(batch).source_mean.shape
        torch.Size([5, 3])
    """

    space: FactorSpace
    source_mean: Tensor
    source_root: Tensor

    @property
    def source_tril(self) -> Tensor:
        """``source_root`` in the dtype of the means."""
        return self.source_root.to(self.mean.dtype)

    @property
    def source_covariance(self) -> Tensor:
        """B⁻¹ ``(num_docs, num_sources, num_sources)``."""
        return (self.source_root @ self.source_root.mT).to(self.mean.dtype)

    @property
    def source_second_moment(self) -> Tensor:
        """E s² ``(num_docs, num_sources)``, float64."""
        return self.source_mean.double().square() + self._roots.square().sum(-1)

    @property
    def source_std(self) -> Tensor:
        """Posterior standard deviations of the sources ``(num_docs, num_sources)``."""
        std = self._roots.square().sum(-1).sqrt()
        return std.to(self.mean.dtype).expand_as(self.source_mean)

    def source_moments(self, space: LatentSpace) -> tuple[Tensor, Tensor]:
        """See :meth:`Posterior.source_moments`. Moments of q(s)."""
        return self.source_mean, self.source_std

    @property
    def _roots(self) -> Tensor:
        """``source_root``, with a single row if all documents share it, to save copies."""
        if self.space.shares_source_covariance:
            return self.space.source_tril[None]
        return self.source_root

    def kl(self) -> Tensor:
        """KL(q(s) q(eta) ‖ p(s) p(eta | s)) of each document ``(num_docs,)`` float64 nats.

        For Laplace sources the value is an upper bound: sqrt(E s_l²) replaces E|s_l|.
        """
        assert self.std is not None
        root = self._roots
        residual = self.space.noise(self.mean, self.source_mean)
        ratio = self.std.double() / self.space.noise_std
        spread = (root * (self.space.gram @ root)).sum((-2, -1))
        eta = 0.5 * (ratio.square() - 1.0 - 2.0 * ratio.log() + residual.square()).sum(-1)
        log_volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        divergence = self.space.source_divergence(self.source_second_moment, log_volume)
        return eta + 0.5 * spread + divergence

    def source_sums(self) -> SourceSums:
        """See :meth:`Moments.source_sums`. *Putthividhya et al. 2009, eqs 15–17*."""
        mean, source = self.mean.double(), self.source_mean.double()
        roots = self._roots.transpose(0, 1).flatten(1)  # one product instead of one per document
        spread = roots @ roots.mT
        if self.space.shares_source_covariance:
            spread = len(source) * spread
        return SourceSums(source.sum(0), mean.mT @ source, source.mT @ source + spread)
