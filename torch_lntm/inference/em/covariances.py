"""E-steps with the covariances of a random sample of the documents.

A document's covariance costs num_topics³ operations, far more than its mean, and some guides can
solve the mean alone. The M-step needs only the sum of the covariances, which a sample of the
documents estimates well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.inference.em.statistics import Statistics, expected_statistics
from torch_lntm.posteriors import Posterior
from torch_lntm.posteriors.normal import SampledMoments
from torch_lntm.solvers.options import SolveOptions

#: Default stride, and number of topics after which another default stride is added.
STRIDE, TOPICS_PER_STRIDE = 8, 100
#: Smallest number of sampled documents in a stochastic step, and smallest number of topics for
#: which a sample saves time.
MIN_SAMPLED_DOCS, MIN_SAMPLED_TOPICS = 16, 32


def default_stride(guide: Guide[Any], step_docs: int) -> int:
    """Default stride: number of documents represented by each document of the sample.

    Args:
        guide: The guide.
        step_docs: Number of documents of a stochastic step.
    """
    num_topics = guide.model.num_topics
    if num_topics < MIN_SAMPLED_TOPICS or not guide.separates_means:
        return 1
    stride = STRIDE * max(1, num_topics // TOPICS_PER_STRIDE)
    return min(stride, max(1, step_docs // MIN_SAMPLED_DOCS))


def ranks_of(order: NDArray[np.int64], num_docs: int) -> NDArray[np.int64]:
    """Numbers ``(num_docs,)`` of documents in an order. Documents outside of it have the number 0.

    Args:
        order: Positions of documents.
        num_docs: Number of all documents.
    """
    ranks = np.zeros(num_docs, dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


class CovarianceSample:
    """E-steps that solve the covariance of every ``stride``-th document only.

    Args:
        guide: A guide.
        corpus: The corpus, or this process's part of it.
        ranks: ``(num_docs,)`` number of each non-empty document in a random order of all non-empty
            documents; see :func:`ranks_of`. Entries of empty documents are not used.
        stride: Number of documents represented by each document of the sample. It becomes 1 if the
            guide solves means and covariances together.
        max_docs: Number of documents solved at once. Defaults to the number that fits in memory.

    Attributes:
        stride: Number of documents represented by each document of the sample.
        max_docs: Maximum number of documents of a batch for :meth:`solve`.
    """

    def __init__(
        self,
        guide: Guide[Any],
        corpus: Corpus,
        ranks: NDArray[np.int64],
        stride: int,
        max_docs: int | None = None,
    ) -> None:
        self.stride = stride if guide.separates_means else 1
        self._guide = guide
        self._num_docs, self._ranks = corpus.whole.num_nonempty, ranks
        self._first = 0 if corpus.part is None else corpus.part.first
        device, dtype = guide.model.device, guide.model.dtype
        entries = corpus.whole.nnz / self._num_docs
        size = guide.memory_per_document(entries)
        self._max_sampled = max_docs or docs_at_once(size, device, dtype)
        if self.stride > 1:
            size = guide.memory_of_means(entries)
        self.max_docs = max_docs or docs_at_once(size, device, dtype)

    def expect(
        self, batch: DocumentBatch, options: SolveOptions, offset: int
    ) -> tuple[Posterior, Statistics]:
        """E-step of a batch.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.
            options: Settings of the solver.
            offset: Number of the sample. Equal numbers modulo ``stride`` have the same documents.

        Returns:
            The posteriors of the batch and its statistics. If the stride is above 1, the posteriors
            have means only, and the statistics the covariances of the sample.
        """
        moments = None
        if self.stride == 1:
            posterior = self._guide.solve(batch, options)
        else:
            posterior, moments = self.sampled(batch, options, offset)
        return posterior, expected_statistics(self._guide, batch, posterior, moments, options)

    def sampled(
        self, batch: DocumentBatch, options: SolveOptions, offset: int
    ) -> tuple[Posterior, SampledMoments]:
        """Posteriors with means only, and moments with the covariances of the sample.

        The arguments are those of :meth:`expect`.
        """
        modes = self._guide.solve(batch, options, covariances=False)
        # The sample has every stride-th document from the offset on.
        offset %= self.stride
        sampled = -(-(self._num_docs - offset) // self.stride)
        moments = SampledMoments(modes, self._num_docs / max(sampled, 1))
        ranks = self._ranks[batch.positions.numpy() - self._first]
        in_sample = ranks % self.stride == offset
        # The sample starts at its modes, so one step is enough.
        for part in torch.from_numpy(in_sample).nonzero().squeeze(-1).split(self._max_sampled):
            rows = part.to(batch.device)
            once = options._replace(start=modes.mean[rows], max_iterations=1)
            sample = self._guide.solve(batch.select(rows), once)
            moments.add(sample, rows)
        return modes, moments
