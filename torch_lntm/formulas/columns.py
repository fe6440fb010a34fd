"""Columns of metadata in a formula: as numbers or as levels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, MissingColumnError

#: Kind of a column: numbers, dates (text converted to days), or text (levels).
Kind = Literal["number", "date", "text"]

#: A date, perhaps with a time.
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")


def find_column(name: str, metadata: pd.DataFrame) -> NDArray[Any]:
    """Values of a column: bool, int64, float64, or objects, which are text or None if missing.

    Raises:
        MissingColumnError: The column is missing.
    """
    if name not in metadata:
        raise MissingColumnError(name, metadata)
    return metadata[name].to_numpy()


def complete_column(name: str, metadata: pd.DataFrame, each: str = "document") -> NDArray[Any]:
    """The result of :func:`find_column` for a column without missing values.

    Raises:
        CorpusError: The column or a value is missing. The message names the first document.
    """
    values = find_column(name, metadata)
    if not len(values):
        raise CorpusError(f"column {name!r} has no values; give at least one {each}")
    missing = pd.isna(values)
    if missing.any():
        raise CorpusError(
            f"column {name!r} lacks a value in {missing.sum()} {each}s, the first of them {each} "
            f"{missing.argmax()}, counted from 0; leave these out (in Python: corpus[rows]), or "
            "fill the values in"
        )
    return values


def column_or_values(
    corpus: Corpus, values: Any, what: str, rows: NDArray[np.int64]
) -> NDArray[Any]:
    """Values of some documents: a column of the metadata, or values by index or position.

    Raises:
        CorpusError: As for :func:`complete_column`, or the values are those of other documents.
    """
    name = values if isinstance(values, str) else what
    table = corpus if isinstance(values, str) else corpus.with_metadata({what: values})
    return complete_column(name, table.metadata.iloc[rows])


def read_weights(corpus: Corpus, weights: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Documents with words and a positive weight, and their weights, of mean 1.

    Args:
        corpus: The documents.
        weights: Name of a column, or values.

    Raises:
        ConfigError: A weight is negative or not finite, or all are 0.
        CorpusError: As for :func:`column_or_values`.
    """
    rows = corpus.nonempty
    found = column_or_values(corpus, weights, "weights", rows)
    if found.dtype.kind not in "bif" or not (np.isfinite(found) & (found >= 0)).all():
        raise ConfigError("weights must be finite numbers from 0, one for each document")
    if not found.any():
        raise ConfigError("the weights of all documents with words are 0; expected positive ones")
    rows, found = rows[found > 0], found[found > 0].astype(np.float64)
    return rows, found / found.mean()


def read_columns(
    metadata: pd.DataFrame, kinds: Mapping[str, Kind | None], each: str = "document"
) -> tuple[pd.DataFrame, dict[str, Kind]]:
    """Columns for a formula, as numbers, days since 1970-01-01, or text.

    Args:
        metadata: The metadata.
        kinds: Kinds of the columns by name. Where it is ``None``, text is of the kind date if all
            values are dates.
        each: Name of the place of a value in messages, such as ``"document"``.

    Returns:
        The columns, and their kinds.

    Raises:
        CorpusError: A column or a value is missing, or a value is of another kind.
    """
    read: dict[str, Any] = {}
    found: dict[str, Kind] = {}
    for name, kind in kinds.items():
        values = complete_column(name, metadata, each)
        is_number = values.dtype.kind in "bif"
        if kind is None:
            is_date = not is_number and all(map(DATE.fullmatch, values))
            kind = "number" if is_number else "date" if is_date else "text"
        if (kind == "number") != is_number:
            raise CorpusError(
                f"column {name!r} holds {values[0]!r:.40}; expected {kind}s, as in the documents "
                "that the formula was fitted to"
            )
        if kind == "date":
            days = [_day(value) for value in values]
            if None in days:
                row = days.index(None)
                raise CorpusError(
                    f"column {name!r} holds dates, and {values[row]!r:.40} in {each} {row}, "
                    "counted from 0; expected each as in 2004-09-30"
                )
            values = np.array(days, np.float64)
        found[name] = kind
        read[name] = values.astype(np.float64) if values.dtype.kind == "b" else values
    return pd.DataFrame(read, index=pd.RangeIndex(len(metadata))), found


def _day(text: str) -> float | None:
    try:
        date = np.datetime64(text[:10], "D") if DATE.fullmatch(text) else None
    except ValueError:
        return None
    return None if date is None else float(date.astype(np.int64))
