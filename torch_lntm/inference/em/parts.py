"""A corpus in parts: each process holds its own shards, and knows the totals of the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.part import Facts
from torch_lntm.errors import ConfigError
from torch_lntm.inference.em.distributed import Processes


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
