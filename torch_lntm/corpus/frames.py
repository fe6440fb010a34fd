"""Data frames and records: their columns, and the column with the texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torch_lntm.errors import CorpusError, CorpusWarning, import_extra, warn

#: Maximum number of names and rows in a message.
_LISTED = 20


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas's NA or NaT."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def listed(items: Iterable[Any]) -> str:
    """Items for a message: the first 20, then the number of further items."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def is_frame(value: object) -> bool:
    """Whether a value is a pandas data frame. pandas is not imported."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_table(value: object) -> bool:
    """Whether a value is a data frame of pandas, Polars, Arrow or a similar library."""
    # By the class, because a lazy frame warns when it is asked for its columns.
    methods = ("__arrow_c_stream__", "collect_schema")
    has_rows = any(hasattr(type(value), name) for name in methods)
    return is_frame(value) or (has_rows and hasattr(type(value), "columns"))


def column_names(table: Any) -> list[Any]:
    """The names of the columns of a data frame, in order; none for a lazy frame."""
    if not is_frame(table) and not hasattr(table, "__arrow_c_stream__"):
        return []
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


def frame_columns(frame: Any) -> list[tuple[Any, Any]]:
    """The columns of a data frame.

    Args:
        frame: A data frame of pandas, or of another library with narwhals' support (Polars).

    Returns:
        Pairs of a name and the values, in order.

    Raises:
        ConfigError: narwhals is needed and missing.
        CorpusError: ``frame`` is of another type, or lazy.
    """
    if is_frame(frame):
        return [(name, frame.iloc[:, i]) for i, name in enumerate(frame.columns)]
    if not is_table(frame):
        raise CorpusError(
            f"expected a data frame of pandas, Polars or Arrow, got a {type(frame).__name__}; "
            "texts go to Corpus.from_texts, lists of dicts to Corpus.from_records"
        )
    narwhals = import_extra("narwhals", "frames", f"a {_kind(frame)}")
    try:
        table = narwhals.from_native(frame, eager_only=True)
    except TypeError as error:
        raise CorpusError(
            f"expected a data frame with its rows in memory, got a {_kind(frame)}; call its "
            "collect() first, or convert it to pandas"
        ) from error
    # NumPy writes dates without a time of day. NumPy has no time zones.
    dates = narwhals.Date, narwhals.Datetime, narwhals.Duration
    columns = []
    for name in table.columns:
        values = table[name]
        zone = getattr(values.dtype, "time_zone", None)
        as_numpy = isinstance(values.dtype, dates) and zone is None
        columns.append((name, values.to_numpy() if as_numpy else values.to_list()))
    return columns


def match_rows(documents: Any, columns: Any) -> Any:
    """Columns whose index of pandas agrees with the index of the documents.

    Args:
        documents: Documents of any kind.
        columns: A data frame, a mapping of names to values, or values.

    Returns:
        The columns. The index 0, 1, … replaces an index that equals the index of the documents.

    Raises:
        CorpusError: The columns have the same index as the documents in another order.
    """
    if isinstance(columns, Mapping):
        return {name: match_rows(documents, values) for name, values in columns.items()}
    own, other = _index_of(documents), _index_of(columns)
    if own is None or other is None:
        return columns
    if other.equals(own):
        return columns.reset_index(drop=True)
    unique = own.is_unique and other.is_unique and len(own) == len(other)
    if unique and other.isin(own).all():
        row = int(np.argmax(own != other))
        raise CorpusError(
            f"the rows of the metadata are in another order than the documents: row {row} has the "
            f"index {other[row]!r} in the metadata and {own[row]!r} in the documents. Put the rows "
            "of the metadata in the order of the documents: metadata=frame.loc[texts.index]; or "
            "give both without an index, to take them by position"
        )
    return columns


def warn_of_shuffled_rows(columns: Any) -> None:
    """Warn of a default index of pandas in another order, because rows are taken by position.

    Args:
        columns: A data frame, or a mapping of names to values.

    Warns:
        CorpusWarning: The index is a permutation of 0, 1, …
    """
    tables = columns.values() if isinstance(columns, Mapping) else [columns]
    for table in tables:
        index = _index_of(table)
        if index is None or index.dtype.kind not in "iu" or index.hasnans:
            continue
        numbers, order = index.to_numpy(), np.arange(len(index))
        if np.array_equal(numbers, order) or not np.array_equal(np.sort(numbers), order):
            continue
        row = int(np.argmax(numbers != order))
        warn(
            f"the rows of the metadata were sorted or shuffled: row {row} has the index "
            f"{numbers[row]}. Rows are taken by position, so document {row} gets the values of "
            f"this row. If the documents have the order of the index, give frame.sort_index(); if "
            "they have the order of the rows, give frame.reset_index(drop=True)",
            CorpusWarning,
        )
        return


def _index_of(table: Any) -> Any:
    """The index of a data frame or series of pandas; None for other objects."""
    pandas = sys.modules.get("pandas")
    has_index = pandas is not None and isinstance(table, (pandas.DataFrame, pandas.Series))
    return table.index if has_index else None


def record_columns(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Columns of records. Missing fields are None.

    Args:
        records: One mapping of fields to values for each document.

    Returns:
        Pairs of a name and the values, in the order in which the fields first occur.

    Raises:
        CorpusError: A record is not a mapping.
    """
    if isinstance(records, (Mapping, str)) or is_table(records):
        raise CorpusError(
            f"records must be a list of dicts, one for each document, got a {_kind(records)}"
            + ("; use Corpus.from_frame(frame)" if is_table(records) else "")
        )
    rows = list(records)
    for i, record in enumerate(rows):
        if not isinstance(record, Mapping):
            raise CorpusError(
                f"record {i} must be a dict, got {type(record).__name__}; "
                "texts alone go to Corpus.from_texts(texts)"
            )
    fields = dict.fromkeys(field for record in rows for field in record)
    return [(field, [record.get(field) for record in rows]) for field in fields]


def take_texts(
    columns: list[tuple[Any, Any]], text: str
) -> tuple[list[str], list[tuple[Any, Any]]]:
    """The texts of a column, and all further columns.

    Args:
        columns: Pairs of a name and the values.
        text: Name of the column with the texts.

    Returns:
        The texts, and the pairs of all further columns.

    Raises:
        CorpusError: The column is missing or repeated. A text is missing or of another type.
    """
    matching = [values for name, values in columns if name == text]
    if len(matching) != 1:
        problem = f"{len(matching)} columns are" if matching else "no column is"
        raise CorpusError(
            f"{problem} named {text!r}; the columns are {listed(name for name, _ in columns)}; "
            "name the column of the texts: text="
        )
    texts = list(matching[0])
    missing = [i for i, value in enumerate(texts) if is_missing(value)]
    if missing:
        raise CorpusError(
            f"the column {text!r} has no text in {len(missing)} of {len(texts)} rows: "
            f"{listed(missing)}; leave these rows out, or fill the texts in"
        )
    for i, value in enumerate(texts):
        if not isinstance(value, str):
            raise CorpusError(
                f"the column {text!r} must hold texts, got {value!r:.60} in row {i}; name the "
                f"column of the texts: text=; the columns are {listed(n for n, _ in columns)}"
            )
    return texts, [pair for pair in columns if pair[0] != text]


def _kind(value: object) -> str:
    """The library and the type of an object, for example ``polars DataFrame``."""
    library = type(value).__module__.partition(".")[0]
    name = type(value).__name__
    return name if library == "builtins" else f"{library} {name}"
