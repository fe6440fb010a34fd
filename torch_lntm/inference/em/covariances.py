"""M-steps that see the covariances of a random sample of the documents.

Where a guide's means do not depend on its covariances, the means of all documents cost far less
than their covariances, num_topics³ each. The M-step needs the sum of these alone, and a sample's,
scaled up, does as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import Guide, SolverOptions
from torch_lntm.inference.em.statistics import Statistics, expected_statistics
from torch_lntm.posteriors import Posterior, SampledMoments

#: One document in so many for every so many topics, if that leaves enough documents in a step, and
#: there are enough topics to save time.
STRIDE, TOPICS_PER_STRIDE = 8, 100
MIN_SAMPLED_DOCS, MIN_SAMPLED_TOPICS = 16, 32


def default_stride(guide: Guide[Any], step_docs: int) -> int:
    """How many documents each document of the sample stands for; 1 if all are taken.

    Args:
        guide: The guide.
        step_docs: Documents of a stochastic step.
    """
    num_topics = guide.model.num_topics
    if num_topics < MIN_SAMPLED_TOPICS or not guide.separates_means:
        return 1
    stride = STRIDE * max(1, num_topics // TOPICS_PER_STRIDE)
    return min(stride, max(1, step_docs // MIN_SAMPLED_DOCS))


class CovarianceSample:
    """Which documents' covariances are taken.

    Args:
        guide: A guide.
        corpus: The corpus.
        order: Positions in it of the non-empty documents, in a random order.
        stride: How many documents each of the sample stands for. For guides whose means come with
            the covariances it is 1.
        max_docs: Documents solved at once; by default from what they take in memory.

    Attributes:
        stride: How many documents each of the sample stands for.
        max_docs: Documents to give to :meth:`solve` at once.
    """

    def __init__(
        self,
        guide: Guide[Any],
        corpus: Corpus,
        order: NDArray[np.int64],
        stride: int,
        max_docs: int | None = None,
    ) -> None:
        self.stride = stride if guide.separates_means else 1
        self._guide = guide
        self._num_docs = len(order)
        self._rank = np.empty(corpus.num_docs, dtype=np.int64)
        self._rank[order] = np.arange(len(order))
        device, dtype = guide.model.device, guide.model.dtype
        entries = corpus.nnz / len(order)
        size = guide.memory_per_document(entries)
        self._max_sampled = max_docs or docs_at_once(size, device, dtype)
        if self.stride > 1:
            size = guide.memory_of_means(entries)
        self.max_docs = max_docs or docs_at_once(size, device, dtype)

    def expect(
        self,
        batch: DocumentBatch,
        init: Tensor | None,
        offset: int,
        options: SolverOptions,
        **temperatures: Any,
    ) -> tuple[Posterior, Statistics]:
        """The E-step of a batch: its posteriors, or their means, and its statistics.

        The arguments are those of :meth:`solve`. The batch is placed in the model here; later
        checks of it find nothing left to do.
        """
        batch = self._guide.model.check_batch(batch)
        posterior, moments = self.solve(batch, init, offset, options, **temperatures)
        return posterior, expected_statistics(
            self._guide, batch, posterior, moments, **temperatures
        )

    def solve(
        self,
        batch: DocumentBatch,
        init: Tensor | None,
        offset: int,
        options: SolverOptions,
        **temperatures: Any,
    ) -> tuple[Posterior, SampledMoments | None]:
        """The posteriors of a batch; or their means, and moments with the sample's covariances.

        Args:
            batch: The documents.
            init: Where the guide starts.
            offset: Number of the sample to take, modulo ``stride``.
            options: The solver's settings.
            **temperatures: Those of annealing.
        """
        settings: dict[str, Any] = {**temperatures, **options}
        if self.stride == 1:
            return self._guide.posterior(batch, init, **settings), None
        modes = self._guide.means(batch, init, **settings)
        # Every stride-th document. The last stride may have too few documents for one more.
        offset %= self.stride
        sampled = -(-(self._num_docs - offset) // self.stride)
        moments = SampledMoments(modes, self._num_docs / max(sampled, 1))
        in_sample = self._rank[batch.positions.numpy()] % self.stride == offset
        # From the modes one step is enough.
        settings["max_iterations"] = 1
        for part in torch.from_numpy(in_sample).nonzero().squeeze(-1).split(self._max_sampled):
            rows = part.to(batch.device)
            sample = self._guide.posterior(batch.select(rows), modes.mean[rows], **settings)
            moments.add(sample, rows)
        return modes, moments
