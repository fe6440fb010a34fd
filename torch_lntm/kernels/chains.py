"""Words of documents in a sparse and a padded layout, for topic weights of many chains at once."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.likelihood import INDEPENDENT, CellRows, CountLikelihood
from torch_lntm.kernels.mixture import (
    expected_counts,
    expected_topic_counts,
    mixture_log_likelihood,
    probability_floor,
)


class SparseWords:
    """Sparse layout: every document is repeated once for each chain, chain by chain.

    Args:
        topics: ``(num_topics, num_words)`` word probabilities.
        batch: The documents.
        likelihood: Distribution of the counts. Defaults to independent draws.
    """

    def __init__(
        self, topics: Tensor, batch: DocumentBatch, likelihood: CountLikelihood = INDEPENDENT
    ) -> None:
        self.topics = topics
        self.batch = batch
        self.likelihood = likelihood
        self._repeated = (1, batch)

    def rows(self, num_chains: int) -> DocumentBatch:
        """All documents, repeated chain by chain; cached for the last number of chains."""
        if self._repeated[0] != num_chains:
            self._repeated = (num_chains, self.batch.repeat(num_chains))
        return self._repeated[1]

    def _arguments(self, theta: Tensor) -> tuple[Tensor, Tensor, DocumentBatch, CountLikelihood]:
        """Arguments of a kernel, with a row for each document of each chain."""
        rows = self.rows(theta.shape[:-2].numel())
        return theta.reshape(-1, theta.shape[-1]), self.topics, rows, self.likelihood

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Log probabilities of the documents' words ``(..., num_docs)``, float64 nats.

        Args:
            theta: ``(..., num_docs, num_topics)`` topic weights.
        """
        values = mixture_log_likelihood(*self._arguments(theta))
        return values.view(theta.shape[:-1])

    def expected_counts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log probabilities of the documents' words, and the expected tokens of each topic.

        Args:
            theta: ``(..., num_docs, num_topics)`` topic weights.

        Returns:
            ``(..., num_docs)`` float64 nats and ``(..., num_docs, num_topics)``.
        """
        counts = expected_counts(*self._arguments(theta))
        return counts.log_likelihood.view(theta.shape[:-1]), counts.topic_counts.view_as(theta)

    def expected_topic_counts(self, theta: Tensor) -> Tensor:
        """Expected tokens of each topic ``(..., num_docs, num_topics)`` alone."""
        return expected_topic_counts(*self._arguments(theta)).view_as(theta)


class PaddedWords:
    """Padded layout: every document is filled up to the longest, for dense products.

    All chains of a document share its words, and with 16 chains in float64 dense products are many
    times faster than sparse ones. Memory is proportional to ``num_docs × longest × (num_topics +
    num_chains)``, so batches should be small and their documents of similar size.

    Args:
        topics: ``(num_topics, num_words)`` word probabilities.
        batch: The documents.
        likelihood: Distribution of the counts. Defaults to independent draws.
    """

    def __init__(
        self, topics: Tensor, batch: DocumentBatch, likelihood: CountLikelihood = INDEPENDENT
    ) -> None:
        sizes = batch.row_offsets.diff()
        position = torch.arange(int(sizes.max()), device=batch.device)
        inside = position < sizes[:, None]
        entry = torch.where(inside, batch.row_offsets[:-1, None] + position, 0)
        counts = batch.counts[entry] * inside
        num_repeated = 0
        if not likelihood.independent:
            # Repeated words come first and are therefore a slice of the cells.
            once = (counts <= 1.0).long()
            order = once.argsort(dim=1, stable=True)
            entry, counts = entry.gather(1, order), counts.gather(1, order)
            num_repeated = int((1 - once).sum(1).max())
        columns = batch.word_index[entry]
        # Padding has probability 1 under every topic, and count 0.
        self._words = topics.mT[columns].where((counts > 0)[..., None], 1.0)
        self._cells = CellRows(counts[:, None], columns[:, None], num_repeated)
        self._likelihood = likelihood
        self._length_term = likelihood.length_term(batch.lengths)

    def _mixture(self, theta: Tensor) -> Tensor:
        """Probabilities of the words ``(num_docs, num_chains, longest)``, floored."""
        s = theta.transpose(0, 1) @ self._words.mT
        return s.clamp_min_(probability_floor(s.dtype))

    def _topic_counts(self, theta: Tensor, s: Tensor) -> Tensor:
        ratio = self._likelihood.slopes(s, self._cells)
        return theta * (ratio @ self._words).transpose(0, 1)

    def _log_likelihood(self, s: Tensor) -> Tensor:
        value = self._likelihood.log_terms(s, self._cells).sum(-1).double().mT
        return value if self._likelihood.independent else value + self._length_term

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """See :meth:`SparseWords.log_likelihood`; ``theta`` has a single axis of chains."""
        return self._log_likelihood(self._mixture(theta))

    def expected_counts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`SparseWords.expected_counts`; ``theta`` has a single axis of chains."""
        s = self._mixture(theta)
        return self._log_likelihood(s), self._topic_counts(theta, s)

    def expected_topic_counts(self, theta: Tensor) -> Tensor:
        """See :meth:`SparseWords.expected_topic_counts`; ``theta`` has a single axis of chains."""
        return self._topic_counts(theta, self._mixture(theta))
