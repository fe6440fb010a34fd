"""The documents of a fit: their batches, who owns them, and what is kept of them between visits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import Corpus, DocumentBatch, as_corpus
from torch_lntm.errors import ConfigError, CorpusError, LNTMWarning, warn
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: More topics than this are too many for fewer than 2 documents each; a toy corpus may have fewer.
_FEW_TOPICS = 20
#: The tables with rows for stored counts; all others have rows for documents.
ENTRY_TABLES = frozenset({"sites"})
#: Batches of corpora with at most this many stored counts are kept between epochs: making them
#: again would take longer than small batches' arithmetic. Larger corpora are not held in batches.
MAX_CACHED_COUNTS = 4_000_000

T = TypeVar("T")
B = TypeVar("B", DocumentBatch, DocumentBatch | None)


def corpus_to_fit(model: TopicModel, documents: Corpus) -> Corpus:
    """The documents to fit a model to, as a corpus that is encoded for the model.

    Warns if there are more topics than documents with words, or more than 20 topics and fewer than
    2 such documents a topic.

    Args:
        model: The model.
        documents: A corpus, or a matrix of counts.

    Raises:
        ConfigError: They are over other words.
        CorpusError: They cannot be used, or there are no tokens.
    """
    corpus = model.encode(as_corpus(documents))
    if corpus.num_tokens == 0:
        raise CorpusError("the corpus has no tokens; there is nothing to fit")
    num_docs = int((corpus.lengths > 0).sum())
    few = num_docs < model.num_topics or _FEW_TOPICS < model.num_topics > num_docs / 2
    if few and num_docs > 1:
        warn(
            f"{model.num_topics} topics for {num_docs} documents with words; take fewer: topics "
            "are what several documents share",
            LNTMWarning,
        )
    return corpus


class CorpusBatches:
    """Batches of a corpus on a model's device.

    A GPU with enough memory gets a copy of the whole corpus, and makes the batches from it. The
    host then neither gathers the counts of every batch nor waits until they are copied.

    Args:
        corpus: The corpus.
        device: Device of the batches.
        dtype: Their floating-point type.
    """

    def __init__(self, corpus: Corpus, device: torch.device, dtype: torch.dtype) -> None:
        self._corpus, self._device, self._dtype = corpus, device, dtype
        # A word and a count each; covariates have few columns.
        size = corpus.nnz * (torch.int64.itemsize + dtype.itemsize)
        self._copied = device.type == "cuda" and fits(size, device)
        self._copy: DocumentBatch | None = None

    def of(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """The documents at some positions, a batch for each array of positions."""
        if not self._copied:
            for rows in parts:
                yield self._corpus.batch(rows, device=self._device, dtype=self._dtype)
            return
        corpus, chosen = self._corpus, list(parts)
        if self._copy is None:
            self._copy = self._copied_corpus()
        # One copy of all positions: the host waits for each.
        places = torch.from_numpy(np.concatenate([*chosen, np.zeros(0, np.int64)]))
        sizes = np.diff(corpus.row_offsets)
        copies = places.to(self._device).split([len(rows) for rows in chosen])
        for rows, copy in zip(chosen, copies, strict=True):
            yield self._copy.select(
                copy,
                num_entries=int(sizes[rows].sum()),
                positions=torch.from_numpy(rows),
                num_tokens=float(corpus.lengths[rows].sum()),
            )

    def _copied_corpus(self) -> DocumentBatch:
        """All documents, copied part by part: the corpus may be larger than the host's memory."""
        corpus, device = self._corpus, self._device
        one = corpus.batch([0], device=device, dtype=self._dtype)
        word_index = one.word_index.new_empty(corpus.nnz)
        counts = one.counts.new_empty(corpus.nnz)
        for entries, rows in corpus.parts():
            word_index[entries].copy_(torch.tensor(rows.word_index, dtype=torch.int64))
            counts[entries].copy_(torch.tensor(rows.counts, dtype=self._dtype))
        return replace(
            one,
            row_offsets=torch.tensor(corpus.row_offsets, device=device),
            word_index=word_index,
            counts=counts,
            index=torch.arange(corpus.num_docs, device=device),
            covariates={
                name: torch.tensor(array).to(one.covariates[name])
                for name, array in corpus.batch_covariates.items()
            },
        )


