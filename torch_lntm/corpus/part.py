"""Parts of a sharded corpus: where one process's documents stand in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import CorpusError


@dataclass(frozen=True, eq=False)
class Facts:
    """Totals of a whole corpus, which every process with a part of it shares.

    Attributes:
        num_docs: Number of documents, including empty documents.
        document_frequency: ``(num_words,)`` int64 number of documents with each word.
        word_totals: ``(num_words,)`` int64 tokens of each word.
        word_squares: ``(num_words,)`` float64 sum over documents of each word's squared count.
        square_lengths: Sum over documents of the squared number of tokens.
        shard_docs: ``(num_shards,)`` int64 number of documents with tokens of each shard.
    """

    num_docs: int
    document_frequency: NDArray[np.int64]
    word_totals: NDArray[np.int64]
    word_squares: NDArray[np.float64]
    square_lengths: float
    shard_docs: NDArray[np.int64]

    @property
    def num_nonempty(self) -> int:
        """Number of documents with tokens."""
        return int(self.shard_docs.sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.word_totals.sum())

    @property
    def nnz(self) -> int:
        """Number of stored counts."""
        return int(self.document_frequency.sum())


@dataclass(frozen=True, eq=False)
class Part:
    """Where a part stands in the whole corpus. A part is made of consecutive shards.

    Attributes:
        shards: First shard of the part, and the shard after its last shard.
        sizes: ``(num_shards,)`` number of documents of every shard of the whole corpus.
        fingerprint: SHA-256 of the manifest, in hexadecimal. It is equal in all parts of a corpus.
        folder: The corpus's folder.
        facts: Numbers of the whole corpus. ``None`` until the processes of a fit have added them
            up.
    """

    shards: tuple[int, int]
    sizes: tuple[int, ...]
    fingerprint: str
    folder: Path
    facts: Facts | None = None

    @property
    def first(self) -> int:
        """Position of the part's first document in the whole corpus."""
        return sum(self.sizes[: self.shards[0]])

    @property
    def num_docs(self) -> int:
        """Number of documents of the whole corpus."""
        return sum(self.sizes)

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Yields the number of each shard of the part, and the slice of its documents in it."""
        start = 0
        for number in range(*self.shards):
            stop = start + self.sizes[number]
            yield number, slice(start, stop)
            start = stop

    @property
    def whole(self) -> Facts:
        """Numbers of the whole corpus.

        Raises:
            CorpusError: They are unknown, because no process has counted the other parts.
        """
        if self.facts is None:
            raise CorpusError(
                "this part of a corpus does not know the numbers of the whole corpus; add them up "
                "in all processes by lntm.inference.join_parts(corpus), or read the whole corpus "
                "by read_corpus(folder)"
            )
        return self.facts

    def __str__(self) -> str:
        first, after = self.shards
        return f"shards {first} to {after - 1} of {len(self.sizes)}"
