"""Corpora from files and folders, by format."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_lntm.corpus.archive import read_archive
from torch_lntm.corpus.checks import check_vocabulary, counting_code
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers.counts import COUNT_STREAMS, assemble, check_size
from torch_lntm.corpus.readers.tables import TABLE_STREAMS, has_counts
from torch_lntm.corpus.readers.texts import TEXT_READERS, WITH_FIELDS, TextOptions, TextStream
from torch_lntm.corpus.store import is_store, read_store
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files import at_line, read_lines

__all__ = ["find_format", "holds_texts", "read_corpus"]

#: Formats by the endings of files.
SUFFIXES = {
    ".npz": "npz",
    ".ldac": "ldac",
    ".dat": "ldac",
    ".mtx": "mtx",
    ".mm": "mtx",
    ".h5ad": "h5ad",
    ".parquet": "parquet",
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
}
#: How to make a readable file of some that are not.
_CONVERTED = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV, a document a row"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pdf"), "save it as plain text (.txt)"),
}
#: Streams of counts by format: of a path, the number of words where known, and the most bytes.
STREAMS = {**COUNT_STREAMS, **TABLE_STREAMS}
#: Formats of counts whose words are looked for beside them.
WITH_WORDS_BESIDE = ("npz", "ldac", "uci", "mtx")
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
    max_bytes: int | None = None,
    **options: Any,
) -> Corpus:
    """Reads a corpus from a file, which may be gzipped (``.gz``), or from a folder.

    Word counts: ``npz`` (the CSR arrays data, indices, indptr and shape, and the metadata that
    ``Corpus.save`` writes with them), ``ldac`` (``.ldac``, ``.dat``: ``M word:count ...`` per line,
    words from 0), ``uci`` (``docword*.txt``) and ``mtx`` (``.mtx``, ``.mm``: Matrix Market
    coordinates, documents in rows). Their words are looked for beside them, one per line, in
    ``NAME.vocab.txt``, ``vocab.NAME.txt`` and ``vocab.txt``. ``h5ad`` (AnnData: the whole numbers
    ``X``, the columns of ``obs`` as metadata, its index as ``id``, the names of ``var`` as words)
    and ``parquet`` (a row for each document, with a list ``words`` of strings or columns, a list
    ``counts`` if words are not repeated, and columns of metadata) have their words with them. They
    need h5py and pyarrow: ``pip install 'torch-lntm[files]'``.

    ``store``: the folder that ``Corpus.save`` and ``convert_corpus`` write. Its counts are mapped
    into memory and not read, so that a corpus may be larger than the memory.

    Texts: ``txt`` (a document per line), ``jsonl`` (an object per line), ``json`` (an array of
    objects), ``csv`` (``.csv``, ``.tsv``: records under a header), ``parquet`` (a row for each
    document, if ``text_field`` is given or there are no lists ``words``) and ``folder`` (a document
    per ``.txt`` file below it, labelled by the subfolder it is in).

    Labels come from ``NAME.labels.txt`` beside the file, one line per document, or with the texts.
    The other fields of records become columns of the corpus's ``metadata``; the columns of ``csv``
    that hold nothing but numbers become numbers. The files of a folder have their names, relative
    to the folder, in the column ``id``.

    Args:
        path: The file or folder.
        vocabulary: Words, or a file with one per line. For counts they name the columns; of texts
            they are the words to count, all others being dropped with a warning.
        format: One of the names above, where the file's name does not tell.
        labels: Labels, or a file with one per line, instead of those found.
        text_field: Field of ``jsonl`` and ``json``, or column of ``csv`` and ``parquet``, with the
            text. Defaults to ``text``, or to the only column of ``parquet``.
        label_field: Field or column with the label. If not given, ``label``, where there is one.
        encoding: Encoding of all text in files.
        delimiter: Character between the fields of ``csv``. If not given, it is the comma,
            semicolon, tab or bar under which the header has the column of the text.
        max_bytes: The most bytes to read, after decompression. Defaults to a third of the
            available memory. Compressed files are then also bounded by their size: up to 10 MiB on
            disk may unpack to 128 MiB, and each further byte to 100.
        **options: For texts, options of ``Corpus.from_texts``: ``stop_words``, ``min_df``,
            ``vectorizer`` and those of ``CountVectorizer``.

    Returns:
        The corpus, named after the file.

    Raises:
        CorpusError: A file is missing, malformed, truncated, too large or does not fit. The message
            names the file and the 1-based line, or the document and word.
    """
    source = open_source(
        path,
        vocabulary,
        format,
        labels,
        TextOptions(text_field, label_field, encoding, delimiter, max_bytes),
        options,
    )
    try:
        return source.read(options)
    except FileError:
        raise
    except CorpusError as error:
        raise CorpusError(f"{' with '.join(map(str, source.files))}: {error}") from error


@dataclass
class Source:
    """A file or folder of documents, with what comes with it.

    Attributes:
        path: The file or folder.
        format: Its format.
        is_text: Whether it holds texts, and not counts.
        options: How it is read.
        vocabulary: The words that were given, or found beside it.
        labels: The labels that were given, or found beside it.
        files: The file, and those of the vocabulary and the labels.
    """

    path: Path
    format: str
    is_text: bool
    options: TextOptions
    vocabulary: list[str] | None
    labels: Any
    files: list[Path]

    @property
    def name(self) -> str:
        """A name for the corpus."""
        return _name(self.path)

    @property
    def num_words(self) -> int | None:
        """Size of the vocabulary, where it is known."""
        return None if self.vocabulary is None else len(self.vocabulary)

    def read(self, options: Mapping[str, Any]) -> Corpus:
        """The corpus; options are those of ``Corpus.from_texts``."""
        about = {"vocabulary": self.vocabulary, "labels": self.labels, "name": self.name}
        if self.format == "store":
            return self._read_store()
        if self.format in CORPUS_READERS:
            return self._described(CORPUS_READERS[self.format](self.path, self.options))
        if self.is_text:
            stream = TextStream(self.path, self.format, self.options)
            texts = list(stream)
            return Corpus.from_texts(texts, metadata=stream.metadata, **about, **options)
        max_bytes = self.options.max_bytes
        if self.format == "npz":
            archive = read_archive(self.path, max_bytes)
            num_docs, num_words = archive.matrix.shape
            check_size(self.path, num_docs, num_words, archive.matrix.nnz, self.num_words)
        else:
            counts = STREAMS[self.format](self.path, self.num_words, max_bytes)
            archive = assemble(self.path, counts)
            about["vocabulary"] = self.vocabulary or counts.vocabulary
        corpus = Corpus.from_matrix(archive.matrix, metadata=archive.metadata, **about)
        return corpus.with_covariates(archive.covariates) if archive.covariates else corpus

    def _described(self, corpus: Corpus) -> Corpus:
        """The corpus of a registered reader, with the words and labels that were given."""
        if self.vocabulary is not None:
            words = check_vocabulary(self.vocabulary, corpus.num_words)
            corpus = dataclasses.replace(corpus, vocabulary=words)
        if self.labels is not None:
            corpus = corpus.with_metadata({"label": map(str, self.labels)})
        return dataclasses.replace(corpus, name=corpus.name or self.name)

    def _read_store(self) -> Corpus:
        store = read_store(self.path, self.options.max_bytes)
        words = store.vocabulary
        if self.vocabulary is not None:
            words = check_vocabulary(self.vocabulary, store.num_words)
        known = None if words is None else len(words)
        num_docs = store.row_offsets.size - 1
        check_size(self.path, num_docs, store.num_words, store.counts.size, known)
        corpus = Corpus(**{**store._asdict(), "vocabulary": words}, name=self.name)
        if self.labels is None:
            return corpus
        return corpus.with_metadata({"label": map(str, self.labels)})


def open_source(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None,
    format: str | None,
    labels: str | Path | Iterable[object] | None,
    options: TextOptions,
    of_texts: Iterable[str] = (),
) -> Source:
    """Finds out how a file or folder is to be read, and reads what lies beside it.

    Args:
        path: As for ``read_corpus``.
        vocabulary: As for ``read_corpus``.
        format: As for ``read_corpus``.
        labels: As for ``read_corpus``.
        options: How to read the file.
        of_texts: Names of the options that choose words of texts.

    Raises:
        CorpusError: There is no such file, or something that was given does not apply to it.
    """
    try:
        path = Path(path)
    except TypeError as error:
        how = counting_code(path) or "Corpus.from_texts(texts) or Corpus.from_matrix(counts)"
        raise CorpusError(
            f"expected the path of a file or folder, got a {type(path).__name__}; documents in "
            f"memory go to {how}"
        ) from error
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; check the path")
    format = find_format(path) if format is None else format
    if format not in known_formats():
        known = ", ".join(known_formats())
        raise CorpusError(f"{path}: unknown format {format!r}; give one of {known}")
    is_text = holds_texts(path, format, options.text_field)
    if not is_text and (names := ", ".join(of_texts)):
        raise CorpusError(
            f"{path}: {names} would choose the words of texts, but the format {format} holds "
            "counts; leave them out"
        )
    _check_applicable(path, format, is_text, options)
    if vocabulary is None and format in WITH_WORDS_BESIDE:
        vocabulary = _find_vocabulary(path, format)
    files = [path]
    if isinstance(vocabulary, (str, Path)):
        files.append(Path(vocabulary))
        vocabulary = _read_vocabulary(Path(vocabulary), options.encoding)
    labels = _find_labels(path) if labels is None else labels
    if isinstance(labels, (str, Path)):
        files.append(Path(labels))
        labels = read_lines(Path(labels), options.encoding)
    words = None if vocabulary is None else list(vocabulary)
    return Source(path, format, is_text, options, words, labels, files)


def _check_applicable(path: Path, format: str, is_text: bool, options: TextOptions) -> None:
    """Refuses options that the format cannot follow, which a user would think it does."""
    given = {
        "text_field": (options.text_field, WITH_FIELDS),
        "label_field": (options.label_field, WITH_FIELDS),
        "delimiter": (options.delimiter, ("csv",)),
    }
    for name, (value, formats) in given.items():
        if value is not None and not (is_text and format in formats):
            raise CorpusError(
                f"{path}: {name} is an option of {', '.join(formats)}; leave it out, the format is "
                f"{format}{', of counts' if format in formats else ''}"
            )


def _name(path: Path) -> str:
    """A corpus's name: its file's without ``docword.`` and the format's endings."""
    named = Path(os.path.abspath(path)).name  # that of . and .. is their folder's
    return Path(_unzipped(named)).stem.removeprefix("docword.")


