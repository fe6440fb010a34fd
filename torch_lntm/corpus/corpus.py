"""Corpus: word counts of documents, with a vocabulary, metadata and covariates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import find_device
from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.corpus.checks import check_counts, check_order, check_vocabulary
from torch_lntm.corpus.mapped import Rows, parts, pieces, release, take
from torch_lntm.corpus.metadata import (
    Arrays,
    Columns,
    as_frame,
    describe,
    is_table,
    listed,
    make_covariates,
    make_metadata,
    named,
    select_rows,
    take_texts,
    with_labels,
)
from torch_lntm.corpus.part import Facts, Part
from torch_lntm.corpus.splits import Split, WordHoldOut, hold_out_words, split_documents
from torch_lntm.corpus.store import read_columns, read_manifest, write_store
from torch_lntm.corpus.texts import TOKENS, check_texts, count_words, saved_options, stop_list
from torch_lntm.errors import (
    ConfigError,
    CorpusError,
    CorpusWarning,
    knows_its_options,
    require_whole,
    warn,
)
from torch_lntm.frames import align


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Word counts of ``num_docs`` documents, with a vocabulary, metadata and covariates.

    A corpus is immutable: selecting, splitting or adding columns returns a new corpus, which shares
    the counts with the old one where it can. Build one with ``from_texts``, ``from_frame``,
    ``from_matrix`` or the function ``read_corpus``. They check what they are given, so that the
    rest of the library can rely on it. The counts are stored as compressed sparse rows, and a
    document may be empty.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64; document d's entries are
            ``row_offsets[d]:row_offsets[d + 1]``.
        word_index: ``(nnz,)`` column of each entry, ascending and distinct within a document.
        counts: ``(nnz,)`` positive int32 number of tokens of each entry.
        num_words: Size of the vocabulary.
        vocabulary: The words in the order of the columns; ``None`` if unknown.
        table: The frame of :attr:`metadata`.
        covariates: Numeric arrays ``(num_docs, ...)`` by name, made by ``with_covariates``. Batches
            carry them as tensors.
        encodings: Arrays that ``model.encode`` derived from the metadata, by name. Batches carry
            them as tensors. They survive selections and splits, but are not saved to files.
        encoders: What derived each of these arrays, by name.
        name: Name for messages and reports.
        preparation: A sentence that says which words ``from_texts`` left out by default, if any.
        counting: Options of ``from_texts`` that made words of the texts, for further texts. Copies,
            pickles and files hold no functions.
        part: If these documents are one process's part of a sharded corpus, where that part lies;
            ``None`` for a whole corpus. Selecting from a part, or changing its counts, makes a
            corpus that is whole again.

    Example:
        >>> corpus
        Corpus('lee_background', num_docs=300, num_words=2132, num_tokens=23520)
        >>> corpus[:10].num_docs
        10
    """

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None = None
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    covariates: Arrays = field(default_factory=Columns)
    encodings: Arrays = field(default_factory=Columns)
    encoders: Columns[object] = field(default_factory=Columns)
    name: str | None = None
    preparation: str | None = None
    counting: Mapping[str, Any] = field(default_factory=dict)
    part: Part | None = None

    def __post_init__(self) -> None:
        for array in (self.row_offsets, self.word_index, self.counts):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        if len(self.table) != self.num_docs:  # no metadata
            object.__setattr__(self, "table", pd.DataFrame(index=pd.RangeIndex(self.num_docs)))

    def __new__(cls, *documents: Any, **parts: Any) -> Corpus:
        """Makes an uninitialised object; refuses documents.

        Raises:
            CorpusError: The call has positional arguments, such as texts or counts.
        """
        if documents:
            raise CorpusError(
                f"Corpus({type(documents[0]).__name__}) cannot be called; "
                "take Corpus.from_texts(texts), Corpus.from_matrix(counts) or read_corpus(path)"
            )
        return super().__new__(cls)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {x.name: getattr(self, x.name) for x in fields(self)}
        return partial(type(self), **parts | {"counting": saved_options(self.counting)}), ()

    # ---------------------------------------------------------------- constructors

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        vocabulary: Iterable[str] | None = None,
        *,
        name: str | None = None,
        metadata: Any = None,
        allow_empty: bool = False,
    ) -> Corpus:
        """Makes a corpus from a matrix of counts with one row per document.

        Args:
            matrix: ``(num_docs, num_words)`` whole counts: a scipy sparse matrix or array, a dense
                array, a torch tensor (dense or sparse), or a pandas data frame. Repeated entries
                of a sparse matrix are added up.
            vocabulary: The ``num_words`` distinct words, in the order of the columns. For a data
                frame whose column names are strings, these are the default.
            name: Name of the corpus for messages and reports.
            metadata: Further columns: a mapping of names to ``num_docs`` values each, or a data
                frame of pandas, Polars or Arrow with a row for each document. A pandas index is
                used to join the rows with the documents; otherwise they go by position.
            allow_empty: Accept a matrix of zeros, since new documents may contain only unknown
                words.

        Returns:
            The corpus. Rows of zeros are kept as empty documents.

        Raises:
            CorpusError: A count is negative, fractional, NaN or too large. The vocabulary or the
                metadata have another length. The vocabulary has a frame's columns in another order.
                The rows of the metadata have other names than the documents, or another order
                without names to join by. A word is repeated. The matrix is empty.

        Example:
            >>> counts = [[2, 0, 1], [0, 3, 0]]
            >>> lntm.Corpus.from_matrix(counts, ["wood", "stone", "water"])
            Corpus(num_docs=2, num_words=3, num_tokens=6)
        """
        matrix = as_frame(matrix) if is_table(matrix) else matrix
        if vocabulary is None and is_table(matrix):
            names = list(matrix.columns)
            vocabulary = names if all(isinstance(n, str) for n in names) else None
        csr = check_counts(matrix, allow_empty)
        words = check_vocabulary(vocabulary, csr.shape[1])
        if is_table(matrix):
            check_order(words, matrix.columns)
        table = describe(matrix, csr.shape[0], metadata)
        return cls.of_counts(csr, words, table, name=name)

    @classmethod
    def of_counts(
        cls,
        csr: sp.csr_matrix,
        vocabulary: Sequence[str] | None,
        table: pd.DataFrame,
        preparation: str | None = None,
        name: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> Corpus:
        """Makes a corpus from counts, words and metadata that have already been checked."""
        csr.sort_indices()
        return cls(
            row_offsets=csr.indptr.astype(np.int64),
            word_index=_own(csr.indices),
            counts=csr.data.astype(np.int32),
            num_words=csr.shape[1],
            vocabulary=None if vocabulary is None else tuple(vocabulary),
            table=table,
            preparation=preparation,
            counting={name: options[name] for name in TOKENS if name in options},
            name=name,
        )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        vocabulary: Iterable[str] | None = None,
        *,
        name: str | None = None,
        metadata: Any = None,
        stop_words: str | Iterable[str] | None = "auto",
        min_df: int | float | str = "auto",
        **options: Any,
    ) -> Corpus:
        """Makes a corpus by counting the words of texts with scikit-learn's ``CountVectorizer``.

        Very common and very rare words say little about topics. By default, English stop words and
        words that occur in only a handful of documents are therefore left out, and ``preparation``
        says how many.

        Args:
            texts: The documents.
            vocabulary: Words to count, in this order; a warning says how many others were dropped.
                By default, the options below choose the words and sort them alphabetically.
            name: Name of the corpus for messages and reports.
            metadata: As for ``from_matrix``.
            stop_words: Words to leave out: ``"english"`` for scikit-learn's list of 318 words, a
                list in any language, the path of a file with a word per line, or ``"none"``.
                ``"auto"`` uses the English list if its words make up at least a tenth of the
                tokens, unless n-grams are counted.
            min_df: Minimum number of documents with a word, as a number or a share. ``"auto"`` is 1
                for fewer than 50 documents, 2 from 50, 3 from 500, and one more for each further
                factor of ten.
            **options: Further ``CountVectorizer`` options, such as ``max_df=0.5``,
                ``token_pattern``, ``lowercase`` and ``max_features``. If you have already fitted a
                ``CountVectorizer``, pass its counts to ``from_matrix`` instead.

        Returns:
            The corpus, in which a text without any counted word stays as an empty document. The
            attribute ``preparation`` says what ``"auto"`` left out.

        Raises:
            CorpusError: A text is of another type, all words are left out, options contradict, or
                the rows of the metadata have other names than the texts.

        Example:
            >>> texts = ["the wood of the old house", "a house of stone", "the stone of the bridge"]
            >>> corpus = lntm.Corpus.from_texts(texts, metadata={"year": [1990, 2000, 2010]})
            >>> corpus.vocabulary
            ('bridge', 'house', 'old', 'stone', 'wood')
            >>> corpus.preparation
            'left out 2 English stop words (stop_words none keeps them)'
        """
        documents, texts = texts, check_texts(texts)
        table, given = describe(documents, len(texts), metadata), check_vocabulary(vocabulary, None)
        stop_words = stop_list(stop_words)
        options |= {} if stop_words == "auto" else {"stop_words": stop_words}
        counts, words, preparation = count_words(texts, given, min_df=min_df, **options)
        corpus = cls.of_counts(counts, words, table, preparation, name, options)
        return corpus if given is None else corpus.with_vocabulary(given)

    @classmethod
    def from_frame(cls, frame: Any, text: str = "text", **options: Any) -> Corpus:
        """Makes a corpus from a data frame: one column holds the texts, the others become metadata.

        Args:
            frame: A data frame of pandas, Polars or Arrow, or a ``Dataset`` of Hugging Face, with a
                document in each row, or a list of dicts. The documents are named by the index of a
                pandas frame, unless that is just 0, 1, …, or else by a column ``id``.
            text: Name of the column with the texts.
            **options: Options of :meth:`from_texts`, such as ``stop_words`` and ``max_df``.

        Returns:
            The corpus, in the order of the rows.

        Raises:
            CorpusError: ``frame`` is of another type or lacks the column ``text``. A text is
                missing or of another type. See also :meth:`from_texts`.

        Example:
            >>> import pandas
            >>> frame = pandas.DataFrame({"body": ["a cat saw a dog", "a dog ran"], "n": [1, 2]})
            >>> lntm.Corpus.from_frame(frame, text="body").metadata["n"].tolist()
            [1, 2]
        """
        texts, others = take_texts(as_frame(frame), text)
        return cls.from_texts(texts, metadata=others, **options)

    def columns_of_whole(self) -> Corpus:
        """Returns all documents of the whole corpus, without their words.

        A model has to learn its covariates from every document. A process that holds only a part of
        them therefore reads the columns of the others from the folder.

        Returns:
            The corpus itself, unless it is a part.

        Raises:
            FileError: A shard of another process is missing or damaged.
        """
        if self.part is None:
            return self
        folder = self.part.folder
        table, covariates = read_columns(folder, read_manifest(folder)["shards"])
        none = sp.csr_matrix((len(table), self.num_words))
        whole = Corpus.of_counts(none, self.vocabulary, table, name=self.name)
        return replace(whole, covariates=covariates)

    @property
    def metadata(self) -> pd.DataFrame:
        """Data frame with a row for each document and columns of float64, int64, bool or text.

        Its index names the documents, and is kept by selections, splits and saved files. Missing
        values are NaN in numbers and ``None`` in text. What you get is a copy, so use
        ``with_metadata`` to add columns.
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
        found = [
            np.bincount(np.repeat(np.arange(sizes.size), sizes), counts, sizes.size)
            for _, (sizes, _, counts) in self.parts()
        ]
        lengths = np.concatenate(found).astype(np.int64)
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
        """``(num_words,)`` sum over documents of each word's squared count."""
        return self._word_sums[2]

    @cached_property
    def _word_sums(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Documents, tokens and squared counts of each word, from a single pass."""
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
        """Sum over documents of the squared number of tokens."""
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
    def whole(self) -> Corpus | Facts:
        """What holds the totals of the whole corpus: the corpus itself, or the facts a part knows.

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
        return tuple(text or "" for text in with_labels(self.table, self.table["label"])["label"])

    @property
    def batch_covariates(self) -> Arrays:
        """The arrays that batches carry; an encoding hides a covariate of the same name."""
        return Columns({**self.covariates, **self.encodings})

    # ---------------------------------------------------------------- selections

    def __getitem__(self, rows: Any) -> Corpus:
        """Returns the selected documents as a new corpus, numbered from 0.

        Args:
            rows: A position, a slice, an array of positions or a boolean mask. A mask with an index
                of pandas is matched with the index of :attr:`metadata`.

        Raises:
            CorpusError: The selection is empty, or a mask has rows of other names.
            IndexError: A position is out of range, or a mask has another length.
        """
        rows = self._positions(rows)
        return self._of_rows(
            [self._rows(rows)],
            table=self.table.iloc[rows],
            covariates=select_rows(self.covariates, rows),
            encodings=select_rows(self.encodings, rows),
        )

    def _of_rows(self, parts: Iterable[Rows], **changes: Any) -> Corpus:
        """A corpus of other counts, in parts, and with other changes."""
        dtypes = (np.int64, np.int32, np.int32)
        sizes, words, counts = (
            np.concatenate(joined, dtype=dtype, casting="unsafe")
            if len(joined) > 1 or joined[0].dtype != dtype
            else joined[0]
            for joined, dtype in zip(zip(*parts, strict=True), dtypes, strict=True)
        )
        return replace(
            self,
            row_offsets=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
            word_index=words,
            counts=counts,
            part=None,
            **changes,
        )

    def _positions(self, rows: Any) -> NDArray[np.int64]:
        """Selected positions, by numpy's rules."""
        rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        if isinstance(rows, pd.Series):
            is_mask = rows.dtype.kind == "b"
            rows = np.asarray(align(rows, self.table.index, "selection") if is_mask else rows)
        positions = np.atleast_1d(np.arange(self.num_docs)[rows])
        if positions.ndim > 1 or not positions.size:
            raise CorpusError(
                f"the selection, of shape {positions.shape}, holds no document or is no list; give "
                "positions, a slice, or a truth value for each document"
            )
        return positions

    def _rows(self, rows: NDArray[np.int64]) -> Rows:
        """Entries of some documents; a view if the documents are neighbours."""
        starts, stops = self.row_offsets[rows], self.row_offsets[rows + 1]
        arrays = (self.word_index, self.counts)
        if (starts[1:] == stops[:-1]).all():
            return Rows(stops - starts, *(x[int(starts[0]) : int(stops[-1])] for x in arrays))
        return Rows(stops - starts, *(take(x, starts, stops - starts) for x in arrays))

    def parts(self, max_entries: int | None = None) -> Iterator[tuple[slice, Rows]]:
        """Yields all documents in parts of bounded size, each with the slice its entries occupy.

        Args:
            max_entries: Maximum number of entries in a part, by default about a million. A document
                with more is a part by itself.
        """
        for first, last in parts(self.row_offsets, max_entries):
            entries = slice(int(self.row_offsets[first]), int(self.row_offsets[last]))
            words, counts = (np.asarray(x[entries]) for x in (self.word_index, self.counts))
            yield entries, Rows(np.diff(self.row_offsets[first : last + 1]), words, counts)
            release(self.word_index, self.counts)

    # ---------------------------------------------------------------- other counts and columns

    def with_counts(self, counts: NDArray[np.integer], *, remove: bool = False) -> Corpus:
        """Returns the corpus with new counts.

        Args:
            counts: ``(nnz,)`` counts in the order of the entries. Entries of 0 are removed.
            remove: Subtract the counts from the old counts instead.

        Returns:
            The corpus. All documents may be empty.
        """

        def recounted() -> Iterator[Rows]:
            for entries, rows in self.parts():
                new = rows.counts - counts[entries] if remove else counts[entries]
                kept, documents = new > 0, np.repeat(np.arange(rows.sizes.size), rows.sizes)
                sizes = np.bincount(documents[kept], minlength=rows.sizes.size)
                yield Rows(sizes, rows.word_index[kept], new[kept])

        return self._of_rows(recounted())

    def with_metadata(self, columns: Any) -> Corpus:
        """Returns the corpus with further columns of metadata.

        Args:
            columns: Mapping of column names to ``num_docs`` values each, or a data frame of pandas,
                Polars or Arrow with a row for each document. A pandas index is matched with the
                index of :attr:`metadata`, whereas other values go by position. Lists and dates
                become text. A new column replaces an old one of the same name, and a column ``id``
                names documents that have no names yet.

        Returns:
            The corpus.

        Raises:
            CorpusError: A column has another number of values, or rows of other names.

        Example:
            >>> import pandas
            >>> texts = pandas.Series({"a": "a cat saw a dog", "b": "a dog ran"})
            >>> year = pandas.Series({"b": 2002, "a": 2001})
            >>> lntm.Corpus.from_texts(texts).with_metadata({"year": year}).metadata
               year
            a  2001
            b  2002
        """
        new = make_metadata(columns, self.num_docs, self.table.index)
        bare = self.without_encodings(*self.encoders)  # which derive from the old columns
        return replace(bare, table=named(self.table.assign(**dict(new.items()))))

    def with_covariates(self, covariates: Mapping[str, Any]) -> Corpus:
        """Returns the corpus with further numeric arrays.

        Batches carry each array as the tensor ``batch.covariates[name]``, where a prior can use it.

        Args:
            covariates: Arrays ``(num_docs, ...)`` by name, such as a design matrix
                ``{"x": (num_docs, num_columns)}``. A new array replaces an old array of this name.

        Returns:
            The corpus.

        Raises:
            CorpusError: A value is infinite, NaN or of another type, or an array has another
                number of rows.
        """
        new = make_covariates(covariates, self.num_docs, self.table.index)
        bare = self.without_encodings(*new)
        return replace(bare, covariates=Columns({**self.covariates, **new}))

    def with_encoding(self, name: str, encoder: object, derive: Callable[[], Any]) -> Corpus:
        """Returns the corpus with an array derived from the metadata.

        The ``encode`` methods of priors and topics call this. Batches carry the array as
        ``batch.covariates[name]``, where it hides any covariate of the same name. It lasts until
        ``with_metadata`` changes the columns from which it was derived.

        Args:
            name: Name of the array.
            encoder: Source of the array, such as a fitted formula. Equal encoders must derive equal
                arrays from equal metadata.
            derive: Computes the array ``(num_docs, ...)``, and is called only if the corpus has
                none from an equal encoder.

        Returns:
            The corpus; ``self`` if it already has the array.

        Raises:
            CorpusError: A value is infinite, NaN or of another type, or the array has another
                number of rows.
        """
        if name in self.encoders and self.encoders[name] == encoder:
            return self
        new = make_covariates({name: derive()}, self.num_docs)
        return replace(
            self,
            encodings=Columns({**self.encodings, **new}),
            encoders=Columns({**self.encoders, name: encoder}),
        )

    def without_encodings(self, *names: str) -> Corpus:
        """Returns a corpus with fewer derived arrays.

        Args:
            *names: Names of encodings to remove. Unknown names are ignored.
        """
        if self.encoders.keys().isdisjoint(names):
            return self
        both: list[Any] = [
            Columns({name: x for name, x in of.items() if name not in names})
            for of in (self.encodings, self.encoders)
        ]
        return replace(self, encodings=both[0], encoders=both[1])

    def with_vocabulary(self, vocabulary: Iterable[str]) -> Corpus:
        """Returns the documents over another vocabulary, for example that of a fitted model.

        Words that it lacks are dropped, with a warning.

        Args:
            vocabulary: The words, in the order of the new columns. Words absent from this corpus
                get an empty column.

        Returns:
            The corpus over the new columns. Documents of unknown words are kept as empty
            documents.

        Raises:
            CorpusError: This corpus has no vocabulary.

        Example:
            >>> new = lntm.Corpus.from_texts(["police rescued whale", "water"])
            >>> new.with_vocabulary(["police", "rescued", "water", "whale"]).to_scipy().toarray()
            array([[1, 1, 0, 1],
                   [0, 0, 1, 0]])
        """
        words = check_vocabulary(vocabulary, None)
        assert words is not None
        if self.vocabulary is None:
            raise CorpusError(f"{self!r} has no vocabulary to match words by; give it one")
        if words == self.vocabulary:
            return self
        column = {word: i for i, word in enumerate(words)}
        new = np.array([column.get(word, -1) for word in self.vocabulary], np.int64)
        unknown = new < 0
        lost = int(self.word_totals[unknown].sum())

        def rows() -> Iterator[Rows]:
            for _, old in self.parts():
                columns = new[old.word_index]
                is_known = columns >= 0
                documents = np.repeat(np.arange(old.sizes.size), old.sizes)[is_known]
                entries = (old.counts[is_known], (documents, columns[is_known]))
                matrix = sp.coo_matrix(entries, (old.sizes.size, len(words))).tocsr()
                yield Rows(np.diff(matrix.indptr), matrix.indices, matrix.data)

        found = self._of_rows(rows(), num_words=len(words), vocabulary=words)
        if lost:
            num_unknown = int((unknown & (self.word_totals > 0)).sum())
            num_lossy = int((found.lengths < self.lengths).sum())
            hint = "" if found.nnz else "; check that both were made by the same tokenizer"
            warn(
                f"dropped {lost} of {self.num_tokens} tokens: {num_unknown} words unknown to the "
                f"vocabulary, in {num_lossy} of {self.num_docs} documents{hint}",
                CorpusWarning,
            )
        return found

    def to_scipy(self) -> sp.csr_matrix:
        """The counts as a new ``(num_docs, num_words)`` int64 matrix."""
        arrays = (np.asarray(self.counts), np.asarray(self.word_index), self.row_offsets)
        return sp.csr_matrix(arrays, (self.num_docs, self.num_words), np.int64, copy=True)

    def fingerprint(self) -> str:
        """SHA-256 of the counts and the vocabulary, in hexadecimal.

        It ignores the metadata, the covariates and the name.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        about = json.dumps([self.num_docs, self.num_words, self.vocabulary])
        digest = hashlib.sha256(about.encode())
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

        ``corpus.batch(rows)`` and ``corpus[rows].batch()`` have the same counts but differ in
        ``index``. The first belongs to this corpus and its ``index`` is ``rows``, so that you can
        look up values by position. The second is the whole of a smaller corpus, and so counts from
        0.

        Args:
            rows: A position, a slice, an array of positions or a boolean mask. Defaults to all
                documents.
            device: Device of the tensors.
            dtype: Floating-point type of the counts and the covariates.

        Returns:
            The batch.

        Raises:
            CorpusError: The selection is empty.
            IndexError: A position is out of range, or a mask has another length.
        """
        return self._batch(self._positions(slice(None) if rows is None else rows), device, dtype)

    @knows_its_options
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
        """Yields the documents in batches of bounded size; by default, all of them in one batch.

        Args:
            max_docs: Maximum number of documents in a batch.
            max_tokens: Maximum number of tokens in a batch, which bounds the memory however long
                the documents are. A document with more is a batch by itself.
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
            ConfigError: A bound is no whole number from 1.
            CorpusError: Both ``order`` and ``shuffle`` are given.
            IndexError: A position is out of range.

        Example:
            >>> sizes = [batch.num_docs for batch in corpus.batches(max_docs=128, shuffle=True)]
            >>> sizes
            [128, 128, 44]
        """
        require_whole(1, max_docs=max_docs, max_tokens=max_tokens)
        if shuffle and order is not None:
            raise CorpusError("order and shuffle both say the order of the documents; give one")
        rows = self._positions(slice(None) if order is None else order)
        if shuffle:
            rows = np.random.default_rng(seed).permutation(rows)
        tokens = np.zeros(rows.size + 1, np.int64)
        if max_tokens is not None:  # only then, because it reads all counts
            tokens[1:] = np.cumsum(self.lengths[rows])
        bounds = parts(tokens, max_tokens, max_docs)
        return (self._batch(rows[first:last], device, dtype) for first, last in bounds)

    def _batch(
        self, rows: NDArray[np.int64], device: torch.device | str, dtype: torch.dtype
    ) -> DocumentBatch:
        device = find_device(device)
        entries, positions = self._rows(rows), torch.tensor(rows)
        words, counts = np.asarray(entries.word_index), np.asarray(entries.counts)
        # torch.tensor copies, because the corpus's own memory is read-only.
        batch = DocumentBatch(
            row_offsets=torch.tensor(
                np.concatenate([[0], np.cumsum(entries.sizes)]), device=device
            ),
            word_index=torch.tensor(words, dtype=torch.int64, device=device),
            counts=torch.tensor(counts, dtype=dtype, device=device),
            num_words=self.num_words,
            index=positions.to(device),
            corpus_size=self.num_docs,
            covariates=self.columns_of(rows, device, dtype),
        )
        release(self.word_index, self.counts)
        return batch.knowing(positions=positions)

    def columns_of(self, rows: Any, device: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """The covariates of a batch, by name; see :meth:`batch`."""
        return {
            name: torch.tensor(x[rows], dtype=dtype if x.dtype.kind == "f" else None).to(device)
            for name, x in self.batch_covariates.items()
        }

    # ---------------------------------------------------------------- splits and files

    def split(self, test_fraction: float = 0.1, *, by: Any = None, seed: int = 0) -> Split[Corpus]:
        """Splits the documents at random into a training set and a test set.

        Args:
            test_fraction: Share of the documents in the test set, rounded to whole documents.
            by: Clusters of documents, such as those of a respondent, which stay together: the name
                of a column, or a value for each document. The share is then met as nearly as
                random clusters allow.
            seed: Seed of the random numbers. Equal seeds give equal splits.

        Returns:
            The split, which unpacks into two corpora and has ``train``, ``test`` and ``save``.

        Raises:
            CorpusError: The fraction is outside of (0, 1), the corpus has a single document or
                cluster, or ``by`` lacks a value.
            ConfigError: The seed is no whole number from 0.

        Example:
            >>> train, test = corpus.split(test_fraction=0.2, seed=1)
            >>> train.num_docs, test.num_docs
            (240, 60)
        """
        return split_documents(self, test_fraction, seed, by)

    def split_for_discovery(
        self, fraction: float = 0.5, *, by: Any = None, seed: int = 0
    ) -> Split[Corpus]:
        """Splits the documents into those that topics are found in, and those to be measured.

        Topics that were found, named and chosen by reading some documents fit those documents
        better than others, so that effects are estimated in other documents
        (*Egami, Fong, Grimmer, Roberts & Stewart 2022*). See :func:`torch_lntm.codebook`.

        Args:
            fraction: Share of the documents for discovery.
            by: Clusters of documents that stay together; see :meth:`split`.
            seed: Seed of the random numbers. Equal seeds give equal splits.

        Returns:
            The split, which unpacks into ``discovery, estimation``.

        Example:
            >>> discovery, estimation = posts.split_for_discovery(0.5, by="year")
            >>> discovery.num_docs, estimation.num_docs
            (180, 90)
        """
        if not 0 < fraction < 1:
            raise CorpusError(f"fraction must lie between 0 and 1, got {fraction}")
        return self.split(1 - fraction, by=by, seed=seed)

    def hold_out_words(
        self, observed_fraction: float = 0.5, *, seed: int = 0
    ) -> WordHoldOut[Corpus]:
        """Splits every document's tokens at random into an observed and a held-out part.

        Completion scores predict the held-out tokens from the observed tokens.

        Args:
            observed_fraction: Share of each document's tokens to observe, rounded to whole tokens.
                A document of two or more tokens gets at least one in each part, and the only token
                of a document is observed.
            seed: Seed of the random numbers. Equal seeds give equal parts.

        Returns:
            The hold-out, which unpacks into two corpora and has ``observed``, ``held_out`` and
            ``save``.

        Raises:
            CorpusError: The fraction is outside of (0, 1).
            ConfigError: The seed is no whole number from 0.

        Example:
            >>> observed, held_out = corpus.hold_out_words(observed_fraction=0.5)
            >>> observed.num_tokens + held_out.num_tokens == corpus.num_tokens
            True
        """
        return hold_out_words(self, observed_fraction, seed)

    def save(self, path: str | Path, *, shard_size: int | None = None) -> None:
        """Writes the corpus to a folder for ``read_corpus``.

        The folder holds the counts, the words, the metadata and the covariates. Its counts are
        plain arrays, which ``read_corpus`` maps into memory instead of loading them. The folder
        appears only once it is complete, and replaces an older corpus of the same name.

        Args:
            path: Path of the folder, without a suffix.
            shard_size: Number of documents in each shard, so that several processes can each read
                only their own shards. Defaults to one shard.

        Raises:
            CorpusError: The path has a suffix or holds other files, or a word contains a line
                break.
            ConfigError: ``shard_size`` is no whole number from 1.
            FileError: A file cannot be written.

        Example:
            >>> corpus.save("lee")
            >>> lntm.read_corpus("lee").fingerprint() == corpus.fingerprint()
            True
        """
        write_store(Path(path), self, shard_size)


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """``array``, or a copy if its memory is shared or writable."""
    return array if array.flags.owndata and not array.flags.writeable else array.copy()


def as_corpus(documents: Any, *, allow_empty: bool = False) -> Corpus:
    """Converts the documents passed to an engine to a corpus.

    Args:
        documents: A corpus (returned unchanged) or a matrix as for ``Corpus.from_matrix``.
        allow_empty: Accept a matrix of zeros.

    Returns:
        The corpus.

    Raises:
        ConfigError: The documents are a path.
        CorpusError: The matrix is malformed, or the documents are another object without counts.
    """
    if isinstance(documents, Corpus):
        return documents
    if isinstance(documents, (str, Path)):
        raise ConfigError(
            f"expected a corpus, got {str(documents)!r}; if it is a file, read it by read_corpus"
        )
    return Corpus.from_matrix(documents, allow_empty=allow_empty)
