"""read_corpus: corpora from files and folders, by format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.files import (
    at_line,
    excerpt,
    read_arrays,
    read_bytes,
    read_lines,
    read_text,
)
from torch_lntm.errors import CorpusError

_SUFFIXES = {
    ".npz": "npz",
    ".ldac": "ldac",
    ".dat": "ldac",
    ".mtx": "mtx",
    ".mm": "mtx",
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".csv": "csv",
}
_NATURAL = rb"\d{1,18}"  # fits an int64
_LDAC_LINE = re.compile(rb"\s*%s(?:\s+%s:%s)*\s*" % (_NATURAL, _NATURAL, _NATURAL))
_COORDINATES = rb"\s*%s\s+%s" % (_NATURAL, _NATURAL)
_COORDINATE_LINES = {
    "pattern": re.compile(_COORDINATES + rb"\s*"),
    "integer": re.compile(_COORDINATES + rb"\s+%s\s*" % _NATURAL),
    "real": re.compile(_COORDINATES + rb"\s+\d+(?:\.\d*)?(?:[eE]\+?\d+)?\s*"),
}
_MATRIX_MARKET_BANNER = re.compile(
    rb"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+general\s*", re.IGNORECASE
)


def read_corpus(
    path: str | Path,
    vocabulary: str | Path | Iterable[str] | None = None,
    format: str | None = None,
    labels: str | Path | Iterable[object] | None = None,
    *,
    text_field: str = "text",
    label_field: str = "label",
    encoding: str = "utf-8",
    **options: Any,
) -> Corpus:
    """Reads a corpus from a file, which may be gzipped (``.gz``), or from a folder.

    Word counts: ``npz`` (the CSR arrays data, indices, indptr and shape, as ``Corpus.save`` writes
    them), ``ldac`` (``.ldac``, ``.dat``: ``M word:count ...`` per line, words from 0), ``uci``
    (``docword*.txt``) and ``mtx`` (``.mtx``, ``.mm``: Matrix Market coordinates, documents in
    rows). Their words are looked for beside them, one per line, in ``NAME.vocab.txt``,
    ``vocab.NAME.txt`` and ``vocab.txt``.

    Texts: ``txt`` (a document per line), ``jsonl`` (an object per line), ``csv`` (with a header)
    and ``folder`` (a document per ``.txt`` file below it, labelled by the subfolder it is in).

    Labels come from ``NAME.labels.txt`` beside the file, one line per document, or with the texts.

    Args:
        path: The file or folder.
        vocabulary: Words, or a file with one per line. For counts they name the columns; of texts
            they are the words to count, all others being dropped with a warning.
        format: One of the names above, where the file's name does not tell.
        labels: Labels, or a file with one per line, instead of those found.
        text_field: Field of ``jsonl`` or column of ``csv`` with the text.
        label_field: Field or column with the label, where there is one.
        encoding: Of all text in files.
        **options: For texts, ``CountVectorizer`` options such as ``stop_words="english"``.

    Returns:
        The corpus, named after the file.

    Raises:
        CorpusError: A file is missing, malformed, truncated or does not fit. The message names the
            file and the 1-based line, or the document and word.
    """
    path = Path(path)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; check the path")
    format = find_format(path) if format is None else format
    if format not in _COUNT_READERS and format not in _TEXT_READERS:
        known = ", ".join([*_COUNT_READERS, *_TEXT_READERS])
        raise CorpusError(f"{path}: unknown format {format!r}; give one of {known}")
    if format in _COUNT_READERS and options:
        raise CorpusError(
            f"{path}: {', '.join(options)} would choose the words of texts, but the format "
            f"{format} holds counts; leave them out"
        )
    if vocabulary is None and format in _COUNT_READERS:
        vocabulary = _find_vocabulary(path, format)
    if labels is None:
        labels = _find_labels(path)

    sources = [path]
    if isinstance(vocabulary, (str, Path)):
        sources.append(Path(vocabulary))
        vocabulary = _read_vocabulary(Path(vocabulary), encoding)
    elif vocabulary is not None:
        vocabulary = list(vocabulary)
    if isinstance(labels, (str, Path)):
        sources.append(Path(labels))
        labels = read_lines(Path(labels), encoding)

    make: Callable[..., Corpus]
    if format in _COUNT_READERS:
        num_words = None if vocabulary is None else len(vocabulary)
        make = partial(Corpus.from_matrix, _COUNT_READERS[format](path, num_words))
    else:
        texts, found = _TEXT_READERS[format](path, text_field, label_field, encoding)
        labels = found if labels is None else labels
        make = partial(Corpus.from_texts, texts, **options)
    try:
        return make(vocabulary=vocabulary, labels=labels, name=_name(path))
    except CorpusError as error:
        raise CorpusError(f"{' with '.join(map(str, sources))}: {error}") from error


def _name(path: Path) -> str:
    """A corpus's name: its file's without ``docword.`` and the format's endings."""
    return Path(path.name.removesuffix(".gz")).stem.removeprefix("docword.")


