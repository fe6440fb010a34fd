"""Columns of metadata in a formula: as numbers or as levels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.errors import CorpusError, MissingColumnError

#: Kind of a column: numbers, dates (text converted to days), or text (levels).
Kind = Literal["number", "date", "text"]

#: A date, perhaps with a time.
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
_EXPECTED = {"number": "numbers", "date": "dates as in 2004-09-30", "text": "text"}


def find_column(name: str, columns: Mapping[str, Any] | pd.DataFrame) -> NDArray[Any]:
    """Values of a column: bool, int64, float64, or objects, which are text or None if missing.

    Raises:
        MissingColumnError: The column is missing.
    """
    if name not in columns:
        raise MissingColumnError(name, columns)
    return plain_values(columns[name])


def plain_values(values: Any) -> NDArray[Any]:
    """Values as an array of bool, int64, float64, or of text with None for a missing value.

    Empty text is missing too. Dates become text.
    """
    series = pd.Series(values).reset_index(drop=True)
    if series.dtype == object or isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object).infer_objects()
    missing = series.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(series.dtype):
        kinds = {"b": bool, "i": np.int64, "u": np.int64}
        kind = np.float64 if missing.any() else kinds.get(series.dtype.kind, np.float64)
        return series.to_numpy(kind, na_value=np.nan) if missing.any() else series.to_numpy(kind)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        series = series.astype(str)
    texts = [None if gone else str(value) for value, gone in zip(series, missing, strict=True)]
    return np.array([text or None for text in texts], object)


def kind_of(values: NDArray[Any]) -> Kind:
    """Kind of a column. Text is of the kind date if all present values are dates."""
    if values.dtype.kind in "bif":
        return "number"
    present = [value for value in values if value is not None]
    return "date" if present and all(map(DATE.fullmatch, present)) else "text"


def read_values(name: str, values: NDArray[Any], kind: Kind, each: str) -> NDArray[Any]:
    """Values of a column for a formula: numbers, days or text.

    Args:
        name: Name of the column.
        values: ``(num_values,)`` result of :func:`find_column` or :func:`plain_values`.
        kind: Kind of the column.
        each: Name of the place of a value in messages, such as ``"document"``.

    Raises:
        CorpusError: A value is missing or of another kind.
    """
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
    missing = pd.isna(values)
    if missing.any():
        raise CorpusError(
            f"column {name!r} lacks a value in {missing.sum()} {each}s, the first of them {each} "
            f"{missing.argmax()}; leave these out (in Python: corpus[rows]), or fill the values in"
        )


def shown(value: Any, kind: Kind) -> str:
    """A value in the notation of its column: a date, a number or text."""
    if kind == "date":
        return str(np.datetime64(round(value), "D"))
    return repr(value) if isinstance(value, str) else f"{value:g}"


def _days(name: str, values: NDArray[Any], each: str) -> NDArray[np.float64]:
    """Dates as days since 1970-01-01."""
    days = [_day(value) for value in values]
    if None in days:
        row = days.index(None)
        raise CorpusError(
            f"column {name!r} holds dates, and {values[row]!r:.40} in {each} {row}; expected each "
            "as in 2004-09-30"
        )
    return np.array(days, np.float64)


def _day(text: str) -> float | None:
    try:
        return (
            float(np.datetime64(text[:10], "D").astype(np.int64)) if DATE.fullmatch(text) else None
        )
    except ValueError:
        return None
