"""Frozen splits: documents into training and test sets, tokens of a document into two halves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.documents import D, Documents
from torch_lntm.corpus.mapped import collect_array
from torch_lntm.errors import CorpusError
from torch_lntm.files import read_arrays, write_arrays

_DRAWN_AT_ONCE = 1 << 24  # entries; another number gives other draws of larger corpora
_MAX_COLOUR = 10**9  # numpy draws hypergeometric numbers below this


@dataclass(frozen=True, eq=False)
class Split(Generic[D]):
    """A corpus's documents in two disjoint sets.

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
        """Writes the two index arrays and the corpus's fingerprint, atomically.

        Args:
            path: An ``.npz`` file, read back by ``load_split``.
        """
        write_arrays(
            Path(path),
            fingerprint=self.corpus.fingerprint(),
            train_index=self.train_index,
            test_index=self.test_index,
        )


@dataclass(frozen=True, eq=False)
class WordHoldOut(Generic[D]):
    """Every document's tokens in two parts: observed, and held out for prediction.

    Attributes:
        corpus: The corpus whose tokens were divided.
        observed_counts: ``(nnz,)`` int64, how many of each entry's tokens are observed.
    """

    corpus: D
    observed_counts: NDArray[np.int64]

    @cached_property
    def observed(self) -> D:
        """The observed tokens; the same documents in the same order."""
        return self.corpus.with_counts(self.observed_counts)

    @cached_property
    def held_out(self) -> D:
        """The held-out tokens; the same documents in the same order."""
        return self.corpus.without_counts(self.observed_counts)

    def __iter__(self) -> Iterator[D]:
        """Unpacks as ``observed, held_out = hold_out``."""
        return iter((self.observed, self.held_out))

    def of(self, corpus: D) -> WordHoldOut[D]:
        """The same hold-out of the same documents with other metadata or covariates.

        Args:
            corpus: The documents, with the counts of this hold-out's corpus.
        """
        return self if corpus is self.corpus else replace(self, corpus=corpus)

    def fingerprint(self) -> str:
        """SHA-256 of the corpus's counts and words and of what is observed, in hexadecimal.

        Whoever has the same one observes and scores the same tokens.
        """
        digest = hashlib.sha256(self.corpus.fingerprint().encode())
        digest.update(self.observed_counts.astype("<i8").tobytes())
        return digest.hexdigest()

    def check_fingerprint(self, expected: str) -> str:
        """The fingerprint, which has to be the expected one.

        Args:
            expected: The fingerprint of the hold-out that this one is to be.

        Raises:
            CorpusError: It is another.
        """
        found = self.fingerprint()
        if found != expected:
            raise CorpusError(
                f"the hold-out of {self.corpus!r} has the fingerprint {found[:12]}…, expected "
                f"{expected[:12]}…: its documents, words or observed tokens differ from those that "
                "were frozen; make it of the same corpus, with the same seeds and fractions"
            )
        return found

    def save(self, path: str | Path) -> None:
        """Writes the observed counts and the corpus's fingerprint, atomically.

        Args:
            path: An ``.npz`` file, read back by ``load_word_hold_out``.
        """
        write_arrays(
            Path(path),
            fingerprint=self.corpus.fingerprint(),
            observed_counts=self.observed_counts,
        )


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise CorpusError(f"seed must be at least 0, got {seed}")


def split_documents(corpus: D, test_fraction: float, seed: int) -> Split[D]:
    """Draws ``round(test_fraction * num_docs)`` test documents, at least one on either side."""
    if not 0 < test_fraction < 1:
        raise CorpusError(f"test_fraction must lie between 0 and 1, got {test_fraction}")
    _check_seed(seed)
    if corpus.num_docs < 2:
        raise CorpusError("a split needs at least 2 documents, got 1")
    num_test = min(max(round(test_fraction * corpus.num_docs), 1), corpus.num_docs - 1)
    order = np.random.default_rng(seed).permutation(corpus.num_docs)
    return Split(corpus, np.sort(order[num_test:]), np.sort(order[:num_test]))


def hold_out_words(corpus: D, observed_fraction: float, seed: int) -> WordHoldOut[D]:
    """Draws each document's observed tokens without replacement; see ``Corpus.hold_out_words``."""
    if not 0 < observed_fraction < 1:
        raise CorpusError(f"observed_fraction must lie between 0 and 1, got {observed_fraction}")
    _check_seed(seed)
    lengths = corpus.lengths
    num_observed = np.rint(observed_fraction * lengths).astype(np.int64)
    num_observed = np.minimum(np.maximum(num_observed, 1), np.maximum(lengths - 1, 1))
    num_observed[lengths == 0] = 0
    rng = np.random.default_rng(seed)

    def pieces() -> Iterator[NDArray[np.int64]]:
        first = 0
        for _, rows in corpus.parts(_DRAWN_AT_ONCE):
            offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
            last = first + rows.sizes.size
            yield _draw_tokens(rng, rows.counts, offsets, num_observed[first:last])
            first = last

    in_files = corpus.goes_to_files(corpus.nnz)
    return WordHoldOut(corpus, collect_array(pieces(), np.int64, in_files))