def find_format(path: Path) -> str:
    """The format that a path's name tells, as :func:`read_corpus` names it.

    Raises:
        CorpusError: The name tells none.
    """
    if path.is_dir():
        return "folder"
    name = path.name.removesuffix(".gz")
    if name.startswith("docword") and name.endswith(".txt"):
        return "uci"
    suffix = Path(name).suffix
    if suffix not in _SUFFIXES:
        raise CorpusError(
            f"{path}: cannot tell the format from the ending {suffix!r}; "
            f"expected {', '.join(_SUFFIXES)}, docword*.txt or a folder, or give format=..."
        )
    return _SUFFIXES[suffix]


def _find_vocabulary(path: Path, format: str) -> Path | None:
    """The file of words beside a file of counts."""
    name = _name(path)
    names = [f"{path.stem}.vocab.txt", f"{name}.vocab.txt"]
    if format != "npz":  # Corpus.save's format: another corpus's vocab.txt is not this one's
        names += [f"vocab.{name}.txt", "vocab.txt"]
    return next(filter(Path.is_file, map(path.with_name, names)), None)


def _find_labels(path: Path) -> Path | None:
    """The file of labels beside a corpus."""
    names = [f"{path.stem}.labels.txt", f"{_name(path)}.labels.txt"]
    return next(filter(Path.is_file, map(path.with_name, names)), None)


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


# -------------------------------------------------------------------- word counts


def _read_npz(path: Path, num_words: int | None) -> sp.csr_matrix:
    """The arrays of a scipy CSR matrix, with or without scipy's own ``format`` entry."""
    arrays = read_arrays(path, "data", "indices", "indptr", "shape")
    data, indices, indptr = arrays["data"], arrays["indices"], arrays["indptr"]
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise CorpusError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    if {indices.dtype.kind, indptr.dtype.kind, arrays["shape"].dtype.kind} - {"i", "u"}:
        raise CorpusError(f"{path}: indices, indptr and shape must be integers")
    if arrays["shape"].shape != (2,) or not indptr.size or indptr[-1] != data.size:
        raise CorpusError(
            f"{path}: expected a shape of two numbers and an indptr that ends with the number of "
            f"entries, got shape {arrays['shape'].tolist()}, indptr {indptr[-1:].tolist()} and "
            f"{data.size} entries"
        )
    try:
        return sp.csr_matrix((data, indices, indptr), arrays["shape"].tolist())
    except ValueError as error:
        raise CorpusError(f"{path}: the matrix is malformed: {error}") from error


def _read_ldac(path: Path, num_words: int | None) -> sp.coo_matrix:
    """LDA-C: each line has the number of distinct words, then ``word:count`` pairs."""
    data = read_bytes(path).rstrip()
    lines = data.split(b"\n")
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    _check_lines(path, lines, _LDAC_LINE, expected, first_line=1)
    num_pairs = np.array([line.count(b":") for line in lines])
    numbers = np.fromstring(data.replace(b":", b" "), np.int64, sep=" ")
    heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
    wrong = np.flatnonzero(numbers[heads] != num_pairs)
    if wrong.size:
        d = wrong[0]
        message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}; is it truncated?"
        raise at_line(path, int(d) + 1, message)
    words, counts = np.delete(numbers, heads).reshape(-1, 2).T
    rows = np.repeat(np.arange(len(lines)), num_pairs)
    num_words = int(words.max(initial=-1)) + 1 if num_words is None else num_words
    outside = np.flatnonzero(words >= num_words)
    if outside.size:
        i = outside[0]
        message = f"word {words[i]} is not among the {num_words} of the vocabulary (0 is the first)"
        raise at_line(path, int(rows[i]) + 1, message)
    return sp.coo_matrix((counts, (rows, words)), (len(lines), num_words))


