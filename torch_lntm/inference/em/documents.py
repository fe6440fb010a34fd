"""Documents of a fit: which process has which of them, and in which batches it visits them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import fits
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.corpus.part import Facts, Part
from torch_lntm.errors import ConfigError, CorpusError, LNTMWarning, warn
from torch_lntm.inference.em.checkpoint import digest
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.table import DocumentTable
from torch_lntm.kernels import fused
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Largest number of topics for which fewer than 2 documents per topic give no warning. Toy corpora
#: have few topics.
_FEW_TOPICS = 20
#: Largest number of stored counts of a corpus whose batches are cached. Rebuilding a small batch
#: takes longer than its arithmetic, but the batches of larger corpora would take too much memory.
MAX_CACHED_COUNTS = 4_000_000
#: Largest size of a corpus of which a GPU holds a copy: the host holds one too while it is made.
MAX_COPIED_BYTES = 2**33
#: Largest number of documents in the stochastic steps of the start of a fit of parts, because every
#: process holds them.
SAMPLE_DOCS = 100_000
#: The same for a whole corpus: tokens for every topic, and smallest number of documents. More
#: documents leave too few epochs between the mergers of topics.
SAMPLE_TOKENS, LEAST_SAMPLE = 100_000, 20_000

T = TypeVar("T")
Positions = NDArray[np.int64]


def corpus_to_fit(model: TopicModel, documents: Corpus) -> Corpus:
    """The documents of a fit, encoded for the model.

    Args:
        model: The model.
        documents: The documents. A part knows the numbers of its whole corpus.

    Raises:
        ConfigError: The documents have a different vocabulary.
        CorpusError: The documents have no tokens.

    Warns:
        LNTMWarning: There are more topics than non-empty documents, or more than 20 topics and
            fewer than 2 non-empty documents per topic.
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


def join_parts(corpus: Corpus, processes: Processes | None = None) -> Corpus:
    """Give a process's part of a corpus the totals of the whole corpus.

    Every process calls this function with its own part. Engines do so for the corpus they fit.

    Args:
        corpus: This process's part, by ``read_corpus(folder, rank=..., world_size=...)``. A whole
            corpus is returned unchanged.
        processes: The processes. Defaults to the default group of ``torch.distributed``, or to this
            process alone.

    Returns:
        The part, whose ``corpus.whole`` counts the documents and tokens of the whole corpus.

    Raises:
        ConfigError: A shard is missing or out of order, the parts belong to different corpora, or a
            process has no documents with words.
    """
    processes, part = processes or Processes(), corpus.part
    places = processes.gather(
        part and [*part.shards, len(part.sizes), part.fingerprint, part.facts is not None]
    )
    if part is None and not any(places):
        return corpus
    _check_places(places)
    assert part is not None
    if all(joined for *_, joined in places):
        return corpus
    shard_docs = torch.zeros(len(part.sizes), dtype=torch.float64)
    for number, rows in part.slices():
        shard_docs[number] = int(np.count_nonzero(corpus.lengths[rows]))
    filled = processes.gather(int(shard_docs.sum()))
    if any(filled) and not all(filled):
        raise ConfigError(
            f"process {filled.index(0)} of {len(filled)} has no documents with words in its "
            "shards; use fewer processes"
        )
    sums = processes.total(
        {
            "shard_docs": shard_docs,
            "document_frequency": torch.tensor(corpus.document_frequency),
            "word_totals": torch.tensor(corpus.word_totals),
            "word_squares": torch.tensor(corpus.word_squares),
            "square_lengths": torch.tensor(corpus.square_lengths, dtype=torch.float64),
        }
    )
    totals = {name: x.cpu().numpy() for name, x in sums.items()}
    squares, lengths = totals.pop("word_squares"), float(totals.pop("square_lengths"))
    counts = {name: x.round().astype(np.int64) for name, x in totals.items()}
    facts = Facts(part.num_docs, word_squares=squares, square_lengths=lengths, **counts)
    return replace(corpus, part=replace(part, facts=facts))


