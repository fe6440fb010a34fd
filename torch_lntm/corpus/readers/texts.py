"""Readers of texts: lines, JSON, delimited fields, folders and Parquet.

A reader of texts yields a mapping for each document. It may instead yield a pair, whose first item
says where in the file the document is, for use in messages.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from torch_lntm.corpus.metadata import listed, named, parse_column, typed, with_labels
from torch_lntm.errors import CorpusWarning, FileError, LNTMError, warn
from torch_lntm.files.reading import at_line, iterate_lines, read_errors, read_text

_DELIMITERS = ",;\t|"
#: Records whose fields become a table at once, and rows of a Parquet file per reading step.
_ROWS = 4096


@dataclass(frozen=True)
class Options:
    """Options of reading; see ``read_corpus``.

    Attributes:
        text_field: Field with the text. Defaults to "text".
        label_field: Required field with the label. Defaults to an optional field "label".
        encoding: Encoding of the file.
        delimiter: Character between the fields of ``csv``. Defaults to the one of comma, semicolon,
            tab and bar that is most frequent in the header.
        num_words: Size of the vocabulary; ``None`` if unknown.
        part: Rank and number of the processes, to open this rank's shards of a folder only.
    """

    text_field: str | None = None
    label_field: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    num_words: int | None = None
    part: tuple[int, int] | None = None


#: A document's place in the file, for messages, and its fields.
Record = tuple[str, dict[str, Any]]


def unreadable(place: object, error: Exception) -> FileError:
    """Error for a place whose reader failed."""
    return FileError(f"{place}: cannot be read, is it complete? ({type(error).__name__}: {error})")


class TextStream:
    """The texts of a file, read one at a time so that memory never holds them all.

    Args:
        path: The file or folder.
        read: The reader of its format.
        options: Options of reading.

    Attributes:
        table: The typed further fields, with a row for each text, complete after the pass.
    """

    def __init__(
        self, path: Path, read: Callable[[Path, Options], Iterable[Any]], options: Options
    ) -> None:
        self.path, self.read, self.options = path, read, options
        self.table = pd.DataFrame()

    def __iter__(self) -> Iterator[str]:
        """Reads the file from the start.

        Raises:
            FileError: The file is missing, malformed, truncated, too large or empty.
        """
        field = self.options.text_field or "text"
        rows: list[dict[str, Any]] = []
        parts: list[pd.DataFrame] = []
        number = 0
        try:
            for number, item in enumerate(self.read(self.path, self.options), 1):
                place, found = item if isinstance(item, tuple) else (f"record {number}", item)
                if not isinstance(found, Mapping):
                    message = f"expected a mapping of fields, got {found!r:.60}"
                    raise FileError(f"{self.path}, {place}: {message}")
                record = dict(found)
                text = record.pop(field, ())
                if text is None:
                    text = ""  # like an empty field of csv
                if not isinstance(text, str):
                    got = "none" if text == () else f"{text!r:.60}"
                    raise FileError(
                        f"{self.path}, {place}: expected a text in the field {field!r}, got {got}; "
                        f"the other fields are {listed(record)}; choose by text_field; the first "
                        "line of csv must name the columns"
                    )
                rows.append(record)
                if len(rows) == _ROWS:
                    parts.append(pd.DataFrame(rows, dtype=object))
                    rows = []
                yield text
        except LNTMError:
            raise
        except Exception as error:
            raise unreadable(f"{self.path}, record {number + 1}", error) from error
        parts += [pd.DataFrame(rows, dtype=object)] if rows else []
        if not parts:
            raise FileError(f"{self.path}: holds no document; expected a record for each document")
        self.table = self._typed(pd.concat(parts, ignore_index=True), field)

    def _typed(self, frame: pd.DataFrame, field: str) -> pd.DataFrame:
        """The records as typed columns; the labels come last, and stay text."""
        label = self.options.label_field or "label"
        if self.options.label_field is not None and label not in frame:
            raise FileError(
                f"{self.path}: no record has the field {label!r}; the fields are "
                f"{listed([field, *frame])}; choose by label_field"
            )
        columns = frame.drop(columns="label", errors="ignore").items()
        table = typed(columns, frame.index, parse_column if self.read is read_csv else None)
        labelled = with_labels(table, frame[label]) if label in frame else table
        return named(labelled if label in frame and labelled["label"].notna().any() else table)


# -------------------------------------------------------------------- lines and folders


def read_txt(path: Path, options: Options) -> Iterator[Record]:
    """Yields a document per line."""
    for line, text in enumerate(iterate_lines(path, options.encoding), 1):
        yield f"line {line}", {"text": text}


def read_folder(path: Path, options: Options) -> Iterator[Record]:
    """Yields a document per ``.txt`` file, with the file's name as id and its subfolder as label.

    Symbolic links to folders are followed, but no folder is read twice.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for name, folders, names in os.walk(path, followlinks=True):
        if (real := os.path.realpath(name)) in seen:
            folders.clear()  # reached again by a link
            continue
        seen.add(real)
        folders.sort()
        found += (Path(name, each) for each in names if not each.startswith("."))
    files = sorted(file for file in found if file.suffix.lower() == ".txt" and file.is_file())
    skipped = f"{len(found) - len(files)} that do not end in .txt, or are no regular files"
    if not files:
        raise FileError(f"{path}: expected a folder of .txt files, found none, and {skipped}")
    if len(files) < len(found):
        warn(f"{path}: skipped files: {skipped}", CorpusWarning)
    for file in files:
        relative = file.relative_to(path)
        label = "" if relative.parent == Path() else relative.parent.as_posix()
        text = read_text(file, options.encoding)
        yield str(relative), {"text": text, "id": relative.as_posix(), "label": label}


