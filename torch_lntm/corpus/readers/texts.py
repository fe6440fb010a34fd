"""Readers of texts: lines, JSON, delimited fields, folders and rows of Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torch_lntm.corpus.metadata import EXACT_IN_FLOAT, listed
from torch_lntm.corpus.readers.tables import iterate_parquet
from torch_lntm.errors import CorpusError, CorpusWarning, FileError, warn
from torch_lntm.files import (
    at_line,
    check_proportion,
    excerpt,
    iterate_lines,
    read_text,
    read_text_pieces,
    readable_bytes,
)

_DELIMITERS = ",;\t|"
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING_NUMBERS = ("NA", "NaN", "nan")
# Any table may have _FREE_CELLS cells, larger tables _CELLS_PER_VALUE cells per value.
_FREE_CELLS, _CELLS_PER_VALUE = 10**6, 100
#: The number of documents is checked at multiples of this number.
_DOCUMENTS = 1 << 16
#: Maximum number of fields of a record, and of characters of a JSON object. Both take far more
#: memory than their bytes on disk.
_MOST_FIELDS, _MOST_CHARACTERS = 10_000, 32 << 20
_TOO_LONG = f"an object of more than {_MOST_CHARACTERS} characters"
_JSON = json.JSONDecoder()
#: Maximum length of a JSON number or constant. An error this close to the end of the text in memory
#: may be due to a cut value.
_LONGEST_SIGN = 32
#: Lock of Python's limit on the length of CSV fields.
_CSV_LIMIT = threading.RLock()
#: Maximum number of lines of a CSV header.
_HEADER_LINES = 1000


@dataclass(frozen=True)
class TextOptions:
    """Options of reading texts; see ``read_corpus``.

    Attributes:
        text_field: Field with the text. Defaults to "text".
        label_field: Required field with the label. Defaults to an optional field "label".
        encoding: Encoding of the file.
        delimiter: Character between the fields of ``csv``. Defaults to the delimiter that fits the
            header.
        max_bytes: Maximum number of bytes to read.
    """

    text_field: str | None = None
    label_field: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    max_bytes: float | None = None


#: A document's place in the file, for messages, and its fields.
Record = tuple[str, dict[str, Any]]


class TextStream:
    """Stream of texts, with columns of metadata.

    Args:
        path: The file or folder.
        format: A format of ``TEXT_READERS``.
        options: Options of reading.

    Attributes:
        metadata: Columns by name with a value for each text, complete after the first pass.
    """

    def __init__(self, path: Path, format: str, options: TextOptions) -> None:
        self.path, self.format, self.options = path, format, options
        self.metadata: dict[str, list[Any]] = {}
        self._complete = False

    def __iter__(self) -> Iterator[str]:
        """Reads the file from the start. Every pass must give the same texts.

        Raises:
            FileError: The file is missing, malformed, truncated, too large or empty.
        """
        text_field = self.options.text_field or "text"
        columns = _Columns(self.path, self.options)
        are_numbers = set()
        records = TEXT_READERS[self.format](self.path, self.options)
        for num_docs, (place, record) in enumerate(records, 1):
            if num_docs % _DOCUMENTS == 0:
                check_proportion(self.path, num_docs, "documents", 4)
            text = record.get(text_field)
            if text is None and text_field in record:
                text = ""  # like an empty field of csv
            if not isinstance(text, str):
                raise FileError(
                    f"{self.path}, {place}: expected a text in the field {text_field!r}, got "
                    f"{text!r:.60}; the fields are {listed(record)}; choose by text_field"
                )
            if not self._complete:
                columns.add(place, record, text_field)
            if text:
                are_numbers.add(_DECIMAL.fullmatch(text) is not None)
            yield text
        if are_numbers == {True} and self.format in WITH_FIELDS:
            raise FileError(
                f"{self.path}: the field {text_field!r} holds numbers, not texts; choose another "
                f"by text_field: the fields are {listed([text_field, *columns.names])}"
            )
        if not self._complete:
            self.metadata = columns.finished(text_field)
            if self.format == "csv":
                self.metadata = _with_numbers(self.metadata)
            self._complete = True


# -------------------------------------------------------------------- lines and folders


def read_txt(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a document per line."""
    line = 0
    for line, text in enumerate(iterate_lines(path, options.encoding, options.max_bytes), 1):
        yield f"line {line}", {"text": text}
    if not line:
        raise FileError(f"{path}: is empty; expected a document in each line")


