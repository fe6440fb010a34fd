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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from torch_lntm.corpus.metadata import EXACT_IN_FLOAT, listed
from torch_lntm.corpus.readers.tables import ParquetFiles
from torch_lntm.errors import CorpusError, CorpusWarning, FileError, warn
from torch_lntm.files.reading import (
    LONGEST,
    at_line,
    excerpt,
    iterate_lines,
    read_text,
    readable_bytes,
)

_DELIMITERS = ",;\t|"
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_DECIMAL = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING_NUMBERS = ("NA", "NaN", "nan")
#: Maximum number of fields of a record, and number of records whose fields become a table at once.
_MOST_FIELDS, _ROWS = 10_000, 4096
#: Any table may have _FREE_CELLS cells, larger tables ten per value.
_FREE_CELLS = 10**7
#: Lock of Python's limit on the length of CSV fields, which holds for the whole process.
_CSV_LIMIT = threading.RLock()
#: Maximum number of lines of a CSV header.
_HEADER_LINES = 100


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

    @property
    def finite_bytes(self) -> float | None:
        """``max_bytes`` for contents that memory has to hold as a whole."""
        return None if self.max_bytes == math.inf else self.max_bytes


#: A document's place in the file, for messages, and its fields.
Record = tuple[str, dict[str, Any]]


class TextStream:
    """Stream of texts, with columns of metadata.

    Args:
        path: The file or folder.
        format: A format of ``TEXT_READERS``.
        options: Options of reading.

    Attributes:
        metadata: Columns with a row for each text, complete after the first pass.
        labels: The label of each text, if any.
    """

    def __init__(self, path: Path, format: str, options: TextOptions) -> None:
        self.path, self.format, self.options = path, format, options
        self.metadata: pd.DataFrame | None = None
        self.labels: list[Any] | None = None

    def __iter__(self) -> Iterator[str]:
        """Reads the file from the start. Every pass must give the same texts.

        Raises:
            FileError: The file is missing, malformed, truncated, too large or empty.
        """
        field = self.options.text_field or "text"
        rows: list[dict[str, Any]] = []
        parts: list[pd.DataFrame] = []
        only_numbers, some_text = self.format not in WITHOUT_FIELDS, False
        for place, record in TEXT_READERS[self.format](self.path, self.options):
            text = self._text(place, record, field)
            if text and only_numbers:
                only_numbers, some_text = _DECIMAL.fullmatch(text) is not None, True
            if self.metadata is None:
                rows.append(record)
                if len(rows) == _ROWS:
                    parts.append(pd.DataFrame(rows, dtype=object))
                    rows = []
            yield text
        if only_numbers and some_text:
            fields = listed([field, *parts[0]] if parts else [field, *record])
            raise FileError(
                f"{self.path}: the field {field!r} holds numbers, not texts; choose another by "
                f"text_field: the fields are {fields}"
            )
        if self.metadata is None:
            self._finish([*parts, pd.DataFrame(rows, dtype=object)] if rows else parts, field)

    def _text(self, place: str, record: dict[str, Any], field: str) -> str:
        """Takes the text out of a record."""
        text = record.get(field)
        if text is None and field in record:
            text = ""  # like an empty field of csv
        if not isinstance(text, str):
            hint = "; the first line must name the columns" if self.format == "csv" else ""
            raise FileError(
                f"{self.path}, {place}: expected a text in the field {field!r}, got {text!r:.60}; "
                f"the fields are {listed(record)}; choose by text_field{hint}"
            )
        if len(text) > LONGEST:
            raise FileError(f"{self.path}, {place}: has more than {LONGEST} characters; divide it")
        del record[field]
        return text

    def _finish(self, parts: list[pd.DataFrame], field: str) -> None:
        """Joins the columns of all records, and takes out the labels."""
        names = dict.fromkeys(name for part in parts for name in part)
        num_docs, num_cells = sum(map(len, parts)), sum(part.size for part in parts)
        if not num_docs:
            raise FileError(f"{self.path}: holds no document; expected a record for each document")
        if len(names) > _MOST_FIELDS or len(names) * num_docs > _FREE_CELLS + 10 * num_cells:
            raise FileError(
                f"{self.path}: the records have {len(names)} different fields, more than 10000 or "
                "nearly all missing in most; put the varying fields into a single field"
            )
        label = self.options.label_field or "label"
        if self.options.label_field is not None and label not in names:
            raise FileError(
                f"{self.path}: no record has the field {label!r}; the fields are "
                f"{listed([field, *names])}; choose by label_field"
            )
        frame = pd.concat(parts, ignore_index=True)
        labels = [None if x == "" else x for x in frame[label]] if label in names else []
        self.labels = labels if pd.Series(labels, dtype=object).notna().any() else None
        frame = frame.drop(columns="label", errors="ignore")
        self.metadata = with_types(frame) if self.format == "csv" else frame


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
    others = [file for file in _files_below(path) if not file.name.startswith(".")]
    files = sorted(f for f in others if f.suffix.lower() == ".txt" and f.is_file())
    skipped = len(others) - len(files)
    reason = f"{skipped} that do not end in .txt, are broken links or no regular files"
    if not files:
        content = f"found files: {reason}" if skipped else "found none"
        raise FileError(f"{path}: expected a folder of .txt files, {content}")
    if skipped:
        warn(f"{path}: skipped files: {reason}", CorpusWarning)
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


