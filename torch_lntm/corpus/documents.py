"""Documents: stored word counts, selections and batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.mapped import Rows, collect, cut, is_mapped, parts, pieces, release, take
from torch_lntm.corpus.metadata import Arrays, FrozenDict, listed, select_rows
from torch_lntm.corpus.part import Facts, Part
from torch_lntm.errors import CorpusError
from torch_lntm.frames import align

D = TypeVar("D", bound="Documents")
#: Selections of mapped documents with more entries than this stay in files.
LARGE = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class Documents:
    """Immutable word counts of ``num_docs`` documents in compressed sparse rows.

    This base class of ``Corpus`` stores the counts and makes batches. ``Corpus`` adds constructors,
    splits and saving. Its constructor trusts its arrays. Documents may be empty.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64; document d's entries are
            ``row_offsets[d]:row_offsets[d + 1]``.
        word_index: ``(nnz,)`` column of each entry, ascending and distinct within a document.
        counts: ``(nnz,)`` positive int32 number of tokens of each entry.
        num_words: Size of the vocabulary.
        vocabulary: The words in the order of the columns; ``None`` if unknown.
        table: The frame of :attr:`metadata`.
        covariates: Read-only mapping of names to numeric arrays ``(num_docs, ...)``, made by
            ``with_covariates``. Batches carry them as tensors.
        encodings: Read-only mapping of names to arrays derived from the metadata by
            ``model.encode``. Batches carry them as tensors. Selections and splits keep them, saved
            files drop them.
        encoders: Read-only mapping of these names to the sources of the arrays.
        name: Name for messages and reports.
        preparation: Sentence about the words left out by default in ``from_texts``, if any.
        part: Place of the documents in a corpus in shards, of which they are a part; ``None`` for a
            whole corpus. Selections and other counts are corpora of their own.
    """

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None = None
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    covariates: Arrays = field(default_factory=FrozenDict)
    encodings: Arrays = field(default_factory=FrozenDict)
    encoders: FrozenDict[object] = field(default_factory=FrozenDict)
    name: str | None = None
    preparation: str | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        for array in (self.row_offsets, self.word_index, self.counts):
            array.setflags(write=False)
        if len(self.table) != self.num_docs:  # no metadata
            object.__setattr__(self, "table", pd.DataFrame(index=pd.RangeIndex(self.num_docs)))

    @property
    def metadata(self) -> pd.DataFrame:
        """Columns of float64, int64, bool, or text, with a row for each document.

        The index names the documents. Missing values are NaN in numbers and ``None`` in text.
        Selections, splits and saved files keep the names and the columns. The frame is a copy;
        columns are added by ``with_metadata``.
        """
        return self.table.copy(deep=False)

    @property
    def num_docs(self) -> int:
        """Number of documents, including empty documents."""
        return self.row_offsets.size - 1

    @property
    def nnz(self) -> int:
        """Number of (document, word) entries."""
        return self.word_index.size

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """``(num_docs,)`` tokens per document."""
        lengths_of_parts = []
        for _, rows in self.parts():
            tokens_before = np.concatenate([[0], np.cumsum(rows.counts, dtype=np.int64)])
            offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
            lengths_of_parts.append(np.diff(tokens_before[offsets]))
        lengths = np.concatenate(lengths_of_parts)
        lengths.setflags(write=False)
        return lengths

    @property
    def nonempty(self) -> NDArray[np.int64]:
        """Positions of the documents with tokens, ascending."""
        return np.flatnonzero(self.lengths)

    @property
    def document_frequency(self) -> NDArray[np.int64]:
        """``(num_words,)`` number of documents with each word."""
        return self._word_sums[0]

    @property
    def word_totals(self) -> NDArray[np.int64]:
        """``(num_words,)`` tokens of each word in all documents."""
        return self._word_sums[1]

    @property
    def word_squares(self) -> NDArray[np.float64]:
        """``(num_words,)`` squared tokens of each word in a document, added up over documents."""
        return self._word_sums[2]

    @cached_property
    def _word_sums(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Documents, tokens and squared tokens of each word, by a single pass."""
        documents, tokens = (np.zeros(self.num_words, np.int64) for _ in range(2))
        squares = np.zeros(self.num_words)
        for _, rows in self.parts():
            words, counts = rows.word_index, np.asarray(rows.counts, np.float64)
            documents += np.bincount(words, minlength=self.num_words)
            # bincount adds up floats. They are exact for the counts of a single part.
            tokens += np.bincount(words, counts, self.num_words).astype(np.int64)
            squares += np.bincount(words, np.square(counts), self.num_words)
        for sums in (documents, tokens, squares):
            sums.setflags(write=False)
        return documents, tokens, squares

    @property
    def square_lengths(self) -> float:
        """Squared tokens of a document, added up over documents."""
        return float(np.square(self.lengths, dtype=np.float64).sum())

    @property
    def num_nonempty(self) -> int:
        """Number of documents with tokens."""
        return int(np.count_nonzero(self.lengths))

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.lengths.sum())

    @property
    def whole(self) -> Documents | Facts:
        """Numbers of the whole corpus: the corpus itself, or the numbers that a part knows.

        Raises:
            CorpusError: The part does not know the whole corpus.
        """
        return self if self.part is None else self.part.whole

    def __len__(self) -> int:
        return self.num_docs

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        columns = f", columns: {listed(self.table)}" if self.table.shape[1] else ""
        part = "" if self.part is None else f", {self.part}"
        return (
            f"{type(self).__name__}({name}num_docs={self.num_docs}, num_words={self.num_words}, "
            f"num_tokens={self.num_tokens}{columns}{part})"
        )

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """Column ``label`` of the metadata as strings; ``None`` if the column is missing.

        Several labels of a document are joined by ``|``. A missing label is an empty string.
        """
        if "label" not in self.table:
            return None
        values = self.table["label"].tolist()
        return tuple("" if v is None or v != v else str(v) for v in values)

    @property
    def batch_covariates(self) -> Arrays:
        """Arrays for batches. Encodings replace covariates of equal names."""
        return FrozenDict({**self.covariates, **self.encodings})

    def __getitem__(self: D, rows: Any) -> D:
        """Returns a new corpus of the selected documents, with positions from 0.

        Args:
            rows: A position, a slice, an array of positions or a boolean mask. A mask with an index
                of pandas is matched with the index of :attr:`metadata`.

        Raises:
            CorpusError: The selection is empty, or a mask has rows of other names.
            IndexError: A position is out of range, or a mask has another length.
        """
        rows = self._positions(rows)
        sizes = self.row_offsets[rows + 1] - self.row_offsets[rows]
        row_offsets = np.concatenate([[0], np.cumsum(sizes)])
        entries = self._neighbours(rows)
        if entries is not None:  # a view
            word_index, counts = cut(self.word_index, entries), cut(self.counts, entries)
        else:
            in_files = self.goes_to_files(int(row_offsets[-1]))
            ranges = parts(row_offsets) if in_files else [(0, rows.size)]
            row_offsets, word_index, counts = collect(
                (self._rows(rows[first:last]) for first, last in ranges), in_files
            )
        return replace(
            self,
            row_offsets=row_offsets,
            word_index=word_index,
            counts=counts,
            table=self.table.iloc[rows],
            covariates=select_rows(self.covariates, rows),
            encodings=select_rows(self.encodings, rows),
            part=None,
        )

    def _positions(self, rows: Any) -> NDArray[np.int64]:
        """Selected positions, by numpy's rules."""
        rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        if isinstance(rows, pd.Series):
            is_mask = rows.dtype.kind == "b"
            rows = np.asarray(align(rows, self.table.index, "selection") if is_mask else rows)
        try:
            positions = np.atleast_1d(np.arange(self.num_docs)[rows])
        except TypeError as error:
            raise CorpusError(f"documents cannot be selected by {rows!r:.60}: {error}") from error
        if positions.ndim > 1:
            raise CorpusError(
                f"a selection of shape {positions.shape}; expected positions, a slice, or a truth "
                "value for each document"
            )
        if not positions.size:
            raise CorpusError("the selection holds no document; a corpus needs at least one")
        return positions

    def _neighbours(self, rows: NDArray[np.int64]) -> slice | None:
        """Slice of the entries of ``rows`` if the documents are neighbours; ``None`` otherwise."""
        starts, stops = self.row_offsets[rows], self.row_offsets[rows + 1]
        return slice(int(starts[0]), int(stops[-1])) if (starts[1:] == stops[:-1]).all() else None

    def _rows(self, rows: NDArray[np.int64]) -> Rows:
        """Entries of some documents."""
        starts = self.row_offsets[rows]
        sizes = self.row_offsets[rows + 1] - starts
        entries = self._neighbours(rows)
        if entries is None:
            return Rows(
                sizes, take(self.word_index, starts, sizes), take(self.counts, starts, sizes)
            )
        words, counts = self.word_index[entries], self.counts[entries]
        if is_mapped(self.counts):
            words, counts = np.array(words), np.array(counts)
            release(self.word_index, self.counts)
        return Rows(sizes, words, counts)

    def goes_to_files(self, nnz: int) -> bool:
        """Whether a corpus of ``nnz`` entries derived from this corpus stays in files."""
        return is_mapped(self.counts) and nnz > LARGE

    def parts(self, max_entries: int | None = None) -> Iterator[tuple[slice, Rows]]:
        """Yields all documents in parts of bounded size, each with the slice of its entries.

        Args:
            max_entries: Maximum number of entries in a part. A document with more entries is a part
                alone. Defaults to about a million.
        """
        for first, last in parts(self.row_offsets, max_entries):
            entries = slice(int(self.row_offsets[first]), int(self.row_offsets[last]))
            sizes = np.diff(self.row_offsets[first : last + 1])
            yield entries, Rows(sizes, self.word_index[entries], self.counts[entries])
            release(self.word_index, self.counts)

    def with_counts(self: D, counts: NDArray[np.integer]) -> D:
        """Returns the corpus with new counts.

        Args:
            counts: ``(nnz,)`` counts in the order of the entries. Entries of 0 are removed.

        Returns:
            The corpus. All documents may be empty.
        """
        return self._with_counts(lambda entries, rows: counts[entries])

    def without_counts(self: D, counts: NDArray[np.integer]) -> D:
        """Returns a corpus with fewer tokens.

        Args:
            counts: ``(nnz,)`` number of tokens to remove from each entry.

        Returns:
            The corpus. All documents may be empty.
        """
        return self._with_counts(lambda entries, rows: rows.counts - counts[entries])

    def _with_counts(self: D, new: Callable[[slice, Rows], NDArray[np.integer]]) -> D:
        def recounted() -> Iterator[Rows]:
            for entries, rows in self.parts():
                counts = new(entries, rows)
                kept = counts > 0
                kept_before = np.concatenate([[0], np.cumsum(kept)])
                offsets = np.concatenate([[0], np.cumsum(rows.sizes)])
                sizes = np.diff(kept_before[offsets])
                yield Rows(sizes, rows.word_index[kept], counts[kept].astype(np.int32))

        row_offsets, word_index, counts = collect(recounted(), self.goes_to_files(self.nnz))
        return replace(
            self, row_offsets=row_offsets, word_index=word_index, counts=counts, part=None
        )

    def to_scipy(self) -> sp.csr_matrix:
        """The counts as a new ``(num_docs, num_words)`` int64 matrix."""
        data = self.counts.astype(np.int64)
        shape = (self.num_docs, self.num_words)
        return sp.csr_matrix((data, self.word_index, self.row_offsets), shape, copy=True)

    def fingerprint(self) -> str:
        """SHA-256 of the counts and the vocabulary, in hexadecimal.

        It ignores the metadata, the covariates and the name.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(
            json.dumps([self.num_docs, self.num_words, self.vocabulary]).encode()
        )
        for array in (self.row_offsets, self.word_index, self.counts):
            for piece in pieces(array):
                digest.update(piece.astype("<i8").tobytes())
        return digest.hexdigest()

    # ---------------------------------------------------------------- batches

    def batch(
        self,
        rows: Any = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> DocumentBatch:
        """Returns a batch of documents with their positions in this corpus as ``index``.

        ``corpus.batch(rows)`` and ``corpus[rows].batch()`` have equal counts and differ in
        ``index``. The first is a part of this corpus: ``index`` is ``rows``, and ``corpus_size`` is
        ``num_docs``. The second is a complete smaller corpus: ``index`` counts from 0. Use the
        first to look up values by position in this corpus.

        Args:
            rows: A position, a slice, an array of positions or a boolean mask. Defaults to all
                documents.
            device: Device of the tensors.
            dtype: Floating-point type of the counts and the covariates.

        Returns:
            The batch.

        Raises:
            CorpusError: The selection is empty, or ``rows`` is a device or a type.
            IndexError: A position is out of range, or a mask has another length.
        """
        if isinstance(rows, (str, torch.device, torch.dtype)):
            raise CorpusError(
                f"rows must be positions of documents, got {rows!r}; give device=... and dtype=... "
                "by name"
            )
        return self._batch(self._positions(slice(None) if rows is None else rows), device, dtype)

    def batches(
        self,
        max_docs: int | None = None,
        max_tokens: int | None = None,
        *,
        order: Any = None,
        shuffle: bool = False,
        seed: int | np.random.Generator = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Iterator[DocumentBatch]:
        """Yields the documents in batches of bounded size. Defaults to a single batch in order.

        Args:
            max_docs: Maximum number of documents in a batch.
            max_tokens: Maximum number of tokens in a batch, to bound the memory for documents of
                any length. A document with more tokens is a batch alone.
            order: Positions of the documents to yield, in this order. Defaults to all documents.
                The corpus is not copied.
            shuffle: Yield all documents in random order.
            seed: Seed of the random order, or a generator to continue from pass to pass.
            device: Device of the tensors.
            dtype: Floating-point type of the counts and the covariates.

        Yields:
            Batches with the positions of the documents as ``index`` and the size of this corpus as
            ``corpus_size``.

        Raises:
            CorpusError: A bound is below 1, or both ``order`` and ``shuffle`` are given.
            IndexError: A position is out of range.

        Example:
            >>> sizes = [batch.num_docs for batch in corpus.batches(max_docs=128, shuffle=True)]
            >>> sizes
            [128, 128, 44]
        """
        for bound, value in (("max_docs", max_docs), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise CorpusError(f"{bound} must be at least 1, got {value}")
        if shuffle and order is not None:
            raise CorpusError("order and shuffle both say the order of the documents; give one")
        rows = self._positions(slice(None) if order is None else order)
        if shuffle:
            rows = np.random.default_rng(seed).permutation(rows)
        return self._batches(rows, max_docs, max_tokens, device, dtype)

    def _batches(
        self,
        order: NDArray[np.int64],
        max_docs: int | None,
        max_tokens: int | None,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> Iterator[DocumentBatch]:
        tokens = None
        if max_tokens is not None:  # only then, because it reads all counts
            tokens = np.concatenate([[0], np.cumsum(self.lengths[order])])
        start = 0
        while start < order.size:
            stop = order.size if max_docs is None else min(start + max_docs, order.size)
            if max_tokens is not None and tokens is not None:
                full = int(np.searchsorted(tokens, tokens[start] + max_tokens, "right")) - 1
                stop = min(stop, max(full, start + 1))
            yield self._batch(order[start:stop], device, dtype)
            start = stop

    def _batch(
        self, rows: NDArray[np.int64], device: torch.device | str, dtype: torch.dtype
    ) -> DocumentBatch:
        entries = self._rows(rows)
        row_offsets = np.concatenate([[0], np.cumsum(entries.sizes)])
        positions = torch.tensor(rows)
        # torch.tensor copies: the memory of the corpus is read-only.
        batch = DocumentBatch(
            row_offsets=torch.tensor(row_offsets, device=device),
            word_index=torch.tensor(entries.word_index, dtype=torch.int64, device=device),
            counts=torch.tensor(entries.counts, dtype=dtype, device=device),
            num_words=self.num_words,
            index=positions.to(device),
            corpus_size=self.num_docs,
            covariates=FrozenDict(
                {
                    name: torch.tensor(x[rows], dtype=dtype if x.dtype.kind == "f" else None).to(
                        device
                    )
                    for name, x in self.batch_covariates.items()
                }
            ),
        )
        batch.__dict__["positions"] = positions  # saves a copy from the device
        return batch