def _unzipped(name: str) -> str:
    return name[:-3] if name.lower().endswith(".gz") else name


def find_format(path: Path) -> str:
    """The format that a path's name tells, as :func:`read_corpus` names it.

    Raises:
        CorpusError: The name tells none.
    """
    if path.is_dir():
        return "store" if is_store(path) else "folder"
    name = _unzipped(path.name).lower()
    if name.startswith("docword") and name.endswith(".txt"):
        return "uci"
    suffix = Path(name).suffix
    if suffix in _CONVERTED:
        raise CorpusError(f"{path}: {suffix} files cannot be read; {_CONVERTED[suffix]}")
    if suffix not in SUFFIXES:
        raise CorpusError(
            f"{path}: cannot tell the format from the ending {suffix!r}; "
            f"expected {', '.join(SUFFIXES)}, docword*.txt or a folder, or give format=..."
        )
    return SUFFIXES[suffix]


def holds_texts(path: Path, format: str, text_field: str | None) -> bool:
    """Whether a file or folder holds texts, whose words are chosen in reading, and not counts.

    Args:
        path: The file or folder.
        format: Its format. ``parquet`` may be of both kinds.
        text_field: The column of the texts, where it was named.

    Raises:
        CorpusError: A Parquet file is damaged.
    """
    if format == "parquet":
        return text_field is not None or not has_counts(path)
    return format in TEXT_READERS


