"""Coordinates of the latent variables with an effect on the likelihood, for integrals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from torch_lntm.latents.proposals import Proposal
from torch_lntm.latents.space import LatentSpace


class IdentifiedSpace(LatentSpace):
    """Coordinates of the latent variables with an effect on the likelihood.

    A prior's ``identified(batch)`` returns such a space. A document's probability is an integral
    over z. Given an approximate posterior from a guide, the space offers draws around the
    posterior. All numbers are float64.
    """

    #: Descriptions of the proposals by name, with the placeholder ``{degrees_of_freedom:g}`` for a
    #: Student-t. The first proposal is the default.
    proposals: ClassVar[Mapping[str, str]]
    #: Name of the guide for the default centre of proposals.
    reference: ClassVar[str]
    #: Whether the space has :meth:`normal`. Logits are then affine in z.
    has_normal: ClassVar[bool] = False
    #: Description of the main site times :attr:`standardiser`.
    variable: ClassVar[str]

    @property
    @abstractmethod
    def standardiser(self) -> Tensor:
        """Matrix J ``(latent_dim, num_topics)`` float64; the main site times J is identified.

        The product is in units of its prior standard deviations.
        """

    @abstractmethod
    def proper(self, posterior: Any) -> Tensor:
        """Whether each document's posterior can be the centre of draws, ``(num_docs,)`` bool.

        Args:
            posterior: Posterior of the batch from the guide :attr:`reference` or a guide of its
                kind.
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
        """The proposal for a single document.

        Args:
            name: A name in :attr:`proposals`.
            posterior: A guide's posterior of the whole batch.
            row: Position of the document in the batch.
            words: ``(nnz, num_topics)`` probabilities of its words under each topic.
            counts: ``(nnz,)`` their counts.
            degrees_of_freedom: Degrees of freedom of a Student-t; ignored by other proposals.
        """

    def normal(
        self, posterior: Any, documents: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Normal approximations of the posteriors of a batch of documents with tokens.

        Args:
            posterior: A guide's posterior of the batch.
            documents: For each document, the probabilities ``(nnz, num_topics)`` of its words under
                each topic, and their counts ``(nnz,)``. Read at most once.

        Returns:
            Means ``(num_docs, dim)`` and Cholesky factors of the covariances ``(num_docs, dim,
            dim)``, float64.
        """
        raise NotImplementedError
