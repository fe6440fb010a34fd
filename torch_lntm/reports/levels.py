"""Levels of a metadata column: its names, periods of its dates, or bins of its numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.plotting.style import format_number, is_skewed

#: Most levels of a column of names, of a column of numbers, and of a column of dates.
MOST_NAMES, MOST_BINS, MOST_PERIODS = 12, 10, 36
#: Most different names in a column that divides documents. Ids have more.
_MOST_DIFFERENT = 50
#: Notes on axes with bins or a logarithmic scale.
BINS = "The bins are equally spaced and have about equal numbers of documents."
LOGARITHMIC = "The axis is logarithmic."

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|NaT")
#: Positions of levels on an axis, None for names; and a note on the axis for readers.
Axis = tuple[NDArray[np.float64] | None, str]


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of a column, and the level of each document.

    Attributes:
        column: The metadata column.
        names: Names of the levels, in the order of numbers and dates; other levels by size, the
            largest first.
        codes: ``(num_docs,)`` level of each document; -1 for documents without a value.
        axis: Positions ``(num_levels,)`` on an axis; None for names. Bins are equally spaced. Other
            numbers lie at their values, or at their logarithms if they are skewed
            (:func:`is_skewed`). Dates lie at their days. A note for readers comes second.
    """

    column: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    axis: Axis = (None, "")


def levels_of(column: str, values: Any) -> Levels:
    """Levels of a column by name, by period of dates, or by bins of numbers.

    * Names: each name is a level. Columns of many names keep the most frequent names, and ``other``
      has the rest.
    * Dates: texts such as 2008-03 or 2008-03-01 are dates. Periods are days, months, years or
      several years: the shortest period with at most 36 levels.
    * Numbers: few different values are levels themselves. Many values are cut into 10 bins with
      about equal numbers of documents, named by their smallest and largest value.

    Args:
        column: The column's name.
        values: ``(num_docs,)`` values of the column, as in ``corpus.metadata``.
    """
    series = pd.Series(values).reset_index(drop=True)
    if series.dtype.kind in "iuf":
        return _by_number(column, series.astype(float).where(np.isfinite))
    days = _days(series)
    return _by_name(column, series) if days is None else _by_time(column, days)


def dividing_columns(corpus: Corpus) -> list[str]:
    """Metadata columns that divide the documents into levels, in the order of the metadata.

    Columns with a single value, and columns with many different names such as ids, are left out.
    Of columns of names that divide the documents alike, the last is kept.
    """
    columns: dict[object, str] = {}
    for column, values in corpus.metadata.items():
        codes, different = pd.factorize(values)
        ordered = values.dtype.kind in "iuf" or _days(values) is not None
        if len(different) >= 2 and (ordered or len(different) <= _MOST_DIFFERENT):
            division = column if ordered else codes.tobytes()
            columns.pop(division, None)
            columns[division] = column
    return list(columns.values())


def axis_of(values: Sequence[Any] | NDArray[np.float64]) -> Axis:
    """Positions of values on an axis of numbers or days, None for names; and a note on the axis."""
    if any(isinstance(value, str) for value in values):
        days = _days(pd.Series(list(map(str, values))))
        return None if days is None else days.astype(np.float64), ""
    numbers = np.array(values, np.float64)
    return (np.log(numbers), LOGARITHMIC) if is_skewed(numbers) else (numbers, "")


def _by_name(column: str, values: pd.Series) -> Levels:
    texts = values.map(str).where(values.notna() & (values != ""))
    ranked = texts.value_counts().sort_index().sort_values(ascending=False, kind="stable").index
    names, codes = list(ranked), pd.Categorical(texts, ranked).codes.astype(np.int64)
    if len(names) > MOST_NAMES:
        kept = MOST_NAMES - 1
        codes, names = codes.clip(max=kept), [*names[:kept], f"other ({len(names) - kept})"]
    return Levels(column, tuple(names), codes)


def _by_number(column: str, values: pd.Series) -> Levels:
    codes, distinct = pd.factorize(values, sort=True)
    if len(distinct) <= MOST_NAMES:
        return Levels(column, tuple(map(format_number, distinct)), codes, axis_of(distinct))
    edges = np.unique(np.quantile(values.dropna(), np.linspace(0, 1, MOST_BINS + 1)))
    bins = pd.cut(values, [*edges[:-1], np.inf], right=False, labels=False)
    codes, numbers = pd.factorize(bins, sort=True)
    ends = values.groupby(bins).agg(["min", "max"]).to_numpy()
    names = tuple(f"{format_number(low)} to {format_number(high)}" for low, high in ends)
    return Levels(column, names, codes, (np.arange(len(numbers), dtype=np.float64), BINS))


def _days(values: pd.Series) -> NDArray[np.datetime64] | None:
    """Values as days, missing values as NaT; None if a value is not a date, or all are missing."""
    texts = values.dt.strftime("%Y-%m-%d") if values.dtype.kind == "M" else values
    texts = texts.astype(object).where(values.notna() & (texts != ""), "NaT")
    if (texts == "NaT").all() or not all(isinstance(x, str) and _DATE.fullmatch(x) for x in texts):
        return None
    try:
        return np.array([text[:10] for text in texts], "datetime64[D]")
    except ValueError:  # such as 2008-13
        return None


def _by_time(column: str, days: NDArray[np.datetime64]) -> Levels:
    present = ~np.isnat(days)
    for unit in "DMY":
        period = days.astype(f"datetime64[{unit}]").astype(np.int64)
        span = int(np.ptp(period[present]))
        if span < MOST_PERIODS:
            break
    width = span // MOST_PERIODS + 1  # units of a period; more than 1 for years only
    first = period[present].min()
    codes, steps = pd.factorize(pd.Series((period - first) // width).where(present), sort=True)
    starts = (first + width * steps.to_numpy(np.int64)).astype(f"datetime64[{unit}]")
    names = starts.astype(str).tolist()
    if width > 1:
        names = [f"{name} to {int(name) + width - 1}" for name in names]
    return Levels(column, tuple(names), codes, (starts.astype("datetime64[D]").astype(float), ""))
