"""Corpora from files and folders, by format, in memory or converted to a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from torch_lntm.corpus.checks import ADVICE, check_counts, check_vocabulary
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.mapped import Rows
from torch_lntm.corpus.metadata import (
    Arrays,
    as_frame,
    describe,
    is_table,
    listed,
    make_metadata,
    named,
)
from torch_lntm.corpus.readers.counts import check_size, check_words, in_order, joined
from torch_lntm.corpus.readers.formats import FORMATS, Format, find_format, format_of, unzipped
from torch_lntm.corpus.readers.texts import (
    WITHOUT_FIELDS,
    Options,
    TextStream,
    read_metadata,
    unreadable,
)
from torch_lntm.corpus.remote import fetch_store, is_remote
from torch_lntm.corpus.store import StoreWriter, new_store
from torch_lntm.corpus.texts import count_words
from torch_lntm.errors import ConfigError, CorpusError, FileError, LNTMError
from torch_lntm.files.reading import read_lines
from torch_lntm.frames import is_default

#: Formats of counts with the words in a file of their own.
WITH_WORDS_BESIDE = ("npz", "ldac", "uci", "mtx")


def read_corpus(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None = None,
    format: str | None = None,
    labels: str | Path | Iterable[object] | None = None,
    *,
    text_field: str | None = None,
    label_field: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    metadata: Any = None,
    max_bytes: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Corpus:
    r"""Reads a corpus from a file or a folder. Files may be gzipped (``.gz``).

    Formats of word counts:

    * ``npz``: the CSR arrays data, indices, indptr and shape, and the metadata of ``Corpus.save``.
    * ``ldac`` (``.ldac``, ``.dat``): ``M word:count ...`` per line, words from 0.
    * ``uci``: ``docword*.txt``.
    * ``mtx`` (``.mtx``, ``.mm``): Matrix Market coordinates, documents in rows.
    * ``h5ad``: AnnData, with whole numbers in ``X``. The columns of ``obs`` become metadata, its
      index becomes ``id``, and the names of ``var`` are the words.
    * ``parquet``: a row per document, with a list ``words`` of strings or of columns (numbers of
      words, from 0). A list ``counts`` is optional if words are repeated. Further columns become
      metadata. A folder of ``.parquet`` files is read in the order of their names.
    * ``store``: a folder of ``Corpus.save`` or ``convert_corpus``. The counts are memory-mapped,
      so the corpus may be larger than the memory. The folder may be in shards. The address of a
      remote folder, such as ``https://host/posts`` or ``s3://bucket/posts``, is read through
      fsspec (``pip install 'torch-lntm[files]'``). Its files are fetched once, to a cache in
      ``~/.cache/torch_lntm``, or in the folder of the environment variable ``LNTM_CACHE``.

    The words of ``npz``, ``ldac``, ``uci`` and ``mtx`` are read from a file beside the counts, a
    word per line: ``NAME.vocab.txt``, ``vocab.NAME.txt`` or ``vocab.txt``. The format ``h5ad``
    needs ``pip install 'torch-lntm[files]'``.

    Formats of texts:

    * ``txt``: a document per line.
    * ``jsonl``: a JSON object per line.
    * ``json``: an array of JSON objects.
    * ``csv`` (``.csv``, ``.tsv``): records under a header.
    * ``parquet``: a row per document, in a file or a folder of files. Chosen if ``text_field`` is
      given or lists ``words`` are missing.
    * ``folder``: a document per ``.txt`` file. The subfolder is the label, and the path relative to
      the folder is the column ``id``.

    Labels are read from ``NAME.labels.txt`` beside the file, a line per document, or from the
    records. Further fields of records become columns of the metadata. Columns of numbers in ``csv``
    become numbers.

    Args:
        path: The file or folder, or the address of a remote folder.
        vocabulary: Words, or a file with a word per line. They name the columns of counts. For
            texts they are the words to count, and further words are dropped with a warning.
        format: A name from the lists above. Defaults to the format of the file's name.
        labels: Labels, or a file with a label per line. Defaults to the labels beside the file or
            in the records.
        text_field: Field or column with the text. Defaults to ``text``.
        label_field: Field or column with the label. Defaults to ``label``, if present.
        encoding: Encoding of all text in files.
        delimiter: Character between the fields of ``csv``. Defaults to the one of comma,
            semicolon, tab and bar that is most frequent in the header.
        metadata: Further columns: a CSV file, or columns as for ``Corpus.with_metadata``. If they
            and the documents have a column ``id``, such as the names of a folder's files, the rows
            are joined by id. Otherwise they are in the order of the documents.
        max_bytes: Maximum number of bytes to read, after decompression. Defaults to a third of the
            available memory. The default also bounds compressed files by their size: 10 MiB on disk
            may unpack to 128 MiB, and each further byte to 100 bytes.
        rank: Rank of this process, from 0. With ``world_size``, only this process's shards of a
            folder in shards are opened: neighbouring documents, about the same number of entries
            for each process. Positions of documents count from the first of these documents.
        world_size: Number of processes.
        **options: Options of ``Corpus.from_texts`` for texts: ``stop_words``, ``min_df``,
            and options of ``CountVectorizer``.

    Returns:
        The corpus, named after the file.

    Raises:
        CorpusError: A file is missing, malformed, truncated or too large, or two files contradict.
            A server stopped. ``rank`` is given for another format, or there are fewer
            shards than processes.
            The message names the file and the 1-based line, or the document and word.

    Example:
        >>> from pathlib import Path
        >>> size = Path("posts.csv").write_text("text,year\nwood and stone,1990\nwater,2000\n")
        >>> lntm.read_corpus("posts.csv")
        Corpus('posts', num_docs=2, num_words=3, num_tokens=3, columns: year)
    """
    if (rank is None) != (world_size is None):
        raise CorpusError("rank and world_size belong together; give both or neither")
    part = None if rank is None or world_size is None else (rank, world_size)
    reading = Options(text_field, label_field, encoding, delimiter, max_bytes, part=part)
    source = open_source(path, vocabulary, format, labels, metadata, reading, options)
    with source.named():
        corpus = source.read(options)
        if source.columns is None:
            return corpus
        return corpus.with_metadata(by_id(source.columns, corpus.table))


def convert_corpus(
    source: str | Path,
    folder: str | Path,
    vocabulary: str | Path | Iterable[str] | None = None,
    format: str | None = None,
    labels: str | Path | Iterable[object] | None = None,
    *,
    text_field: str | None = None,
    label_field: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    metadata: Any = None,
    shard_size: int | None = None,
    **options: Any,
) -> Path:
    r"""Converts a file or folder to a corpus's folder for memory-mapping by ``read_corpus``.

    The source may be larger than the memory. Memory holds a part of the documents, the distinct
    words and the metadata. ``npz`` and ``json`` files are the exception and are read completely.
    Texts are read twice: for the words and for the counts. In files of
    coordinates (``uci`` and ``mtx``) the documents must be in order.

    Args:
        source: The file or folder, as for ``read_corpus``.
        folder: The folder to write. It is written atomically and replaces an older corpus.
        vocabulary: As for ``read_corpus``.
        format: As for ``read_corpus``.
        labels: As for ``read_corpus``.
        text_field: As for ``read_corpus``.
        label_field: As for ``read_corpus``.
        encoding: As for ``read_corpus``.
        delimiter: As for ``read_corpus``.
        metadata: As for ``read_corpus``.
        shard_size: Number of documents of each shard, for processes that read only their own
            shards. The last shard may have fewer. Defaults to one shard.
        **options: Options of ``Corpus.from_texts`` for texts.

    Returns:
        The folder.

    Raises:
        CorpusError: As for ``read_corpus`` and ``Corpus.save``. Documents are out of order.

    Example:
        >>> from pathlib import Path
        >>> size = Path("texts.txt").write_text("wood and stone\nwater\n")
        >>> folder = lntm.corpus.convert_corpus("texts.txt", "texts")
        >>> lntm.read_corpus(folder)
        Corpus('texts', num_docs=2, num_words=3, num_tokens=3)
    """
    reading = Options(text_field, label_field, encoding, delimiter, math.inf)
    documents = open_source(source, vocabulary, format, labels, metadata, reading, options)
    with new_store(Path(folder), shard_size) as writer, documents.named():
        documents.convert(writer, options)
    return Path(folder)


@dataclass
class Source:
    """File or folder of documents, with its vocabulary, labels and options.

    Attributes:
        path: The file or folder.
        format: Its format.
        options: Options of reading.
        vocabulary: The words, from the caller or from the file beside it.
        labels: The labels, from the caller or from the file beside it.
        columns: Further metadata of the caller.
        files: The file, and the files of the vocabulary, the labels and the metadata.
        num_words: Size of the vocabulary. This and the next attributes, as ``vocabulary`` and
            ``labels``, are complete after the last of :meth:`parts`.
        table: The metadata of the file.
        preparation: Sentence about the words left out.
        covariates: None, as texts and entries have none.
    """

    path: Path
    format: Format
    options: Options
    vocabulary: Sequence[str] | None
    labels: Any
    columns: Any
    files: list[Path]
    num_words: int = 0
    table: pd.DataFrame | None = None
    preparation: str | None = None
    covariates: ClassVar[Arrays] = Arrays()

    @contextmanager
    def named(self) -> Iterator[None]:
        """A context whose errors name the files."""
        try:
            yield
        except LNTMError as error:
            if isinstance(error, FileError) or not isinstance(error, CorpusError):
                raise
            raise CorpusError(f"{' with '.join(map(str, self.files))}: {error}") from error
        except Exception as error:
            raise unreadable(self.path, error) from error

    def read(self, options: Mapping[str, Any]) -> Corpus:
        """Reads the corpus, with options of ``Corpus.from_texts``."""
        name = _name(self.path)
        if self.format.holds != "corpus":
            (matrix,) = self.parts(options, whole=True)
            empty = self.format.holds == "texts"  # of a given vocabulary
            corpus = Corpus.from_matrix(
                matrix, self.vocabulary, self.labels, name, metadata=self.table, allow_empty=empty
            )
            return replace(corpus, preparation=self.preparation)
        corpus = self.format.read(self.path, self.options)
        if not isinstance(corpus, Corpus):
            raise ConfigError(f"the reader returned {type(corpus).__name__}; expected a Corpus")
        vocabulary = check_vocabulary(self.vocabulary, corpus.num_words) or corpus.vocabulary
        num_words = 0 if vocabulary else corpus.num_words
        check_size(self.path, corpus.counts.size, corpus.num_docs, num_words)
        table = named(corpus.table)
        if self.labels is not None:
            table = describe(table, len(table), table, self.labels)
        return replace(corpus, vocabulary=vocabulary, table=table, name=corpus.name or name)

    def convert(self, writer: StoreWriter, options: Mapping[str, Any]) -> None:
        """Writes the corpus in pieces, with options of ``Corpus.from_texts``."""
        about: Any = self
        rows: Iterator[Rows] = map(_rows, self.parts(options, whole=False))
        if self.format.holds == "corpus":
            about = self.read({})
            rows = (rows for _, rows in about.parts())
        for each in rows:
            writer.add(each)
        if not writer.nnz:
            raise CorpusError("the corpus is empty; give at least one document with one word")
        table = describe(about.table, writer.num_docs, about.table, self.labels)
        if self.columns is not None:
            columns = by_id(self.columns, table)
            table = table.assign(**make_metadata(columns, len(table), table.index))
        words = check_vocabulary(about.vocabulary, about.num_words)
        writer.close(about.num_words, words, table, about.covariates, about.preparation)

    def parts(self, options: Mapping[str, Any], whole: bool) -> Iterator[Any]:
        """Counts of consecutive documents: matrices ``(num_docs, num_words)``.

        Args:
            options: Options of ``Corpus.from_texts`` for texts.
            whole: Read a single part, with the entries of a file in any order.
        """
        if self.format.holds == "texts":
            stream = TextStream(self.path, self.format.read, self.options)
            texts = list(stream) if whole else stream
            counts, self.vocabulary, self.preparation = count_words(
                texts, self.vocabulary, **options
            )
            self.num_words = len(self.vocabulary)
            yield from counts
            self.labels = stream.labels if self.labels is None else self.labels
            self.table = stream.metadata
            return
        pieces = check_words(self.path, self.format.read(self.path, self.options))
        num_docs, num_entries, tables = 0, 0, []
        for piece in [joined(pieces)] if whole else in_order(self.path, pieces):
            num_docs, num_entries = num_docs + piece.num_docs, num_entries + piece.words.size
            check_size(self.path, num_entries, num_docs)
            self.num_words = max(self.num_words, piece.width)
            self.vocabulary = self.vocabulary or piece.vocabulary
            yield piece.matrix(self.num_words)
            tables.append(piece.metadata)
        check_size(self.path, num_entries, 0, 0 if self.vocabulary else self.num_words)
        if tables and tables[0] is not None:
            self.table = pd.concat(tables, ignore_index=True)


def _rows(matrix: Any) -> Rows:
    """Checked rows of a matrix of counts."""
    csr = check_counts(matrix, allow_empty=True)
    return Rows(np.diff(csr.indptr), csr.indices, csr.data)


def by_id(columns: Any, documents: pd.DataFrame) -> Any:
    """Columns of further metadata in the order of the documents, by the ids of both.

    Columns without ids, or for documents without ids, are unchanged.

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


