"""Documents in groups, by the values of a column of their metadata."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus

#: Most groups of names, and of numbers.
MOST_NAMES, MOST_BINS = 12, 10
#: What is said of axes that are not those of the numbers themselves.
BINS = "Bins of about as many documents each, equally spaced."
LOGARITHMIC = "The axis is logarithmic."
#: Most periods of a time.
MOST_PERIODS = 36
#: A column of more different names than this tells documents apart instead of grouping them.
_MOST_GROUPING_NAMES = 50

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_PERIODS: tuple[Literal["D", "M", "Y"], ...] = ("D", "M", "Y")


@dataclass(frozen=True, eq=False)
class Grouping:
    """Documents in groups.

    Attributes:
        column: The column whose values make the groups.
        names: The groups, in the order of the values, or the largest first if they have none.
        codes: ``(num_docs,)`` each document's group; -1 for those in none, whose value is missing.
        positions: ``(num_groups,)`` positions of the groups on an axis; None for names. Bins are
            equally spaced. Other numbers lie at their values, or at their logarithms where
            :func:`is_skewed`; dates at their days.
        axis_note: What a reader must know of that axis.
    """

    column: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    positions: NDArray[np.float64] | None = None
    axis_note: str = ""

    @property
    def ordered(self) -> bool:
        """Whether the groups lie on an axis."""
        return self.positions is not None


def group_documents(column: str, values: NDArray[Any]) -> Grouping:
    """Documents grouped by a column: names as they are, dates by period, numbers in bins.

    Of many names the most frequent stay, and ``other`` holds the rest. The periods of dates, which
    are text that begins like 2008-03, are days, months, years or several years, the shortest of
    which there are at most 36. Numbers of few values are groups as they are; others are cut into
    10 bins of about as many documents each, named by their least and their largest number.

    Args:
        column: The column's name.
        values: ``(num_docs,)`` its values, as in ``corpus.metadata``.
    """
    if values.dtype.kind in "if":
        return _by_number(column, values.astype(np.float64))
    texts = [None if value is None else str(value) for value in values.tolist()]
    dates = _dates(texts) if values.dtype == object else None
    return _by_name(column, texts) if dates is None else _by_time(column, dates)


def grouping_columns(corpus: Corpus) -> list[str]:
    """The columns of a corpus's metadata that put documents into groups, in their order.

    Left out are columns of one value, and of so many different names that they tell documents
    apart, as ids do.
    """
    found = []
    for column, values in corpus.metadata.items():
        if values.dtype == object:
            names = {value for value in values.tolist() if value is not None}
            dated = _dates(values.tolist()) is not None
            groups = len(names) >= 2 and (dated or len(names) <= _MOST_GROUPING_NAMES)
        else:
            groups = len(np.unique(values[~np.isnan(values.astype(np.float64))])) >= 2
        if groups:
            found.append(column)
    return found


def axis_positions(values: Sequence[object]) -> NDArray[np.float64] | None:
    """Where values lie on an axis of numbers or days; None of names, and of two values or fewer.

    The axis of numbers is logarithmic where :func:`is_skewed`.
    """
    if len(values) <= 2:
        return None
    if not any(isinstance(value, str) for value in values):
        return _along(np.array(values, np.float64))
    dates = _dates([str(value) for value in values])
    return None if dates is None else dates.astype(np.float64)


def is_skewed(values: NDArray[np.float64]) -> bool:
    """Whether numbers need a logarithmic axis.

    They do if all are positive and half of them lie in the first tenth of their range, where a
    linear axis would put them on top of each other.
    """
    least, most = values.min(), values.max()
    return bool(least > 0 and np.median(values) - least < 0.1 * (most - least))


def axis_note(values: Sequence[object] | NDArray[np.float64]) -> str:
    """What a reader must know of the axis of :func:`axis_positions`."""
    if len(values) <= 2 or any(isinstance(value, str) for value in values):
        return ""
    return LOGARITHMIC if is_skewed(np.array(values, np.float64)) else ""


def format_number(value: float) -> str:
    """A number to read: whole, with separators of thousands, from 10,000 on."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:g}"


def _along(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where numbers lie on their axis."""
    return np.log(values) if is_skewed(values) else values


def _by_name(column: str, texts: list[str | None]) -> Grouping:
    counts = Counter(text for text in texts if text is not None)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    kept = ranked if len(ranked) <= MOST_NAMES else ranked[: MOST_NAMES - 1]
    position = {name: g for g, name in enumerate(kept)}
    codes = [-1 if text is None else position.get(text, len(kept)) for text in texts]
    rest = (f"other ({len(ranked) - len(kept)})",) if len(kept) < len(ranked) else ()
    return Grouping(column, (*kept, *rest), np.array(codes, np.int64))


def _by_number(column: str, values: NDArray[np.float64]) -> Grouping:
    known = np.isfinite(values)
    distinct = np.unique(values[known])
    if len(distinct) <= MOST_NAMES:
        codes = np.where(known, np.searchsorted(distinct, values), -1)
        names = tuple(map(format_number, distinct.tolist()))
        return Grouping(column, names, codes, _along(distinct), axis_note(distinct))
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, MOST_BINS + 1)))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    codes = np.unique(np.where(known, codes, -1), return_inverse=True)[1]
    codes = codes - (0 if known.all() else 1)
    parts = [values[codes == g] for g in range(int(codes.max()) + 1)]
    names = tuple(f"{format_number(part.min())} to {format_number(part.max())}" for part in parts)
    return Grouping(column, names, codes, np.arange(len(names), dtype=np.float64), BINS)


def _dates(texts: list[str | None]) -> NDArray[np.datetime64] | None:
    """The days that texts name; None if one is no date, or none is there."""
    present = [text for text in texts if text is not None]
    if not present or not all(_DATE.fullmatch(text) for text in present):
        return None
    try:
        return np.array(["NaT" if t is None else t[:10] for t in texts], "datetime64[D]")
    except ValueError:  # as 2008-13
        return None


def _by_time(column: str, days: NDArray[np.datetime64]) -> Grouping:
    known = ~np.isnat(days)
    spans: dict[str, int] = {
        unit: int(np.ptp(days[known].astype(f"datetime64[{unit}]").astype(np.int64)))
        for unit in _PERIODS
    }
    unit = next((u for u in _PERIODS if spans[u] < MOST_PERIODS), "Y")
    width = spans[unit] // MOST_PERIODS + 1  # years together; 1 unless there are too many
    period = days.astype(f"datetime64[{unit}]").astype(np.int64)
    first = int(period[known].min())
    codes = np.where(known, (period - first) // width, -1)
    starts = first + width * np.arange(int(codes.max()) + 1)
    dates = starts.astype(f"datetime64[{unit}]")
    names = dates.astype(str).tolist()
    if width > 1:
        names = [f"{name} to {int(name) + width - 1}" for name in names]
    places = dates.astype("datetime64[D]").astype(np.float64)
    return _without_empty(column, names, codes, places)


def _without_empty(
    column: str, names: list[str], codes: NDArray[np.int64], places: NDArray[np.float64]
) -> Grouping:
    """The groups that have a document."""
    there = np.unique(codes[codes >= 0])
    codes = np.where(codes >= 0, np.searchsorted(there, codes), -1)
    return Grouping(column, tuple(names[g] for g in there.tolist()), codes, places[there])
