"""Readers of texts: lines, JSON, delimited fields, folders."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_lntm.errors import CorpusError, CorpusWarning, FileError, warn
from torch_lntm.files import at_line, excerpt, read_lines, read_text, readable_bytes

_DELIMITERS = ",;\t|"
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING_NUMBERS = ("NA", "NaN", "nan")
# A table of few values may have this many cells, any table so many a value.
_FREE_CELLS, _CELLS_PER_VALUE = 10**6, 100
#: How many fields an error message names.
_FIELDS_SHOWN = 20


@dataclass(frozen=True)
class TextOptions:
    """How to read texts; see ``read_corpus``.

    Attributes:
        text_field: Field with the text; "text" if not given.
        label_field: Field with the label, which there must be; "label" if not given.
        encoding: Encoding of the file.
        delimiter: Character between the fields of ``csv``; found by the header if not given.
        max_bytes: The most bytes to read.
    """

    text_field: str | None = None
    label_field: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    max_bytes: int | None = None


@dataclass
class Texts:
    """Documents as a file tells them.

    Attributes:
        texts: The texts.
        metadata: Columns of one value a text, by name.
    """

    texts: list[str]
    metadata: dict[str, list[Any]] = field(default_factory=dict)


# -------------------------------------------------------------------- lines and folders


def read_txt(path: Path, options: TextOptions) -> Texts:
    """A document per line."""
    lines = read_lines(path, options.encoding, options.max_bytes)
    if lines == [""]:
        raise FileError(f"{path}: is empty; expected a document in each line")
    return Texts(lines)


def read_folder(path: Path, options: TextOptions) -> Texts:
    """A document per ``.txt`` file; its name becomes the id, its subfolder the label.

    Folders behind symbolic links are entered, each folder once.
    """
    files: list[Path] = []
    skipped: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    for name, folders, names in os.walk(path, followlinks=True):
        about = os.stat(name)
        if (about.st_dev, about.st_ino) in seen:
            folders.clear()  # a link back, or a second link
            continue
        seen.add((about.st_dev, about.st_ino))
        folders.sort()
        for file in (Path(name, file_name) for file_name in names):
            reason = None
            if file.suffix.lower() != ".txt":
                reason = "do not end in .txt"
            elif not file.is_file():
                reason = "are broken links or no regular files"
            if reason is None:
                files.append(file)
            elif not file.name.startswith("."):
                skipped[reason] = skipped.get(reason, 0) + 1
    reasons = " and ".join(f"{number} that {reason}" for reason, number in skipped.items())
    if not files:
        found = f"found files: {reasons}" if skipped else "found none"
        raise CorpusError(f"{path}: expected a folder of .txt files, {found}")
    if skipped:
        warn(f"{path}: skipped files: {reasons}", CorpusWarning)
    files.sort()
    left = readable_bytes() if options.max_bytes is None else options.max_bytes
    texts = []
    for file in files:
        texts.append(read_text(file, options.encoding, left))
        left -= file.stat().st_size
    relative = [file.relative_to(path) for file in files]
    metadata = {"id": [file.as_posix() for file in relative]}
    labels = ["" if file.parent == Path() else file.parent.as_posix() for file in relative]
    return Texts(texts, metadata | ({"label": labels} if any(labels) else {}))


# -------------------------------------------------------------------- records


def read_jsonl(path: Path, options: TextOptions) -> Texts:
    """A JSON object per line; blank lines are skipped."""

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        lines = read_lines(path, options.encoding, options.max_bytes)
        for line, text in enumerate(lines, 1):
            if text.strip():
                yield f"line {line}", _object(path, f"line {line}", _parse(path, line, text))

    return _from_records(path, records(), options)


def read_json(path: Path, options: TextOptions) -> Texts:
    """An array of JSON objects."""
    found = _parse(path, 1, read_text(path, options.encoding, options.max_bytes))
    if not isinstance(found, list):
        raise FileError(
            f"{path}: expected an array of JSON objects, got a {type(found).__name__}; "
            "of one object per line, give format='jsonl'"
        )
    places = ((f"record {i}", record) for i, record in enumerate(found, 1))
    return _from_records(path, ((at, _object(path, at, r)) for at, r in places), options)


def _parse(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        line += getattr(error, "lineno", 1) - 1
        raise at_line(path, line, f"not JSON ({reason}): {excerpt(text)}") from error


def _object(path: Path, place: str, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise FileError(f"{path}, {place}: expected a JSON object, got {excerpt(str(record))}")
    return record


def read_csv(path: Path, options: TextOptions) -> Texts:
    """Delimited records under a header; a quoted field may go over several lines."""
    limit = csv.field_size_limit(2**31 - 1)  # the default refuses long documents
    try:
        text = read_text(path, options.encoding, options.max_bytes)
        delimiter = options.delimiter or _find_delimiter(text, options.text_field or "text")
        found = _from_records(path, _csv_records(path, text, delimiter), options)
    except TypeError as error:
        raise CorpusError(f"delimiter must be one character, got {options.delimiter!r}") from error
    finally:
        csv.field_size_limit(limit)
    metadata = {
        name: values if name == "label" else _numbers(values)
        for name, values in found.metadata.items()
    }
    return Texts(found.texts, metadata)


def _find_delimiter(text: str, text_field: str) -> str:
    """The character under which the header has the field of the text; a comma if none does."""
    for delimiter in _DELIMITERS:
        try:
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:
            continue
        if text_field in header:
            return delimiter
    return ","


def _csv_records(path: Path, text: str, delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for row in reader:
            if header is None and row:
                header = [name if name.strip() else f"column_{i}" for i, name in enumerate(row, 1)]
                twice = sorted({name for name in header if header.count(name) > 1})
                if twice:
                    message = f"columns must have different names, got {', '.join(twice)} twice"
                    raise at_line(path, line, f"{message}; rename or remove one")
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


def _from_records(
    path: Path, records: Iterable[tuple[str, dict[str, Any]]], options: TextOptions
) -> Texts:
    """The texts of records, and a column for every other field.

    The label is text, also where the file has numbers. It is left out where all are missing.
    """
    text_field, label_field = options.text_field or "text", options.label_field or "label"
    texts: list[str] = []
    columns: dict[str, list[Any]] = {}
    labels: list[str] = []
    num_values = 0
    for place, record in records:
        text = record.get(text_field)
        if not isinstance(text, str):
            raise FileError(
                f"{path}, {place}: expected a text in the field {text_field!r}, got {text!r:.60}; "
                f"the fields are {_listed(record)}; choose by text_field"
            )
        for name in record:
            if name not in columns and name != text_field:
                columns[name] = [None] * len(texts)
        num_values += len(record)
        if len(columns) * len(texts) > max(_FREE_CELLS, _CELLS_PER_VALUE * num_values):
            raise FileError(
                f"{path}, {place}: the records have {len(columns)} different fields, nearly all of "
                "them missing in most; put what varies into one field"
            )
        for name, values in columns.items():
            values.append(record.get(name))
        label = record.get(label_field)
        label = "" if label is None else label
        labels.append("|".join(map(str, label)) if isinstance(label, list) else str(label))
        texts.append(text)
    if not texts:
        raise FileError(f"{path}: holds no document; expected a record for each")
    if options.label_field is not None and label_field not in {*columns, text_field}:
        raise FileError(
            f"{path}: no record has the field {label_field!r}; the fields are "
            f"{_listed([text_field, *columns])}; choose by label_field"
        )
    columns.pop("label", None)
    if any(labels):
        columns["label"] = labels
    return Texts(texts, columns)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _FIELDS_SHOWN} more" if len(names) > _FIELDS_SHOWN else ""
    return ", ".join(names[:_FIELDS_SHOWN]) + more


def _numbers(values: list[str | None]) -> list[Any]:
    """The fields of a column as numbers if all that are not missing are; empty ones are missing.

    Numbers with leading zeros or a plus sign are codes, and stay text. ``NA`` and ``NaN`` are
    missing among numbers, and words among texts.
    """
    known = {value for value in values if value and value not in _MISSING_NUMBERS}
    if known and all(map(_DECIMAL.fullmatch, known)):
        convert = int if all(map(_INTEGER.fullmatch, known)) else float
        return [convert(value) if value in known else None for value in values]
    return [value or None for value in values]


#: Readers by format: of a path and options.
TEXT_READERS = {
    "txt": read_txt,
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "folder": read_folder,
}
#: Formats whose records have fields.
WITH_FIELDS = ("jsonl", "json", "csv")
