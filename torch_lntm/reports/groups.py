"""Groups of documents by the values of a metadata column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.plotting.style import format_number, is_skewed

#: Most groups of a column of names, and of a column of numbers.
MOST_NAMES, MOST_BINS = 12, 10
#: Notes on axes with bins or a logarithmic scale.
BINS = "The bins are equally spaced and have about equal numbers of documents."
LOGARITHMIC = "The axis is logarithmic."
#: Most periods of a column of dates.
MOST_PERIODS = 36
#: Most different names in a column that groups documents. Ids have more.
_MOST_GROUPING_NAMES = 50

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_PERIODS: tuple[Literal["D", "M", "Y"], ...] = ("D", "M", "Y")


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of documents.

    Attributes:
        column: The metadata column.
        names: Names of the groups, in the order of numbers and dates; other groups by size, the
            largest first.
        codes: ``(num_docs,)`` group of each document; -1 for documents without a value.
        positions: ``(num_groups,)`` positions of the groups on an axis; None for names. Bins are
            equally spaced. Other numbers lie at their values, or at their logarithms if they are
            skewed (:func:`is_skewed`). Dates lie at their days.
        axis_note: Note on the axis for readers.
    """

    column: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    positions: NDArray[np.float64] | None = None
    axis_note: str = ""

    @property
    def ordered(self) -> bool:
        """Whether the groups have positions on an axis."""
        return self.positions is not None


def group_documents(column: str, values: NDArray[Any]) -> Grouping:
    """Group documents by a column: by name, by period of dates, or by bins of numbers.

    * Names: each name is a group. Columns of many names keep the most frequent names, and ``other``
      has the rest.
    * Dates: texts such as 2008-03 or 2008-03-01 are dates. Periods are days, months, years or
      several years: the shortest period with at most 36 groups.
    * Numbers: few different values are groups themselves. Many values are cut into 10 bins with
      about equal numbers of documents, named by their smallest and largest value.

    Args:
        column: The column's name.
        values: ``(num_docs,)`` values of the column, as in ``corpus.metadata``.
    """
    series = pd.Series(values).reset_index(drop=True)
    if _is_number(series):
        return _by_number(column, series.to_numpy(np.float64))
    dates = _dates(series)
    return _by_name(column, series) if dates is None else _by_time(column, dates)


def grouping_columns(corpus: Corpus) -> list[str]:
    """Metadata columns that group the documents, in the order of the metadata.

    Columns with a single value, and columns with many different names such as ids, are left out.
    Of columns of names that group the documents alike, the last is kept.
    """
    columns: dict[object, str] = {}
    for column, values in corpus.metadata.items():
        codes, different = pd.factorize(values)
        ordered = _is_number(values) or _dates(values) is not None
        if len(different) >= 2 and (ordered or len(different) <= _MOST_GROUPING_NAMES):
            groups = column if ordered else codes.tobytes()
            columns.pop(groups, None)
            columns[groups] = column
    return list(columns.values())


def axis_positions(values: Sequence[object]) -> NDArray[np.float64] | None:
    """Positions of values on an axis of numbers or days; None for names or fewer than 3 values.

    The axis of numbers is logarithmic if they are skewed (:func:`is_skewed`).
    """
    if len(values) <= 2:
        return None
    if not any(isinstance(value, str) for value in values):
        return _number_positions(np.array(values, np.float64))
    dates = _dates(pd.Series(list(map(str, values))))
    return None if dates is None else dates.astype(np.float64)


def axis_note(values: Sequence[object] | NDArray[np.float64]) -> str:
    """Note for readers on the axis of :func:`axis_positions`; empty for a linear axis."""
    if len(values) <= 2 or any(isinstance(value, str) for value in values):
        return ""
    return LOGARITHMIC if is_skewed(np.array(values, np.float64)) else ""


def _number_positions(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions of numbers on a linear or logarithmic axis."""
    return np.log(values) if is_skewed(values) else values


def _is_number(values: pd.Series) -> bool:
    return values.dtype.kind in "iuf"


def _by_name(column: str, values: pd.Series) -> Grouping:
    texts = values.map(str).where(values.notna() & (values != ""))
    counts = texts.value_counts()
    ranked = sorted(counts.index, key=lambda name: (-counts[name], name))
    kept = ranked if len(ranked) <= MOST_NAMES else ranked[: MOST_NAMES - 1]
    codes = texts.map({name: min(g, len(kept)) for g, name in enumerate(ranked)}).fillna(-1)
    other = (f"other ({len(ranked) - len(kept)})",) if len(kept) < len(ranked) else ()
    return Grouping(column, (*kept, *other), codes.to_numpy(np.int64))


def _by_number(column: str, values: NDArray[np.float64]) -> Grouping:
    finite = np.isfinite(values)
    distinct = np.unique(values[finite])
    if len(distinct) <= MOST_NAMES:
        codes = np.where(finite, np.searchsorted(distinct, values), -1)
        names = tuple(map(format_number, distinct.tolist()))
        return Grouping(column, names, codes, _number_positions(distinct), axis_note(distinct))
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, MOST_BINS + 1)))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    codes = np.unique(np.where(finite, codes, -1), return_inverse=True)[1]
    codes = codes - (0 if finite.all() else 1)
    parts = [values[codes == g] for g in range(int(codes.max()) + 1)]
    names = tuple(f"{format_number(part.min())} to {format_number(part.max())}" for part in parts)
    return Grouping(column, names, codes, np.arange(len(names), dtype=np.float64), BINS)


def _dates(values: pd.Series) -> NDArray[np.datetime64] | None:
    """Values as days, missing values as NaT; None if a value is not a date, or all are missing."""
    texts = values.dt.strftime("%Y-%m-%d") if values.dtype.kind == "M" else values
    present = texts[values.notna() & (texts != "")]
    if not len(present) or not all(isinstance(x, str) and _DATE.fullmatch(x) for x in present):
        return None
    try:
        days = {row: np.datetime64(text[:10], "D") for row, text in present.items()}
    except ValueError:  # such as 2008-13
        return None
    return np.array([days.get(row, np.datetime64("NaT")) for row in values.index])


def _by_time(column: str, days: NDArray[np.datetime64]) -> Grouping:
    present = ~np.isnat(days)
    spans: dict[str, int] = {
        unit: int(np.ptp(days[present].astype(f"datetime64[{unit}]").astype(np.int64)))
        for unit in _PERIODS
    }
    unit = next((u for u in _PERIODS if spans[u] < MOST_PERIODS), "Y")
    width = spans[unit] // MOST_PERIODS + 1  # units of a period; more than 1 for years only
    period = days.astype(f"datetime64[{unit}]").astype(np.int64)
    first = int(period[present].min())
    codes = np.where(present, (period - first) // width, -1)
    starts = first + width * np.arange(int(codes.max()) + 1)
    dates = starts.astype(f"datetime64[{unit}]")
    names = dates.astype(str).tolist()
    if width > 1:
        names = [f"{name} to {int(name) + width - 1}" for name in names]
    nonempty, numbers = np.unique(codes[present], return_inverse=True)
    codes[present] = numbers
    positions = dates.astype("datetime64[D]").astype(np.float64)[nonempty]
    return Grouping(column, tuple(names[g] for g in nonempty.tolist()), codes, positions)
