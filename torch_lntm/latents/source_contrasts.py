"""Sources and contrasts of eta together, for sources that do not integrate out.

With eta = μ + A s + ε the contrasts of eta are c = Qμ + QA s + Ue, Q the rows of an orthonormal
basis orthogonal to 1, UUᵀ = QΛ⁻¹Qᵀ, and e standard normal. In the coordinates u = (s, e) the prior
is a product, p(s) N(e; 0, I), and the logits are affine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.factor import LaplaceFactorSpace
from torch_lntm.latents.linalg import contrast_basis, triangular_factor
from torch_lntm.latents.normal import standard_normal_log_density
from torch_lntm.latents.space import LatentSpace, rows_of

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class SourceContrastSpace(LatentSpace):
    """Laplace sources and contrasts of eta in u = (s, e); see the module. Float64.

    Attributes:
        basis: ``(num_topics - 1, num_topics)`` Q.
        loc: ``(num_topics - 1,)`` contrasts Qμ, or one row a document.
        mixing: ``(num_topics - 1, num_sources)`` QA.
        noise_tril: ``(num_topics - 1, num_topics - 1)`` U.
    """

    basis: Tensor
    loc: Tensor
    mixing: Tensor
    noise_tril: Tensor

    sites = ("source", "eta")

    @classmethod
    def of(cls, space: LaplaceFactorSpace) -> Self:
        """The sources and contrasts of a factor prior with Laplace sources."""
        basis = contrast_basis(space.num_topics).to(space.loc.device)
        return cls(
            basis,
            space.loc.double() @ basis.mT,
            basis @ space.mixing.double(),
            triangular_factor(basis * space.noise_precision.double().rsqrt()),
        )

    @property
    def num_sources(self) -> int:
        """Number of sources L."""
        return self.mixing.shape[1]

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return self.num_sources + len(self.basis)

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
        return self.loc @ self.basis

    @property
    def loading(self) -> Tensor:
        """``(dim, num_topics)`` change of the logits with u."""
        return torch.cat([self.mixing.mT, self.noise_tril.mT]) @ self.basis

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`; centred."""
        return self.centre + z @ self.loading

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        laplace = -source.double().abs().sum(-1) - self.num_sources * math.log(2.0)
        return laplace + standard_normal_log_density(noise)

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return -torch.cat([source.sign(), noise], -1)

    def pull(self, gradient: Tensor, z: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.pull`."""
        return gradient @ self.loading.mT

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        z = noise.normal(noise.fold_in(key, 0), self.dim)
        z[..., : self.num_sources] = noise.laplace(noise.fold_in(key, 1), self.num_sources)
        return z.to(self.dtype)

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`; the eta whose mean over topics is 0."""
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
        """See :meth:`LatentSpace.place`; with sources of 0."""
        source = latent.new_zeros(*latent.shape[:-1], self.num_sources)
        return self.locate({"source": source, "eta": latent})

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`."""
        return type(self)(self.basis, rows_of(self.loc, rows), self.mixing, self.noise_tril)

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        values = (self.basis, self.loc, self.mixing, self.noise_tril)
        return type(self)(*(value.to(dtype) for value in values))