def assign_owners(
    sizes: NDArray[np.int64], processes: Processes, *groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Assign every document to a process, for as long as a fit lasts.

    The processes get about equally many documents and stored counts of every group. Documents are
    dealt out from the largest to the smallest, in rounds that go forth and back. The order of
    processes within a round is random; otherwise one process would get the largest documents of
    all groups. Rounds continue from group to group; otherwise one process would get the odd
    documents of all groups.

    Args:
        sizes: ``(num_docs,)`` stored counts of the documents.
        processes: The processes.
        *groups: ``(num_docs,)`` numbers, the most important first. Documents with equal numbers
            form a group.

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
    """The documents of a fit that belong to this process: all of them, if there is one process.

    Args:
        model: The model, whose device and dtype the batches have.
        corpus: The corpus.
        order: Positions in the corpus of all documents of the fit, in the order of their visits.
        processes: The processes that share the fit.
        *groups: As for :func:`assign_owners`.

    Attributes:
        corpus: The corpus.
        order: Positions of this process's documents, in the order of their visits.
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
        self.corpus, self.order = corpus, order
        self._batches = CorpusBatches(corpus, model.device, model.dtype)
        self._is_local: NDArray[np.bool_] | None = None
        local = None
        if not processes.alone:
            sizes = np.diff(corpus.row_offsets)[order]
            self.order = order[assign_owners(sizes, processes, *groups) == processes.rank]
            local = np.sort(self.order)
            self._is_local = np.zeros(corpus.num_docs, dtype=np.bool_)
            self._is_local[local] = True
        self.rows = DocumentRows(corpus.row_offsets, local)
        self._cache: tuple[Any, list[Any]] = (None, [])

    @property
    def num_docs(self) -> int:
        """Number of this process's documents."""
        return len(self.order)

    def local_part(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's documents among some, in their order."""
        return positions if self._is_local is None else positions[self._is_local[positions]]

    def batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch | None]:
        """This process's documents among those of each part; None if it has none of them."""
        local = [self.local_part(part) for part in parts]
        made = self._batches.of(part for part in local if len(part))
        return (next(made) if len(part) else None for part in local)

    def local_batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in their order, in batches of at most ``max_docs``."""
        parts = np.split(self.order, range(max_docs, len(self.order), max_docs))
        return self.cached(max_docs, self._batches.of(parts))

    def global_batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch]:
        """All documents of each part, whichever processes they belong to."""
        return self._batches.of(parts)

    def cached(self, key: Any, items: Iterator[T]) -> Iterator[T]:
        """Items of this key from the cache, or new items.

        The cache holds one list of items: the batches of EM replace those of the stochastic phases.
        Items of large corpora are not cached.
        """
        if self.corpus.nnz > MAX_CACHED_COUNTS:
            return items
        if self._cache[0] != key:
            self._cache = (key, list(items))
        return iter(self._cache[1])

    def clear_cache(self) -> None:
        """Remove the items of :meth:`cached` from memory."""
        self._cache = (None, [])


class DocumentRows:
    """Which rows of tables belong to which documents of a corpus, or to their stored counts.

    Tables have rows for all documents. If several processes share a fit, each has the rows of its
    own documents alone.

    Args:
        row_offsets: ``(num_docs + 1,)`` the corpus's: document d's stored counts are
            ``row_offsets[d]:row_offsets[d + 1]``.
        local: Ascending positions in the corpus of the documents that have rows. Defaults to all.

    Attributes:
        num_docs: Rows of tables of documents.
        num_entries: Rows of tables of stored counts.
    """

    def __init__(
        self, row_offsets: NDArray[np.int64], local: NDArray[np.int64] | None = None
    ) -> None:
        self._corpus_offsets, self._local = row_offsets, local
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
        """The rows of documents at some positions in the corpus, on the device of these."""
        if self._row_of is None:
            return positions
        return self._on("row_of", self._row_of, positions.device)[positions]

    def find_entries(self, positions: Tensor, num_entries: int) -> Tensor:
        """The rows of the stored counts of documents at some positions, on the device of these.

        Args:
            positions: ``(num_docs,)`` positions in the corpus.
            num_entries: Stored counts that these documents have.

        Returns:
            ``(num_entries,)``.
        """
        rows = self.find(positions)
        offsets = self._on("offsets", self._offsets, positions.device)
        return _ranges(offsets[rows], offsets[rows + 1], num_entries)

    def _on(self, name: str, array: NDArray[np.int64], device: torch.device) -> Tensor:
        """An array on a device, copied once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = torch.tensor(array, device=device)
        return self._copies[name, device]

    def select(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These rows of the tables of a whole corpus."""
        if self._local is None:
            return dict(tables)
        return {name: table[self._positions(name)] for name, table in tables.items()}

    def collect(self, tables: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
        """The tables of the whole corpus on the CPU, put together in the first process.

        Args:
            tables: This process's tables. The other processes have tables of the same names.
            processes: The processes.

        Returns:
            The tables; without rows in all processes but the first.
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
        """Where the rows of a table belong in the corpus's."""
        assert self._local is not None
        if name not in ENTRY_TABLES:
            return torch.from_numpy(self._local)
        starts, stops = (
            torch.from_numpy(self._corpus_offsets[self._local + shift]) for shift in (0, 1)
        )
        return _ranges(starts, stops, self.num_entries)


def _ranges(starts: Tensor, stops: Tensor, total: int) -> Tensor:
    """The ``total`` numbers of some ranges, one after the other."""
    sizes = stops - starts
    shift = starts - (sizes.cumsum(0) - sizes)
    numbers = torch.arange(total, device=starts.device)
    return numbers + torch.repeat_interleave(shift, sizes, output_size=total)


def to_device(tables: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tables on a device, except those that are too large for it."""
    return {
        name: table.to(device) if fits(table.nbytes, device) else table
        for name, table in tables.items()
    }


class DocumentTables:
    """Tables with rows for documents, or for their stored counts.

    They are on the model's device, where reading and writing does not make the host wait, or, if
    too large for it, on the CPU. Rows are found by the documents' positions in the corpus, so that
    it does not matter in which order or with whom documents are visited.

    Args:
        tables: The tables by name; new ones appear when they are first written.
        rows: Which rows belong to which documents.
        device: The model's, which is that of the batches.
    """

    def __init__(self, tables: dict[str, Tensor], rows: DocumentRows, device: torch.device) -> None:
        self.tables = tables
        self._rows = rows
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self.tables

    def read(self, name: str, batch: DocumentBatch) -> Tensor:
        """The rows of a batch's documents ``(num_docs, ...)`` or stored counts ``(nnz, ...)``."""
        table = self.tables[name]
        return table.index_select(0, self._table_rows(name, batch, table)).to(self._device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write the rows of a batch's documents, or of its stored counts."""
        if name not in self.tables:
            height = self._rows.num_entries if name in ENTRY_TABLES else self._rows.num_docs
            zeros = rows.new_zeros(()).expand(height, *rows.shape[1:])
            self.tables[name] = new_table(zeros, self._device)
        table = self.tables[name]
        table.index_copy_(0, self._table_rows(name, batch, table), rows.to(table))

    def _table_rows(self, name: str, batch: DocumentBatch, table: Tensor) -> Tensor:
        """The rows of a batch in a table, on the table's device."""
        # Positions on the CPU are known without waiting for a GPU.
        positions = batch.index if table.device == batch.device else batch.positions
        if name in ENTRY_TABLES:
            return self._rows.find_entries(positions, batch.nnz)
        return self._rows.find(positions)


def new_table(values: Tensor, device: torch.device) -> Tensor:
    """A table of some values, which may be an expanded tensor, on a device if it fits there."""
    home = device if fits(values.numel() * values.element_size(), device) else torch.device("cpu")
    return torch.empty(values.shape, dtype=values.dtype, device=home).copy_(values)


def document_bar(
    description: str, epochs: int | None, num_docs: int, done: int, shown: bool
) -> tqdm:
    """A progress bar over documents.

    Args:
        description: Its text.
        epochs: Number of epochs; None if it is not known.
        num_docs: Documents of an epoch.
        done: Epochs that an earlier run made.
        shown: Whether to show it.
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
    """Batches, each of which moves a progress bar once it has been used."""
    for batch in batches:
        yield batch
        if batch is not None:
            bar.update(batch.num_docs)
