"""Corpora from files and folders, by format."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from torch_lntm.corpus.archive import read_archive
from torch_lntm.corpus.checks import check_vocabulary, counting_code
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.metadata import as_frame, describe, is_table, listed, named
from torch_lntm.corpus.readers.counts import COUNT_STREAMS, assemble, check_size
from torch_lntm.corpus.readers.tables import ParquetFiles, stream_h5ad, stream_parquet
from torch_lntm.corpus.readers.texts import (
    TEXT_READERS,
    WITHOUT_FIELDS,
    TextOptions,
    TextStream,
    read_metadata,
)
from torch_lntm.corpus.remote import fetch_store, is_remote
from torch_lntm.corpus.store import is_store, read_store
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files.reading import read_lines
from torch_lntm.frames import is_default

#: Formats by the endings of files.
SUFFIXES = {
    **{f".{n}": n for n in ("npz", "ldac", "mtx", "h5ad", "parquet")},
    **{f".{n}": n for n in ("txt", "jsonl", "json", "csv")},
    ".dat": "ldac",
    ".mm": "mtx",
    ".tsv": "csv",
}
#: Advice for formats that cannot be read.
_CONVERTED = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV, a document in each row"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pdf"), "save it as plain text (.txt)"),
}
#: Functions by format that make a stream of counts from a path, the number of words (``None`` if
#: unknown) and the maximum number of bytes.
STREAMS = {**COUNT_STREAMS, "h5ad": stream_h5ad, "parquet": stream_parquet}
#: Formats of counts with the words in a separate file.
WITH_WORDS_BESIDE = ("npz", *COUNT_STREAMS)
#: Readers of whole corpora by format, which :func:`register_reader` adds.
CORPUS_READERS: dict[str, Callable[[Path, TextOptions], Corpus]] = {}


def known_formats() -> list[str]:
    """Names of the formats that :func:`read_corpus` reads."""
    return list(dict.fromkeys(("npz", *STREAMS, "store", *TEXT_READERS, *CORPUS_READERS)))


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
        text_field: Field or column with the text. Defaults to ``text``, or to the only column of
            ``parquet``.
        label_field: Field or column with the label. Defaults to ``label``, if present.
        encoding: Encoding of all text in files.
        delimiter: Character between the fields of ``csv``. Defaults to the first of comma,
            semicolon, tab and bar that gives the header a column of the text.
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
            ``vectorizer`` and options of ``CountVectorizer``.

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
    text_options = TextOptions(text_field, label_field, encoding, delimiter, max_bytes)
    source = open_source(path, vocabulary, format, labels, text_options, options, part)
    if part is not None and source.format != "store":
        raise CorpusError(
            f"{source.path}: rank is for a folder in shards; write one by convert_corpus(..., "
            "shard_size=...)"
        )
    if part is not None and not (source.labels is None and metadata is None):
        raise CorpusError(
            f"{source.path}: labels and metadata cannot be joined to a part of a corpus; convert "
            "the corpus with them"
        )
    columns = source.find_metadata(metadata)
    with source.named():
        corpus = source.read(options)
        return corpus if columns is None else corpus.with_metadata(joined(columns, corpus.table))


@dataclass
class Source:
    """File or folder of documents, with its vocabulary, labels and options.

    Attributes:
        path: The file or folder.
        format: Its format.
        is_text: Whether it holds texts rather than counts.
        options: Options of reading.
        vocabulary: The words, from the caller or from the file beside it.
        labels: The labels, from the caller or from the file beside it.
        files: The file, and the files of the vocabulary, the labels and the metadata.
        part: Rank and number of the processes, to open this rank's shards of a folder only.
        address: Address of a remote folder. ``path`` is then the folder in the cache.
    """

    path: Path
    format: str
    is_text: bool
    options: TextOptions
    vocabulary: list[str] | None
    labels: Any
    files: list[Path]
    part: tuple[int, int] | None = None
    address: str | None = None

    @contextmanager
    def named(self) -> Iterator[None]:
        """A context whose errors name the files."""
        try:
            yield
        except FileError:
            raise
        except CorpusError as error:
            raise CorpusError(f"{' with '.join(map(str, self.files))}: {error}") from error

    @property
    def num_words(self) -> int | None:
        """Size of the vocabulary; ``None`` if unknown."""
        return None if self.vocabulary is None else len(self.vocabulary)

    def find_metadata(self, metadata: Any) -> Any:
        """Columns of metadata, read from a file if ``metadata`` is a path."""
        if not isinstance(metadata, (str, Path)):
            return metadata
        self.files.append(Path(metadata))
        return read_metadata(metadata, self.options.encoding)

    def read(self, options: Mapping[str, Any]) -> Corpus:
        """Reads the corpus, with options of ``Corpus.from_texts``."""
        max_bytes, words, name = self.options.max_bytes, self.vocabulary, _name(self.path)
        if self.is_text:
            stream = TextStream(self.path, self.format, self.options)
            texts = list(stream)
            labels = stream.labels if self.labels is None else self.labels
            return Corpus.from_texts(
                texts, words, labels, name, metadata=stream.metadata, **options
            )
        if self.format == "store" or self.format in CORPUS_READERS:
            read = CORPUS_READERS.get(self.format, self._read_store)
            corpus = read(self.path, self.options)
            if words is not None:
                checked = check_vocabulary(words, corpus.num_words)
                corpus = dataclasses.replace(corpus, vocabulary=checked)
            table = named(corpus.table)
            if self.labels is not None or self.format != "store":
                table = describe(table, corpus.num_docs, table, self.labels)
            return dataclasses.replace(corpus, table=table, name=corpus.name or name)
        if self.format == "npz":
            archive = read_archive(self.path, max_bytes)
            num_docs, num_words = archive.matrix.shape
            check_size(self.path, num_docs, num_words, archive.matrix.nnz, self.num_words)
        else:
            counts = STREAMS[self.format](self.path, self.num_words, max_bytes)
            archive = assemble(self.path, counts)
            words = words or counts.vocabulary
        corpus = Corpus.from_matrix(archive.matrix, words, name=name)
        # A saved corpus may have its names in any order.
        table = describe(archive.metadata, corpus.num_docs, archive.metadata, self.labels)
        corpus = dataclasses.replace(corpus, table=table)
        return corpus.with_covariates(archive.covariates) if archive.covariates else corpus

    def _read_store(self, path: Path, options: TextOptions) -> Corpus:
        store = read_store(path, options.max_bytes, self.part, self.address)
        known = self.num_words or len(store["vocabulary"] or ())
        num_docs = store["row_offsets"].size - 1
        check_size(path, num_docs, store["num_words"], store["counts"].size, known)
        return Corpus(**store)


def joined(columns: Any, documents: pd.DataFrame) -> Any:
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
    own_ids = documents.get("id", documents.index)
    keys = frame.get("id") if frame.index.name is None else frame.index
    if keys is None or ("id" not in documents and is_default(documents.index)):
        by_position = is_default(frame.index) and len(frame) == len(documents)
        return frame.set_axis(documents.index) if by_position else frame
    own, other = (pd.Series(ids).reset_index(drop=True) for ids in (own_ids, keys))
    for what, ids in (("documents", own), ("rows of the metadata", other)):
        if len(bad := ids[ids.isna() | (ids == "") | ids.duplicated()]):
            raise CorpusError(f"the ids of the {what} are missing or repeated: {listed(bad)}")
    own, other = own.map(str), other.map(str)
    stems = [ids.str.replace(r"\.txt$", "", case=False, regex=True) for ids in (own, other)]
    if len(own) == len(other) == len({*stems[0]} & {*stems[1]}):
        own, other = stems  # the names of files, perhaps without their ending
    lost, unknown = own[~own.isin(other)], other[~other.isin(own)]
    if len(lost) or len(unknown):
        raise CorpusError(
            f"the metadata lack {len(lost)} of {len(own)} documents by their ids "
            f"({listed(lost) or 'none'}), and have {len(unknown)} rows of other ids "
            f"({listed(unknown) or 'none'}); give each document one row with its id, or leave out "
            "the column id to take the rows by position"
        )
    frame = frame.drop(columns="id", errors="ignore").set_axis(pd.Index(other))
    return frame.loc[own].set_axis(documents.index)


def open_source(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None,
    format: str | None,
    labels: str | Path | Iterable[object] | None,
    options: TextOptions,
    text_options: Iterable[str] = (),
    part: tuple[int, int] | None = None,
) -> Source:
    """Finds the format of a file or folder, and reads the vocabulary and labels beside it.

    Args:
        path: As for ``read_corpus``.
        vocabulary: As for ``read_corpus``.
        format: As for ``read_corpus``.
        labels: As for ``read_corpus``.
        options: Options of reading.
        text_options: Names of the user's options of ``Corpus.from_texts``.
        part: Rank and number of the processes, if each opens its own shards.

    Raises:
        CorpusError: The file is missing, or an option belongs to another format.
    """
    address = str(path) if is_remote(path) else None
    if address is not None:
        path = fetch_store(address, part)
    try:
        path = Path(path)
    except TypeError as error:
        code = counting_code(path) or "Corpus.from_texts(texts) or Corpus.from_matrix(counts)"
        raise CorpusError(
            f"expected the path of a file or folder, got a {type(path).__name__}; documents in "
            f"memory go to {code}"
        ) from error
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; check the path")
    format = find_format(path) if format is None else format
    if format not in known_formats():
        formats = ", ".join(known_formats())
        raise CorpusError(f"{path}: unknown format {format!r}; give one of {formats}")
    is_text = holds_texts(path, format, options.text_field)
    _check_options(path, format, is_text, options, text_options)
    if vocabulary is None and format in WITH_WORDS_BESIDE:
        ending = ("vocab.txt",) if format != "npz" else ()  # Corpus.save writes NAME.vocab.txt
        vocabulary = _find_beside(path, "vocab", *ending)
    labels = _find_beside(path, "labels") if labels is None else labels
    files = [path, *(Path(file) for file in (vocabulary, labels) if isinstance(file, (str, Path)))]
    if isinstance(vocabulary, (str, Path)):
        vocabulary = read_lines(Path(vocabulary), options.encoding)
    if isinstance(labels, (str, Path)):
        labels = read_lines(Path(labels), options.encoding)
    words = None if vocabulary is None else list(vocabulary)
    return Source(path, format, is_text, options, words, labels, files, part, address)


def _check_options(
    path: Path, format: str, is_text: bool, options: TextOptions, text_options: Iterable[str]
) -> None:
    """Refuses options of other formats."""
    of_counts = ", of counts" if format == "parquet" and not is_text else ""
    with_fields = [name for name in TEXT_READERS if name not in WITHOUT_FIELDS]
    for name in ("text_field", "label_field", "delimiter"):
        formats = ["csv"] if name == "delimiter" else with_fields
        if getattr(options, name) is not None and not (is_text and format in formats):
            raise CorpusError(
                f"{path}: {name} is an option of {', '.join(formats)}; leave it out, the format is "
                f"{format}{of_counts}"
            )
    if not is_text and (names := ", ".join(text_options)):
        raise CorpusError(
            f"{path}: {names} would choose the words of texts, but the format {format} holds "
            "counts; leave them out"
        )


def _name(path: Path) -> str:
    """Name of a corpus: the file's name without ``docword.`` and the format's suffixes."""
    name = Path(os.path.abspath(path)).name  # abspath gives . and .. the names of folders
    return Path(_unzipped(name)).stem.removeprefix("docword.")


def _unzipped(name: str) -> str:
    return name[:-3] if name.lower().endswith(".gz") else name


def find_format(path: str | Path) -> str:
    """Format of a path by its name, or of an address; see :func:`read_corpus`.

    Raises:
        CorpusError: The name fits none of the formats.
    """
    if is_remote(path):
        return "store"
    path = Path(path)
    if path.is_dir():
        tables = any(path.glob("*.parquet")) and not any(path.glob("*.txt"))
        return "store" if is_store(path) else "parquet" if tables else "folder"
    name = _unzipped(path.name).lower()
    if name.startswith("docword") and name.endswith(".txt"):
        return "uci"
    suffix = Path(name).suffix
    if suffix not in SUFFIXES and suffix in _CONVERTED:
        raise CorpusError(f"{path}: {suffix} files cannot be read; {_CONVERTED[suffix]}")
    if suffix not in SUFFIXES:
        raise CorpusError(
            f"{path}: cannot tell the format from the ending {suffix!r}; "
            f"expected {', '.join(SUFFIXES)}, docword*.txt or a folder, or give format=..."
        )
    return SUFFIXES[suffix]


def holds_texts(path: Path, format: str, text_field: str | None) -> bool:
    """Whether a file or folder holds texts rather than counts.

    Args:
        path: The file or folder.
        format: Its format. ``parquet`` may hold texts or counts.
        text_field: The user's column of the texts, if any.

    Raises:
        CorpusError: A Parquet file is damaged.
    """
    if format == "parquet":
        return text_field is not None or not ParquetFiles(path, math.inf).has_counts
    return format in TEXT_READERS


def _find_beside(path: Path, what: str, *others: str) -> Path | None:
    """First existing file of words or labels in the folder of a corpus; ``None`` if missing."""
    name = _name(path)
    names = [f"{path.stem}.{what}.txt", f"{name}.{what}.txt"]
    if others:
        names += [f"{what}.{name}.txt", *others]
    beside = Path(os.path.abspath(path)).parent if path.name in ("", "..") else path.parent
    return next(filter(Path.is_file, (beside / name for name in names)), None)