def _find_vocabulary(path: Path, format: str) -> Path | None:
    """The file of words beside a file of counts."""
    name = _name(path)
    names = [f"{path.stem}.vocab.txt", f"{name}.vocab.txt"]
    if format != "npz":  # Corpus.save's format: another corpus's vocab.txt is not this one's
        names += [f"vocab.{name}.txt", "vocab.txt"]
    return _find_beside(path, names)


def _find_labels(path: Path) -> Path | None:
    """The file of labels beside a corpus."""
    return _find_beside(path, [f"{path.stem}.labels.txt", f"{_name(path)}.labels.txt"])


def _find_beside(path: Path, names: list[str]) -> Path | None:
    """The first file of some names in a path's folder."""
    beside = Path(os.path.abspath(path)).parent if path.name in ("", "..") else path.parent
    return next(filter(Path.is_file, (beside / name for name in names)), None)


def _read_vocabulary(path: Path, encoding: str) -> list[str]:
    """One word per line, none blank, none twice."""
    words = read_lines(path, encoding)
    first_line: dict[str, int] = {}
    for line, word in enumerate(words, 1):
        if not word.strip():
            raise at_line(path, line, "expected a word, got a blank line; remove it")
        if first_line.setdefault(word, line) != line:
            message = (
                f"the word {word!r} stands on line {first_line[word]} already; words must differ"
            )
            raise at_line(path, line, message)
    return words
