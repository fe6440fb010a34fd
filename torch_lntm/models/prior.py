"""What every document prior offers: Pyro sites, a density, an M-step and a way to start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class DocumentPrior(nn.Module):
    """The prior of a document's topic proportions, with its parameters.

    A document's proportions are a function of one latent variable, eta or theta itself, at the
    site that :attr:`latent` names; there may be other sites above it.

    Attributes:
        num_topics: Number of topics K.
    """

    #: The kind of model that this prior makes, a key of :data:`torch_lntm.models.MODELS`.
    kind: ClassVar[str]
    #: The site that :meth:`theta` is a function of.
    latent: ClassVar[str]
    num_topics: int

    @property
    def family(self) -> str:
        """The kind and what else decides which guides fit, as a user would write it."""
        return self.kind

    @property
    def latent_dim(self) -> int:
        """Dimension of the variable at the site :attr:`latent`."""
        return self.num_topics

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Prior mean of that variable ``(latent_dim,)``."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """JSON-able arguments of the model's constructor that are this prior's."""

    @abstractmethod
    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from the latent ``(..., latent_dim)``."""

    @abstractmethod
    def sample(self) -> Tensor:
        """Emit the sites of the documents as a Pyro program, within their plate.

        Returns:
            The value of the site :attr:`latent`, ``(num_docs, latent_dim)``.
        """

    @abstractmethod
    def log_prob(self, latents: Mapping[str, Tensor]) -> Tensor:
        """Log density of documents' latent variables.

        Args:
            latents: ``(..., num_docs, dim)`` values by the names of their sites.

        Returns:
            ``(..., num_docs)`` nats.
        """

    @abstractmethod
    def draw(self, num_docs: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws of documents' latent variables ``(num_docs, dim)`` by the names of their sites."""

    @abstractmethod
    def log_prior(self) -> Tensor:
        """Log density, up to a constant, of the parameters' own prior (scalar, nats)."""

    @abstractmethod
    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set the parameters to their maximisers.

        Args:
            num_docs: Number of documents summed over (not counting empty ones).
            **sums: What a posterior's ``sums()`` gives, added over documents.
        """

    @abstractmethod
    def start_from_theta(self, theta: Tensor) -> Tensor:
        """Set the parameters from rough proportions of some documents.

        Args:
            theta: ``(num_docs, num_topics)`` positive proportions.

        Returns:
            ``(num_docs, latent_dim)`` the documents' latent variables that belong to them.
        """

    @abstractmethod
    def contrast_covariance(self) -> Tensor:
        """Covariance ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        Centring removes the shift that softmax ignores, so this is identified. Its rows sum to 0.
        """

    def canonicalise_(self) -> None:
        """Choose, among parameters that mean the same, those that are stated as the convention."""


def centred_logits(theta: Tensor) -> Tensor:
    """Log proportions with mean 0, ``(..., num_topics)``, of proportions of at least 1e-4."""
    logits = theta.clamp_min(1e-4).log()
    return logits - logits.mean(-1, keepdim=True)
