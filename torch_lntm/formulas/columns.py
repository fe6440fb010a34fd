"""Columns of metadata in a formula: as numbers or as levels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus.metadata import as_column
from torch_lntm.errors import CorpusError, MissingColumnError

#: Kind of a column: numbers, dates (text converted to days), or text (levels).
Kind = Literal["number", "date", "text"]

#: A date, perhaps with a time.
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")


def find_column(name: str, columns: Mapping[str, Any] | pd.DataFrame) -> NDArray[Any]:
    """Values of a column: bool, int64, float64, or objects, which are text or None if missing.

    Raises:
        MissingColumnError: The column is missing.
    """
    if name not in columns:
        raise MissingColumnError(name, columns)
    return as_column(name, columns[name], len(columns[name]))


def kind_of(values: NDArray[Any]) -> Kind:
    """Kind of a column. Text is of the kind date if all present values are dates."""
    if values.dtype.kind in "bif":
        return "number"
    present = [value for value in values if value is not None]
    return "date" if present and all(map(DATE.fullmatch, present)) else "text"


def read_values(name: str, values: NDArray[Any], kind: Kind, each: str) -> NDArray[Any]:
    """Values of a column for a formula: numbers, days since 1970-01-01, or text.

    Args:
        name: Name of the column.
        values: ``(num_values,)`` result of :func:`find_column`.
        kind: Kind of the column.
        each: Name of the place of a value in messages, such as ``"document"``.

    Raises:
        CorpusError: A value is missing or of another kind.
    """
    refuse_missing(name, values, each)
    if (kind == "number") != (values.dtype.kind in "bif"):
        raise CorpusError(
            f"column {name!r} holds {values[0]!r:.40}; expected {kind}s, as in the documents that "
            "the formula was fitted to"
        )
    if kind != "date":
        return values.astype(np.float64) if values.dtype.kind == "b" else values
    days = [_day(value) for value in values]
    if None in days:
        row = days.index(None)
        raise CorpusError(
            f"column {name!r} holds dates, and {values[row]!r:.40} in {each} {row}; expected each "
            "as in 2004-09-30"
        )
    return np.array(days, np.float64)


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


def _day(text: str) -> float | None:
    try:
        date = np.datetime64(text[:10], "D") if DATE.fullmatch(text) else None
    except ValueError:
        return None
    return None if date is None else float(date.astype(np.int64))
