"""Documents of a fit: their batches, their processes, and tables with values between visits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, CorpusError, LNTMWarning, warn
from torch_lntm.inference.em.checkpoint import corpus_identity
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Largest number of topics for which fewer than 2 documents per topic give no warning. Toy corpora
#: have few topics.
_FEW_TOPICS = 20
#: Tensors with rows for stored counts. All other tensors have rows for documents.
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
        tokens = vars(batch).get("num_tokens")
        return placed.knowing(positions=batch.positions + part.first, num_tokens=tokens)

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
            batch = self._copy.select(part, int(sizes[rows].sum()), torch.from_numpy(rows))
            yield batch.knowing(num_tokens=float(corpus.lengths[rows].sum()))

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
        table: Table with rows for these documents.
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
        self._batches = CorpusBatches(corpus, model.device, model.dtype)
        self._is_local: NDArray[np.bool_] | None = None
        offsets, first = corpus.row_offsets, 0 if corpus.part is None else corpus.part.first
        index = np.arange(first, first + corpus.num_docs)
        if corpus.part is None and not processes.alone:
            sizes = np.diff(corpus.row_offsets)
            owner = assign_owners(sizes[order], processes, *groups)
            self.order = order[owner == processes.rank]
            index = np.sort(self.order)
            offsets = np.concatenate([[0], np.cumsum(sizes[index])])
            self._is_local = np.zeros(corpus.num_docs, dtype=np.bool_)
            self._is_local[index] = True
        self.table = DocumentTable(index, offsets, model.device)
        self._cache: tuple[Any, list[Any]] = (None, [])

    @property
    def num_docs(self) -> int:
        """Number of this process's documents."""
        return len(self.order)

    def local_part(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's documents among the given positions, in their order."""
        return positions if self._is_local is None else positions[self._is_local[positions]]

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
        return self.cached("steps", self.batches(_split(self._order_of_all, step_docs)))

    def batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[DocumentBatch | None]:
        """This process's documents of each part. ``None`` for a part without such documents."""
        local = [self.local_part(part) for part in parts]
        nonempty = self._batches.of(part for part in local if len(part))
        return (next(nonempty) if len(part) else None for part in local)

    def local_batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in their order, in batches of at most ``max_docs``."""
        return self.cached(max_docs, self._batches.of(_split(self.order, max_docs)))

    def global_batches(self, order: NDArray[np.int64], max_docs: int) -> Iterator[DocumentBatch]:
        """The documents at some positions, in every process."""
        return self._batches.of(_split(order, max_docs))

    def own_batches(self, order: NDArray[np.int64], max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in the given order of all documents."""
        return self._batches.of(_split(self.local_part(order), max_docs))

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

    @property
    def num_result_docs(self) -> int:
        """Number of documents, from the first on, of which this process's result has rows."""
        return self.corpus.num_docs if self.processes.first else 0

    def identity(self) -> dict[str, Any]:
        """JSON-able fingerprints of the documents and covariates of all processes."""
        return corpus_identity(self.corpus)

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of this process's result in tensors with rows for documents, on the CPU.

        The first process has the rows of all documents. All processes have tensors of the same
        names.
        """
        tensors = {name: tensors[name].cpu() for name in sorted(tensors)}
        if self._is_local is None:
            return tensors
        index, height = self.table.index, self.corpus.num_docs
        return {name: self.processes.collect(x, index, height) for name, x in tensors.items()}


def _split(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Neighbouring parts of an order of documents, of ``size`` documents each."""
    return np.split(order, range(size, len(order), size))


class DocumentTable:
    """Tensors by name, with rows for some documents, or for their stored counts.

    Tensors are on the model's device, so that the host need not wait for their values. Tensors that
    are too large for the device are on the CPU. Documents are found by their positions in the whole
    corpus, for any batches.

    Args:
        index: ``(num_docs,)`` ascending positions of the documents in the whole corpus.
        offsets: ``(num_docs + 1,)`` offsets of the documents' stored counts.
        device: Device of the model and of the batches.

    Attributes:
        index: See the arguments.
        offsets: See the arguments.
        tensors: The tensors. :meth:`write` adds a tensor if the name is new.
    """

    def __init__(
        self, index: NDArray[np.int64], offsets: NDArray[np.int64], device: torch.device
    ) -> None:
        self.index, self.offsets, self.device = index, offsets, device
        self.tensors: dict[str, Tensor] = {}
        first, last = (int(index[0]), int(index[-1])) if len(index) else (0, -1)
        self._first, self._row_of = first, None
        if last - first + 1 > len(index):
            self._row_of = np.full(last - first + 1, -1, dtype=np.int64)
            self._row_of[index - first] = np.arange(len(index))
        self._copies: dict[tuple[str, torch.device], Tensor] = {}

    def of(self, tensors: dict[str, Tensor]) -> DocumentTable:
        """Other tensors with rows for the same documents."""
        table = copy(self)
        table.tensors = tensors
        return table

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def read(self, name: str, batch: DocumentBatch) -> Tensor:
        """Rows of a batch's documents ``(num_docs, ...)`` or stored counts ``(nnz, ...)``."""
        tensor = self.tensors[name]
        return tensor.index_select(0, self._rows_of(name, batch, tensor)).to(self.device)

    def write(self, name: str, batch: DocumentBatch, rows: Tensor) -> None:
        """Write rows of a batch's documents, or of its stored counts."""
        if name not in self.tensors:
            zeros = rows.new_zeros(()).expand(self._height(name), *rows.shape[1:])
            self.tensors[name] = new_table(zeros, self.device)
        tensor = self.tensors[name]
        tensor.index_copy_(0, self._rows_of(name, batch, tensor), rows.to(tensor))

    def _rows_of(self, name: str, batch: DocumentBatch, tensor: Tensor) -> Tensor:
        """Row numbers of a batch in a tensor, on the tensor's device."""
        # batch.positions is on the CPU, and reading it needs no wait for a GPU.
        rows = self.find(batch.index if tensor.device == batch.device else batch.positions)
        if name not in ENTRY_TABLES:
            return rows
        offsets = self._on("offsets", self.offsets, rows.device)
        return _ranges(offsets[rows], offsets[rows + 1], batch.nnz)

    def find(self, positions: Tensor) -> Tensor:
        """Rows of the documents at some positions in the whole corpus, on their device."""
        positions = positions - self._first if self._first else positions
        if self._row_of is None:
            return positions
        return self._on("row_of", self._row_of, positions.device)[positions]

    def _on(self, name: str, array: NDArray[np.int64], device: torch.device) -> Tensor:
        """Array on a device. The copy is made once."""
        if (name, device) not in self._copies:
            self._copies[name, device] = torch.tensor(array, device=device)
        return self._copies[name, device]

    def _height(self, name: str) -> int:
        return int(self.offsets[-1]) if name in ENTRY_TABLES else len(self.index)

    def copy_rows(self, other: DocumentTable) -> NDArray[np.bool_]:
        """Copy the rows of documents that another table has too, from its tensors on the CPU.

        Returns:
            ``(num_docs,)`` bool: the other table has the document.
        """
        shared = np.isin(self.index, other.index, assume_unique=True)
        here = np.flatnonzero(shared)
        there = np.searchsorted(other.index, self.index[here])
        entries = [
            _ranges(torch.from_numpy(x.offsets[rows]), torch.from_numpy(x.offsets[rows + 1]))
            for x, rows in ((self, here), (other, there))
        ]
        documents = [torch.from_numpy(here), torch.from_numpy(there)]
        for name, values in other.tensors.items():
            if name not in self.tensors:
                self.tensors[name] = values.new_zeros(self._height(name), *values.shape[1:])
            to, at = entries if name in ENTRY_TABLES else documents
            self.tensors[name][to] = values[at]
        return shared


def _ranges(starts: Tensor, stops: Tensor, total: int | None = None) -> Tensor:
    """Concatenation of integer ranges. The host waits for a GPU unless it knows their total."""
    sizes = stops - starts
    total = int(sizes.sum()) if total is None else total
    shift = starts - (sizes.cumsum(0) - sizes)
    numbers = torch.arange(total, device=starts.device)
    return numbers + torch.repeat_interleave(shift, sizes, output_size=total)


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors on a device. Large tensors stay on their own device."""
    return {name: x.to(device) if fits(x.nbytes, device) else x for name, x in tensors.items()}


def new_table(values: Tensor, device: torch.device) -> Tensor:
    """Tensor with a copy of some values, on the device, or on the CPU if it is too large.

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
