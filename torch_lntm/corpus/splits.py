"""Fixed splits: documents into training and test sets, tokens into observed and held-out ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus.archive import read_arrays
from torch_lntm.corpus.metadata import column_or_values
from torch_lntm.errors import CorpusError, require_whole
from torch_lntm.files.writing import atomic_write

#: The class ``Corpus``, whose module imports this one.
D = TypeVar("D", bound=Any)
_DRAWN_AT_ONCE = 1 << 24  # entries per draw; a new value changes the draws of larger corpora


@dataclass(frozen=True, eq=False)
class Split(Generic[D]):
    """Split of a corpus's documents into two disjoint sets.

    Attributes:
        corpus: The corpus that was split.
        train_index: ``(num_train,)`` int64 positions of the training documents, ascending.
        test_index: ``(num_test,)`` int64 positions of the test documents, ascending.
    """

    corpus: D
    train_index: NDArray[np.int64]
    test_index: NDArray[np.int64]

    @cached_property
    def train(self) -> D:
        """The training documents."""
        return self.corpus[self.train_index]

    @cached_property
    def test(self) -> D:
        """The test documents."""
        return self.corpus[self.test_index]

    def __iter__(self) -> Iterator[D]:
        """Unpacks as ``train, test = split``."""
        return iter((self.train, self.test))

    def save(self, path: str | Path) -> None:
        """Writes the two index arrays and the corpus's fingerprint atomically.

        Args:
            path: The ``.npz`` file, for ``load_split``.
        """
        indices: dict[str, Any] = {"train_index": self.train_index, "test_index": self.test_index}
        with atomic_write(Path(path)) as file:
            np.savez_compressed(file, fingerprint=self.corpus.fingerprint(), **indices)


@dataclass(frozen=True, eq=False)
class WordHoldOut(Generic[D]):
    """Split of every document's tokens into observed tokens and held-out tokens.

    Attributes:
        corpus: The corpus with all tokens.
        observed_counts: ``(nnz,)`` int64 number of observed tokens of each entry.
    """

    corpus: D
    observed_counts: NDArray[np.int64]

    @cached_property
    def observed(self) -> D:
        """Corpus of the observed tokens, with all documents in order."""
        return self.corpus.with_counts(self.observed_counts)

    @cached_property
    def held_out(self) -> D:
        """Corpus of the held-out tokens, with all documents in order."""
        return self.corpus.with_counts(self.observed_counts, remove=True)

    def __iter__(self) -> Iterator[D]:
        """Unpacks as ``observed, held_out = hold_out``."""
        return iter((self.observed, self.held_out))

    def of(self, corpus: D) -> WordHoldOut[D]:
        """This hold-out for a copy of its corpus with new metadata or covariates.

        Args:
            corpus: The documents, with the counts of this hold-out's corpus.
        """
        return self if corpus is self.corpus else replace(self, corpus=corpus)

    def fingerprint(self) -> str:
        """SHA-256 of the corpus's counts and words and of the observed counts, in hexadecimal.

        Equal fingerprints mean equal observed tokens and equal held-out tokens.
        """
        digest = hashlib.sha256(self.corpus.fingerprint().encode())
        digest.update(self.observed_counts.astype("<i8").tobytes())
        return digest.hexdigest()


def split_documents(corpus: D, test_fraction: float, seed: int, by: Any = None) -> Split[D]:
    """Draws ``round(test_fraction * num_docs)`` test documents, but leaves neither set empty.

    With ``by``, it draws the first clusters of a random order whose number of documents comes
    nearest to this number.
    """
    if not 0 < test_fraction < 1:
        raise CorpusError(f"test_fraction must lie between 0 and 1, got {test_fraction}")
    require_whole(0, seed=seed)
    if corpus.num_docs < 2:
        raise CorpusError("test_fraction: a split needs at least 2 documents, got 1")
    rng = np.random.default_rng(seed)
    num_test = min(max(round(test_fraction * corpus.num_docs), 1), corpus.num_docs - 1)
    if by is None:
        order = rng.permutation(corpus.num_docs)
        return Split(corpus, np.sort(order[num_test:]), np.sort(order[:num_test]))
    codes, names = pd.factorize(column_or_values(corpus, by, "by"))
    if len(names) < 2:
        raise CorpusError(f"by: a split needs at least 2 values of {by!r:.40}, got {len(names)}")
    drawn = rng.permutation(len(names))
    distance = np.abs(np.cumsum(np.bincount(codes)[drawn])[:-1] - num_test)
    is_test = np.isin(codes, drawn[: int(distance.argmin()) + 1])
    return Split(corpus, np.flatnonzero(~is_test), np.flatnonzero(is_test))


def hold_out_words(corpus: D, observed_fraction: float, seed: int) -> WordHoldOut[D]:
    """Draws each document's observed tokens without replacement; see ``Corpus.hold_out_words``."""
    if not 0 < observed_fraction < 1:
        raise CorpusError(f"observed_fraction must lie between 0 and 1, got {observed_fraction}")
    require_whole(0, seed=seed)
    lengths = corpus.lengths
    num_observed = np.rint(observed_fraction * lengths).astype(np.int64)
    num_observed = np.minimum(np.maximum(num_observed, 1), np.maximum(lengths - 1, 1))
    num_observed[lengths == 0] = 0
    rng = np.random.default_rng(seed)

    observed, first = [], 0
    for _, rows in corpus.parts(_DRAWN_AT_ONCE):
        offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
        last = first + rows.sizes.size
        observed.append(_draw_tokens(rng, rows.counts, offsets, num_observed[first:last]))
        first = last
    return WordHoldOut(corpus, np.concatenate(observed))


