"""Posteriors of sources and eta as independent normals."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torch_lntm.latents.factor import FactorSpace
from torch_lntm.latents.metrics import FactorMetric, Metric
from torch_lntm.latents.space import LatentSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.posteriors.posterior import SourceSums


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

    def metric(self, lengths: Tensor) -> Metric:
        """See :meth:`NormalPosterior.metric`. Normals approximate the sources' prior."""
        space = self.space
        return FactorMetric.of(
            space.mixing,
            space.noise_precision,
            lengths[:, None] * self.theta_mode(),
            space.source_scale(self.source_second_moment),
            self.index,
        )

    def source_sums(self) -> SourceSums:
        """See :meth:`Moments.source_sums`. *Putthividhya et al. 2009, eqs 15–17*."""
        mean, source = self.mean.double(), self.source_mean.double()
        roots = self._roots.transpose(0, 1).flatten(1)  # one product instead of one per document
        spread = roots @ roots.mT
        if self.space.shares_source_covariance:
            spread = len(source) * spread
        return SourceSums(source.sum(0), mean.mT @ source, source.mT @ source + spread)