def _check_places(places: list[Any]) -> None:
    """Check that the parts, each ``[first shard, end, number, fingerprint]``, join up by rank.

    Raises:
        ConfigError: They do not.
    """
    parts = [place for place in places if place]
    same = len({(number, fingerprint) for _, _, number, fingerprint, _ in parts}) == 1
    firsts, ends = [part[0] for part in parts], [part[1] for part in parts]
    if len(parts) == len(places) and same and [*firsts, parts[0][2]] == [0, *ends]:
        return
    found = ", ".join(
        f"shards {place[0]} to {place[1] - 1} of {place[2]}" if place else "a whole corpus"
        for place in places
    )
    raise ConfigError(
        f"the parts of the processes make up no corpus: they have {found}"
        f"{'' if same else ', of different corpora'}; read the same corpus in each of the "
        f"{len(places)} processes by read_corpus(folder, rank=rank, world_size={len(places)})"
    )


class CorpusBatches:
    """Batches of a corpus on a model's device. Batches of a part know its place in the whole.

    A GPU with enough memory holds a copy of a corpus of up to 8 GB, from which it makes the
    batches, so that the host need not gather and copy the counts of every batch.

    Args:
        corpus: The corpus.
        device: Device of the batches.
        dtype: Floating-point type of the batches.
    """

    def __init__(self, corpus: Corpus, device: torch.device, dtype: torch.dtype) -> None:
        self._corpus, self._device, self._dtype = corpus, device, dtype
        # Each entry has a word and a count. Covariates are small in comparison.
        size = corpus.nnz * (torch.int64.itemsize + dtype.itemsize)
        self._copied = device.type == "cuda" and size <= MAX_COPIED_BYTES and fits(size, device)
        self._copy: DocumentBatch | None = None

    def of(self, groups: Iterable[Positions]) -> Iterator[DocumentBatch]:
        """Batches of documents, one for each array of positions."""
        part = self._corpus.part
        source = self._corpus, self._device, self._dtype
        read = (fused.read(rows, *source) for rows in groups)
        for batch in self._selected(list(groups)) if self._copied else read:
            yield batch if part is None else _placed(batch, part)

    def _selected(self, groups: list[Positions]) -> Iterator[DocumentBatch]:
        """Batches from the copy of the corpus on the GPU."""
        corpus = self._corpus
        if self._copy is None:
            self._copy = corpus.batch(device=self._device, dtype=self._dtype)
        # All positions are copied at once, because the host waits for each copy.
        positions = torch.from_numpy(np.concatenate([*groups, np.zeros(0, np.int64)]))
        sizes = np.diff(corpus.row_offsets)
        on_device = positions.to(self._device).split([len(rows) for rows in groups])
        for rows, part in zip(groups, on_device, strict=True):
            batch = self._copy.select(part, int(sizes[rows].sum()), torch.from_numpy(rows))
            yield batch.knowing(num_tokens=float(corpus.lengths[rows].sum()))


def _placed(batch: DocumentBatch, part: Part) -> DocumentBatch:
    """A batch of a part with the documents' positions in the whole corpus."""
    placed = replace(batch, index=batch.index + part.first, corpus_size=part.num_docs)
    tokens = vars(batch).get("num_tokens")
    return placed.knowing(positions=batch.positions + part.first, num_tokens=tokens)