def _draw_tokens(
    rng: np.random.Generator,
    counts: NDArray[np.integer],
    row_offsets: NDArray[np.int64],
    num_drawn: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draws tokens of every document without replacement: ``(nnz,)`` drawn tokens per entry.

    The numbers drawn from a document's entries follow a multivariate hypergeometric distribution,
    which is sampled by repeated halving. The number of tokens that fall in the first half of the
    entries is hypergeometric, and given that number the two halves are independent, so each can be
    halved again. All documents are halved at once. Time and memory grow with the number of entries,
    however many tokens they stand for.
    """
    tokens_before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    drawn = np.zeros(counts.size, np.int64)
    starts, stops = row_offsets[:-1], row_offsets[1:]
    while starts.size:
        any_drawn = num_drawn > 0
        starts, stops, num_drawn = starts[any_drawn], stops[any_drawn], num_drawn[any_drawn]
        single = stops - starts == 1
        drawn[starts[single]] = num_drawn[single]
        starts, stops, num_drawn = starts[~single], stops[~single], num_drawn[~single]
        middles = (starts + stops) // 2
        first = rng.hypergeometric(
            tokens_before[middles] - tokens_before[starts],
            tokens_before[stops] - tokens_before[middles],
            num_drawn,
        )
        starts, stops = np.concatenate([starts, middles]), np.concatenate([middles, stops])
        num_drawn = np.concatenate([first, num_drawn - first])
    return drawn


def load_split(path: str | Path, corpus: D) -> Split[D]:
    """Reads a split saved by ``Split.save``.

    Args:
        path: The ``.npz`` file.
        corpus: The corpus of the split, with unchanged counts and vocabulary.

    Returns:
        The split, with the documents of ``corpus``.

    Raises:
        CorpusError: The file is damaged or belongs to another corpus.
    """
    path = Path(path)
    arrays = read_arrays(path, "fingerprint", "train_index", "test_index")
    if str(arrays["fingerprint"]) != corpus.fingerprint():
        raise CorpusError(
            f"{path}: made from another corpus (its fingerprint differs from {corpus!r}); "
            "read the corpus it was made from, with the same vocabulary and options"
        )
    return Split(corpus, arrays["train_index"], arrays["test_index"])
