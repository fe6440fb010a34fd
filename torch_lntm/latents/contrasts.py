"""The K − 1 contrasts of eta that the softmax can see, whitened by the prior.

Softmax ignores the shift that all K logits share, so integrals over eta are integrals over the
K − 1 contrasts Q·logits, Q the rows of an orthonormal basis orthogonal to 1. There the free and the
anchored parameterisation are one problem, and a proposal cannot waste itself on the direction that
the likelihood does not have. With QF = LU, F the prior's factor lifted to logits and L triangular,
the coordinates w = L⁻¹Q(logits − μ) have a standard normal prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.linalg import contrast_basis, triangular_factor
from torch_lntm.latents.normal import NormalSpace, standard_normal_log_density
from torch_lntm.latents.space import LatentSpace, rows_of

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class ContrastSpace(LatentSpace):
    """A normal prior of eta in whitened contrasts w, where it is standard normal; float64.

    Attributes:
        basis: ``(num_topics - 1, num_topics)`` Q.
        loc: ``(num_topics - 1,)`` contrasts of the prior mean, or one row a document.
        tril: ``(num_topics - 1, num_topics - 1)`` L.
        anchored: eta has one component less than there are topics.
    """

    basis: Tensor
    loc: Tensor
    tril: Tensor
    anchored: bool

    sites = ("eta",)

    @classmethod
    def of(cls, space: NormalSpace) -> Self:
        """The contrasts of a normal prior of eta."""
        lifted = space.tril
        if space.anchored:
            lifted = torch.cat([lifted, lifted.new_zeros(1, space.eta_dim)])
        basis = contrast_basis(len(lifted)).to(lifted.device)
        loc = space.lift(space.loc.double()) @ basis.mT
        return cls(basis, loc, triangular_factor(basis @ lifted), space.anchored)

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.basis)

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return self.basis.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """See :attr:`LatentSpace.dtype`."""
        return self.loc.dtype

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`."""
        return self._eta(self.loc @ self.basis)

    def _eta(self, logits: Tensor) -> Tensor:
        """The eta of centred logits."""
        return logits[..., :-1] - logits[..., -1:] if self.anchored else logits

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`; centred."""
        return (self.loc + z @ self.tril.mT) @ self.basis

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        return standard_normal_log_density(z)

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        return -z

    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.pull`."""
        return gradient @ self.basis.mT @ self.tril

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        return noise.normal(noise.fold_in(key, 0), self.dim).to(self.dtype)

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`; of a free eta the one whose mean over topics is 0."""
        return {"eta": self._eta(self.logits(z))}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`."""
        centred = latents["eta"].to(self.dtype) @ self._contrasts.mT - self.loc
        return torch.linalg.solve_triangular(self.tril.mT, centred, upper=True, left=False)

    @property
    def _contrasts(self) -> Tensor:
        """What takes eta to its contrasts: the anchored topic's logit adds nothing."""
        return self.basis[:, :-1] if self.anchored else self.basis

    def project(self, mean: Tensor, scale_tril: Tensor) -> tuple[Tensor, Tensor]:
        """A normal distribution of eta as one of w.

        Args:
            mean: ``(num_docs, latent_dim)`` mean of eta.
            scale_tril: ``(num_docs, latent_dim, latent_dim)`` factor of the covariance of eta.

        Returns:
            ``(loc, tril)`` of w, ``(num_docs, dim)`` and ``(num_docs, dim, dim)`` lower
            triangular, float64.
        """
        loc = self.locate({"eta": mean})
        factor = torch.linalg.solve_triangular(
            self.tril, self._contrasts @ scale_tril.double(), upper=False
        )
        return loc, triangular_factor(factor)

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.place`."""
        return self.locate({"eta": latent})

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`."""
        return type(self)(self.basis, rows_of(self.loc, rows), self.tril, self.anchored)

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        values = (self.basis, self.loc, self.tril)
        return type(self)(*(value.to(dtype) for value in values), self.anchored)
