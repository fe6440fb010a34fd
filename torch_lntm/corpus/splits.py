"""Frozen splits: documents into training and test sets, tokens of a document into two halves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.files import read_arrays, write_arrays
from torch_lntm.errors import CorpusError

if TYPE_CHECKING:
    from torch_lntm.corpus.corpus import Corpus

_CHUNK_TOKENS = 1 << 20


@dataclass(frozen=True, eq=False)
class Split:
    """A corpus's documents in two disjoint sets.

    Attributes:
        corpus: The corpus that was split.
        train_index: ``(num_train,)`` int64 positions of the training documents, ascending.
        test_index: ``(num_test,)`` int64 positions of the test documents, ascending.
    """

    corpus: Corpus
    train_index: NDArray[np.int64]
    test_index: NDArray[np.int64]

    @cached_property
    def train(self) -> Corpus:
        """The training documents."""
        return self.corpus[self.train_index]

    @cached_property
    def test(self) -> Corpus:
        """The test documents."""
        return self.corpus[self.test_index]

    def __iter__(self) -> Iterator[Corpus]:
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
class WordHoldOut:
    """Every document's tokens in two parts: observed, and held out for prediction.

    Attributes:
        corpus: The corpus whose tokens were divided.
        observed_counts: ``(nnz,)`` int64, how many of each entry's tokens are observed.
    """

    corpus: Corpus
    observed_counts: NDArray[np.int64]

    @cached_property
    def observed(self) -> Corpus:
        """The observed tokens; the same documents in the same order."""
        return self.corpus.with_counts(self.observed_counts)

    @cached_property
    def held_out(self) -> Corpus:
        """The held-out tokens; the same documents in the same order."""
        return self.corpus.with_counts(self.corpus.counts - self.observed_counts)

    def __iter__(self) -> Iterator[Corpus]:
        """Unpacks as ``observed, held_out = hold_out``."""
        return iter((self.observed, self.held_out))

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


def split_documents(corpus: Corpus, test_fraction: float, seed: int) -> Split:
    """Draws ``round(test_fraction * num_docs)`` test documents, at least one on either side."""
    if not 0 < test_fraction < 1:
        raise CorpusError(f"test_fraction must lie between 0 and 1, got {test_fraction}")
    _check_seed(seed)
    if corpus.num_docs < 2:
        raise CorpusError("a split needs at least 2 documents, got 1")
    num_test = min(max(round(test_fraction * corpus.num_docs), 1), corpus.num_docs - 1)
    order = np.random.default_rng(seed).permutation(corpus.num_docs)
    return Split(corpus, np.sort(order[num_test:]), np.sort(order[:num_test]))


def hold_out_words(corpus: Corpus, observed_fraction: float, seed: int) -> WordHoldOut:
    """Draws each document's observed tokens without replacement; see ``Corpus.hold_out_words``."""
    if not 0 < observed_fraction < 1:
        raise CorpusError(f"observed_fraction must lie between 0 and 1, got {observed_fraction}")
    _check_seed(seed)
    lengths = corpus.lengths
    num_observed = np.rint(observed_fraction * lengths).astype(np.int64)
    num_observed = np.minimum(np.maximum(num_observed, 1), np.maximum(lengths - 1, 1))
    rng = np.random.default_rng(seed)
    observed = np.zeros(corpus.nnz, np.int64)
    # Whole documents in chunks of about a million tokens bound the memory; each token takes one
    # draw in corpus order, so the chunk's size does not change the result.
    token_offsets = np.concatenate([[0], np.cumsum(lengths)])
    start = 0
    while start < corpus.num_docs:
        stop = int(np.searchsorted(token_offsets, token_offsets[start] + _CHUNK_TOKENS, "right"))
        stop = min(max(stop - 1, start + 1), start + _CHUNK_TOKENS)
        entries = slice(corpus.row_offsets[start], corpus.row_offsets[stop])
        counts = corpus.counts[entries]
        entry = np.repeat(np.arange(counts.size), counts)
        document = np.repeat(np.arange(stop - start), lengths[start:stop])
        # One integer orders by document, then at random: sorting it shuffles every document.
        order = np.argsort((document << 40) | rng.integers(0, 1 << 40, document.size))
        place = (
            np.arange(document.size) - (token_offsets[start:stop] - token_offsets[start])[document]
        )
        chosen = order[place < num_observed[start:stop][document]]
        observed[entries] = np.bincount(entry[chosen], minlength=counts.size)
        start = stop
    return WordHoldOut(corpus, observed)


def load_split(path: str | Path, corpus: Corpus) -> Split:
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


def load_word_hold_out(path: str | Path, corpus: Corpus) -> WordHoldOut:
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
    if ((observed < 0) | (observed > corpus.counts)).any():
        raise CorpusError(f"{path}: observed_counts must lie between 0 and the corpus's counts")
    return WordHoldOut(corpus, observed.astype(np.int64))


def _arrays_of(path: Path, corpus: Corpus, *names: str) -> dict[str, np.ndarray]:
    """The arrays of a saved split, checked to belong to this corpus."""
    arrays = read_arrays(path, "fingerprint", *names)
    if str(arrays["fingerprint"]) != corpus.fingerprint():
        raise CorpusError(
            f"{path}: made from another corpus (its fingerprint differs from {corpus!r}); "
            "read the corpus it was made from, with the same vocabulary and options"
        )
    return arrays