def _draw_tokens(
    rng: np.random.Generator,
    counts: NDArray[np.integer],
    row_offsets: NDArray[np.int64],
    num_drawn: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draws tokens of every document without replacement: ``(nnz,)`` numbers by entry.

    The numbers of a document have a multivariate hypergeometric distribution. They are drawn by
    halving: the number of drawn tokens in the first half of the document's entries is
    hypergeometric, and given this number the two halves are independent. All documents are halved
    at once. Time and memory depend on the number of entries, not on the number of tokens.
    """
    tokens_before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    drawn = np.zeros(counts.size, np.int64)
    starts, stops = row_offsets[:-1], row_offsets[1:]
    while starts.size:
        some = num_drawn > 0
        starts, stops, num_drawn = starts[some], stops[some], num_drawn[some]
        single = stops - starts == 1
        drawn[starts[single]] = num_drawn[single]
        starts, stops, num_drawn = starts[~single], stops[~single], num_drawn[~single]
        middles = (starts + stops) // 2
        first = _hypergeometric(
            rng,
            tokens_before[middles] - tokens_before[starts],
            tokens_before[stops] - tokens_before[middles],
            num_drawn,
        )
        starts, stops = np.concatenate([starts, middles]), np.concatenate([middles, stops])
        num_drawn = np.concatenate([first, num_drawn - first])
    return drawn


def _hypergeometric(
    rng: np.random.Generator,
    good: NDArray[np.int64],
    bad: NDArray[np.int64],
    num_drawn: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draws how many of ``num_drawn`` tokens out of ``good + bad`` are good, elementwise.

    Numpy can do this for numbers below 10^9. Larger numbers are drawn in rounds. In a round, every
    token that is left is drawn with the probability that makes the total right on average. If too
    many have been drawn, every drawn token is put back with such a probability. The rounds end when
    the total is right. All sets of this many tokens are then equally probable, because no round
    treats one token differently from another. Few rounds are needed, because the error of the total
    falls to about its square root in each.
    """
    small = (good < _MAX_COLOUR) & (bad < _MAX_COLOUR)
    found = np.zeros_like(good)
    found[small] = rng.hypergeometric(good[small], bad[small], num_drawn[small])
    for i in np.flatnonzero(~small):
        tokens = np.array([good[i], bad[i]])
        taken = np.zeros_like(tokens)
        while lacking := int(num_drawn[i] - taken.sum()):
            pool = tokens - taken if lacking > 0 else taken
            taken = taken + np.sign(lacking) * rng.binomial(pool, abs(lacking) / pool.sum())
        found[i] = taken[0]
    return found


def load_split(path: str | Path, corpus: D) -> Split[D]:
    """Reads a saved split of the same corpus.

    Args:
        path: The ``.npz`` file that ``Split.save`` wrote.
        corpus: The corpus that was split; its counts and vocabulary must be unchanged.

    Returns:
        The split, with the documents of ``corpus``.

    Raises:
        CorpusError: The file is damaged, belongs to another corpus, or is no split.
    """
    path = Path(path)
    arrays = _arrays_of(path, corpus, "train_index", "test_index")
    train, test = arrays["train_index"], arrays["test_index"]
    together = np.concatenate([train, test])
    if together.dtype.kind != "i" or not min(train.size, test.size):
        raise CorpusError(f"{path}: train_index and test_index must be non-empty integer arrays")
    outside = (together < 0) | (together >= corpus.num_docs)
    if outside.any() or np.unique(together).size != together.size:
        raise CorpusError(
            f"{path}: train_index and test_index must hold different positions below "
            f"{corpus.num_docs}; save the split again"
        )
    return Split(corpus, train.astype(np.int64), test.astype(np.int64))


def load_word_hold_out(path: str | Path, corpus: D) -> WordHoldOut[D]:
    """Reads a saved within-document hold-out of the same corpus.

    Args:
        path: The ``.npz`` file that ``WordHoldOut.save`` wrote.
        corpus: The corpus it was drawn from; its counts and vocabulary must be unchanged.

    Returns:
        The hold-out, with the documents of ``corpus``.

    Raises:
        CorpusError: The file is damaged, belongs to another corpus, or is no hold-out.
    """
    path = Path(path)
    observed = _arrays_of(path, corpus, "observed_counts")["observed_counts"]
    if observed.shape != (corpus.nnz,) or observed.dtype.kind != "i":
        raise CorpusError(
            f"{path}: observed_counts must be {corpus.nnz} integers, "
            f"got shape {observed.shape} of {observed.dtype}"
        )
    for entries, rows in corpus.parts():
        if ((observed[entries] < 0) | (observed[entries] > rows.counts)).any():
            raise CorpusError(f"{path}: observed_counts must lie between 0 and the corpus's counts")
    return WordHoldOut(corpus, observed.astype(np.int64))


def _arrays_of(path: Path, corpus: Documents, *names: str) -> dict[str, np.ndarray]:
    """The arrays of a saved split, checked to belong to this corpus."""
    arrays = read_arrays(path, "fingerprint", *names)
    if str(arrays["fingerprint"]) != corpus.fingerprint():
        raise CorpusError(
            f"{path}: made from another corpus (its fingerprint differs from {corpus!r}); "
            "read the corpus it was made from, with the same vocabulary and options"
        )
    return arrays
