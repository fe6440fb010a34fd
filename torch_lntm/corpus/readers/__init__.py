"""Reads corpora from files and folders of several formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from torch_lntm.corpus.checks import ADVICE, check_vocabulary
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.metadata import as_frame, is_table, listed, take_texts, with_labels
from torch_lntm.corpus.readers.counts import check_size
from torch_lntm.corpus.readers.formats import Format, find_format, unzipped
from torch_lntm.corpus.readers.texts import (
    Options,
    TextStream,
    read_metadata,
    unreadable,
)
from torch_lntm.corpus.texts import count_words, stop_list
from torch_lntm.errors import ConfigError, CorpusError, FileError, LNTMError, did_you_mean
from torch_lntm.files.reading import read_lines
from torch_lntm.frames import is_default

#: Names of the options of :func:`read_documents` for files, and for words of texts.
OF_FILES = ("format", "text_field", "label_field", "encoding", "delimiter", "metadata")
OF_WORDS = (
    *("stop_words", "min_df", "max_df", "max_features", "token_pattern", "tokenizer"),
    *("lowercase", "ngram_range", "preprocessor", "strip_accents", "analyzer", "vocabulary"),
)
#: Formats of records, a field of which has the text.
WITH_FIELDS = ("csv", "jsonl", "json", "parquet")
#: Formats of counts with the words in a file of their own.
WITH_WORDS_BESIDE = ("npz", "ldac", "uci", "mtx")


def read_corpus(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None = None,
    format: str | None = None,
    *,
    text_field: str | None = None,
    label_field: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    metadata: Any = None,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Corpus:
    r"""Reads a corpus from a file, which may be gzipped (``.gz``), or from a folder.

    The format is usually clear from the ending of the name; where it is not, give ``format``. Some
    formats hold texts, whose words are counted as they are read, and the others hold counts:

    * ``txt``: a document per line.
    * ``csv`` (``.csv``, ``.tsv``): records under a header.
    * ``jsonl``, ``json``: an object per line, or an array of objects.
    * ``folder``: a document per ``.txt`` file. The subfolder is the label, and the path within the
      folder is the column ``id``.
    * ``parquet``: a row per document, in a file or a folder of files, which are read in the order
      of their names.
    * ``npz``: a file of scipy's ``save_npz``.
    * ``ldac`` (``.ldac``, ``.dat``): ``M word:count ...`` per line, words from 0.
    * ``uci``: ``docword*.txt``.
    * ``mtx`` (``.mtx``, ``.mm``): Matrix Market coordinates, documents in rows.
    * ``store``: a folder of ``Corpus.save``, perhaps in shards. Its counts are mapped into memory,
      so that several processes share them.

    The words of ``npz``, ``ldac``, ``uci`` and ``mtx`` are in a file beside the counts, one per
    line: ``NAME.vocab.txt``, ``vocab.NAME.txt`` or ``vocab.txt``. Labels come from
    ``NAME.labels.txt``, or from the field ``label`` of the records, whose other fields become
    columns of the metadata. A ``csv`` column that contains only numbers is read as numbers.

    Args:
        path: The file or folder.
        vocabulary: Words, or a file with a word per line. For counts, they name the columns. For
            texts, they are the words to count, and a warning says how many others were dropped.
        format: A name from the lists above. Defaults to the format of the file's name.
        text_field: Field or column with the text. Defaults to ``text``.
        label_field: Field or column with the label. Defaults to ``label``, if present.
        encoding: Encoding of all text in files.
        delimiter: Character between the fields of ``csv``. Defaults to the one of comma,
            semicolon, tab and bar that is most frequent in the header.
        metadata: Further columns: a CSV file, or columns as for ``Corpus.with_metadata``. If both
            they and the documents have a column ``id``, such as the names of a folder's files, the
            rows are joined on it; otherwise they must be in the order of the documents.
        rank: Rank of this process, from 0. It then opens only its own shards of a folder, which are
            dealt so that all processes get about the same number of entries. Positions count from
            this process's first document.
        world_size: Number of processes.
        **options: Options of ``Corpus.from_texts`` for texts: ``stop_words``, ``min_df``,
            and options of ``CountVectorizer``.

    Returns:
        The corpus, named after the file.

    Raises:
        CorpusError: A file is missing, malformed or truncated, or two files contradict.
            ``rank`` is given for another format, or there are fewer shards than processes.
            The message names the file and the 1-based line, or the document and word.

    Example:
        >>> from pathlib import Path
        >>> size = Path("posts.csv").write_text("text,year\nwood and stone,1990\nwater,2000\n")
        >>> lntm.read_corpus("posts.csv")
        Corpus('posts', num_docs=2, num_words=3, num_tokens=3, columns: year)
    """
    if (rank is None) != (world_size is None):
        raise CorpusError("rank and world_size belong together; give both or neither")
    if not isinstance(path, (str, Path)):
        raise CorpusError(
            f"expected the path of a file or folder, got a {type(path).__name__}; " + ADVICE
        )
    part = None if rank is None or world_size is None else (rank, world_size)
    path = Path(path)
    whole = Path(os.path.abspath(path))  # . and .. get the names of folders
    name = Path(unzipped(whole.name)).stem.removeprefix("docword.")
    reading = Options(text_field, label_field, encoding, delimiter, part=part)
    about = find_format(path, format)
    if part is not None and not (about.name == "store" and metadata is None):
        raise CorpusError(
            f"{path}: rank is for a folder in shards, without further metadata; write one by "
            "corpus.save(folder, shard_size=...)"
        )
    if vocabulary is None and about.name in WITH_WORDS_BESIDE:
        others = () if about.name == "npz" else (f"vocab.{name}.txt", "vocab.txt")
        vocabulary = _first_file(
            whole.parent, f"{whole.stem}.vocab.txt", f"{name}.vocab.txt", *others
        )
    labels = _first_file(whole.parent, f"{whole.stem}.labels.txt", f"{name}.labels.txt")
    with _naming_files(path, vocabulary, labels, metadata):
        _check_options(about, reading, options)
        if isinstance(metadata, (str, Path)):
            metadata = read_metadata(metadata, encoding)
        if isinstance(vocabulary, (str, Path)):
            vocabulary = read_lines(Path(vocabulary), encoding)
        words = None if vocabulary is None else list(vocabulary)
        if about.holds == "texts":
            stream = TextStream(path, about.read, reading)
            if "stop_words" in options:
                options["stop_words"] = stop_list(options["stop_words"])
            counts, found, preparation = count_words(stream, words, **options)
            corpus = Corpus.of_counts(counts, found, stream.table, preparation, name, options)
            corpus = corpus if words is None else corpus.with_vocabulary(words)
        else:
            reading = replace(reading, num_words=None if words is None else len(words))
            corpus = _of_counts(path, about.read(path, reading), words, name)
        if labels is not None:
            texts = read_lines(labels, encoding)
            corpus = replace(corpus, table=with_labels(corpus.table, texts))
        if metadata is not None:
            corpus = corpus.with_metadata(by_id(metadata, corpus.table))
        return corpus


def read_documents(
    documents: Any,
    words: Sequence[str] | None = None,
    tokens: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> tuple[Corpus, Iterable[str] | None]:
    """Makes a corpus of documents in any form.

    Args:
        documents: The path of a file or folder; texts; a data frame or list of dicts with a column
            of texts; counts as for ``Corpus.from_matrix``; or a corpus.
        words: Words of a model. Other words are dropped, with a warning.
        tokens: Options by which the model's texts became words, and ``text_field``, the column
            that they were in.
        **options: Options of :func:`read_corpus` that the form of the documents has.

    Returns:
        The corpus, and the texts where they are at hand.

    Raises:
        CorpusError: The documents are of another form, or have no column of texts.
        ConfigError: An option is for documents of another form.

    Example:
        >>> lntm.corpus.readers.read_documents(["wood and stone", "water"])[0]
        Corpus(num_docs=2, num_words=3, num_tokens=3)
    """
    field = tokens.get("text_field")
    chosen = {n: value for n, value in tokens.items() if n != "text_field"}
    chosen = {} if words is None else {**chosen, "vocabulary": words}
    if isinstance(documents, (str, Path)):
        path = Path(documents)
        if field is not None and find_format(path, options.get("format")).name in WITH_FIELDS:
            options = {"text_field": field, **options}
        texts = texts_of(path, options)
        corpus = read_corpus(path, **{**options, **({} if texts is None else chosen)})
        return over(corpus, words), texts
    if isinstance(documents, Corpus):
        _refuse_options(options, "a corpus")
        return over(documents, words), None
    texts, columns = _texts_in(documents, options.pop("text_field", None), field)
    if texts is None:
        vocabulary = options.pop("vocabulary", None)
        columns = {"metadata": options.pop("metadata")} if "metadata" in options else {}
        _refuse_options(options, "counts")
        return over(Corpus.from_matrix(documents, vocabulary, **columns), words), None
    metadata = options.pop("metadata", columns)
    _refuse_options({n: v for n, v in options.items() if n in OF_FILES}, "texts in memory")
    return Corpus.from_texts(texts, metadata=metadata, **{**options, **chosen}), list(texts)


def texts_of(path: Path, options: Mapping[str, Any]) -> Iterable[str] | None:
    """The texts of a file or folder, read as they are used; ``None`` for counts.

    Args:
        path: The file or folder.
        options: Options of :func:`read_corpus`.
    """
    about = find_format(path, options.get("format"))
    if about.holds == "counts":
        return None
    names = ("text_field", "label_field", "encoding", "delimiter")
    given = {name: options[name] for name in names if name in options}
    return TextStream(path, about.read, Options(**given))


def over(corpus: Corpus, words: Sequence[str] | None) -> Corpus:
    """The corpus over the words of a model, if both have words.

    Args:
        corpus: The documents.
        words: The words of the model, if any.
    """
    return corpus if None in (words, corpus.vocabulary) else corpus.with_vocabulary(words or ())


def _refuse_options(options: Mapping[str, Any], what: str) -> None:
    if options:
        raise ConfigError(f"{', '.join(options)}: no option of {what}; leave it out")


def _texts_in(documents: Any, field: str | None, usual: str | None) -> tuple[Any, Any]:
    """The texts and the other columns of documents in memory. Counts have no texts.

    Args:
        documents: The documents.
        field: Column of the texts. Other documents than records refuse it.
        usual: Column of the texts in place of ``text``, if there is one of this name.
    """
    is_records = isinstance(documents, list) and documents and isinstance(documents[0], Mapping)
    if is_table(documents) or is_records:
        frame = as_frame(documents)
        field = usual if field is None and usual in frame else field
        if field is None and "text" not in frame and all(map(is_numeric_dtype, frame.dtypes)):
            return None, None
        texts, others = take_texts(frame, field or "text")
        return texts.where(texts.notna(), ""), others  # as files have empty fields
    if field is not None:
        raise ConfigError("text_field names a column; the documents have none")
    if isinstance(documents, pd.Series) and not is_numeric_dtype(documents):
        return documents, None
    if isinstance(documents, (list, tuple, np.ndarray)) and len(documents):
        return (documents, None) if isinstance(documents[0], str) else (None, None)
    return None, None


@contextmanager
def _naming_files(path: Path, *further: Any) -> Iterator[None]:
    """A context whose errors name the files."""
    try:
        yield
    except LNTMError as error:
        if isinstance(error, FileError) or not isinstance(error, CorpusError):
            raise
        files = [path, *(x for x in further if isinstance(x, (str, Path)))]
        raise CorpusError(f"{' with '.join(map(str, files))}: {error}") from error
    except Exception as error:
        raise unreadable(path, error) from error


def _of_counts(path: Path, corpus: Any, words: list[str] | None, name: str) -> Corpus:
    """The corpus that a reader returned, over the user's words."""
    if not isinstance(corpus, Corpus):
        raise ConfigError(f"the reader returned {type(corpus).__name__}; expected a Corpus")
    vocabulary = check_vocabulary(words, corpus.num_words) or corpus.vocabulary
    check_size(path, corpus.nnz, corpus.num_docs, 0 if vocabulary else corpus.num_words)
    return replace(corpus, vocabulary=vocabulary, name=corpus.name or name)


