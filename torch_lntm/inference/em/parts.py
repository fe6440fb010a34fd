"""Fits of a corpus in parts: each process has the documents of its own shards.

Numbers of the whole corpus are sums over the processes. Everything else of a shard is a function of
the shard: its share of a mini-batch, its share of the sample for the start, and its file of a
checkpoint. Fits in different numbers of processes therefore agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.corpus.part import Facts, Part
from torch_lntm.errors import ConfigError
from torch_lntm.inference.em.checkpoint import digest
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.result import FitResult
from torch_lntm.models import TopicModel

#: Largest number of documents in the stochastic steps of the start. Every process holds them.
SAMPLE_DOCS = 100_000


def join_parts(corpus: Corpus, processes: Processes | None = None) -> Corpus:
    """A part of a corpus with the numbers of the whole corpus.

    All processes call this function, each with its own part. Engines call it for their corpus.

    Args:
        corpus: This process's part, by ``read_corpus(folder, rank=..., world_size=...)``. A whole
            corpus is returned unchanged.
        processes: The processes. Defaults to the default group of ``torch.distributed``, or to this
            process alone.

    Returns:
        The part. ``corpus.whole`` has the numbers of documents and tokens of the whole corpus.

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
    joined = replace(corpus, part=replace(part, facts=facts))
    joined.__dict__["lengths"] = corpus.lengths
    return joined


def _check_places(places: list[Any]) -> None:
    """Check that parts by rank, ``[first shard, shard after the last, number, fingerprint]``, join.

    Raises:
        ConfigError: They do not.
    """
    size, problem = len(places), ""
    if not all(places):
        problem = (
            f"process {places.index(None)} of {size} has a whole corpus, and others have parts"
        )
    elif len({fingerprint for _, _, _, fingerprint, _ in places}) > 1:
        problem = "the processes have parts of different corpora"
    else:
        ends = [0, *(place[1] for place in places)]
        if [place[0] for place in places] != ends[:-1] or ends[-1] != places[0][2]:
            listed = ", ".join(f"{first} to {after - 1}" for first, after, *_ in places)
            problem = (
                f"the corpus has the shards 0 to {places[0][2] - 1}, and the processes {listed}"
            )
    if problem:
        raise ConfigError(
            f"{problem}; read the corpus in each of the {size} processes of the fit by "
            f"read_corpus(folder, rank=rank, world_size={size})"
        )


def shard_of(
    model: TopicModel,
    corpus: Corpus,
    processes: Processes,
    order: NDArray[np.int64] | None = None,
    *groups: NDArray[np.int64],
) -> DocumentShard:
    """This process's documents of a fit: dealt out from a whole corpus, or those of its part.

    Args:
        model: The model.
        corpus: The corpus, or this process's part of it.
        processes: The processes of the fit.
        order: Order of the visits of a whole corpus. Defaults to the order of the corpus.
        *groups: As for :func:`~torch_lntm.inference.em.documents.assign_owners`.
    """
    if corpus.part is None:
        order = corpus.nonempty if order is None else order
        return DocumentShard(model, corpus, order, processes, *groups)
    return PartShard(model, corpus, corpus.part, processes)


def visiting_ranks(corpus: Corpus, seed: int) -> NDArray[np.int64]:
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


def _nonempty(corpus: Corpus) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Number of each shard of a part, and positions of its documents with words in the part."""
    assert corpus.part is not None
    for number, rows in corpus.part.slices():
        yield number, rows.start + np.flatnonzero(corpus.lengths[rows])


def _visits(
    seed: int, epoch: int, shard: int, documents: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    """Shift of the ends of a shard's slices, and the order of its documents, in an epoch."""
    generator = np.random.default_rng([seed, epoch, shard])
    return generator.random(), generator.permutation(documents)


class PartShard(DocumentShard):
    """This process's documents of a fit of a corpus in parts: the documents of its part.

    Args:
        model: The model. Batches have its device and dtype.
        corpus: The part, with the numbers of the whole corpus.
        part: Place of the part in the whole corpus.
        processes: The processes of the fit.
    """

    def __init__(self, model: TopicModel, corpus: Corpus, part: Part, processes: Processes) -> None:
        super().__init__(model, corpus, corpus.nonempty, processes)
        self.part = part

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
        parts = (
            np.concatenate([np.sort(o[e[b] : e[b + 1]]) for o, e in zip(orders, ends, strict=True)])
            for b in kept
        )
        return zip(self.batches(parts), totals[kept].tolist(), strict=True)

    def step_batches(self, seed: int, step_docs: int) -> Iterator[DocumentBatch | None]:
        """See :meth:`DocumentShard.step_batches`. A step has a slice of every shard."""
        number = -(-self.part.whole.num_nonempty // step_docs)
        return self.cached("steps", (batch for batch, _ in self.mini_batches(seed, 0, number)))

    def own_batches(self, order: NDArray[np.int64], max_docs: int) -> Iterator[DocumentBatch]:
        """See :meth:`DocumentShard.own_batches`. The documents are visited in their own order."""
        return super().own_batches(self.order, max_docs)

    def sample(self, model: TopicModel, seed: int) -> DocumentShard:
        """See :meth:`DocumentShard.sample`. A share of every shard, gathered in all processes."""
        sizes = self.part.whole.shard_docs
        before = np.concatenate([[0], np.cumsum(sizes)])
        share = min(1.0, SAMPLE_DOCS / before[-1])
        numbers = np.diff((before * share).astype(np.int64))
        chosen = [
            np.sort(
                np.random.default_rng([seed, shard]).choice(rows, numbers[shard], replace=False)
            )
            for shard, rows in _nonempty(self.corpus)
        ]
        own, arrays = np.concatenate(chosen), None
        if len(own):
            some = self.corpus[own]
            sizes = np.diff(some.row_offsets)
            arrays = [np.array(x) for x in (sizes, some.word_index, some.counts)]
        parts = filter(None, self.processes.gather(arrays))
        sizes, words, counts = (np.concatenate(x) for x in zip(*parts, strict=True))
        corpus = Corpus(
            row_offsets=np.concatenate([[0], np.cumsum(sizes)]),
            word_index=words,
            counts=counts,
            num_words=self.corpus.num_words,
        )
        return DocumentShard(model, corpus, corpus.nonempty, Processes(alone=True))

    # -- tables ------------------------------------------------------------------------------------

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


def add_topic_shares(result: FitResult, processes: Processes) -> None:
    """Set the topic shares to those of all documents, if the fit was of a corpus in parts.

    Args:
        result: The result with this process's documents.
        processes: The processes of the fit.
    """
    corpus = result.corpus
    if corpus is None or corpus.part is None:
        return
    own = processes.together(lambda: corpus.num_nonempty * result.shares_of(corpus.nonempty))
    # The property keeps its value in this place.
    result.__dict__["topic_shares"] = processes.total({"": own})[""] / corpus.whole.num_nonempty
