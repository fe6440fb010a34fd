"""Corpus: the word counts of documents, with a vocabulary and what else is known of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.archive import Archive, write_archive
from torch_lntm.corpus.checks import check_counts, check_vocabulary, how_to_count
from torch_lntm.corpus.columns import (
    FrozenDict,
    is_frame,
    make_covariates,
    make_metadata,
)
from torch_lntm.corpus.documents import Documents
from torch_lntm.corpus.mapped import Rows, collect
from torch_lntm.corpus.splits import Split, WordHoldOut, hold_out_words, split_documents
from torch_lntm.corpus.store import new_store
from torch_lntm.corpus.texts import (
    NoWordsError,
    check_texts,
    count_words,
    english_stop_words,
    refuse_pruning,
    transform_texts,
)
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.files import as_lines, atomic_write


class Corpus(Documents):
    """Word counts of ``num_docs`` documents, with a vocabulary and what else is known of them.

    A corpus is immutable. It is made by ``from_matrix``, ``from_texts`` or ``read_corpus``, which
    check their input. Its attributes are those of ``Documents``.
    """

    # ---------------------------------------------------------------- making one

    def __new__(cls, *given: Any, **parts: Any) -> Corpus:
        """Makes an empty object, to be filled with the parts of a corpus.

        Raises:
            CorpusError: Texts or counts are given, from which other constructors make a corpus.
        """
        if given:
            raise CorpusError(
                f"Corpus({type(given[0]).__name__}) is not a way to make one; "
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
        """Makes a corpus of the counts in a matrix, one document a row.

        Args:
            matrix: ``(num_docs, num_words)`` whole counts: a scipy sparse matrix or array, a dense
                array, a torch tensor (dense or sparse), or a pandas data frame. Entries given
                twice are added up.
            vocabulary: The ``num_words`` words, all different, in the order of the columns. If not
                given, the column names of a data frame, where they are strings.
            labels: One label per document, which becomes the column ``label`` of the metadata.
            name: A name for messages and reports.
            metadata: What else is known of the documents: a mapping of column names to ``num_docs``
                values each, or a pandas data frame with a row for each document in order. The
                index of a data frame is not used.
            allow_empty: Whether to accept a matrix of zeros, such as that of documents in which a
                fitted model knows no word.

        Returns:
            The corpus; rows without counts are kept as empty documents.

        Raises:
            CorpusError: A count is negative, fractional, NaN or too large, the vocabulary, the
                labels or the metadata do not fit, a word occurs twice, or there is not a single
                token.
        """
        if vocabulary is None and is_frame(matrix):
            names = list(matrix.columns)
            vocabulary = names if all(isinstance(n, str) for n in names) else None
        csr = check_counts(matrix, allow_empty)
        num_words = csr.shape[1]
        corpus = cls(
            row_offsets=csr.indptr.astype(np.int64),
            word_index=_own(csr.indices),
            counts=csr.data.astype(np.int32),
            num_words=num_words,
            vocabulary=check_vocabulary(vocabulary, num_words),
            name=name,
        )
        if metadata is not None:
            corpus = corpus.with_metadata(metadata)
        return corpus if labels is None else corpus.with_metadata({"label": map(str, labels)})

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        vocabulary: Iterable[str] | None = None,
        labels: Iterable[object] | None = None,
        name: str | None = None,
        *,
        metadata: Any = None,
        vectorizer: Any = None,
        stop_words: str | Iterable[str] | None = "auto",
        min_df: int | float | str = "auto",
        **options: Any,
    ) -> Corpus:
        """Makes a corpus of texts, whose words scikit-learn's ``CountVectorizer`` counts.

        Args:
            texts: The documents.
            vocabulary: The words to count, in this order; all others are dropped with a warning. If
                not given, the options below choose the words, in alphabetical order.
            labels: One label per document, which becomes the column ``label`` of the metadata.
            name: A name for messages and reports.
            metadata: As for ``from_matrix``.
            vectorizer: A fitted ``CountVectorizer``. Its ``transform`` counts the words, and the
                options below cannot be given.
            stop_words: Words to leave out: ``"english"`` for the 318 of scikit-learn's English
                list, a list of words in any language, or ``None`` (or ``"none"``) for none.
                ``"auto"`` leaves out the English ones if they make up a tenth of the tokens or
                more, because the texts are English then. It leaves n-grams as they are.
            min_df: The fewest documents that a word must be in, as a number or a share. ``"auto"``
                is 1 for fewer than 50 documents, 2 from 50 on, 3 from 500 on, and so forth.
            **options: Other ``CountVectorizer`` options, such as ``max_df=0.5``, ``token_pattern``,
                ``lowercase``, ``max_features``.

        Returns:
            The corpus; texts without a counted word are kept as empty documents. Its
            ``preparation`` says which words ``"auto"`` left out.

        Raises:
            CorpusError: A text is not a string, no word remains, or options contradict each other.
        """
        texts = check_texts(texts)
        if isinstance(stop_words, Iterable) and not isinstance(stop_words, str):
            stop_words = list(stop_words)
        chosen = {
            name: value
            for name, value in (("stop_words", stop_words), ("min_df", min_df))
            if not (isinstance(value, str) and value == "auto")
        } | options
        about = {"labels": labels, "name": name, "metadata": metadata}
        if vectorizer is not None:
            if chosen or vocabulary is not None:
                given = [*chosen, *(["vocabulary"] if vocabulary is not None else [])]
                raise CorpusError(
                    f"{', '.join(given)} would choose words, and so does the vectorizer; give one"
                )
            counts, words = transform_texts(vectorizer, texts)
            return cls.from_matrix(counts, words, **about, allow_empty=True)
        if vocabulary is not None:
            refuse_pruning(chosen)
            chosen = {"stop_words": None, "min_df": 1} | chosen
        try:
            counts, words, preparation = count_words(texts, **chosen)
        except NoWordsError:
            if vocabulary is None:
                raise
            known, none = list(vocabulary), np.empty(0, np.int64)
            empty = sp.coo_matrix((none, (none, none)), (len(texts), len(known)))
            return cls.from_matrix(empty, known, **about, allow_empty=True)
        corpus = replace(cls.from_matrix(counts, words, **about), preparation=preparation)
        return corpus if vocabulary is None else corpus.with_vocabulary(vocabulary)

    def with_metadata(self, columns: Any) -> Corpus:
        """Returns the same documents with further columns of metadata.

        Args:
            columns: A mapping of column names to ``num_docs`` values each, or a pandas data frame
                with a row for each document in order, whose index is not used. Lists and dates
                become text. A column replaces one of the same name.

        Returns:
            The corpus.

        Raises:
            CorpusError: A column does not have one value a document.
        """
        new = make_metadata(columns, self.num_docs)
        # Encodings were derived from the columns as they were.
        return replace(
            self,
            metadata=FrozenDict({**self.metadata, **new}),
            encodings=FrozenDict(),
            encoders=FrozenDict(),
        )

    def with_covariates(self, covariates: Mapping[str, Any]) -> Corpus:
        """Returns the same documents with numeric arrays that a prior reads from their batches.

        Batches of the corpus carry each array as the tensor ``batch.covariates[name]``.

        Args:
            covariates: Arrays ``(num_docs, ...)`` by name, such as a design matrix
                ``{"x": (num_docs, num_columns)}``. An array replaces one of the same name.

        Returns:
            The corpus.

        Raises:
            CorpusError: An array is not numeric, not finite, or not one row for each document.
        """
        new = make_covariates(covariates, self.num_docs)
        bare = self.without_encodings(*new)
        return replace(bare, covariates=FrozenDict({**self.covariates, **new}))

    def with_encoding(self, name: str, encoder: object, derive: Callable[[], Any]) -> Corpus:
        """Returns the same documents with an array that is derived from their metadata.

        Priors and topics call it in their ``encode``. Batches of the corpus then carry the array as
        ``batch.covariates[name]``, in place of a covariate of that name. New metadata remove it.

        Args:
            name: Name of the array.
            encoder: What derives the array, such as a fitted formula. Equal encoders must derive
                equal arrays from the same metadata.
            derive: Returns the array ``(num_docs, ...)``. It is not called if the corpus has the
                array of an equal encoder.

        Returns:
            The corpus; this corpus itself if it has the array already.

        Raises:
            CorpusError: The array is not numeric, not finite, or not one row for each document.
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
        """Returns the same documents without the derived arrays of these names.

        Args:
            *names: Names of arrays. Names that the corpus has no encoding of are passed over.
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
        """Returns the same documents, counted over the vocabulary of a fitted model.

        Args:
            vocabulary: The words, in the order of the new columns. A word that does not occur gets
                an empty column. Words of this corpus that are not among them are dropped, with one
                warning.

        Returns:
            The corpus over the new columns. Documents that lose every word stay, empty.

        Raises:
            CorpusError: This corpus has no vocabulary.
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
                known = columns >= 0
                documents = np.repeat(np.arange(old.sizes.size), old.sizes)
                num_lossy += np.unique(documents[~known]).size
                matrix = sp.coo_matrix(
                    (old.counts[known], (documents[known], columns[known])),
                    (old.sizes.size, len(words)),
                ).tocsr()
                yield Rows(np.diff(matrix.indptr), matrix.indices, matrix.data)

        row_offsets, word_index, counts = collect(pieces(), self.goes_to_files(self.nnz))
        if lost_tokens:
            hint = "" if counts.size else "; check that both were made by the same tokenizer"
            stops = unknown & english_stop_words(self.vocabulary, self.word_totals)
            num_stops = int(self.word_totals[stops].sum())
            known_why = f"; {num_stops} of the tokens are English stop words" if num_stops else ""
            warnings.warn(
                f"dropped {lost_tokens} of {self.num_tokens} tokens: "
                f"{int((unknown & (self.word_totals > 0)).sum())} words unknown to the "
                f"vocabulary, in {num_lossy} of {self.num_docs} documents"
                f"{known_why}{hint}",
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
        )

    # ---------------------------------------------------------------- splits and files

    def split(self, test_fraction: float = 0.1, seed: int = 0) -> Split[Corpus]:
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

    def hold_out_words(self, observed_fraction: float = 0.5, seed: int = 0) -> WordHoldOut[Corpus]:
        """Divides every document's tokens at random, without replacement, for completion scores.

        Args:
            observed_fraction: Share of a document's tokens to observe, rounded to whole tokens. The
                only token of a document is observed. A longer document has at least one token on
                each side.
            seed: The same seed gives the same tokens.

        Returns:
            The hold-out: ``observed, held_out = corpus.hold_out_words()``, or ``.observed``,
            ``.held_out`` and ``.save``.

        Raises:
            CorpusError: The fraction is not between 0 and 1.
        """
        return hold_out_words(self, observed_fraction, seed)

    def save(self, path: str | Path) -> None:
        """Writes the corpus to a file or a folder that ``read_corpus`` reads.

        The file ``NAME.npz`` holds the counts, the metadata and the covariates, compressed, and
        ``NAME.vocab.txt`` beside it the words. A file ``NAME.labels.txt`` that an older corpus left
        is removed. Each file appears complete or not at all.

        The folder ``NAME`` holds the same in plain arrays. The corpus that is read from it maps its
        counts into memory, so it may be larger than the memory. The folder appears complete or not
        at all, in place of an older corpus's.

        Args:
            path: A path that ends in ``.npz`` for a file, or in no suffix for a folder.

        Raises:
            CorpusError: The path has another suffix or holds something else, or a word holds a line
                break.
            FileError: A file cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".npz", ""):
            raise CorpusError(
                f"{path}: a corpus is saved as an .npz file or in a folder; end the path in .npz, "
                "or leave out the suffix"
            )
        if path.suffix == "":
            with new_store(path) as writer:
                for _, rows in self.parts():
                    writer.add(rows)
                about = (self.vocabulary, self.metadata, self.covariates, self.preparation)
                writer.close(self.num_words, *about)
            return
        words = path.with_name(f"{path.stem}.vocab.txt")
        if self.vocabulary is not None:
            with atomic_write(words) as file:
                file.write(as_lines(self.vocabulary, "word", words))
        matrix = sp.csr_matrix(
            (self.counts, self.word_index, self.row_offsets), (self.num_docs, self.num_words)
        )
        write_archive(path, Archive(matrix, self.metadata, self.covariates))
        # An older corpus's words and labels would be read with this one.
        path.with_name(f"{path.stem}.labels.txt").unlink(missing_ok=True)
        if self.vocabulary is None:
            words.unlink(missing_ok=True)


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy if another may write to it."""
    return array if array.flags.owndata and not array.flags.writeable else array.copy()