def by_id(columns: Any, documents: pd.DataFrame) -> Any:
    """Puts further metadata in the order of the documents, by joining on the ids of both.

    If either side has no ids, the columns are returned unchanged.

    Args:
        columns: A mapping or a data frame, whose ids are its index, if this has a name, or its
            column ``id``.
        documents: Metadata of the documents. Their ids are the column ``id``, or the index.

    Raises:
        CorpusError: An id is missing or repeated, or on one side only.
    """
    if not is_table(columns) and "id" not in columns:
        return columns
    frame = as_frame(columns if is_table(columns) else pd.DataFrame(dict(columns)))
    keys = frame.get("id") if frame.index.name is None else frame.index
    if keys is None or ("id" not in documents and is_default(documents.index)):
        by_position = is_default(frame.index) and len(frame) == len(documents)
        return frame.set_axis(documents.index) if by_position else frame
    ids = [
        pd.Series(x).reset_index(drop=True) for x in (documents.get("id", documents.index), keys)
    ]
    bad = [x[x.isna() | (x == "") | x.duplicated()] for x in ids]
    own, other = (x.map(str) for x in ids)
    stems = [x.str.replace(r"\.txt$", "", case=False, regex=True) for x in (own, other)]
    if len(own) == len(other) == len({*stems[0]} & {*stems[1]}):
        own, other = stems  # the names of files, perhaps without their ending
    wrong = {
        "documents with a missing or repeated id": bad[0],
        "rows of the metadata with a missing or repeated id": bad[1],
        "documents without a row of the metadata": own[~own.isin(other)],
        "rows of the metadata without a document": other[~other.isin(own)],
    }
    if found := [f"{len(x)} {what} ({listed(x)})" for what, x in wrong.items() if len(x)]:
        raise CorpusError(
            f"the ids do not fit: {'; '.join(found)}; give each document one row with its id, or "
            "leave out the column id to take the rows by position"
        )
    frame = frame.drop(columns="id", errors="ignore").set_axis(pd.Index(other))
    return frame.loc[own].set_axis(documents.index)


def _check_options(about: Format, options: Options, further: Iterable[str]) -> None:
    """Refuses options of other formats."""
    is_text = about.holds == "texts"
    fits = {"text_field": is_text, "label_field": is_text, "delimiter": about.name == "csv"}
    wrong = [name for name, fit in fits.items() if getattr(options, name) is not None and not fit]
    for name in {*further}.difference(OF_WORDS):
        if hint := did_you_mean(name, OF_FILES):
            raise CorpusError(f"no option is called {name}{hint}")
    if refused := ", ".join([*wrong, *(() if is_text else further)]):
        raise CorpusError(
            f"{refused} cannot be used with {about.holds} of the format {about.name}; leave it out"
        )


def _first_file(folder: Path, *names: str) -> Path | None:
    """The first of some files that exists, if any."""
    return next(filter(Path.is_file, (folder / name for name in names)), None)