def read_folder(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a document per ``.txt`` file, with the file's name as id and its subfolder as label.

    Folders behind symbolic links are included. Each folder is read once.
    """
    files: list[Path] = []
    skipped: Counter[str] = Counter()
    for file in _files_below(path):
        if file.suffix.lower() == ".txt" and file.is_file():
            files.append(file)
        elif file.name.startswith("."):
            continue
        elif file.suffix.lower() == ".txt":
            skipped["are broken links or no regular files"] += 1
        else:
            skipped["do not end in .txt"] += 1
    reasons = " and ".join(f"{number} that {reason}" for reason, number in skipped.items())
    if not files:
        content = f"found files: {reasons}" if skipped else "found none"
        raise FileError(f"{path}: expected a folder of .txt files, {content}")
    if skipped:
        warn(f"{path}: skipped files: {reasons}", CorpusWarning)
    files.sort()
    left = readable_bytes() if options.max_bytes is None else options.max_bytes
    for file in files:
        relative = file.relative_to(path)
        label = "" if relative.parent == Path() else relative.parent.as_posix()
        text = read_text(file, options.encoding, left)
        left -= file.stat().st_size
        yield str(relative), {"text": text, "id": relative.as_posix(), "label": label}


def _files_below(path: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders. Each folder is visited once."""
    seen: set[tuple[int, int]] = set()
    for name, folders, names in os.walk(path, followlinks=True):
        about = os.stat(name)
        if (about.st_dev, about.st_ino) in seen:
            folders.clear()  # reached again by a link
            continue
        seen.add((about.st_dev, about.st_ino))
        folders.sort()
        yield from (Path(name, file_name) for file_name in names)


# -------------------------------------------------------------------- records


def read_jsonl(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a JSON object per line. Blank lines are skipped."""
    for line, text in enumerate(iterate_lines(path, options.encoding, options.max_bytes), 1):
        if text.strip():
            yield f"line {line}", _object(path, f"line {line}", _parse(path, line, text))


def read_json(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields the objects of a JSON array. Memory holds a part of the array."""
    text = _JsonText(path, read_text_pieces(path, options.encoding, options.max_bytes))
    if (sign := text.next_sign()) != "[":
        got = "a dict" if sign == "{" else excerpt(text.rest)
        raise FileError(
            f"{path}: expected an array of JSON objects, got {got}; "
            "of one object per line, give format='jsonl'"
        )
    for i in itertools.count(1):
        text.skip()
        if i == 1 and text.next_sign() == "]":
            break
        yield f"record {i}", _object(path, f"record {i}", text.next_value())
        if (sign := text.next_sign()) == "]":
            break
        if sign != ",":
            raise text.error("expected a comma or the end of the array")
    text.skip()
    if text.next_sign():
        raise text.error("expected nothing behind the array")


class _JsonText:
    """JSON text for reading value by value.

    Args:
        path: The file.
        pieces: The text in pieces.
    """

    def __init__(self, path: Path, pieces: Iterator[str]) -> None:
        self._path, self._pieces = path, pieces
        self._held, self._at, self._line = "", 0, 1

    @property
    def rest(self) -> str:
        """Unread text in memory."""
        return self._held[self._at :]

    def skip(self) -> None:
        """Skips the next character."""
        self._at += 1

    def next_sign(self) -> str:
        """Moves to the next non-blank character and returns it; an empty string at the end."""
        while True:
            while self._at < len(self._held):
                if (sign := self._held[self._at]) not in " \t\n\r":
                    return sign
                self._at += 1
            if not self._grow():
                return ""

    def next_value(self) -> Any:
        """Next value. Reads on until the complete value is in memory."""
        self.next_sign()
        while True:
            try:
                value, self._at = _JSON.raw_decode(self._held, self._at)
            except (ValueError, RecursionError) as error:
                if not self._is_cut(error) or not self._grow():
                    raise self.error(error) from error
            else:
                return value

    def error(self, error: Exception | str) -> FileError:
        """Error with the current line of the text."""
        at = getattr(error, "pos", self._at)
        line = self._line + self._held.count("\n", 0, at)
        return _no_json(self._path, line, getattr(error, "msg", error), self.rest)

    def _is_cut(self, error: Exception) -> bool:
        """Whether the value may be cut at the end of the text in memory."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.pos > len(self._held) - _LONGEST_SIGN or error.msg.startswith("Unterminated")

    def _grow(self) -> bool:
        """Doubles the unread text in memory. Returns ``False`` at the end of the file."""
        rest = self.rest
        if len(rest) > _MOST_CHARACTERS:
            raise self.error(_TOO_LONG)
        more, size = [], 0
        limit = min(len(rest), _MOST_CHARACTERS - len(rest))
        while size <= limit and (piece := next(self._pieces, "")):
            more.append(piece)
            size += len(piece)
        self._line += self._held.count("\n", 0, self._at)
        self._held, self._at = "".join([rest, *more]), 0
        return size > 0


def _parse(path: Path, line: int, text: str) -> Any:
    if len(text) > _MOST_CHARACTERS:
        raise _no_json(path, line, _TOO_LONG, text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(path, line, getattr(error, "msg", error), text) from error


def _no_json(path: Path, line: int, reason: object, text: str) -> FileError:
    return at_line(path, line, f"not JSON ({reason}): {excerpt(text)}")


def _object(path: Path, place: str, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(f"{path}, {place}: expected a JSON object, got {excerpt(str(record))}")
    return record


def read_csv(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields delimited records under a header. Quoted fields may contain line breaks."""
    lines = _csv_lines(path, options)
    first = list(itertools.islice(lines, _HEADER_LINES))
    try:
        delimiter = options.delimiter or _find_delimiter(first, options.text_field or "text")
        yield from _csv_records(path, itertools.chain(first, lines), delimiter)
    except TypeError as error:
        raise CorpusError(f"delimiter must be one character, got {options.delimiter!r}") from error


def read_metadata(path: str | Path, encoding: str = "utf-8") -> dict[str, Any]:
    r"""Reads the columns of a CSV file with a header and a record for each document, in order.

    The delimiter is the first of comma, semicolon, tab and bar with 2 or more fields in the header.

    Args:
        path: The file. It may be gzipped.
        encoding: Encoding of the file.

    Returns:
        Columns by name, for ``Corpus.with_metadata``. Columns of numbers become numbers.

    Raises:
        CorpusError: The file is missing, malformed, too large or empty.

    Example:
        >>> from pathlib import Path
        >>> size = Path("columns.csv").write_text("party,year\nleft,1990\nright,2000\n")
        >>> lntm.corpus.read_metadata("columns.csv")["party"]
        ['left', 'right']
    """
    options = TextOptions(encoding=encoding)
    columns = _Columns(Path(path), options)
    lines = _csv_lines(Path(path), options)
    first = list(itertools.islice(lines, _HEADER_LINES))
    delimiter = _find_delimiter(first, None)
    # No column has an empty name, so every column counts.
    for place, record in _csv_records(Path(path), itertools.chain(first, lines), delimiter):
        columns.add(place, record, "")
    return _with_numbers(columns.finished(""))


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    """Next record, with fields of any length; ``None`` at the end.

    Python's limit on the length of fields holds for the whole process. It is raised for a single
    row and restored, so the rest of the process keeps its limit.
    """
    with _CSV_LIMIT:
        limit = csv.field_size_limit(2**31 - 1)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(limit)


def _csv_lines(path: Path, options: TextOptions) -> Iterator[str]:
    """Lines with their ends, for Python's ``csv.reader``."""
    for line in iterate_lines(path, options.encoding, options.max_bytes):
        # An unquoted carriage return ends a line.
        yield from io.StringIO(f"{line}\n", newline="") if "\r" in line else (f"{line}\n",)


def _find_delimiter(lines: list[str], text_field: str | None) -> str:
    """First delimiter that gives the header the field of the text. Defaults to a comma.

    Without a field, the first delimiter that gives the header 2 or more fields.
    """
    for delimiter in _DELIMITERS:
        try:
            header = _next_row(csv.reader(lines, delimiter=delimiter)) or []
        except csv.Error:
            continue
        if len(header) > 1 if text_field is None else text_field in header:
            return delimiter
    return ","


def _csv_records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[Record]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        while (row := _next_row(reader)) is not None:
            if header is None and row:
                header = [name if name.strip() else f"column_{i}" for i, name in enumerate(row, 1)]
                _check_header(path, line, header)
            elif header is not None and row and len(row) != len(header):
                message = f"expected {len(header)} fields as in the header, got {len(row)}"
                raise at_line(
                    path,
                    line,
                    f"{message}, separated by {delimiter!r}; quote fields that hold it, or give "
                    "another delimiter",
                )
            elif header is not None and row:
                yield f"line {line}", dict(zip(header, row, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise at_line(
            path, line, f"not a CSV record with the delimiter {delimiter!r}: {error}"
        ) from error
    if header is None:
        raise FileError(f"{path}: is empty; expected a header and a record for each document")


def _check_header(path: Path, line: int, header: list[str]) -> None:
    """Checks for repeated names and for a plausible number of columns."""
    repeated = sorted(name for name, times in Counter(header).items() if times > 1)
    if repeated:
        message = f"columns must have different names, got {listed(repeated)} twice"
        raise at_line(path, line, f"{message}; rename or remove one")
    _check_fields(path, f"line {line}", header)


def _check_fields(path: Path, place: str, fields: Sized) -> None:
    if len(fields) > _MOST_FIELDS:
        raise FileError(
            f"{path}, {place}: expected at most {_MOST_FIELDS} fields, got {len(fields)}; leave "
            "out fields without information about documents"
        )


class _Columns:
    """Columns of all fields except the text.

    Labels are text, even if the file has numbers. The column is omitted if all labels are missing.
    """

    def __init__(self, path: Path, options: TextOptions) -> None:
        self._path, self._options = path, options
        self._label_field = options.label_field or "label"
        self._columns: dict[str, list[Any]] = {}
        self._labels: list[str] = []
        self._num_values = 0

    def add(self, place: str, record: dict[str, Any], text_field: str) -> None:
        """Appends the fields of a document."""
        num_docs = len(self._labels)
        for name in record:
            if name not in self._columns and name != text_field:
                self._columns[name] = [None] * num_docs
        self._num_values += len(record)
        _check_fields(self._path, place, self._columns)
        check_proportion(self._path, self._num_values, "values")
        limit = max(_FREE_CELLS, _CELLS_PER_VALUE * self._num_values)
        if len(self._columns) * num_docs > limit:
            raise FileError(
                f"{self._path}, {place}: the records have {len(self._columns)} different fields, "
                "nearly all of them missing in most; put the varying fields into a single field"
            )
        for name, values in self._columns.items():
            values.append(record.get(name))
        label = record.get(self._label_field)
        label = "" if label is None else label
        self._labels.append("|".join(map(str, label)) if isinstance(label, list) else str(label))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def finished(self, text_field: str) -> dict[str, list[Any]]:
        """Columns of all documents."""
        if not self._labels:
            raise FileError(f"{self._path}: holds no document; expected a record for each document")
        if self._options.label_field is not None and self._label_field not in {
            *self._columns,
            text_field,
        }:
            raise FileError(
                f"{self._path}: no record has the field {self._label_field!r}; the fields are "
                f"{listed([text_field, *self._columns])}; choose by label_field"
            )
        self._columns.pop("label", None)
        if any(self._labels):
            self._columns["label"] = self._labels
        return self._columns


def _with_numbers(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Converts columns of numbers, except the label."""
    return {
        name: values if name == "label" else _numbers(values) for name, values in columns.items()
    }


def _numbers(values: list[Any]) -> Any:
    """Converts a column of strings to numbers if every present value is a number.

    Empty strings are missing values. Numbers with leading zeros or a plus sign are codes and stay
    text. ``NA`` and ``NaN`` are missing values in a column of numbers, and words in a column of
    text. Integers with missing values become floats, or stay text if floats would round them.
    """
    present = set(values).difference(_MISSING_NUMBERS, ("", None))
    if not present or not all(map(_DECIMAL.fullmatch, present)):
        return [value or None for value in values]
    all_integers = all(map(_INTEGER.fullmatch, present))
    numbers = {text: int(text) if all_integers else float(text) for text in present}
    if all_integers and present.issuperset(values):
        return np.array([numbers[text] for text in values], np.int64)
    if all_integers and max(map(abs, numbers.values())) > EXACT_IN_FLOAT:
        return [text if text in present else None for text in values]
    return np.array([numbers.get(text, math.nan) for text in values], np.float64)


def read_parquet(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a document per row of a Parquet file."""
    return iterate_parquet(path, options.text_field, options.max_bytes)


RecordReader = Callable[[Path, TextOptions], Iterator[Record]]
#: Functions by format that yield records from a path and options.
TEXT_READERS: dict[str, RecordReader] = {
    "txt": read_txt,
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "folder": read_folder,
    "parquet": read_parquet,
}
#: Formats of records with fields.
WITH_FIELDS = ["jsonl", "json", "csv", "parquet"]
