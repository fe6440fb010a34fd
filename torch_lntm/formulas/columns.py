"""Columns of metadata in a formula: as numbers or as levels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import CorpusError, MissingColumnError

#: Kind of a column: numbers, dates (text converted to days), or text (levels).
Kind = Literal["number", "date", "text"]

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
_EXPECTED = {"number": "numbers", "date": "dates as in 2004-09-30", "text": "text"}


def find_column(name: str, columns: Mapping[str, Any]) -> NDArray[Any]:
    """Values of a column.

    Raises:
        MissingColumnError: The column is missing.
    """
    if name not in columns:
        raise MissingColumnError(name, columns)
    return np.asarray(columns[name])


def kind_of(values: NDArray[Any]) -> Kind:
    """Kind of a column. Text is of the kind date if all present values are dates."""
    if values.dtype.kind in "bif":
        return "number"
    present = [str(value) for value in values if value is not None]
    return "date" if present and all(map(_DATE.fullmatch, present)) else "text"


def read_values(name: str, values: NDArray[Any], kind: Kind, each: str) -> NDArray[Any]:
    """Values of a column for a formula: numbers, days or text.

    Args:
        name: Name of the column.
        values: ``(num_values,)`` values of the metadata.
        kind: Kind of the column.
        each: Name of the place of a value in messages, such as ``"document"``.

    Raises:
        CorpusError: A value is missing or of another kind.
    """
    values = values if values.dtype.kind in "bif" else values.astype(object)
    refuse_missing(name, values, each)
    if (kind == "number") != (values.dtype.kind in "bif"):
        raise CorpusError(
            f"column {name!r} holds {values[0]!r:.40}; expected {_EXPECTED[kind]}, as in the "
            "documents that the formula was fitted to"
        )
    if kind == "date":
        return _days(name, values, each)
    return values.astype(np.float64) if values.dtype.kind == "b" else values


def refuse_missing(name: str, values: NDArray[Any], each: str = "document") -> None:
    """Refuse a column with missing values.

    Raises:
        CorpusError: A value is missing. The message names the first document.
    """
    if values.dtype.kind == "f":
        missing = np.isnan(values)
    else:
        missing = np.array([value is None for value in values], bool)
    if missing.any():
        raise CorpusError(
            f"column {name!r} lacks a value in {missing.sum()} {each}s, the first of them {each} "
            f"{missing.argmax()}; leave these out (in Python: corpus[rows]), or fill the values in"
        )


def odd_value(values: Iterable[Any]) -> tuple[str, int | None]:
    """Most frequent kind among the values of a text column, and the first exception.

    Returns:
        The kind, and the position of the first value of another kind, or ``None``.
    """
    kinds = [_kind_of_text(str(value)) for value in values]
    frequent = (kind for kind in ("number", "date") if 2 * kinds.count(kind) > len(kinds))
    common = next(frequent, "text")
    return common, next((row for row, kind in enumerate(kinds) if kind != common), None)


def shown(value: float, kind: Kind) -> str:
    """A number in the notation of its column: a date or a number."""
    return str(np.datetime64(round(value), "D")) if kind == "date" else f"{value:g}"


def _kind_of_text(value: str) -> Kind:
    if _DATE.fullmatch(value):
        return "date"
    try:
        float(value)
    except ValueError:
        return "text"
    return "number"


def _days(name: str, values: NDArray[Any], each: str) -> NDArray[np.float64]:
    """Dates as days since 1970-01-01."""
    texts = [str(value) for value in values]
    row = next((row for row, text in enumerate(texts) if not _DATE.fullmatch(text)), None)
    try:
        if row is None:
            return np.array([text[:10] for text in texts], "datetime64[D]").astype(np.float64)
    except ValueError:
        row = next(row for row, text in enumerate(texts) if not _is_day(text[:10]))
    raise CorpusError(
        f"column {name!r} holds dates, and {texts[row]!r:.40} in {each} {row}; expected each as in "
        "2004-09-30"
    )


def _is_day(text: str) -> bool:
    try:
        np.datetime64(text, "D")
    except ValueError:
        return False
    return True