# -------------------------------------------------------------------- JSON


def read_jsonl(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a JSON object per line. Blank lines are skipped."""
    for line, text in enumerate(iterate_lines(path, options.encoding, options.max_bytes), 1):
        if text.strip():
            yield f"line {line}", _object(path, f"line {line}", _parsed(path, text, line))


def read_json(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields the objects of a JSON array, which is in memory as a whole."""
    array = _parsed(path, read_text(path, options.encoding, options.finite_bytes))
    if not isinstance(array, list):
        got = f"an object of {listed(array)}" if isinstance(array, dict) else excerpt(str(array))
        raise FileError(
            f"{path}: expected an array of JSON objects, one for each document, got {got}; pandas "
            "writes one by to_json(path, orient='records'); of one object per line, give "
            "format='jsonl'"
        )
    for i, record in enumerate(array, 1):
        yield f"record {i}", _object(path, f"record {i}", record)


def _parsed(path: Path, text: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        at = text.rfind("\n", 0, getattr(error, "pos", 0)) + 1
        line += getattr(error, "lineno", 1) - 1
        message = f"not JSON ({getattr(error, 'msg', error)}): {excerpt(text[at : at + 100])}"
        hint = "; of one object per line, give format='jsonl'" if "Extra" in message else ""
        raise at_line(path, line, message + hint) from error


def _object(path: Path, place: str, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(f"{path}, {place}: expected a JSON object, got {excerpt(str(record))}")
    return record


# -------------------------------------------------------------------- delimited fields


def read_csv(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields delimited records under a header. Quoted fields may contain line breaks."""
    return _csv_records(path, options, options.text_field or "text")


def read_metadata(path: str | Path, encoding: str = "utf-8") -> pd.DataFrame:
    r"""Reads the columns of a CSV file with a header and a record for each document.

    The delimiter is the first of comma, semicolon, tab and bar with 2 or more fields in the header.

    Args:
        path: The file. It may be gzipped.
        encoding: Encoding of the file.

    Returns:
        The columns, for ``Corpus.with_metadata``. Columns of numbers become numbers.

    Raises:
        CorpusError: The file is missing, malformed, too large or empty.

    Example:
        >>> from pathlib import Path
        >>> size = Path("columns.csv").write_text("party,year\nleft,1990\nright,2000\n")
        >>> lntm.corpus.read_metadata("columns.csv")["party"].tolist()
        ['left', 'right']
    """
    records = _csv_records(Path(path), TextOptions(encoding=encoding), None)
    rows = [record for _, record in records]
    if not rows:
        raise FileError(f"{path}: holds no document; expected a record for each document")
    return with_types(pd.DataFrame(rows, dtype=object))


def _csv_records(path: Path, options: TextOptions, field: str | None) -> Iterator[Record]:
    """Records with the column ``field``; with any columns for ``None``."""
    lines = iterate_lines(path, options.encoding, options.max_bytes)
    first = list(itertools.islice(lines, _HEADER_LINES))
    excel = re.fullmatch("sep=(.)", first[0]) if first else None
    delimiter = options.delimiter or (excel[1] if excel else _find_delimiter(path, first, field))
    rows = _rows(path, itertools.chain(first, lines), delimiter)
    _, header = next(itertools.islice(rows, 1 if excel else 0, None), (1, []))
    if not header:
        raise FileError(f"{path}: is empty; expected a header and a record for each document")
    header = [name if name.strip() else f"column_{i}" for i, name in enumerate(header, 1)]
    repeated = sorted(name for name, times in Counter(header).items() if times > 1)
    if repeated:
        raise FileError(
            f"{path}: columns must have different names, got {listed(repeated)} twice; rename or "
            "remove one"
        )
    for line, row in rows:
        if len(row) != len(header):
            raise at_line(
                path,
                line,
                f"expected {len(header)} fields as in the header, got {len(row)}, separated by "
                f"{delimiter!r}; quote fields that hold it, or give another delimiter",
            )
        yield f"line {line}", dict(zip(header, row, strict=True))


def _find_delimiter(path: Path, lines: list[str], field: str | None) -> str:
    """First delimiter that gives the header the field, or 2 fields for ``None``; else a comma."""
    for delimiter in _DELIMITERS:
        with suppress(FileError):
            _, header = next(_rows(path, lines, delimiter), (1, []))
            if len(header) > 1 if field is None else field in header:
                return delimiter
    return ","


def _rows(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of at least one field, each with the number of its first line.

    pandas fills short rows up without a word, so it would cut documents at unquoted line breaks.
    """
    # An unquoted carriage return ends a line.
    ended = (
        part
        for line in lines
        for part in (io.StringIO(f"{line}\n", newline="") if "\r" in line else (f"{line}\n",))
    )
    try:
        reader = csv.reader(ended, delimiter=delimiter, strict=True)
    except TypeError as error:
        raise CorpusError(f"delimiter must be one character, got {delimiter!r}") from error
    line: int = 1
    row: list[str] | None = []
    while row is not None:
        if row:
            yield line, row
        line = reader.line_num + 1
        with _CSV_LIMIT:
            limit = csv.field_size_limit(LONGEST)
            try:
                row = next(reader, None)
            except csv.Error as error:
                message = f"not a CSV record with the delimiter {delimiter!r}: {error}"
                raise at_line(path, line, message) from error
            finally:
                csv.field_size_limit(limit)


def with_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of texts, with those of numbers as numbers; see ``_numbers``."""
    return pd.DataFrame({name: _numbers(frame[name]) for name in frame}, index=frame.index)


def _numbers(column: pd.Series) -> pd.Series:
    """Converts a column of texts to numbers if every present value is a number.

    Empty texts are missing values. Numbers with leading zeros or a plus sign are codes and stay
    text. ``NA`` and ``NaN`` are missing values in a column of numbers, and words in a column of
    text. Integers of 64 bits stay integers; with missing values they become floats. Integers that
    would be rounded stay text.
    """
    present = column[~column.isin(("", *_MISSING_NUMBERS))]
    distinct = present.unique()
    if not len(distinct) or not all(map(_DECIMAL.fullmatch, distinct)):
        return column
    if all(map(_INTEGER.fullmatch, distinct)):
        largest = max(abs(int(text)) for text in distinct)
        if len(present) == len(column) and largest < 2**63:
            return present.map(int).astype(np.int64)
        if largest > EXACT_IN_FLOAT:
            return present.reindex(column.index)
    return present.map(float).reindex(column.index)


def read_parquet(path: Path, options: TextOptions) -> Iterator[Record]:
    """Yields a document per row of a Parquet file, or of the files of a folder."""
    return ParquetFiles(path, options.max_bytes).records(options.text_field)


#: Functions by format that yield records from a path and options.
TEXT_READERS: dict[str, Callable[[Path, TextOptions], Iterator[Record]]] = {
    "txt": read_txt,
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "folder": read_folder,
    "parquet": read_parquet,
}
#: Formats of texts without fields.
WITHOUT_FIELDS = ("txt", "folder")
