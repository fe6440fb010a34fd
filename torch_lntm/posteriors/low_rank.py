"""Normal posteriors of eta with covariances of low rank plus a diagonal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torch_lntm.latents.factor import GaussianFactorSpace
from torch_lntm.latents.linalg import triangular_factor
from torch_lntm.latents.metrics import FactorMetric, Metric
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.posteriors.posterior import Rows


@dataclass(eq=False, kw_only=True, repr=False)
class LowRankPosterior(NormalPosterior):
    """Normal posteriors of eta with covariance diag(d) + WWᵀ. Dense matrices are made on demand.

    The precision is Σ⁻¹ + diag w − wwᵀ/N, with the marginal covariance Σ of eta and w = N·theta at
    the mean (*Ahmed & Xing 2007, eq. 9*). Densities and divergences use the precision, to avoid
    cancellation. Draws and variances use d and W.

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

    def log_prob(self, eta: Tensor) -> Tensor:
        """Log density ``(..., num_docs)`` of eta ``(..., num_docs, num_topics)``, nats."""
        centred = eta.double() - self.mean.double()
        # `whiten` subtracts the prior mean; adding it first whitens the difference itself.
        z = self.space.whiten(centred + self.space.loc)
        w = self.weights.double()
        theta = w / w.sum(-1, keepdim=True).clamp_min(1.0)
        spread = w * (centred - (theta * centred).sum(-1, keepdim=True)).square()
        constant = self.space.eta_dim * math.log(2 * math.pi) + self.space.log_det - self.log_det
        return (-0.5 * (z.square().sum(-1) + spread.sum(-1) + constant)).to(self.mean.dtype)

    def metric(self, lengths: Tensor) -> Metric:
        """See :meth:`NormalPosterior.metric`. Covers sources and eta together."""
        space = self.space
        return FactorMetric.of(space.mixing, space.noise_precision, self.weights, None, self.index)

    @property
    def noise_dim(self) -> int:
        """Number of standard normal numbers for a draw of eta."""
        return self.space.eta_dim + self.loading.shape[-1]

    def _deviations(self, noise: Tensor, rows: Rows) -> Tensor:
        std, loading = self.diagonal[rows].double().sqrt(), self.loading[rows].double()
        dim = self.space.eta_dim
        shared = torch.einsum("dkj,...dj->...dk", loading, noise[..., dim:])
        return noise[..., :dim] * std + shared