def as_corpus(documents: Any, *, allow_empty: bool = False) -> Corpus:
    """Makes a corpus of the documents that a user gave to an engine.

    Args:
        documents: A corpus, which is returned as it is, or a matrix as for ``Corpus.from_matrix``.
        allow_empty: Whether to accept a matrix of zeros.

    Returns:
        The corpus.

    Raises:
        ConfigError: The documents are texts, a path, or something else that holds no counts.
        CorpusError: The matrix is malformed.
    """
    if isinstance(documents, Corpus):
        return documents
    if isinstance(documents, (str, Path)):
        raise ConfigError(
            f"expected a corpus, got {str(documents)!r}; if it is a file, read it by read_corpus"
        )
    if (how := how_to_count(documents)) is not None:
        raise ConfigError(
            f"expected a corpus or a matrix of counts, got texts; count their words by {how}"
        )
    matrix = is_frame(documents) or sp.issparse(documents)
    if matrix or isinstance(documents, (np.ndarray, Tensor, list, tuple)):
        return Corpus.from_matrix(documents, allow_empty=allow_empty)
    raise ConfigError(
        f"expected a corpus or a matrix of counts, got a {type(documents).__name__}; make one by "
        "Corpus.from_matrix, Corpus.from_texts or read_corpus"
    )
