"""Density of a batch's documents under a model, in the coordinates of a latent space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.chains import PaddedWords, SparseWords
from torch_lntm.kernels.likelihood import INDEPENDENT, CountLikelihood
from torch_lntm.latents.space import LatentSpace, SpaceForm

#: Largest count of a word for the Dirichlet-multinomial of compiled kernels.
MOST_TOKENS = 2**14


@dataclass(frozen=True, eq=False)
class DocumentTarget:
    """Log prior and log likelihood of each document's z, for any number of chains.

    :meth:`torch_lntm.models.TopicModel.bind` returns a target, through which alone samplers,
    annealed importance sampling and integrals see a model.

    Attributes:
        space: Coordinates, with the prior.
        topics: ``(num_topics, num_words)`` word probabilities.
        batch: The documents.
        words: Distribution of their counts. Defaults to independent draws.
        padded: Whether to pad the words of each document to the longest document. With many chains,
            dense products are several times faster than sparse ones. They need memory for
            ``num_docs × longest × (num_topics + num_chains)`` numbers, however, so padding suits
            small batches of documents of similar size. Defaults to False.

    Example:
        >>> target = model.bind(batch)
        >>> log_prior, log_likelihood = target.log_joint(torch.zeros(4, 5, target.dim))  # 4 chains
        >>> log_likelihood.shape
        torch.Size([4, 5])
    """

    space: LatentSpace
    topics: Tensor
    batch: DocumentBatch
    words: CountLikelihood = INDEPENDENT
    padded: bool = False

    @property
    def dim(self) -> int:
        """Dimension of z."""
        return self.space.dim

    @cached_property
    def _layout(self) -> PaddedWords | SparseWords:
        if self.padded:
            return PaddedWords(self.topics, self.batch, self.words)
        return self._sparse

    @cached_property
    def _sparse(self) -> SparseWords:
        return SparseWords(self.topics, self.batch, self.words)

    def rows(self, num_chains: int) -> DocumentBatch:
        """All documents once for each chain, chain by chain."""
        return self._sparse.rows(num_chains)

    @cached_property
    def form(self) -> SpaceForm | None:
        """See :attr:`LatentSpace.form`; None if fused kernels do not know the likelihood.

        Dirichlet-multinomial kernels count tokens one by one, which whole small counts allow.
        """
        concentration = self.words.compiled_concentration
        if concentration is None:
            return None
        counts = self.batch.counts
        suits = concentration == math.inf or bool(
            ((counts == counts.round()) & (counts <= MOST_TOKENS)).all()
        )
        return self.space.form if suits else None

    @property
    def bursts(self) -> tuple[float, Tensor] | None:
        """Concentration and length terms of a Dirichlet-multinomial, for compiled kernels."""
        if self.words.independent:
            return None
        concentration = self.words.compiled_concentration
        terms = self.words.length_term(self.batch.lengths)
        assert concentration is not None
        assert isinstance(terms, Tensor)
        return concentration, terms

    def theta(self, z: Tensor) -> Tensor:
        """Topic proportions ``(..., num_docs, num_topics)``."""
        return torch.softmax(self.space.logits(z), -1)

    def log_prior(self, z: Tensor) -> Tensor:
        """Log density of z ``(..., num_docs)``, float64 nats."""
        return self.space.log_density(z)

    def prior_gradient(self, z: Tensor) -> Tensor:
        """Gradient of :meth:`log_prior` in z ``(..., num_docs, dim)``."""
        return self.space.gradient(z)

    def draw_prior(self, key: Tensor) -> Tensor:
        """Prior draws of z ``(..., num_docs, dim)`` for keys ``(..., num_docs)``."""
        return self.space.draw(key).to(self.topics.dtype)

    def locate(self, latents: Mapping[str, Tensor], key: Tensor) -> Tensor:
        """The z of given values of the program's sites; see :meth:`LatentSpace.locate`."""
        return self.space.locate(latents, key).to(self.topics.dtype)

    def log_joint(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log prior density of z and log likelihood, each ``(..., num_docs)`` nats."""
        return self.log_prior(z), self._layout.log_likelihood(self.theta(z))

    def likelihood(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(w | z) ``(..., num_docs)`` float64 nats and its gradient in z."""
        theta = self.theta(z)
        value, topic_counts = self._layout.expected_counts(theta)
        return value, self._gradient(z, theta, topic_counts)

    def likelihood_gradient(self, z: Tensor) -> Tensor:
        """Gradient of :meth:`likelihood` alone ``(..., num_docs, dim)``, at lower cost."""
        theta = self.theta(z)
        return self._gradient(z, theta, self._layout.expected_topic_counts(theta))

    def _gradient(self, z: Tensor, theta: Tensor, topic_counts: Tensor) -> Tensor:
        return self.space.pull(self._logits_gradient(theta, topic_counts), z)

    def _logits_gradient(self, theta: Tensor, topic_counts: Tensor) -> Tensor:
        tokens = self.batch.lengths[:, None]
        if not self.words.independent:
            tokens = topic_counts.sum(-1, keepdim=True)
        return torch.addcmul(topic_counts, tokens, theta, value=-1.0)