def open_source(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None,
    format: str | None,
    labels: str | Path | Iterable[object] | None,
    metadata: Any,
    options: Options,
    text_options: Iterable[str] = (),
) -> Source:
    """Finds the format of a file or folder, and reads the vocabulary and labels beside it.

    Args:
        path: As for ``read_corpus``.
        vocabulary: As for ``read_corpus``.
        format: As for ``read_corpus``.
        labels: As for ``read_corpus``.
        metadata: As for ``read_corpus``.
        options: Options of reading.
        text_options: Names of the user's options of ``Corpus.from_texts``.

    Raises:
        CorpusError: The file is missing, or an option belongs to another format.
    """
    if is_remote(path):
        options = replace(options, address=str(path))
        path = fetch_store(str(path), options.part)
    if not isinstance(path, (str, Path)):
        raise CorpusError(
            f"expected the path of a file or folder, got a {type(path).__name__}; " + ADVICE
        )
    path = Path(path)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; check the path")
    format = find_format(path) if format is None else format
    if format not in FORMATS:
        raise CorpusError(f"{path}: unknown format {format!r}; give one of {', '.join(FORMATS)}")
    about = format_of(path, format, options.text_field)
    _check_options(path, format, about, options, text_options)
    if options.part is not None and not (format == "store" and labels is None and metadata is None):
        raise CorpusError(
            f"{path}: rank is for a folder in shards, without further labels and metadata; write "
            "one by convert_corpus(..., shard_size=...)"
        )
    if vocabulary is None and format in WITH_WORDS_BESIDE:
        # Corpus.save writes NAME.vocab.txt beside NAME.npz.
        others = () if format == "npz" else (f"vocab.{_name(path)}.txt", "vocab.txt")
        vocabulary = _find_beside(path, "vocab", others)
    labels = _find_beside(path, "labels") if labels is None else labels
    files = [path, *(Path(x) for x in (vocabulary, labels, metadata) if isinstance(x, (str, Path)))]
    if isinstance(metadata, (str, Path)):
        metadata = read_metadata(metadata, options.encoding)
    if isinstance(vocabulary, (str, Path)):
        vocabulary = read_lines(Path(vocabulary), options.encoding)
    if isinstance(labels, (str, Path)):
        labels = read_lines(Path(labels), options.encoding)
    words = None if vocabulary is None else list(vocabulary)
    options = replace(options, num_words=None if words is None else len(words))
    return Source(path, about, options, words, labels, metadata, files)


