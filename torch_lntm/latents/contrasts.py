"""The K − 1 contrasts of eta with an effect on the softmax, whitened by the prior.

Softmax ignores a common shift of all K logits, so that integrals over eta are integrals over the K
− 1 contrasts Q·logits, where the rows of Q are an orthonormal basis orthogonal to 1. In these
coordinates the free and the anchored parameterisation are the same problem, and a proposal wastes
no draws on a direction without likelihood. With QF = LU, F the prior's factor lifted to logits and
L triangular, the coordinates w = L⁻¹Q(logits − μ) have a standard normal prior.

Sources without a closed-form integral are integrated with the contrasts. With eta = μ + A s + ε the
contrasts are c = Qμ + QA s + Ue, where UUᵀ = QΛ⁻¹Qᵀ and e is standard normal. In the coordinates u
= (s, e) the prior is a product, p(s) N(e; 0, I), and the logits are affine.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from torch_lntm.latents.factor import LaplaceFactorSpace, LaplaceSourcesSpace
from torch_lntm.latents.identified import STUDENT, IdentifiedSpace, Proposal, elliptical_draws
from torch_lntm.latents.linalg import contrast_basis, triangular_factor
from torch_lntm.latents.normal import NormalSpace, StandardNormalSpace
from torch_lntm.latents.space import LocatedSpace


@dataclass(frozen=True, eq=False)
class CentredSpace(LocatedSpace, IdentifiedSpace):
    """Coordinates in which the centred logits are affine.

    Attributes:
        loc: ``(num_topics - 1,)`` contrasts of the prior mean, or a row for each document.
        basis: ``(num_topics - 1, num_topics)`` Q.
    """

    basis: Tensor

    has_normal = True

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return self.basis.shape[1]

    @cached_property
    def origin(self) -> Tensor:
        """Centred logits at z = 0, ``(num_topics,)`` or a row for each document."""
        return self.loc @ self.basis

    @property
    @abstractmethod
    def loading(self) -> Tensor:
        """Change of the logits with z, ``(dim, num_topics)``."""

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`; centred."""
        return self.origin + z @ self.loading

    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.pull`; ``z`` is unused, since logits are affine in z."""
        return gradient @ self.loading.mT

    def proposal(
        self, name: str, posterior: Any, row: int, document: tuple[Tensor, Tensor]
    ) -> Proposal:
        """See :meth:`IdentifiedSpace.proposal`; with the moments of :meth:`normal`.

        If a normal proposal is narrower than the posterior, its weights have infinite variance,
        whereas those of the Student-t with equal centre and scale have finite variance. Under
        either, it is the same to draw sources and then eta given the sources (*Putthividhya et al.
        2009, §3.2.1*), or both together.
        """
        rows = torch.tensor([row], device=self.loc.device)
        space = self.select(rows)
        loc, tril = space.normal(posterior, rows, [document])
        nu = STUDENT if name == "student_t" else math.inf
        return Proposal(space, partial(elliptical_draws, loc[0], tril[0], nu))


@dataclass(frozen=True, eq=False)
class ContrastSpace(CentredSpace, StandardNormalSpace):
    """A normal prior of eta in whitened contrasts w, with a standard normal density; float64.

    Attributes:
        tril: ``(num_topics - 1, num_topics - 1)`` L.
        anchored: Whether eta has ``num_topics - 1`` components.
    """

    tril: Tensor
    anchored: bool

    sites = ("eta",)
    proposals = {"student_t": f"Student-t({STUDENT:g})", "gaussian": "normal"}  # noqa: RUF012

    @classmethod
    def of(cls, space: NormalSpace) -> Self:
        """The contrasts of a normal prior of eta."""
        space = space.to(torch.float64)
        basis = contrast_basis(space.num_topics).to(space.loc.device)
        loc = space.lift(space.loc) @ basis.mT
        return cls(loc, basis, triangular_factor(basis @ space.factor), space.anchored)

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.basis)

    @cached_property
    def loading(self) -> Tensor:
        """See :attr:`CentredSpace.loading`."""
        return self.tril.mT @ self.basis

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`."""
        return self._eta(self.origin)

    def _eta(self, logits: Tensor) -> Tensor:
        """The eta of centred logits."""
        return logits[..., :-1] - logits[..., -1:] if self.anchored else logits

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`; a free eta has mean 0 over topics."""
        return {"eta": self._eta(self.logits(z))}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`."""
        centred = latents["eta"].to(self.dtype) @ self._contrasts.mT - self.loc
        return torch.linalg.solve_triangular(self.tril.mT, centred, upper=True, left=False)

    @property
    def _contrasts(self) -> Tensor:
        """Matrix from eta to its contrasts. An anchored topic has logit 0 and no column."""
        return self.basis[:, :-1] if self.anchored else self.basis

    def project(self, mean: Tensor, scale_tril: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution of w for a normal distribution of eta.

        Args:
            mean: ``(num_docs, latent_dim)`` mean of eta.
            scale_tril: ``(num_docs, latent_dim, latent_dim)`` factor of the covariance of eta.

        Returns:
            ``(loc, tril)`` of w, ``(num_docs, dim)`` and ``(num_docs, dim, dim)`` lower triangular,
            float64.
        """
        loc = self.locate({"eta": mean})
        factor = torch.linalg.solve_triangular(
            self.tril, self._contrasts @ scale_tril.double(), upper=False
        )
        return loc, triangular_factor(factor)

    def proper(self, posterior: Any) -> Tensor:
        """See :meth:`IdentifiedSpace.proper`."""
        tril = posterior.scale_tril
        finite = torch.isfinite(posterior.mean).all(1) & torch.isfinite(tril).all(2).all(1)
        return finite & (tril.diagonal(dim1=-2, dim2=-1) > 0).all(1)

    def normal(
        self, posterior: Any, rows: Tensor, documents: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`IdentifiedSpace.normal`; the given posterior, projected."""
        return self.project(posterior.mean[rows], posterior.scale_tril[rows])


@dataclass(frozen=True, eq=False)
class SourceContrastSpace(CentredSpace, LaplaceSourcesSpace):
    """Laplace sources and contrasts of eta in u = (s, e); see the module. Float64.

    Attributes:
        mixing: ``(num_topics - 1, num_sources)`` QA.
        noise_tril: ``(num_topics - 1, num_topics - 1)`` U.
    """

    mixing: Tensor
    noise_tril: Tensor

    sites = ("source", "eta")
    # There is no normal proposal: with Laplace sources its weights have infinite variance.
    proposals = {"student_t": f"Student-t({STUDENT:g}) of sources and eta"}  # noqa: RUF012

    @classmethod
    def of(cls, space: LaplaceFactorSpace) -> Self:
        """The sources and contrasts of a factor prior with Laplace sources."""
        basis = contrast_basis(space.num_topics).to(space.loc.device)
        return cls(
            space.loc.double() @ basis.mT,
            basis,
            basis @ space.mixing.double(),
            triangular_factor(basis * space.noise_precision.double().rsqrt()),
        )

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return self.num_sources + len(self.basis)

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`."""
        return self.origin

    @cached_property
    def loading(self) -> Tensor:
        """See :attr:`CentredSpace.loading`."""
        return torch.cat([self.mixing.mT, self.noise_tril.mT]) @ self.basis

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`; eta has mean 0 over topics."""
        return {"source": z[..., : self.num_sources], "eta": self.logits(z)}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`."""
        source = latents["source"].to(self.dtype)
        residual = (
            latents["eta"].to(self.dtype) @ self.basis.mT - self.loc - source @ self.mixing.mT
        )
        noise = torch.linalg.solve_triangular(self.noise_tril.mT, residual, upper=True, left=False)
        return torch.cat([source, noise], -1)

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.place`; the sources are 0."""
        source = latent.new_zeros(*latent.shape[:-1], self.num_sources)
        return self.locate({"source": source, "eta": latent})

    def proper(self, posterior: Any) -> Tensor:
        """See :meth:`IdentifiedSpace.proper`."""
        # A sum is finite only if all of its terms are finite.
        second = posterior.source_second_moment
        total = posterior.mean.sum(1).double() + posterior.source_mean.sum(1) + second.sum(1)
        return torch.isfinite(total) & (second > 0).all(1)

    def normal(
        self, posterior: Any, rows: Tensor, documents: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`IdentifiedSpace.normal`; :meth:`approximate` at the posterior's means.

        A mean field makes the sources and the components of eta independent, and so its own
        covariance misses their dependence.
        """
        parts = []
        for i, (row, document) in enumerate(zip(rows.split(1), documents, strict=True)):
            point = (posterior.mean[row].double(), posterior.source_mean[row].double())
            scale = posterior.source_second_moment[row][0].double().sqrt()
            space = self.select(torch.tensor([i], device=self.loc.device))
            parts.append(space.approximate(*point, scale, *document))
        loc, tril = zip(*parts, strict=True)
        return torch.stack(loc), torch.stack(tril)

    def approximate(
        self, eta: Tensor, source: Tensor, source_scale: Tensor, words: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Normal approximation of a single document's posterior of u around a given point.

        The prior of a source is replaced by the normal N(0, |η|) of its dual (*Putthividhya et al.
        2009, eqs 2–3*), and the log likelihood by its second-order expansion at the point, without
        the directions of positive curvature. Unlike the mean field, the result includes the
        dependence between eta's components and the sources.

        Args:
            eta: ``(1, num_topics)`` eta of the point.
            source: ``(1, num_sources)`` its sources.
            source_scale: ``(num_sources,)`` |η| = sqrt(E s²), positive.
            words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
            counts: ``(nnz,)`` their counts.

        Returns:
            ``(loc, tril)``, mean ``(dim,)`` and Cholesky factor of the covariance ``(dim, dim)``.
        """
        loc = self.locate({"source": source, "eta": eta})
        scale = torch.cat([source_scale.sqrt(), source_scale.new_ones(len(self.basis))])
        # The normal prior of u/scale is standard, so the precision is at least I.
        loading = scale[:, None] * self.loading
        data = loading @ _information(self.logits(loc)[0], words, counts) @ loading.mT
        values, vectors = torch.linalg.eigh(data)
        root = scale[:, None] * vectors * (1.0 + values.clamp_min(0.0)).rsqrt()
        return loc[0], triangular_factor(root)


def _information(logits: Tensor, words: Tensor, counts: Tensor) -> Tensor:
    """Minus the Hessian of one document's log likelihood in the logits, ``(K, K)``."""
    theta = torch.softmax(logits, -1)
    joint = theta * words
    rho = joint / joint.sum(1, keepdim=True).clamp_min(torch.finfo(joint.dtype).tiny)
    complete = counts.sum() * (theta.diag() - torch.outer(theta, theta))
    return complete - (counts @ rho).diag() + rho.mT @ (counts[:, None] * rho)