# -------------------------------------------------------------------- JSON


def read_jsonl(path: Path, options: Options) -> Iterator[Record]:
    """Yields a JSON object per line. Blank lines are skipped."""
    for line, text in enumerate(iterate_lines(path, options.encoding), 1):
        if text.strip():
            yield f"line {line}", _parsed(path, text, line)


def read_json(path: Path, options: Options) -> Iterator[Record]:
    """Yields the objects of a JSON array, which has to be loaded as a whole."""
    array = _parsed(path, read_text(path, options.encoding))
    if not isinstance(array, list):
        raise FileError(
            f"{path}: expected an array of JSON objects, one for each document, got "
            f"{array!r:.60}; pandas writes one by to_json(path, orient='records')"
        )
    yield from ((f"record {i}", record) for i, record in enumerate(array, 1))


def _parsed(path: Path, text: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = text.rfind("\n", 0, error.pos) + 1
        message = f"not JSON ({error.msg}): {text[at : at + 60]!r}"
        hint = "; of one object per line, give format='jsonl'" if "Extra" in message else ""
        raise at_line(path, line + error.lineno - 1, message + hint) from error


# -------------------------------------------------------------------- delimited fields


def read_metadata(path: str | Path, encoding: str = "utf-8") -> pd.DataFrame:
    r"""Reads the columns of a CSV file with a header and a record for each document.

    The delimiter is the one of comma, semicolon, tab and bar that is most frequent in the header.

    Args:
        path: The file. It may be gzipped.
        encoding: Encoding of the file.

    Returns:
        The columns, for ``Corpus.with_metadata``. Columns of numbers become numbers.

    Raises:
        CorpusError: The file is missing, malformed, too large or empty.
    """
    rows = [record for _, record in read_csv(Path(path), Options(encoding=encoding))]
    if not rows:
        raise FileError(f"{path}: holds no document; expected a record for each document")
    frame = pd.DataFrame(rows, dtype=object)
    return typed(frame.items(), frame.index, parse_column)


def read_csv(path: Path, options: Options) -> Iterator[Record]:
    """Yields delimited records under a header. Quoted fields may contain line breaks.

    pandas silently pads short rows, so it would cut a document at an unquoted line break.
    """
    lines = iterate_lines(path, options.encoding)
    start = list(itertools.islice(lines, 10))
    top = next(filter(str.strip, start), "")
    excel = re.fullmatch("sep=(.)", top)
    if excel:
        start[start.index(top)] = ""
    delimiter = options.delimiter or (excel[1] if excel else max(_DELIMITERS, key=top.count))
    csv.field_size_limit(2**31 - 1)  # by default, a text has at most 131,072 characters
    ended = (f"{line}\n" for line in itertools.chain(start, lines))
    reader = csv.reader(ended, delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            if row and not header:
                header = [name if name.strip() else f"column_{i}" for i, name in enumerate(row, 1)]
                if repeated := sorted(name for name in {*header} if header.count(name) > 1):
                    raise FileError(
                        f"{path}: columns must have different names, got {listed(repeated)} "
                        "twice; rename or remove one"
                    )
            elif row and len(row) != len(header):
                raise at_line(
                    path,
                    line,
                    f"expected {len(header)} fields as in the header, got {len(row)}, separated "
                    f"by {delimiter!r}; quote fields that hold it, or give another delimiter",
                )
            elif row:
                yield f"line {line}", dict(zip(header, row, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        message = f"not a CSV record with the delimiter {delimiter!r}: {error}"
        raise at_line(path, line, message) from error


# -------------------------------------------------------------------- Parquet


def read_parquet(path: Path, options: Options) -> Iterator[Record]:
    """Yields a document per row of a Parquet file, or of a folder of them in order of their names.

    A few rows at a time are in memory.
    """
    import pyarrow.parquet as pq

    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    names = None
    for file in files:
        with read_errors(file, "not a complete Parquet file", Exception):
            parquet = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            own = parquet.schema_arrow.names
            names = names or own
            if own != names or len({*own}) < len(own):
                raise FileError(
                    f"{file}: has the columns {listed(own)}; expected different names, which are "
                    f"those of the first file: {listed(names)}"
                )
            place = "" if file == path else f"{file.name}, "
            batches = (batch.to_pylist() for batch in parquet.iter_batches(_ROWS))
            for number, record in enumerate(itertools.chain.from_iterable(batches), 1):
                yield f"{place}row {number}", record
