"""LatentSpace: the coordinates in which every algorithm meets a document prior.

A prior defines latent variables of a document, the sites of its Pyro program. A latent space is a
choice of coordinates z for them: how z is distributed, which logits of theta belong to it, and how
to get from z to the sites and back. Solvers, samplers, annealed importance sampling and integrals
know nothing else of a prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from torch_lntm.latents.metrics import Metric

if TYPE_CHECKING:
    from typing import Self


class AffineLogits(NamedTuple):
    """Logits that are loc + z loading.

    Attributes:
        loc: ``(num_topics,)`` logits at z = 0, or ``(num_docs, num_topics)``.
        loading: ``(dim, num_topics)`` their change with z.
    """

    loc: Tensor
    loading: Tensor


class LatentSpace(ABC):
    """Coordinates z of the latent variables of the documents of one batch, at fixed parameters.

    A space is frozen and carries no gradients. Its parameters may differ between documents, as the
    mean of a prior with covariates does; ``z`` therefore always has documents on its last axis but
    one, ``(..., num_docs, dim)``, and leading axes are chains or draws.
    """

    #: The sites of the program that :meth:`latents` gives values of, the main one last.
    sites: ClassVar[tuple[str, ...]]
    #: Mass matrices of Hamiltonian chains that come from a posterior: the names of the guides that
    #: solve it by the names of the mass matrices.
    posterior_metrics: ClassVar[Mapping[str, str]] = {}
    #: The mass matrix to take where none is chosen: one of these, or ``"prior"``, which is I.
    default_metric: ClassVar[str] = "prior"
    #: Leapfrog steps in the prior's metric of a transition that Monte-Carlo EM takes.
    leapfrogs: ClassVar[int] = 8

    #: Whether theta has a Dirichlet prior, conjugate to the topics of the tokens: Gibbs sampling of
    #: both is then exact.
    conjugate: ClassVar[bool] = False

    def unit_metric(self) -> Metric | None:
        """The metric in which the sites themselves have unit mass; None where there is none."""
        return None

    def compact(self) -> LatentSpace:
        """The same prior of theta in as few coordinates as are known; by default itself."""
        return self

    @property
    def affine(self) -> AffineLogits | None:
        """The logits where z is standard normal and they are affine in it; None elsewhere."""
        return None

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimension of z."""

    @property
    @abstractmethod
    def num_topics(self) -> int:
        """Number of topics K."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters and of draws."""

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """Prior mean of the main site, ``(latent_dim,)`` or ``(num_docs, latent_dim)``."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """Logits of theta ``(..., num_docs, num_topics)``: theta = softmax(logits)."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """Normalised log density of z ``(..., num_docs)``, float64 nats."""

    @abstractmethod
    def gradient(self, z: Tensor) -> Tensor:
        """Gradient of :meth:`log_density`, of the shape of ``z``."""

    @abstractmethod
    def pull(self, gradient: Tensor, z: Tensor) -> Tensor:
        """Chain rule: gradients in z from those in the logits.

        Args:
            gradient: ``(..., num_docs, num_topics)`` gradients in the logits.
            z: ``(..., num_docs, dim)`` where they were taken.

        Returns:
            ``(..., num_docs, dim)``.
        """

    @abstractmethod
    def draw(self, key: Tensor) -> Tensor:
        """Prior draws of z ``(..., num_docs, dim)`` of keys ``(..., num_docs)``."""

    @abstractmethod
    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """Values ``(..., num_docs, site_dim)`` of the program's sites, by their names."""

    @abstractmethod
    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """The inverse of :meth:`latents`.

        Args:
            latents: ``(..., num_docs, site_dim)`` values by the names of the sites.
            key: ``(..., num_docs)`` keys, needed where several z have the same latents: z is then
                drawn from its distribution given them.

        Returns:
            ``(..., num_docs, dim)``.
        """

    @abstractmethod
    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """Some z at which the main site has given values, for chains to start from.

        Args:
            latent: ``(..., num_docs, latent_dim)`` values of the main site.
            key: ``(..., num_docs)`` keys, for what they leave open.

        Returns:
            ``(..., num_docs, dim)``.
        """

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """The space of some of the documents, int64 positions in this batch."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same space in another floating-point type."""


@dataclass(frozen=True, eq=False)
class LocatedSpace(LatentSpace):
    """Coordinates of documents that differ in the location of their prior alone, if at all.

    Attributes:
        loc: The location, one vector or a row for each document.
    """

    loc: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """See :attr:`LatentSpace.dtype`."""
        return self.loc.dtype

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`."""
        if self.loc.dim() == 1:
            return self  # keeps what is cached
        return replace(self, loc=self.loc[rows])