def _check_options(
    path: Path, format: str, about: Format, options: Options, text_options: Iterable[str]
) -> None:
    """Refuses options of other formats."""
    is_text = about.holds == "texts"
    has_fields = is_text and format not in WITHOUT_FIELDS
    fits = {"text_field": has_fields, "label_field": has_fields, "delimiter": format == "csv"}
    wrong = [name for name, fit in fits.items() if getattr(options, name) is not None and not fit]
    if refused := ", ".join([*wrong, *(() if is_text else text_options)]):
        raise CorpusError(
            f"{path}: {refused} cannot be used with {'texts' if is_text else 'counts'} of the "
            f"format {format}; leave it out"
        )


def _name(path: Path) -> str:
    """Name of a corpus: the file's name without ``docword.`` and the format's suffixes."""
    name = Path(os.path.abspath(path)).name  # abspath gives . and .. the names of folders
    return Path(unzipped(name)).stem.removeprefix("docword.")


def _find_beside(path: Path, what: str, others: Iterable[str] = ()) -> Path | None:
    """First existing file of words or labels in the folder of a corpus; ``None`` if missing."""
    names = [*(f"{name}.{what}.txt" for name in (path.stem, _name(path))), *others]
    beside = Path(os.path.abspath(path)).parent if path.name in ("", "..") else path.parent
    return next(filter(Path.is_file, (beside / name for name in names)), None)
