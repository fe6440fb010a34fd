"""Corpus: the word counts of documents, with a vocabulary and labels."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.checks import check_labels, check_texts, check_vocabulary, to_coo
from torch_lntm.corpus.files import write_arrays, write_lines
from torch_lntm.corpus.splits import Split, WordHoldOut, hold_out_words, split_documents
from torch_lntm.errors import CorpusError

_MAX_COUNT = np.iinfo(np.int32).max
_PRUNING_OPTIONS = ("min_df", "max_df", "max_features")


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Word counts of ``num_docs`` documents in compressed sparse rows; immutable.

    Made by ``from_matrix``, ``from_texts`` or ``read_corpus``, which check their input; the
    constructor takes its arrays as they are. Documents may be empty; the corpus may not.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64; document d's entries are
            ``row_offsets[d]:row_offsets[d + 1]``.
        word_index: ``(nnz,)`` column of each entry, ascending and distinct within a document.
        counts: ``(nnz,)`` int32 tokens of each entry, all positive.
        num_words: Size of the vocabulary.
        vocabulary: The words, in the order of the columns; ``None`` where they are not known.
        labels: One label per document, several joined by ``|``; ``None`` where there are none.
        name: A name for messages and reports.
    """

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for array in (self.row_offsets, self.word_index, self.counts):
            array.setflags(write=False)

    # ---------------------------------------------------------------- making one

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        vocabulary: Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        name: str | None = None,
    ) -> Corpus:
        """A corpus of the counts in a matrix, one document a row.

        Args:
            matrix: ``(num_docs, num_words)`` whole counts: a scipy sparse matrix or array, a dense
                array, or a torch tensor (dense or sparse). Entries given twice are added up.
            vocabulary: The ``num_words`` words, all different, in the order of the columns.
            labels: One label per document.
            name: A name for messages and reports.

        Returns:
            The corpus; rows without counts are kept as empty documents.

        Raises:
            CorpusError: A count is negative, fractional, NaN or too large, the vocabulary or the
                labels do not fit, a word occurs twice, or there is not a single token.
        """
        coo = to_coo(matrix)
        num_docs, num_words = coo.shape
        data = coo.data
        # A NaN fails the first comparison, an infinity the last.
        bad = ~(data >= 0) | (data > _MAX_COUNT)
        if data.dtype.kind == "f":
            bad |= data != np.floor(data)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise CorpusError(
                f"counts must be whole numbers from 0 to {_MAX_COUNT}, got {data[i]} in document "
                f"{coo.row[i]}, word {coo.col[i]} (and {int(bad.sum()) - 1} more such entries); "
                "give raw counts, not weights such as tf-idf"
            )
        # tocsr adds up repeated entries and sorts those of a row.
        csr = sp.coo_matrix((data.astype(np.int64), (coo.row, coo.col)), coo.shape).tocsr()
        csr.eliminate_zeros()
        if not csr.nnz:
            raise CorpusError(
                f"the corpus is empty: {num_docs} documents, {num_words} words, 0 tokens; "
                "give at least one document with one word"
            )
        if csr.data.max() > _MAX_COUNT:
            raise CorpusError(f"a word's repeated entries add up to more than {_MAX_COUNT} tokens")
        return cls(
            row_offsets=csr.indptr.astype(np.int64),
            word_index=csr.indices,
            counts=csr.data.astype(np.int32),
            num_words=num_words,
            vocabulary=check_vocabulary(vocabulary, num_words),
            labels=check_labels(labels, num_docs),
            name=name,
        )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        vocabulary: Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Corpus:
        """A corpus of the words in some texts, counted by scikit-learn's ``CountVectorizer``.

        Args:
            texts: The documents.
            vocabulary: Count these words, in this order, and drop all others with a warning;
                without it every word of the texts, in alphabetical order.
            labels: One label per document.
            name: A name for messages and reports.
            **options: ``CountVectorizer`` options, such as ``stop_words="english"``, ``min_df=5``,
                ``max_df=0.5``, ``token_pattern``, ``lowercase``, ``max_features``.

        Returns:
            The corpus; texts without a counted word are kept as empty documents.

        Raises:
            CorpusError: A text is not a string, or no word remains.
        """
        unused = [option for option in _PRUNING_OPTIONS if option in options]
        if vocabulary is not None and unused:
            raise CorpusError(
                f"{', '.join(unused)} choose words, and so does the given vocabulary; give one"
            )
        texts = check_texts(texts)
        try:
            vectorizer = CountVectorizer(**options)
            counts = vectorizer.fit_transform(texts)
        except (ValueError, TypeError, re.error) as error:
            raise CorpusError(f"the texts cannot be counted: {error}") from error
        words = vectorizer.get_feature_names_out()
        corpus = cls.from_matrix(counts, words, labels, name)
        return corpus if vocabulary is None else corpus.with_vocabulary(vocabulary)

    def with_vocabulary(self, vocabulary: Iterable[str]) -> Corpus:
        """The same documents, counted over another vocabulary, as a fitted model needs them.

        Args:
            vocabulary: The words wanted, in the order wanted. Those that do not occur get empty
                columns; words of this corpus that are not among them are dropped with one warning.

        Returns:
            The corpus over the new columns; documents that lose every word stay, empty.

        Raises:
            CorpusError: This corpus has no vocabulary, or shares no word with the new one.
        """
        words = check_vocabulary(vocabulary, None)
        assert words is not None
        if self.vocabulary is None:
            raise CorpusError(f"{self!r} has no vocabulary to match words by; give it one")
        if words == self.vocabulary:
            return self
        column = {word: i for i, word in enumerate(words)}
        new = np.array([column.get(word, -1) for word in self.vocabulary], np.int64)[
            self.word_index
        ]
        known = new >= 0
        rows = self._entry_rows
        if not known.all():
            hint = "" if known.any() else "; check that both were made by the same tokenizer"
            warnings.warn(
                f"dropped {int(self.counts[~known].sum(dtype=np.int64))} of {self.num_tokens} "
                f"tokens: {np.unique(self.word_index[~known]).size} words unknown to the "
                f"vocabulary, in {np.unique(rows[~known]).size} of {self.num_docs} documents{hint}",
                UserWarning,
                stacklevel=2,
            )
        if not known.any():
            return replace(
                self,
                row_offsets=np.zeros_like(self.row_offsets),
                word_index=self.word_index[:0],
                counts=self.counts[:0],
                num_words=len(words),
                vocabulary=words,
            )
        matrix = sp.coo_matrix(
            (self.counts[known], (rows[known], new[known])), (self.num_docs, len(words))
        )
        return type(self).from_matrix(matrix, words, self.labels, self.name)

    def with_counts(self, counts: NDArray[np.integer]) -> Corpus:
        """The same documents and words with other counts; entries that become zero disappear.

        Args:
            counts: ``(nnz,)`` counts from 0 up, one for each entry of this corpus.

        Returns:
            The corpus, of which every document may be empty.
        """
        keep = counts > 0
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        return replace(
            self,
            row_offsets=kept_before[self.row_offsets],
            word_index=self.word_index[keep],
            counts=counts[keep].astype(np.int32),
        )

    # ---------------------------------------------------------------- looking at it

    @property
    def num_docs(self) -> int:
        """Number of documents, empty ones included."""
        return self.row_offsets.size - 1

    @property
    def nnz(self) -> int:
        """Number of (document, word) entries."""
        return self.word_index.size

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """``(num_docs,)`` tokens per document."""
        tokens_before = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        lengths = np.diff(tokens_before[self.row_offsets])
        lengths.setflags(write=False)
        return lengths

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.lengths.sum())

    @property
    def _entry_rows(self) -> NDArray[np.int64]:
        """``(nnz,)`` document of each entry."""
        return np.repeat(np.arange(self.num_docs), np.diff(self.row_offsets))

    def __len__(self) -> int:
        return self.num_docs

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return (
            f"Corpus({name}num_docs={self.num_docs}, num_words={self.num_words}, "
            f"num_tokens={self.num_tokens})"
        )

    def __getitem__(self, rows: Any) -> Corpus:
        """The documents ``rows``: a position, a slice, an array of positions or a boolean mask.

        Raises:
            CorpusError: No document is selected.
            IndexError: A position is out of range, or a mask of another length.
        """
        rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        rows = np.atleast_1d(np.arange(self.num_docs)[rows])
        if not rows.size:
            raise CorpusError("the selection holds no document; a corpus needs at least one")
        row_offsets, entries = self._select(rows)
        return replace(
            self,
            row_offsets=row_offsets,
            word_index=self.word_index[entries],
            counts=self.counts[entries],
            labels=None if self.labels is None else tuple(self.labels[d] for d in rows),
        )

    def _select(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
        """The row offsets of some documents, and the slice or positions of their entries."""
        starts, stops = self.row_offsets[rows], self.row_offsets[rows + 1]
        offsets = np.concatenate([[0], np.cumsum(stops - starts)])
        if (starts[1:] == stops[:-1]).all():  # neighbours: no copy
            return offsets, slice(starts[0], stops[-1])
        return offsets, np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], stops - starts)

    def to_scipy(self) -> sp.csr_matrix:
        """The counts as a new ``(num_docs, num_words)`` int64 matrix."""
        data = self.counts.astype(np.int64)
        shape = (self.num_docs, self.num_words)
        return sp.csr_matrix((data, self.word_index, self.row_offsets), shape, copy=True)

    def fingerprint(self) -> str:
        """SHA-256 of the counts and the vocabulary, in hexadecimal; without labels and name."""
        digest = hashlib.sha256(
            json.dumps([self.num_docs, self.num_words, self.vocabulary]).encode()
        )
        for array in (self.row_offsets, self.word_index, self.counts):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    # ---------------------------------------------------------------- batches and splits

    def batch(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> DocumentBatch:
        """All documents as one batch.

        Args:
            device: Where the tensors shall be.
            dtype: Floating-point type of the counts.
        """
        return self._batch(np.arange(self.num_docs), device, dtype)

    def batches(
        self,
        max_docs: int | None = None,
        max_tokens: int | None = None,
        *,
        shuffle: bool = False,
        seed: int | np.random.Generator = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Iterator[DocumentBatch]:
        """Every document once, in batches of bounded size.

        Args:
            max_docs: The most documents in a batch.
            max_tokens: The most tokens in a batch; a longer document makes a batch of its own.
                It bounds a batch's memory, whatever the documents' lengths.
            shuffle: Go through the documents in random order instead of the corpus's.
            seed: What orders them: a number, or a generator that goes on from pass to pass.
            device: Where the tensors shall be.
            dtype: Floating-point type of the counts.

        Yields:
            Batches with the documents' positions in ``index`` and this corpus's ``corpus_size``.

        Raises:
            CorpusError: A bound is below 1.
        """
        for bound, value in (("max_docs", max_docs), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise CorpusError(f"{bound} must be at least 1, got {value}")
        order = np.arange(self.num_docs)
        if shuffle:
            order = np.random.default_rng(seed).permutation(order)
        return self._batches(order, max_docs, max_tokens, device, dtype)

    def _batches(
        self,
        order: NDArray[np.int64],
        max_docs: int | None,
        max_tokens: int | None,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> Iterator[DocumentBatch]:
        tokens = np.concatenate([[0], np.cumsum(self.lengths[order])])
        start = 0
        while start < order.size:
            stop = order.size if max_docs is None else min(start + max_docs, order.size)
            if max_tokens is not None:
                full = int(np.searchsorted(tokens, tokens[start] + max_tokens, "right")) - 1
                stop = min(stop, max(full, start + 1))
            yield self._batch(order[start:stop], device, dtype)
            start = stop

    def _batch(
        self, rows: NDArray[np.int64], device: torch.device | str, dtype: torch.dtype
    ) -> DocumentBatch:
        row_offsets, entries = self._select(rows)
        # torch.tensor copies: a batch never shares memory with the corpus, which is read-only.
        return DocumentBatch(
            row_offsets=torch.tensor(row_offsets, device=device),
            word_index=torch.tensor(self.word_index[entries], dtype=torch.int64, device=device),
            counts=torch.tensor(self.counts[entries], dtype=dtype, device=device),
            num_words=self.num_words,
            index=torch.tensor(rows, device=device),
            corpus_size=self.num_docs,
        )

    def split(self, test_fraction: float = 0.1, seed: int = 0) -> Split:
        """Divides the documents at random into a training and a test set.

        Args:
            test_fraction: Share of the documents in the test set, rounded to whole documents.
            seed: The same seed gives the same split.

        Returns:
            The split: ``train, test = corpus.split()``, or ``.train``, ``.test`` and ``.save``.

        Raises:
            CorpusError: The fraction is not between 0 and 1, or there is only one document.
        """
        return split_documents(self, test_fraction, seed)

    def hold_out_words(self, observed_fraction: float = 0.5, seed: int = 0) -> WordHoldOut:
        """Divides every document's tokens at random, without replacement, for completion scores.

        Args:
            observed_fraction: Share of a document's tokens to observe, rounded to whole tokens. A
                document of one token has it observed; a longer one has at least one on each side.
            seed: The same seed gives the same tokens.

        Returns:
            The hold-out: ``observed, held_out = corpus.hold_out_words()``, or ``.observed``,
            ``.held_out`` and ``.save``.

        Raises:
            CorpusError: The fraction is not between 0 and 1.
        """
        return hold_out_words(self, observed_fraction, seed)

    def save(self, path: str | Path) -> None:
        """Writes the corpus to files that ``read_corpus`` reads.

        ``NAME.npz`` holds the counts; beside it are ``NAME.vocab.txt`` and ``NAME.labels.txt``.
        Each file appears complete or not at all.

        Args:
            path: The ``.npz`` file.

        Raises:
            CorpusError: The path does not end in ``.npz``, or a word or label holds a line break.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise CorpusError(f"{path}: a corpus is saved as an .npz file; end the path in .npz")
        for what, lines in (("vocab", self.vocabulary), ("labels", self.labels)):
            beside = path.with_name(f"{path.stem}.{what}.txt")
            if lines is None:
                beside.unlink(missing_ok=True)  # an older corpus's would be read with this one
            else:
                write_lines(beside, lines, "word" if what == "vocab" else "label")
        write_arrays(
            path,
            data=self.counts.astype(np.min_scalar_type(self.counts.max(initial=0))),
            indices=self.word_index,
            indptr=self.row_offsets,
            shape=np.array([self.num_docs, self.num_words], np.int64),
        )
