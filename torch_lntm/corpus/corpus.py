"""Corpus: word counts of documents, with a vocabulary, metadata and covariates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.archive import Archive, write_archive
from torch_lntm.corpus.checks import ADVICE, check_counts, check_vocabulary
from torch_lntm.corpus.documents import Documents
from torch_lntm.corpus.mapped import Rows, collect, is_mapped, map_ranges, range_of
from torch_lntm.corpus.metadata import (
    FrozenDict,
    as_frame,
    describe,
    is_table,
    make_covariates,
    make_metadata,
    named,
    record_frame,
    take_texts,
)
from torch_lntm.corpus.remote import fetch_columns
from torch_lntm.corpus.splits import Split, WordHoldOut, hold_out_words, split_documents
from torch_lntm.corpus.store import new_store, read_columns
from torch_lntm.corpus.texts import check_texts, count_words, english_stop_words
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.files.writing import as_lines, atomic_write


class Corpus(Documents):
    """Word counts of ``num_docs`` documents, with a vocabulary, metadata and covariates.

    A corpus is immutable. The constructors are ``from_texts``, ``from_frame``,
    ``from_records``, ``from_matrix`` and the function ``read_corpus``. They check their input. The
    attributes are listed at ``Documents``.

    Example:
        >>> corpus
        Corpus('lee_background', num_docs=300, num_words=2132, num_tokens=23520)
        >>> corpus[:10].num_docs
        10
    """

    # ---------------------------------------------------------------- constructors

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

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        vocabulary: Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        name: str | None = None,
        *,
        metadata: Any = None,
        allow_empty: bool = False,
    ) -> Corpus:
        """Makes a corpus from a matrix of counts. Each row is a document.

        Args:
            matrix: ``(num_docs, num_words)`` whole counts: a scipy sparse matrix or array, a dense
                array, a torch tensor (dense or sparse), or a pandas data frame. Repeated entries
                of a sparse matrix are added up.
            vocabulary: The ``num_words`` distinct words, in the order of the columns. Defaults to
                the column names of a data frame if they are strings.
            labels: One label per document. They become the column ``label`` of the metadata.
            name: Name of the corpus for messages and reports.
            metadata: Further columns: a mapping of names to ``num_docs`` values each, or a data
                frame of pandas, Polars or Arrow with a row for each document. An index of pandas
                is matched with the index of the documents. Other values go by position.
            allow_empty: Accept a matrix of zeros. New documents can consist of unknown words only.

        Returns:
            The corpus. Rows of zeros are kept as empty documents.

        Raises:
            CorpusError: A count is negative, fractional, NaN or too large. The vocabulary, the
                labels or the metadata have another length. The rows of the labels or the metadata
                have other names than the documents, or another order without names to join by. A
                word is repeated. The matrix is empty.

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
        num_words = csr.shape[1]
        return cls(
            row_offsets=csr.indptr.astype(np.int64),
            word_index=_own(csr.indices),
            counts=csr.data.astype(np.int32),
            num_words=num_words,
            vocabulary=check_vocabulary(vocabulary, num_words),
            table=describe(matrix, csr.shape[0], metadata, labels),
            name=name,
        )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        vocabulary: Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        name: str | None = None,
        *,
        metadata: Any = None,
        stop_words: str | Iterable[str] | None = "auto",
        min_df: int | float | str = "auto",
        **options: Any,
    ) -> Corpus:
        """Makes a corpus from texts. scikit-learn's ``CountVectorizer`` counts the words.

        Args:
            texts: The documents.
            vocabulary: Words to count, in this order. Further words are dropped with a warning.
                By default the options below choose the words, in alphabetical order.
            labels: One label per document. They become the column ``label`` of the metadata.
            name: Name of the corpus for messages and reports.
            metadata: As for ``from_matrix``.
            stop_words: Words to leave out. ``"english"`` is scikit-learn's list of 318 English
                words. A list may be in any language. ``None`` and ``"none"`` keep all words.
                Defaults to ``"auto"``: the English words if they make up at least a tenth of the
                tokens, otherwise an empty list. ``"auto"`` keeps all n-grams.
            min_df: Minimum number of documents with a word, as a number or a share.
                Defaults to ``"auto"``: 1 for fewer than 50 documents, 2 from 50, 3 from 500, 4
                from 5,000, and so forth.
            **options: Further ``CountVectorizer`` options, such as ``max_df=0.5``,
                ``token_pattern``, ``lowercase`` and ``max_features``. The counts of a fitted
                ``CountVectorizer`` go to ``from_matrix``.

        Returns:
            The corpus. Texts of uncounted words are kept as empty documents. The attribute
            ``preparation`` names the words left out by ``"auto"``.

        Raises:
            CorpusError: A text is of another type, all words are left out, options contradict, or
                the rows of the labels or the metadata have other names than the texts.

        Example:
            >>> texts = ["the wood of the old house", "a house of stone", "the stone of the bridge"]
            >>> corpus = lntm.Corpus.from_texts(texts, metadata={"year": [1990, 2000, 2010]})
            >>> corpus.vocabulary
            ('bridge', 'house', 'old', 'stone', 'wood')
            >>> corpus.preparation
            'left out 2 English stop words (stop_words none keeps them)'
        """
        documents, texts = texts, check_texts(texts)
        table = describe(documents, len(texts), metadata, labels)
        parts, words, preparation = count_words(texts, vocabulary, stop_words, min_df, **options)
        # A given vocabulary may share no word with the texts.
        empty = vocabulary is not None
        corpus = cls.from_matrix(sp.vstack([*parts], "csr"), words, name=name, allow_empty=empty)
        return replace(corpus, table=table, preparation=preparation)

    @classmethod
    def from_frame(cls, frame: Any, text: str = "text", **options: Any) -> Corpus:
        """Makes a corpus of the texts in one column of a data frame.

        Further columns become metadata.

        Args:
            frame: A data frame of pandas, Polars or Arrow with a document in each row. The index of
                a pandas frame, if it is not 0, 1, …, or a column ``id`` names the documents.
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

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], text: str = "text", **options: Any
    ) -> Corpus:
        """Makes a corpus of the texts in one field of a list of dicts.

        Further fields become metadata. A field missing in a record is a missing value.

        Args:
            records: A dict for each document.
            text: Name of the field with the texts.
            **options: Options of :meth:`from_texts`, such as ``stop_words`` and ``max_df``.

        Returns:
            The corpus, in the order of the records.

        Raises:
            CorpusError: A record is of another type. A text is missing or of another type. See also
                :meth:`from_texts`.

        Example:
            >>> records = [{"text": "a cat saw a dog", "year": 2001}, {"text": "a dog ran"}]
            >>> lntm.Corpus.from_records(records).metadata["year"].tolist()
            [2001.0, nan]
        """
        return cls.from_frame(record_frame(records), text, **options)

    def columns_of_whole(self) -> Corpus:
        """Returns the whole corpus's documents with their columns.

        Models learn covariates from them. The columns of a part's whole corpus are read from all
        shards of the folder. These documents have no words.

        Returns:
            The corpus itself, unless it is a part.

        Raises:
            FileError: A shard of another process is missing or damaged, or a server stopped.
        """
        if self.part is None:
            return self
        folder, address = self.part.folder, self.part.address
        folder = folder if address is None else fetch_columns(address, folder)
        metadata, covariates = read_columns(folder)
        none = np.zeros(0, np.int32)
        return Corpus(
            row_offsets=np.zeros(self.part.num_docs + 1, np.int64),
            word_index=none,
            counts=none.copy(),
            num_words=self.num_words,
            vocabulary=self.vocabulary,
            table=metadata,
            covariates=covariates,
            name=self.name,
        )

    def with_metadata(self, columns: Any) -> Corpus:
        """Returns the corpus with further columns of metadata.

        Args:
            columns: Mapping of column names to ``num_docs`` values each, or a data frame of
                pandas, Polars or Arrow with a row for each document. An index of pandas is matched
                with the index of :attr:`metadata`. Other values go by position. Lists and dates
                become text. A new column replaces an old column of this name. A column ``id`` names
                documents without names.

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
        # Encodings derive from the old columns.
        return replace(
            self,
            table=named(self.table.assign(**dict(new.items()))),
            encodings=FrozenDict(),
            encoders=FrozenDict(),
        )

    def with_covariates(self, covariates: Mapping[str, Any]) -> Corpus:
        """Returns the corpus with further numeric arrays.

        Batches of the corpus carry each array as the tensor ``batch.covariates[name]``, for use in
        a prior.

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
        return replace(bare, covariates=FrozenDict({**self.covariates, **new}))

    def with_encoding(self, name: str, encoder: object, derive: Callable[[], Any]) -> Corpus:
        """Returns the corpus with an array derived from the metadata.

        The ``encode`` methods of priors and topics use it. Batches carry the array as
        ``batch.covariates[name]``, in place of a covariate of this name. A later
        ``with_metadata`` removes the array.

        Args:
            name: Name of the array.
            encoder: Source of the array, such as a fitted formula. Equal encoders must derive equal
                arrays from equal metadata.
            derive: Computes the array ``(num_docs, ...)``. It is called only if the corpus lacks an
                array of an equal encoder.

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
            encodings=FrozenDict({**self.encodings, **new}),
            encoders=FrozenDict({**self.encoders, name: encoder}),
        )

    def without_encodings(self, *names: str) -> Corpus:
        """Returns a corpus with fewer derived arrays.

        Args:
            *names: Names of encodings to remove. Unknown names are ignored.
        """
        if self.encoders.keys().isdisjoint(names):
            return self
        kept = [name for name in self.encoders if name not in names]
        return replace(
            self,
            encodings=FrozenDict({name: self.encodings[name] for name in kept}),
            encoders=FrozenDict({name: self.encoders[name] for name in kept}),
        )

    def with_vocabulary(self, vocabulary: Iterable[str]) -> Corpus:
        """Returns the documents over another vocabulary, for example that of a fitted model.

        Warns if words of this corpus are dropped.

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
        lost_tokens = int(self.word_totals[unknown].sum())
        num_lossy = 0

        def pieces() -> Iterator[Rows]:
            nonlocal num_lossy
            for _, old in self.parts():
                columns = new[old.word_index]
                is_known = columns >= 0
                documents = np.repeat(np.arange(old.sizes.size), old.sizes)
                num_lossy += np.unique(documents[~is_known]).size
                matrix = sp.coo_matrix(
                    (old.counts[is_known], (documents[is_known], columns[is_known])),
                    (old.sizes.size, len(words)),
                ).tocsr()
                yield Rows(np.diff(matrix.indptr), matrix.indices, matrix.data)

        row_offsets, word_index, counts = collect(pieces(), self.goes_to_files(self.nnz))
        if lost_tokens:
            hint = "" if counts.size else "; check that both were made by the same tokenizer"
            stops = unknown & english_stop_words(self.vocabulary, self.word_totals)
            num_stops = int(self.word_totals[stops].sum())
            reason = f"; {num_stops} of the tokens are English stop words" if num_stops else ""
            warnings.warn(
                f"dropped {lost_tokens} of {self.num_tokens} tokens: "
                f"{int((unknown & (self.word_totals > 0)).sum())} words unknown to the "
                f"vocabulary, in {num_lossy} of {self.num_docs} documents"
                f"{reason}{hint}",
                UserWarning,
                stacklevel=2,
            )
        return replace(
            self,
            row_offsets=row_offsets,
            word_index=word_index,
            counts=counts,
            num_words=len(words),
            vocabulary=words,
            part=None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles arrays that are mapped from a corpus's folder as their path and checksum.

        The folder must be at the same path wherever the pickle is read. Other arrays are pickled
        with all their numbers.
        """
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("row_offsets", "word_index", "counts"):
            array = parts[name]
            parts[name] = range_of(array) or (np.array(array) if is_mapped(array) else array)
        return _unpickled, (type(self), parts)

    # ---------------------------------------------------------------- splits and files

    def split(self, test_fraction: float = 0.1, seed: int = 0) -> Split[Corpus]:
        """Splits the documents at random into a training set and a test set.

        Args:
            test_fraction: Share of the documents in the test set, rounded to whole documents.
            seed: Seed of the random numbers. Equal seeds give equal splits.

        Returns:
            The split. It unpacks into two corpora and has ``train``, ``test`` and ``save``.

        Raises:
            CorpusError: The fraction is outside of (0, 1), or the corpus has a single document.

        Example:
            >>> train, test = corpus.split(test_fraction=0.2, seed=1)
            >>> train.num_docs, test.num_docs
            (240, 60)
        """
        return split_documents(self, test_fraction, seed)

    def hold_out_words(self, observed_fraction: float = 0.5, seed: int = 0) -> WordHoldOut[Corpus]:
        """Splits every document's tokens at random into an observed and a held-out part.

        Completion scores predict the held-out tokens from the observed tokens.

        Args:
            observed_fraction: Share of each document's tokens to observe, rounded to whole tokens.
                Documents of two or more tokens have a token in each part. The only token of
                a document is observed.
            seed: Seed of the random numbers. Equal seeds give equal parts.

        Returns:
            The hold-out. It unpacks into two corpora and has ``observed``, ``held_out`` and
            ``save``.

        Raises:
            CorpusError: The fraction is outside of (0, 1).

        Example:
            >>> observed, held_out = corpus.hold_out_words(observed_fraction=0.5)
            >>> observed.num_tokens + held_out.num_tokens == corpus.num_tokens
            True
        """
        return hold_out_words(self, observed_fraction, seed)

    def save(self, path: str | Path, *, shard_size: int | None = None) -> None:
        """Writes the corpus to a file or a folder for ``read_corpus``.

        The file ``NAME.npz`` holds the counts, the metadata and the covariates, compressed. The
        file ``NAME.vocab.txt`` beside it holds the words. An older corpus's ``NAME.labels.txt`` is
        removed. Each file is written atomically.

        The folder ``NAME`` holds these data in plain arrays. ``read_corpus`` maps its counts
        into memory, so the corpus may be larger than the memory. The folder is written atomically
        and replaces the folder of an older corpus.

        Args:
            path: Path with the suffix ``.npz`` for a file, or without a suffix for a folder.
            shard_size: Number of documents of each shard of a folder. Processes then read only
                their own shards. Defaults to a folder without shards.

        Raises:
            CorpusError: ``shard_size`` is below 1 or is given for a file. The path has another
                suffix or holds other files, or a word contains a line break.
            FileError: A file cannot be written.

        Example:
            >>> corpus.save("lee.npz")
            >>> lntm.read_corpus("lee.npz").fingerprint() == corpus.fingerprint()
            True
        """
        path = Path(path)
        if path.suffix not in (".npz", ""):
            raise CorpusError(
                f"{path}: a corpus is saved as an .npz file or in a folder; end the path in .npz, "
                "or leave out the suffix"
            )
        if path.suffix == "":
            with new_store(path, shard_size) as writer:
                for _, rows in self.parts():
                    writer.add(rows)
                about = (self.vocabulary, self.table, self.covariates, self.preparation)
                writer.close(self.num_words, *about)
            return
        if shard_size is not None:
            raise CorpusError(f"{path}: shard_size is for a folder; leave out the suffix .npz")
        words = path.with_name(f"{path.stem}.vocab.txt")
        if self.vocabulary is not None:
            with atomic_write(words) as file:
                file.write(as_lines(self.vocabulary, "word", words))
        matrix = sp.csr_matrix(
            (self.counts, self.word_index, self.row_offsets), (self.num_docs, self.num_words)
        )
        write_archive(path, Archive(matrix, self.table, self.covariates))
        # The reader would combine the words and labels of an older corpus with the new counts.
        path.with_name(f"{path.stem}.labels.txt").unlink(missing_ok=True)
        if self.vocabulary is None:
            words.unlink(missing_ok=True)


def _unpickled(kind: type[Corpus], parts: dict[str, Any]) -> Corpus:
    """The corpus of a pickle; see ``Corpus.__reduce__``.

    Raises:
        FileError: The folder of a mapped corpus is missing or has changed.
    """
    mapped = {name: map_ranges(parts[name]) for name in ("row_offsets", "word_index", "counts")}
    return kind(**(parts | mapped))


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
        ConfigError: The documents are texts, a path, or another object without counts.
        CorpusError: The matrix is malformed.
    """
    if isinstance(documents, Corpus):
        return documents
    if isinstance(documents, (str, Path)):
        raise ConfigError(
            f"expected a corpus, got {str(documents)!r}; if it is a file, read it by read_corpus"
        )
    matrix = is_table(documents) or sp.issparse(documents)
    if matrix or isinstance(documents, (np.ndarray, Tensor, list, tuple)):
        return Corpus.from_matrix(documents, allow_empty=allow_empty)
    raise ConfigError(
        f"expected a corpus or a matrix of counts, got a {type(documents).__name__}; {ADVICE}"
    )
