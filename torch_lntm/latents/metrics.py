"""Mass matrices of Hamiltonian Monte Carlo: factors of covariances of z, cheap to apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from torch_lntm.latents.linalg import inverse_cholesky


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


@dataclass(frozen=True, eq=False)
class FactorMetric:
    """Posterior covariance WWᵀ of z = (s, e) for p(w | eta) replaced by a normal function of eta.

    The information of the data is diag w − wwᵀ/N as in Taylor's posterior, with w = N·theta, and
    the sources have precision 1/|η|. The symbols are those of
    :func:`torch_lntm.solvers.taylor.low_rank_covariance`. Given s, eta has covariance diag d +
    uuᵀ/Σr = D^½(I + vvᵀ)D^½. Its root is D^½(I + c vvᵀ) with c = 1/(1 + sqrt(1 + |v|²)), and e
    changes with s by −λ_k^½ u_k (a_k − ā). Therefore

        s = R r_s,    e = −Λ^½ diag(u)(A − 1ā)s + (ΛD)^½(I + c vvᵀ) r_e

    The cost is num_topics × num_sources per document, and all documents share the matrix of that
    size.

    Attributes:
        mixing: ``(num_topics, num_sources)`` A, shared by all documents.
        average: ``(num_docs, num_sources)`` ā.
        root: ``(num_docs, num_sources, num_sources)`` R.
        slope: ``(num_docs, num_topics)`` −λ^½u.
        std: ``(num_docs, num_topics)`` (λd)^½.
        direction: ``(num_docs, num_topics)`` c^½ v.
    """

    is_unit: ClassVar[bool] = False

    mixing: Tensor
    average: Tensor
    root: Tensor
    slope: Tensor
    std: Tensor
    direction: Tensor

    @classmethod
    def of(
        cls,
        mixing: Tensor,
        noise_precision: Tensor,
        weights: Tensor,
        source_scale: Tensor | None,
        index: Tensor,
    ) -> FactorMetric:
        """Metric of documents under a factor prior.

        Args:
            mixing: ``(num_topics, num_sources)`` A.
            noise_precision: ``(num_topics,)`` λ.
            weights: ``(num_docs, num_topics)`` w = N·theta; zeros for an empty document.
            source_scale: ``(num_docs, num_sources)`` |η|^½; None means 1, for Gaussian sources.
            index: ``(num_docs,)`` corpus positions, to name documents in an error.

        Raises:
            NumericalError: The precision of some documents' sources is not positive definite.
        """
        w, precision, a = (x.double() for x in (weights, noise_precision, mixing))
        scale = w.new_ones(len(w), a.shape[1]) if source_scale is None else source_scale.double()
        diagonal = 1.0 / (precision + w)
        r = precision * w * diagonal
        total = r.sum(-1, keepdim=True)
        total = torch.where(total > 0, total, 1.0)
        average = r @ a / total
        centred = (a - average[:, None, :]) * scale[:, None, :]
        information = (centred.mT @ (r[..., None] * centred)).flip(1, 2)
        information.diagonal(dim1=-2, dim2=-1).add_(1.0)
        root = scale[..., None] * inverse_cholesky(information, index).mT.flip(1, 2)
        v = w * (diagonal / total).sqrt()
        c = 1.0 / (1.0 + (1.0 + v.square().sum(-1, keepdim=True)).sqrt())
        dtype = weights.dtype
        return cls(
            mixing=mixing.to(dtype),
            average=average.to(dtype),
            root=root.to(dtype),
            slope=(-precision.sqrt() * w * diagonal).to(dtype),
            std=(precision * diagonal).sqrt().to(dtype),
            direction=(c.sqrt() * v).to(dtype),
        )

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        num_sources = self.mixing.shape[1]
        noise = momentum[..., num_sources:]
        source = torch.einsum("dij,cdj->cdi", self.root, momentum[..., :num_sources])
        centred = source @ self.mixing.mT - (source * self.average).sum(-1, keepdim=True)
        noise = noise + self.direction * (self.direction * noise).sum(-1, keepdim=True)
        return torch.cat([source, self.slope * centred + self.std * noise], -1)

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        num_sources = self.mixing.shape[1]
        noise = gradient[..., num_sources:]
        sloped = self.slope * noise
        source = gradient[..., :num_sources] + sloped @ self.mixing
        source = source - self.average * sloped.sum(-1, keepdim=True)
        noise = self.std * noise
        noise = noise + self.direction * (self.direction * noise).sum(-1, keepdim=True)
        return torch.cat([torch.einsum("dij,cdi->cdj", self.root, source), noise], -1)
