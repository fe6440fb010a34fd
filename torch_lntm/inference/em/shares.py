"""Which documents a process visits: all of them, or its part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.inference.em.batches import CorpusBatches
from torch_lntm.inference.em.memory import DocumentRows
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.models import TopicModel

#: Batches of corpora with at most this many stored counts are kept between epochs: making them
#: again would take longer than small batches' arithmetic. Larger corpora are not held in batches.
MAX_CACHED_COUNTS = 4_000_000


def owners(
    sizes: NDArray[np.int64], processes: Processes, *groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The process of each document, for as long as a fit lasts.

    In every group each process has about as many documents as any other, and about as many stored
    counts: they are dealt out from the largest to the smallest, in turns that go forth and back.
    Who begins is random, or one process would have all groups' largest documents, and the turns go
    on from group to group, or one would have all groups' odd documents.

    Args:
        sizes: ``(num_docs,)`` stored counts of the documents.
        processes: The processes.
        *groups: ``(num_docs,)`` numbers, the most important first: documents for which all are the
            same are a group.

    Returns:
        ``(num_docs,)`` ranks.

    Raises:
        ConfigError: There are more processes than documents.
    """
    if processes.size > len(sizes):
        raise ConfigError(
            f"{processes.size} processes for {len(sizes)} documents with words; use fewer processes"
        )
    num_turns = -(-len(sizes) // (2 * processes.size))
    forth = np.tile(np.arange(processes.size), (num_turns, 1))
    forth = np.random.default_rng(0).permuted(forth, axis=1)
    turns = np.hstack([forth, forth[:, ::-1]]).ravel()
    found = np.empty(len(sizes), dtype=np.int64)
    found[np.lexsort((-sizes, *groups[::-1]))] = turns[: len(sizes)]
    return found


def add_up_words(
    processes: Processes,
    model: TopicModel,
    corpus: Corpus,
    rows: NDArray[np.int64],
    make: Callable[[], Statistics | None],
) -> Statistics:
    """Statistics of a mini-batch, by one all-reduce in which words that it lacks take no part.

    Args:
        processes: The processes.
        model: The model.
        corpus: The corpus.
        rows: Positions of all processes' documents.
        make: Makes the statistics of this process's among them; None if it has none.
    """
    if processes.alone:
        return processes.add_up("batch", make, model.dtype)
    batch = model.topics.place(corpus.batch(np.sort(rows)))
    words = batch.words.to(model.device)

    def part() -> Statistics | None:
        found = make()
        if found is not None:
            found.word_counts = found.word_counts.mT.index_select(0, words).mT
        return found

    total = processes.add_up("batch", part, model.dtype, len(words))
    counts = total.word_counts.new_zeros(batch.num_words, model.num_topics)
    total.word_counts = counts.index_copy_(0, words, total.word_counts.mT).mT
    return total


class Shares:
    """The documents of a run that this process visits, which are all where there is one process.

    Args:
        corpus: The corpus.
        order: Positions in it of all documents that the run visits, in its order.
        step_docs: Documents of a stochastic step, of all processes.
        stride: Each stochastic step treats one document in so many of the order differently.
        processes: The processes of the run.
        device: Device of the batches.
        dtype: Floating-point type of the batches.

    Attributes:
        num_docs: Number of this process's documents.
        rows: Which rows of tables belong to them.
    """

    def __init__(
        self,
        corpus: Corpus,
        order: NDArray[np.int64],
        step_docs: int,
        stride: int,
        processes: Processes,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._corpus, self._step_docs, self._alone = corpus, step_docs, processes.alone
        self._batches = CorpusBatches(corpus, device, dtype)
        place, owned = np.arange(len(order)), None
        self._order = self._everyone = order
        if not processes.alone:
            sizes = np.diff(corpus.row_offsets)[order]
            step = place // step_docs
            mine = owners(sizes, processes, step, place % stride) == processes.rank
            self._order, place = order[mine], place[mine]
            owned = np.sort(self._order)
        ends = np.searchsorted(place, np.arange(step_docs, len(order), step_docs))
        self._steps = np.split(self._order, ends)
        self.num_docs = len(self._order)
        self.rows = DocumentRows(corpus.row_offsets, owned)
        self._kept: tuple[int | str | None, list[Any]] = (0, [])

    def batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in the run's order, in batches of at most ``max_docs``."""
        parts = np.split(self._order, range(max_docs, len(self._order), max_docs))
        return self._keep(max_docs, self._batches.of(parts))

    def steps(self) -> Iterator[tuple[NDArray[np.int64], DocumentBatch | None]]:
        """The documents of each stochastic step.

        Yields:
            Positions of all processes' documents, and this process's; None if it has none.
        """
        size, order = self._step_docs, self._everyone
        everyone = np.split(order, range(size, len(order), size))
        return zip(everyone, self._own_steps(), strict=True)

    def _own_steps(self) -> Iterator[DocumentBatch | None]:
        if self._alone:
            return self.batches(self._step_docs)
        made = self._batches.of(rows for rows in self._steps if len(rows))
        return self._keep(None, (next(made) if len(rows) else None for rows in self._steps))

    def whole_steps(self) -> Iterator[tuple[Tensor, DocumentBatch]]:
        """All processes' documents of each stochastic step, over the words that these have.

        Yields:
            Those words ``(n,)``, and the documents over these alone.
        """
        size, order = self._step_docs, self._everyone
        parts = np.split(order, range(size, len(order), size))
        return self._keep("whole", ((b.words, b.over(b.words)) for b in self._batches.of(parts)))

    def _keep(self, size: int | str | None, made: Iterator[Any]) -> Iterator[Any]:
        """Batches as they were made before, or as they are made now."""
        if self._corpus.nnz > MAX_CACHED_COUNTS:
            return made
        if self._kept[0] != size:
            # One partition at a time: the stochastic phases' gives way to EM's.
            self._kept = (size, list(made))
        return iter(self._kept[1])
