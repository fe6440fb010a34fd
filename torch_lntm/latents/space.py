"""Latent spaces: the coordinates in which every algorithm meets a document prior.

A prior defines a document's latent variables as the sites of its Pyro program, and a latent space
is a choice of coordinates z for them. It defines the distribution of z, the logits of theta at z,
and the maps between z and the sites. Solvers, samplers, annealed importance sampling and integrals
see a prior only through its latent space.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from torch_lntm.latents.metrics import Metric


class SpaceForm(NamedTuple):
    """A space as fused kernels compute it: affine logits, or those of a Dirichlet prior.

    Attributes:
        loc: ``(num_topics,)`` logits at z = 0, or ``(num_docs, num_topics)``.
        loading: ``(dim, num_topics)`` change of the logits with z.
        num_laplace: Number of first components of z with density ½ exp(−|z|). All others are
            standard normal.
        concentration: ``(num_topics,)`` float64 α of a
            :class:`~torch_lntm.latents.gamma.GammaSpace`, whose z has one component for each
            topic. None for affine logits.
    """

    loc: Tensor
    loading: Tensor
    num_laplace: int = 0
    concentration: Tensor | None = None

    @property
    def is_normal(self) -> bool:
        """Whether z is standard normal and the logits are loc + z loading."""
        return self.num_laplace == 0 and self.concentration is None


class LatentSpace(ABC):
    """Coordinates z of the latent variables of a batch of documents, at fixed parameters.

    A space is frozen and carries no gradients. Its parameters may differ between documents, as the
    mean of a prior with covariates does, so ``z`` always has the shape ``(..., num_docs, dim)``,
    with chains or draws as leading axes.

    Example:
        >>> space = model.prior.space(batch)
        >>> z = torch.zeros(batch.num_docs, space.dim)
        >>> space.logits(z).shape, space.log_density(z).shape
        (torch.Size([5, 10]), torch.Size([5]))
        >>> space.latents(z)["eta"].shape
        torch.Size([5, 10])
    """

    #: Names of the program's sites in :meth:`latents`, the main site last.
    sites: ClassVar[tuple[str, ...]]
    #: Whether theta has a Dirichlet prior, conjugate to the topics of the tokens, so that Gibbs
    #: sampling of both is exact.
    conjugate: ClassVar[bool] = False

    def unit_metric(self) -> Metric | None:
        """Metric of unit mass for the sites, or None."""
        return None

    def compact(self) -> LatentSpace:
        """The same prior of theta in the fewest known coordinates. Defaults to the space itself."""
        return self

    @property
    def form(self) -> SpaceForm | None:
        """The space for fused kernels, or None, with which PyTorch's operations compute."""
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
        """Floating-point type of parameters and draws."""

    @property
    @abstractmethod
    def centre(self) -> Tensor:
        """Prior mean of the main site, ``(latent_dim,)`` or ``(num_docs, latent_dim)``."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """Logits of theta ``(..., num_docs, num_topics)``: theta = softmax(logits)."""

    def logits_at(self, z: Tensor, latents: Mapping[str, Tensor]) -> Tensor:
        """:meth:`logits` of z whose :meth:`latents` are known. Defaults to no use of them."""
        return self.logits(z)

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """Normalised log density of z ``(..., num_docs)``, float64 nats."""

    @abstractmethod
    def gradient(self, z: Tensor) -> Tensor:
        """Gradient of :meth:`log_density`, of the shape of ``z``."""

    @abstractmethod
    def pull(self, gradient: Tensor, z: Tensor) -> Tensor:
        """Chain rule: gradients in z from gradients in the logits.

        Args:
            gradient: ``(..., num_docs, num_topics)`` gradients in the logits.
            z: ``(..., num_docs, dim)`` point of the gradients.

        Returns:
            ``(..., num_docs, dim)``.
        """

    @abstractmethod
    def draw(self, key: Tensor) -> Tensor:
        """Prior draws of z ``(..., num_docs, dim)`` for keys ``(..., num_docs)``."""

    @abstractmethod
    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """Values ``(..., num_docs, site_dim)`` of the program's sites, by site name."""

    @abstractmethod
    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """Inverse of :meth:`latents`.

        Args:
            latents: ``(..., num_docs, site_dim)`` values by site name.
            key: ``(..., num_docs)`` keys. They are needed if several z have equal latents, because
                z is then drawn from its distribution given the latents.

        Returns:
            ``(..., num_docs, dim)``.
        """

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """A z with given values of the main site, as a start for chains.

        Spaces with further sites override the method.

        Args:
            latent: ``(..., num_docs, latent_dim)`` values of the main site.
            key: ``(..., num_docs)`` keys for draws of the components of z that ``latent`` leaves
                open.

        Returns:
            ``(..., num_docs, dim)``.
        """
        return self.locate({self.sites[-1]: latent}, key)

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """Space of some of the documents, given as int64 positions in this batch."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """Space in another floating-point type."""


@dataclass(frozen=True, eq=False)
class LocatedSpace(LatentSpace):
    """Coordinates of documents whose priors differ at most in their location.

    Attributes:
        loc: Location, a vector or a row for each document.
    """

    loc: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """See :attr:`LatentSpace.dtype`."""
        return self.loc.dtype

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`; the location."""
        return self.loc

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`."""
        if self.loc.dim() == 1:
            return self  # keeps what is cached
        return replace(self, loc=self.loc[rows])

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: x.to(dtype) for k, x in values.items() if isinstance(x, Tensor)})