def _read_uci(path: Path, num_words: int | None) -> sp.coo_matrix:
    """UCI: lines with D, W and the number of entries, then ``document word count`` from 1."""
    lines = read_bytes(path).rstrip().split(b"\n")
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        text = lines[line - 1] if line <= len(lines) else b""
        if not re.fullmatch(rb"\s*%s\s*" % _NATURAL, text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
    return _coordinates(path, lines[3:], 4, "integer", b" ".join(lines[:3]))


def _read_matrix_market(path: Path, num_words: int | None) -> sp.coo_matrix:
    """Matrix Market coordinates.

    Not by scipy's reader, which takes ``2.5`` for 2 in a file of integers and overlooks whatever
    follows the count on a line.
    """
    lines = read_bytes(path).rstrip().split(b"\n")
    banner = _MATRIX_MARKET_BANNER.fullmatch(lines[0])
    if banner is None:
        raise at_line(
            path,
            1,
            "expected '%%MatrixMarket matrix coordinate integer general' (or real, or pattern), "
            f"got {excerpt(lines[0])}",
        )
    size = 1
    while size < len(lines) and (lines[size].startswith(b"%") or not lines[size].strip()):
        size += 1
    text = lines[size] if size < len(lines) else b""
    if not _COORDINATE_LINES["integer"].fullmatch(text):
        message = f"expected the numbers of rows, columns and entries, got {excerpt(text)}"
        raise at_line(path, size + 1, message)
    return _coordinates(path, lines[size + 1 :], size + 2, banner[1].decode().lower(), text)


def _coordinates(
    path: Path, lines: list[bytes], first_line: int, field: str, size: bytes
) -> sp.coo_matrix:
    """The matrix of lines ``row column count`` (of a pattern, ``row column``), counted from 1."""
    num_rows, num_columns, num_entries = map(int, size.split())
    expected = "expected 'document word count' with whole numbers from 0 up"
    _check_lines(path, lines, _COORDINATE_LINES[field], expected, first_line)
    if len(lines) != num_entries:
        message = f"ends after {len(lines)} of {num_entries} announced entries"
        raise at_line(path, first_line + len(lines) - 1, f"{message}; is it truncated?")
    dtype = np.float64 if field == "real" else np.int64
    columns_per_line = 2 if field == "pattern" else 3
    entries = np.fromstring(b"\n".join(lines), dtype, sep=" ").reshape(-1, columns_per_line)
    rows, columns = entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)
    counts = np.ones(num_entries) if field == "pattern" else entries[:, 2]
    for what, position, size_ in (("document", rows, num_rows), ("word", columns, num_columns)):
        outside = np.flatnonzero((position < 1) | (position > size_))
        if outside.size:
            i = int(outside[0])
            message = f"{what} {position[i]} is not among the announced 1 to {size_}"
            raise at_line(path, first_line + i, message)
    fractional = np.flatnonzero(counts != np.floor(counts))
    if fractional.size:
        i = int(fractional[0])
        raise at_line(path, first_line + i, f"expected a whole count, got {counts[i]}")
    return sp.coo_matrix((counts, (rows - 1, columns - 1)), (num_rows, num_columns))


def _check_lines(
    path: Path, lines: list[bytes], pattern: re.Pattern[bytes], expected: str, first_line: int
) -> None:
    """Raises for the first line that does not match."""
    if not all(map(pattern.fullmatch, lines)):
        for line, text in enumerate(lines, first_line):
            if not pattern.fullmatch(text):
                raise at_line(path, line, f"{expected}, got {excerpt(text)}")


_COUNT_READERS = {
    "npz": _read_npz,
    "ldac": _read_ldac,
    "uci": _read_uci,
    "mtx": _read_matrix_market,
}


# -------------------------------------------------------------------- texts

_Texts = tuple[list[str], "list[str] | None"]


def _read_txt(path: Path, text_field: str, label_field: str, encoding: str) -> _Texts:
    """A document per line."""
    return read_lines(path, encoding), None


def _read_folder(path: Path, text_field: str, label_field: str, encoding: str) -> _Texts:
    """A document per file; the label is the subfolder."""
    files = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise CorpusError(f"{path}: expected a folder of .txt files, found none")
    folders = [
        "" if file.parent == path else file.parent.relative_to(path).as_posix() for file in files
    ]
    return [read_text(file, encoding) for file in files], folders if any(folders) else None


def _read_jsonl(path: Path, text_field: str, label_field: str, encoding: str) -> _Texts:
    """A JSON object per line; blank lines are skipped."""

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        for line, text in enumerate(read_lines(path, encoding), 1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", error)
                raise at_line(path, line, f"not JSON ({reason}): {excerpt(text)}") from error
            if not isinstance(record, dict):
                raise at_line(path, line, f"expected a JSON object, got {excerpt(text)}")
            yield line, record

    return _from_records(path, records(), text_field, label_field)


def _read_csv(path: Path, text_field: str, label_field: str, encoding: str) -> _Texts:
    """Comma-separated records under a header; a quoted field may go over several lines."""

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        reader = csv.reader(io.StringIO(read_text(path, encoding), newline=""), strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for row in reader:
                if header is None:
                    header = row
                elif row and len(row) != len(header):
                    message = f"expected {len(header)} fields as in the header, got {len(row)}"
                    raise at_line(path, line, f"{message}; quote fields that hold commas")
                elif row:
                    yield line, dict(zip(header, row, strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            raise at_line(path, line, f"not a CSV record: {error}") from error

    limit = csv.field_size_limit(2**31 - 1)  # the default refuses long documents
    try:
        return _from_records(path, records(), text_field, label_field)
    finally:
        csv.field_size_limit(limit)


def _from_records(
    path: Path, records: Iterable[tuple[int, dict[str, Any]]], text_field: str, label_field: str
) -> _Texts:
    """Texts and labels of numbered records; a missing label is empty, no label at all None."""
    texts, labels = [], []
    for line, record in records:
        text = record.get(text_field)
        if not isinstance(text, str):
            raise at_line(
                path,
                line,
                f"expected a text in the field {text_field!r}, got {text!r:.60}; "
                f"the fields are {', '.join(record)}; choose by text_field",
            )
        label = record.get(label_field)
        label = "" if label is None else label
        texts.append(text)
        labels.append("|".join(map(str, label)) if isinstance(label, list) else str(label))
    return texts, labels if any(labels) else None


_TEXT_READERS = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "folder": _read_folder,
}

#: Formats that hold texts, whose words are chosen in reading, instead of counts.
TEXT_FORMATS = frozenset(_TEXT_READERS)
