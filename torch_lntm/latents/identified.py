"""IdentifiedSpace: coordinates of what the likelihood can see, for integrals over them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from torch_lntm.latents.proposals import Proposal
from torch_lntm.latents.space import LatentSpace


class Grid(NamedTuple):
    """A product grid of sinh-spaced points around a document's posterior.

    The points are z = centre + scale·sinh(t), t evenly spaced from −ends to ends.

    Attributes:
        centre: ``(dim,)``.
        scale: ``(dim, dim)`` lower triangular.
        ends: ``(dim,)`` positive.
    """

    centre: Tensor
    scale: Tensor
    ends: Tensor


class IdentifiedSpace(LatentSpace):
    """Coordinates of a document's latent variables that the likelihood depends on.

    What a prior's ``identified(batch)`` returns. A document's probability is an integral over z;
    this says how to draw from its posterior and how to lay a grid around it, given an approximate
    posterior that a guide has solved. Everything is float64.
    """

    #: The proposals by name, each in words with the placeholder ``{degrees_of_freedom:g}`` where it
    #: has such. The first is the default.
    proposals: ClassVar[Mapping[str, str]]
    #: Name of the guide whose posterior proposals and grids lie around by default.
    reference: ClassVar[str]
    #: Whether there is :meth:`grid`.
    has_grid: ClassVar[bool] = False
    #: Whether there is :meth:`normal`. Logits are then affine in z.
    has_normal: ClassVar[bool] = False
    #: What :attr:`standardiser` makes of the main site, in words.
    variable: ClassVar[str]

    @property
    @abstractmethod
    def standardiser(self) -> Tensor:
        """J ``(latent_dim, num_topics)`` float64: the main site times J is identified.

        Its values are in units of their prior standard deviations.
        """

    @abstractmethod
    def proper(self, posterior: Any) -> Tensor:
        """Whether each document's posterior can be drawn around, ``(num_docs,)`` bool.

        Args:
            posterior: What the guide :attr:`reference`, or another of its kind, made of the batch.
        """

    @abstractmethod
    def proposal(
        self,
        name: str,
        posterior: Any,
        row: int,
        words: Tensor,
        counts: Tensor,
        degrees_of_freedom: float,
    ) -> Proposal:
        """The proposal for one document.

        Args:
            name: One of :attr:`proposals`.
            posterior: A guide's posterior of the whole batch.
            row: The document's place in the batch.
            words: ``(nnz, num_topics)`` probabilities of its words under each topic.
            counts: ``(nnz,)`` their counts.
            degrees_of_freedom: Degrees of freedom of a Student-t; goes unused by other proposals.
        """

    def normal(
        self, posterior: Any, documents: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Normal approximations of the posteriors of a batch, all of whose documents have tokens.

        Args:
            posterior: A guide's posterior of the batch.
            documents: Of each document the probabilities ``(nnz, num_topics)`` of its words under
                each topic, and their counts ``(nnz,)``; read once, if at all.

        Returns:
            Means ``(num_docs, dim)`` and Cholesky factors of the covariances
            ``(num_docs, dim, dim)``, float64.
        """
        raise NotImplementedError

    def grid(
        self, posterior: Any, row: int, depth: Callable[[Tensor], Tensor], num_points: int
    ) -> Grid:
        """A grid that reaches as far as the integrand of one document can matter.

        Args:
            posterior: A guide's posterior of the whole batch; it need not be accurate.
            row: The document's place in the batch.
            depth: Takes z ``(dim,)`` to how far the log likelihood rises at most from there, plus
                what is negligible (scalar, nats). Beyond the grid the log prior is lower than at
                the centre by more than the centre's depth.
            num_points: Points on each axis.
        """
        raise NotImplementedError
