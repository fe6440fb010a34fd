"""Documents of a fit: their batches, their processes, and tables with values between visits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, CorpusError, LNTMWarning, warn
from torch_lntm.inference.em.checkpoint import FitState, corpus_identity
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Largest number of topics for which fewer than 2 documents per topic give no warning. Toy corpora
#: have few topics.
_FEW_TOPICS = 20
#: Tables with rows for stored counts. All other tables have rows for documents.
ENTRY_TABLES = frozenset({"sites"})
#: Largest number of stored counts of a corpus whose batches are cached. To rebuild a small batch
#: takes longer than its arithmetic, but the batches of larger corpora would take too much memory.
MAX_CACHED_COUNTS = 4_000_000

T = TypeVar("T")
B = TypeVar("B", DocumentBatch, DocumentBatch | None)


def corpus_to_fit(model: TopicModel, documents: Corpus) -> Corpus:
    """The documents of a fit, encoded for the model.

    Args:
        model: The model.
        documents: The documents. A part knows the numbers of its whole corpus.

    Raises:
        ConfigError: The documents have a different vocabulary.
        CorpusError: The documents have no tokens.

    Warns:
        LNTMWarning: There are more topics than non-empty documents. Or there are more than 20
            topics, and fewer than 2 non-empty documents per topic.
    """
    corpus = model.encode(documents)
    if corpus.whole.num_tokens == 0:
        raise CorpusError("the corpus has no tokens; there is nothing to fit")
    num_docs = corpus.whole.num_nonempty
    few = num_docs < model.num_topics or _FEW_TOPICS < model.num_topics > num_docs / 2
    if few and num_docs > 1:
        warn(
            f"{model.num_topics} topics for {num_docs} documents with words; use fewer topics, "
            "because several documents must share a topic",
            LNTMWarning,
        )
    return corpus


class CorpusBatches:
    """Batches of a corpus on a model's device. Batches of a part know its place in the whole.

    A GPU with enough memory holds a copy of the entire corpus, from which it makes the batches. The
    host then need not gather and copy the counts of every batch.

    Args:
        corpus: The corpus.
        device: Device of the batches.
        dtype: Floating-point type of the batches.
    """

    def __init__(self, corpus: Corpus, device: torch.device, dtype: torch.dtype) -> None:
        self._corpus, self._device, self._dtype = corpus, device, dtype
        # Each entry has a word and a count. Covariates are small in comparison.
        size = corpus.nnz * (torch.int64.itemsize + dtype.itemsize)
        self._copied = device.type == "cuda" and fits(size, device)
        self._copy: DocumentBatch | None = None

    def of(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """Batches of documents, one for each array of positions."""
        return map(self._placed, self._made(parts))

    def _placed(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with positions in the whole corpus, if the corpus is a part."""
        part = self._corpus.part
        if part is None:
            return batch
        placed = replace(batch, index=batch.index + part.first, corpus_size=part.num_docs)
        placed.__dict__["positions"] = batch.positions + part.first
        if "num_tokens" in batch.__dict__:
            placed.__dict__["num_tokens"] = batch.num_tokens
        return placed

    def _made(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """Batches with positions in the corpus."""
        if not self._copied:
            for rows in parts:
                yield self._corpus.batch(rows, device=self._device, dtype=self._dtype)
            return
        corpus, groups = self._corpus, list(parts)
        if self._copy is None:
            self._copy = self._copied_corpus()
        # All positions are copied at once, because the host waits for each copy.
        positions = torch.from_numpy(np.concatenate([*groups, np.zeros(0, np.int64)]))
        sizes = np.diff(corpus.row_offsets)
        on_device = positions.to(self._device).split([len(rows) for rows in groups])
        for rows, part in zip(groups, on_device, strict=True):
            yield self._copy.select(
                part,
                num_entries=int(sizes[rows].sum()),
                positions=torch.from_numpy(rows),
                num_tokens=float(corpus.lengths[rows].sum()),
            )

    def _copied_corpus(self) -> DocumentBatch:
        """Batch of all documents, copied in parts, because the host's memory may be too small."""
        corpus, device = self._corpus, self._device
        template = corpus.batch([0], device=device, dtype=self._dtype)
        word_index = template.word_index.new_empty(corpus.nnz)
        counts = template.counts.new_empty(corpus.nnz)
        for entries, rows in corpus.parts():
            word_index[entries].copy_(torch.tensor(rows.word_index, dtype=torch.int64))
            counts[entries].copy_(torch.tensor(rows.counts, dtype=self._dtype))
        return replace(
            template,
            row_offsets=torch.tensor(corpus.row_offsets, device=device),
            word_index=word_index,
            counts=counts,
            index=torch.arange(corpus.num_docs, device=device),
            covariates={
                name: torch.tensor(array).to(template.covariates[name])
                for name, array in corpus.batch_covariates.items()
            },
        )


def assign_owners(
    sizes: NDArray[np.int64], processes: Processes, *groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Assign every document to a process, for the duration of a fit.

    Each process gets about the same number of documents and stored counts of every group. Documents
    are dealt out from the largest to the smallest, in rounds that alternate between forth and back.
    The order of processes within a round is random, because a fixed order would give one process
    the largest documents of all groups. Rounds continue from group to group. Otherwise one process
    would get the left-over documents of all groups.

    Args:
        sizes: ``(num_docs,)`` number of stored counts of each document.
        processes: The processes.
        *groups: ``(num_docs,)`` group numbers, the most important first. Documents with equal
            numbers form a group.

    Returns:
        ``(num_docs,)`` ranks.

    Raises:
        ConfigError: There are more processes than documents.
    """
    if processes.size > len(sizes):
        raise ConfigError(
            f"{processes.size} processes for {len(sizes)} documents with words; use fewer processes"
        )
    num_rounds = -(-len(sizes) // (2 * processes.size))
    forth = np.tile(np.arange(processes.size), (num_rounds, 1))
    forth = np.random.default_rng(0).permuted(forth, axis=1)
    dealt = np.hstack([forth, forth[:, ::-1]]).ravel()
    owner = np.empty(len(sizes), dtype=np.int64)
    owner[np.lexsort((-sizes, *groups[::-1]))] = dealt[: len(sizes)]
    return owner


class DocumentShard:
    """This process's documents of a fit of a whole corpus. A single process has all documents.

    :class:`~torch_lntm.inference.em.parts.PartShard` is the shard of a fit of a corpus in parts.

    Args:
        model: The model. Batches have its device and dtype.
        corpus: The corpus.
        order: Positions in the corpus of all documents of the fit, in the order of their visits.
        processes: The processes of the fit.
        *groups: As for :func:`assign_owners`.

    Attributes:
        corpus: The corpus.
        order: Positions of this process's documents in ``corpus``, in the order of their visits.
        processes: The processes of the fit.
        first: Position of the first document of ``corpus`` in the whole corpus.
        rows: Rows of these documents in tables.
    """

    def __init__(
        self,
        model: TopicModel,
        corpus: Corpus,
        order: NDArray[np.int64],
        processes: Processes,
        *groups: NDArray[np.int64],
    ) -> None:
        self.corpus, self.order, self.processes = corpus, order, processes
        self._order_of_all = order
        self.first = 0 if corpus.part is None else corpus.part.first
        self._batches = CorpusBatches(corpus, model.device, model.dtype)
        self._is_local: NDArray[np.bool_] | None = None
        local = None
        if not processes.alone:
            sizes = np.diff(corpus.row_offsets)[order]
            self.order = order[assign_owners(sizes, processes, *groups) == processes.rank]
            local = np.sort(self.order)
            self._is_local = np.zeros(corpus.num_docs, dtype=np.bool_)
            self._is_local[local] = True
        self.rows = DocumentRows(corpus.row_offsets, local, self.first)
        self._cache: tuple[Any, list[Any]] = (None, [])

    @property
    def num_docs(self) -> int:
        """Number of this process's documents."""
        return len(self.order)

    def local_part(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's documents among the given positions, in their order."""
        return positions if self._is_local is None else positions[self._is_local[positions]]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of this process's documents in the whole corpus."""
        return self.order + self.first

    def mini_batches(
        self, seed: int, epoch: int, number: int
    ) -> Iterator[tuple[DocumentBatch | None, int]]:
        """This process's documents of each mini-batch of an epoch over all documents.

        Args:
            seed: Seed of the order.
            epoch: Number of the epoch, from 0.
            number: Number of mini-batches.

        Yields:
            This process's documents, or ``None``, and the number of documents of all processes.
        """
        order = np.random.default_rng([seed, epoch]).permutation(self.corpus.nonempty)
        # Documents of a part keep the order of the corpus, in which neighbours are close in memory.
        parts = [np.sort(part) for part in np.array_split(order, number)]
        return zip(self.batches(parts), map(len, parts), strict=True)

    def step_batches(self, seed: int, step_docs: int) -> Iterator[DocumentBatch | None]:
        """This process's documents of each stochastic step, equal in all epochs of a fit.

        Args:
            seed: Seed of the steps of a corpus in parts. A whole corpus has the order of the shard.
            step_docs: Number of documents of a step, over all processes.

        Yields:
            This process's documents, or ``None``.
        """
        if self.processes.alone:  # EM may share the cached batches
            return self.local_batches(step_docs)
        order = self._order_of_all
        parts = np.split(order, range(step_docs, len(order), step_docs))
        return self.cached("steps", self.batches(parts))

    def batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch | None]:
        """This process's documents of each part. ``None`` for a part without such documents."""
        local = [self.local_part(part) for part in parts]
        nonempty = self._batches.of(part for part in local if len(part))
        return (next(nonempty) if len(part) else None for part in local)

    def local_batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in their order, in batches of at most ``max_docs``."""
        parts = np.split(self.order, range(max_docs, len(self.order), max_docs))
        return self.cached(max_docs, self._batches.of(parts))

    def global_batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """All documents of each part, for all processes."""
        return self._batches.of(parts)

    def own_batches(self, order: NDArray[np.int64], max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in the given order of all documents."""
        own = self.local_part(order)
        return self._batches.of(np.split(own, range(max_docs, len(own), max_docs)))

    def sample(self, model: TopicModel, seed: int) -> DocumentShard:
        """Documents for the stochastic steps of the start: all documents, in every process."""
        return self

    def cached(self, key: Any, items: Iterator[T]) -> Iterator[T]:
        """Items of this key from the cache, or else the new items.

        The cache holds a single list of items: the batches of EM replace the batches of the
        stochastic phases. Items of large corpora are not cached.
        """
        if self.corpus.nnz > MAX_CACHED_COUNTS:
            return items
        if self._cache[0] != key:
            self._cache = (key, list(items))
        return iter(self._cache[1])

    def clear_cache(self) -> None:
        """Remove the items of :meth:`cached` from memory."""
        self._cache = (None, [])

    # -- tables ------------------------------------------------------------------------------------

    @property
    def num_result_docs(self) -> int:
        """Number of documents, from the first on, of which this process's result has rows."""
        return self.corpus.num_docs if self.processes.first else 0

    def identity(self) -> dict[str, Any]:
        """JSON-able fingerprints of the documents and covariates of all processes."""
        return corpus_identity(self.corpus)

    def collect(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of this process's result in its tables, on the CPU."""
        return self.rows.collect(tables, self.processes)

    def save(self, checkpoint: Path, tables: Mapping[str, Tensor]) -> dict[str, Any]:
        """Prepare the tables of documents for a checkpoint.

        Args:
            checkpoint: File of the checkpoint.
            tables: This process's tables.

        Returns:
            Attributes of :class:`FitState` for the checkpoint, in the first process.
        """
        return {"documents": self.collect(tables)}

    def saved(self, checkpoint: Path, complete: bool) -> None:
        """Called by all processes once the checkpoint has been written, or could not be."""

    def load(self, checkpoint: Path, state: FitState) -> dict[str, Tensor]:
        """This process's tables from a checkpoint.

        Args:
            checkpoint: File of the checkpoint.
            state: State from this file.
        """
        return self.rows.select(state.documents)


class DocumentRows:
    """Rows of a corpus's documents and stored counts in tables.

    A single process has rows for all documents. Each process of a shared fit has rows for its own
    documents only.

    Args:
        row_offsets: ``(num_docs + 1,)`` offsets of the corpus. Stored counts of document d are
            ``row_offsets[d]:row_offsets[d + 1]``.
        local: Ascending positions of the documents with rows. Defaults to all documents.
        first: Position of the corpus's first document in the whole corpus, for a part.

    Attributes:
        num_docs: Number of rows in tables of documents.
        num_entries: Number of rows in tables of stored counts.
    """

    def __init__(
        self, row_offsets: NDArray[np.int64], local: NDArray[np.int64] | None = None, first: int = 0
    ) -> None:
        self._corpus_offsets, self._local, self._first = row_offsets, local, first
        self._offsets, self._row_of = row_offsets, None
        if local is not None:
            sizes = np.diff(row_offsets)[local]
            self._offsets = np.concatenate([[0], np.cumsum(sizes)])
            self._row_of = np.full(len(row_offsets) - 1, -1, dtype=np.int64)
            self._row_of[local] = np.arange(len(local))
        self.num_docs = len(self._offsets) - 1
        self.num_entries = int(self._offsets[-1])
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def find(self, positions: Tensor) -> Tensor:
        """Rows of the documents at some positions in the whole corpus, on their device."""
        if self._row_of is None:
            return positions - self._first if self._first else positions
        return self._on("row_of", self._row_of, positions.device)[positions]

    def find_entries(self, positions: Tensor, num_entries: int) -> Tensor:
        """Rows of the documents' stored counts, on the positions' device.

        Args:
            positions: ``(num_docs,)`` positions in the corpus.
            num_entries: Number of the documents' stored counts.

        Returns:
            ``(num_entries,)`` rows.
        """
        rows = self.find(positions)
        offsets = self._on("offsets", self._offsets, positions.device)
        return _ranges(offsets[rows], offsets[rows + 1], num_entries)

    def _on(self, name: str, array: NDArray[np.int64], device: torch.device) -> Tensor:
        """Array on a device. The copy is made once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = torch.tensor(array, device=device)
        return self._copies[name, device]

    def select(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of this process in tables of the entire corpus."""
        if self._local is None:
            return dict(tables)
        return {name: table[self._positions(name)] for name, table in tables.items()}

    def collect(self, tables: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
        """Collect the tables of the entire corpus on the CPU of the first process.

        Args:
            tables: This process's tables. All processes have tables of the same names.
            processes: The processes.

        Returns:
            The tables. They are empty in all processes except the first.
        """
        if self._local is None:
            return {name: table.cpu() for name, table in tables.items()}
        heights = len(self._corpus_offsets) - 1, int(self._corpus_offsets[-1])
        return {
            name: processes.collect(
                tables[name].cpu(), self._positions(name).numpy(), heights[name in ENTRY_TABLES]
            )
            for name in sorted(tables)
        }

    def _positions(self, name: str) -> Tensor:
        """Positions of a table's rows in the table of the entire corpus."""
        assert self._local is not None
        if name not in ENTRY_TABLES:
            return torch.from_numpy(self._local)
        starts, stops = (
            torch.from_numpy(self._corpus_offsets[self._local + shift]) for shift in (0, 1)
        )
        return _ranges(starts, stops, self.num_entries)


def _ranges(starts: Tensor, stops: Tensor, total: int) -> Tensor:
    """Concatenation of integer ranges, with ``total`` numbers."""
    sizes = stops - starts
    shift = starts - (sizes.cumsum(0) - sizes)
    numbers = torch.arange(total, device=starts.device)
    return numbers + torch.repeat_interleave(shift, sizes, output_size=total)


def to_device(tables: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tables on a device. Large tables stay on their own device."""
    return {
        name: table.to(device) if fits(table.nbytes, device) else table
        for name, table in tables.items()
    }


class DocumentTables:
    """Tables with rows for documents, or for their stored counts.

    Tables are on the model's device, so that the host need not wait for their values. Tables that
    are too large for the device are on the CPU. Documents are found by their positions in the
    corpus, for any batches.

    Args:
        tables: The tables by name. :meth:`write` adds a table if the name is new.
        rows: Rows of the documents in the tables.
        device: Device of the model and of the batches.
    """

    def __init__(self, tables: dict[str, Tensor], rows: DocumentRows, device: torch.device) -> None:
        self.tables = tables
        self._rows = rows
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def read(self, name: str, batch: DocumentBatch) -> Tensor:
        """Rows of a batch's documents ``(num_docs, ...)`` or stored counts ``(nnz, ...)``."""
        table = self.tables[name]
        return table.index_select(0, self._table_rows(name, batch, table)).to(self._device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write rows of a batch's documents, or of its stored counts."""
        if name not in self.tables:
            height = self._rows.num_entries if name in ENTRY_TABLES else self._rows.num_docs
            zeros = rows.new_zeros(()).expand(height, *rows.shape[1:])
            self.tables[name] = new_table(zeros, self._device)
        table = self.tables[name]
        table.index_copy_(0, self._table_rows(name, batch, table), rows.to(table))

    def _table_rows(self, name: str, batch: DocumentBatch, table: Tensor) -> Tensor:
        """Row numbers of a batch in a table, on the table's device."""
        # batch.positions is on the CPU, and reading it needs no wait for a GPU.
        positions = batch.index if table.device == batch.device else batch.positions
        if name in ENTRY_TABLES:
            return self._rows.find_entries(positions, batch.nnz)
        return self._rows.find(positions)


def new_table(values: Tensor, device: torch.device) -> Tensor:
    """Table with a copy of some values, on the device, or on the CPU if it is too large.

    Args:
        values: The values, possibly an expanded tensor.
        device: The device.
    """
    home = device if fits(values.numel() * values.element_size(), device) else torch.device("cpu")
    return torch.empty(values.shape, dtype=values.dtype, device=home).copy_(values)


def document_bar(
    description: str, epochs: int | None, num_docs: int, done: int, shown: bool
) -> tqdm:
    """A progress bar over documents.

    Args:
        description: Text of the bar.
        epochs: Number of epochs. ``None`` if it is unknown.
        num_docs: Number of documents in an epoch.
        done: Number of past epochs.
        shown: Whether to show the bar.
    """
    return tqdm(
        total=None if epochs is None else epochs * num_docs,
        initial=done * num_docs,
        desc=description,
        unit="doc",
        disable=not shown or done == epochs,
        smoothing=0.1,
    )


def with_progress(bar: tqdm, batches: Iterator[B]) -> Iterator[B]:
    """The same batches, with a progress bar that advances after each batch."""
    for batch in batches:
        yield batch
        if batch is not None:
            bar.update(batch.num_docs)