def assign_owners(sizes: Positions, processes: Processes, *groups: Positions) -> Positions:
    """Assign every document to a process, for the duration of a fit.

    Each process gets about the same number of documents and stored counts of every group. Documents
    are dealt out from the largest to the smallest, in rounds that alternate between forth and back.
    The order of processes within a round is random, because a fixed order would give one process
    the largest documents of all groups. Rounds continue from group to group, so that no process
    gets the left-over documents of all of them.

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

    A fit of a corpus in parts has the same methods (:class:`PartShard`). The two differ in the
    order of their visits: a whole corpus is permuted as one, whereas a part permutes each of its
    shards, so that a visit depends neither on the number of processes nor on other shards.

    Args:
        model: The model. Batches have its device and dtype.
        corpus: The corpus.
        processes: The processes of the fit.
        order: Positions in the corpus of all documents of the fit, in the order of their visits.
            Defaults to the order of the corpus.
        *groups: As for :func:`assign_owners`.

    Attributes:
        corpus: The corpus.
        order: Positions of this process's documents in ``corpus``, in the order of their visits.
        num_docs: Number of this process's documents.
        processes: The processes of the fit.
        part: Place of the corpus in the whole corpus, if it is a part.
        table: Empty table with rows for these documents.
    """

    def __init__(
        self,
        model: TopicModel,
        corpus: Corpus,
        processes: Processes,
        order: Positions | None = None,
        *groups: Positions,
    ) -> None:
        order = corpus.nonempty if order is None else order
        self.corpus, self.order, self.processes = corpus, order, processes
        self.part: Any = corpus.part
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
        self.num_docs = len(self.order)
        self.table = DocumentTable(index, offsets, model.device)
        self._cache: tuple[Any, list[Any]] = (None, [])

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
        # Documents of a mini-batch keep the order of the corpus, in which neighbours are close in
        # memory.
        groups = [np.sort(group) for group in np.array_split(order, number)]
        return zip(self._local(groups), map(len, groups), strict=True)

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
        return self.cached("steps", lambda: self._local(_split(self._order_of_all, step_docs)))

    def local_batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """This process's documents in their order, in batches of at most ``max_docs``."""
        return self.cached(max_docs, lambda: self._batches.of(_split(self.order, max_docs)))

    def global_batches(self, order: Positions, max_docs: int) -> Iterator[DocumentBatch]:
        """The documents at some positions, in every process."""
        return self._batches.of(_split(order, max_docs))

    def _local(self, groups: Iterable[Positions]) -> Iterator[DocumentBatch | None]:
        """This process's documents of each group, or ``None`` if it has none of them."""
        local = [self._own(group) for group in groups]
        nonempty = self._batches.of(group for group in local if len(group))
        return (next(nonempty) if len(group) else None for group in local)

    def _own(self, positions: Positions) -> Positions:
        """This process's documents among the given positions, in their order."""
        return positions if self._is_local is None else positions[self._is_local[positions]]

    def sample(self, model: TopicModel, seed: int) -> DocumentShard:
        """Documents for the stochastic steps of the start, in every process.

        They are a sample of the documents, unless the corpus is small or topics are many.
        """
        documents = self.corpus.nonempty
        length = self.corpus.num_tokens / len(documents)
        most = max(LEAST_SAMPLE, int(model.num_topics * SAMPLE_TOKENS / length))
        if len(documents) <= most:
            return self
        rng = np.random.default_rng([seed, 0])
        chosen = np.sort(rng.choice(documents, most, replace=False))
        return _alone(model, self.corpus[chosen].to_scipy())

    def cached(self, key: Any, make: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Items of this key from the cache, or else new items.

        It holds a single list of items, so that the batches of EM replace those of the stochastic
        phases. Items of large corpora are not cached.
        """
        if self.corpus.nnz > MAX_CACHED_COUNTS:
            return make()
        if self._cache[0] != key:
            self._cache = (key, list(make()))
        return iter(self._cache[1])

    def clear_cache(self) -> None:
        """Remove the items of :meth:`cached` from memory."""
        self._cache = (None, [])

    # -- results -----------------------------------------------------------------------------------

    @property
    def num_result_docs(self) -> int:
        """Number of documents, from the first on, of which this process's result has rows."""
        return self.corpus.num_docs if self.processes.first else 0

    def identity(self) -> dict[str, Any]:
        """JSON-able fingerprints of the documents and covariates of all processes."""
        covariates = self.corpus.batch_covariates
        return {
            "corpus": self.corpus.fingerprint(),
            "covariates": {name: digest(array) for name, array in covariates.items()},
        }

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


class PartShard(DocumentShard):
    """This process's documents of a fit of a corpus in parts: the documents of its part.

    Everything of a shard is a function of the shard: its share of a mini-batch, its share of the
    sample for the start, and its file of a checkpoint. Fits in different numbers of processes
    therefore agree up to rounding.

    The order of the visits and the groups of documents are a part's own, so that arguments for them
    have no effect.
    """

    def mini_batches(
        self, seed: int, epoch: int, number: int
    ) -> Iterator[tuple[DocumentBatch | None, int]]:
        """See :meth:`DocumentShard.mini_batches`. A mini-batch has a slice of every shard.

        The order of a shard's documents and the ends of its slices depend on the seed, the epoch
        and the number of the shard.
        """
        documents, none = dict(_nonempty(self.corpus)), np.zeros(0, np.int64)
        steps, ends, orders = np.arange(number + 1) / number, [], []
        for shard, size in enumerate(self.part.whole.shard_docs.tolist()):
            shift, order = _visits(seed, epoch, shard, documents.get(shard, none))
            # A common shift would give all left-over documents to the same mini-batches.
            ends.append(np.minimum((size * steps + shift).astype(np.int64), size))
            orders.append(order)
        totals = np.diff(ends, axis=1).sum(0)
        kept = np.flatnonzero(totals)
        groups = (
            np.concatenate([np.sort(o[e[b] : e[b + 1]]) for o, e in zip(orders, ends, strict=True)])
            for b in kept
        )
        return zip(self._local(groups), totals[kept].tolist(), strict=True)

    def step_batches(self, seed: int, step_docs: int) -> Iterator[DocumentBatch | None]:
        """See :meth:`DocumentShard.step_batches`. A step has a slice of every shard."""
        number = -(-self.part.whole.num_nonempty // step_docs)
        batches = self.mini_batches(seed, 0, number)
        return self.cached("steps", lambda: (batch for batch, _ in batches))

    def sample(self, model: TopicModel, seed: int) -> DocumentShard:
        """See :meth:`DocumentShard.sample`. A share of every shard, gathered in all processes."""
        before = np.concatenate([[0], np.cumsum(self.part.whole.shard_docs)])
        share = min(1.0, SAMPLE_DOCS / before[-1])
        numbers = np.diff((before * share).astype(np.int64))
        chosen = [
            np.sort(
                np.random.default_rng([seed, shard]).choice(rows, numbers[shard], replace=False)
            )
            for shard, rows in _nonempty(self.corpus)
        ]
        own = np.concatenate(chosen)
        found = self.processes.gather(self.corpus[own].to_scipy() if len(own) else None)
        counts = sp.vstack([matrix for matrix in found if matrix is not None])
        return _alone(model, counts)

    @property
    def num_result_docs(self) -> int:
        """See :attr:`DocumentShard.num_result_docs`. Every process has its own documents."""
        return self.corpus.num_docs

    def identity(self) -> dict[str, Any]:
        """See :meth:`DocumentShard.identity`. The covariates have a fingerprint for each shard."""
        own = {
            name: [digest(array[rows]) for _, rows in self.part.slices()]
            for name, array in self.corpus.batch_covariates.items()
        }
        parts = self.processes.gather(own)
        covariates = {name: [x for part in parts for x in part.get(name, [])] for name in own}
        return {"corpus": self.part.fingerprint, "covariates": covariates}


def _alone(model: TopicModel, counts: sp.csr_matrix) -> DocumentShard:
    """Documents that every process has."""
    return DocumentShard(model, Corpus.from_matrix(counts), Processes(alone=True))


def shard_of(
    model: TopicModel, corpus: Corpus, processes: Processes, *visits: Any
) -> DocumentShard:
    """This process's documents of a fit: dealt out from a whole corpus, or those of its part."""
    kind = DocumentShard if corpus.part is None else PartShard
    return kind(model, corpus, processes, *visits)


def visiting_ranks(corpus: Corpus, seed: int) -> Positions:
    """Number of each non-empty document in a random order of all non-empty documents.

    Documents of a shard have neighbouring numbers, in the order in which stochastic steps visit
    them (:meth:`PartShard.step_batches`). Every step therefore has its share of each remainder.

    Args:
        corpus: This process's part.
        seed: Seed of the steps.

    Returns:
        ``(num_docs,)`` numbers. Empty documents have the number 0.
    """
    assert corpus.part is not None
    ranks = np.zeros(corpus.num_docs, dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(corpus.part.whole.shard_docs)])
    for shard, rows in _nonempty(corpus):
        _, order = _visits(seed, 0, shard, rows)
        ranks[order] = before[shard] + np.arange(len(order))
    return ranks


def _nonempty(corpus: Corpus) -> Iterator[tuple[int, Positions]]:
    """Number of each shard of a part, and positions of its documents with words in the part."""
    assert corpus.part is not None
    for number, rows in corpus.part.slices():
        yield number, rows.start + np.flatnonzero(corpus.lengths[rows])


def _visits(seed: int, epoch: int, shard: int, documents: Positions) -> tuple[float, Positions]:
    """Shift of the ends of a shard's slices, and the order of its documents, in an epoch."""
    generator = np.random.default_rng([seed, epoch, shard])
    return generator.random(), generator.permutation(documents)


def _split(order: Positions, size: int) -> list[Positions]:
    """Neighbouring parts of an order of documents, of ``size`` documents each."""
    return np.split(order, range(size, len(order), size))


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
