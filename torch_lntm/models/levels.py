"""Levels of a column, each with words of its own, and periods, which are levels in order."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import complete_column
from torch_lntm.errors import ConfigError, CorpusError, require_one

#: The name of the array in a batch's covariates.
CONTENT = "content"

Level = str | int | float | bool
#: Lengths of a period of dates.
Bins = Literal["day", "week", "month", "quarter", "year"]
#: Their names in pandas, which numbers the periods from 1970 on.
_FREQUENCIES = {"day": "D", "week": "W", "month": "M", "quarter": "Q", "year": "Y"}
#: The number of pandas' week of 1970-01-01, which is week 0 here. Weeks begin on Mondays.
_FIRST_WEEK = 1

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
_YEAR_OR_QUARTER = re.compile(r"\d{4}(Q[1-4])?")
_FORMULA = re.compile(
    r"""~\s*rw\(\s*(?:(\w+)|"([^"]+)"|'([^']+)')\s*(?:,\s*(\w+)\s*=\s*["']?([^"',]+)["']?\s*)?\)"""
)
_EXAMPLES = "'~ rw(year)', '~ rw(date, bins=\"month\")' or '~ rw(day, width=7)'"


@dataclass(frozen=True)
class Levels:
    """Levels of a metadata column, at each of which topics have words of their own.

    Attributes:
        column: Name of the column.
        levels: Values of the column in the training documents, sorted.

    Example:
        >>> lntm.models.Levels.of(posts, "party")
        Levels(column='party', levels=('left', 'right'))
    """

    column: str
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, corpus: Corpus, column: str) -> Levels:
        """Learn the levels of training documents.

        Args:
            corpus: The documents. For a part of a corpus, the column of the whole corpus is read.
            column: Name of a metadata column with text, truth values or whole numbers.

        Raises:
            ConfigError: ``column`` is not a name. Or the column holds floating-point numbers, is
                constant, or has more values than half the number of documents.
            CorpusError: The column is missing or lacks values.
        """
        if not isinstance(column, str):
            raise ConfigError(
                f"content is a {type(column).__name__}; expected the name of one column, such as "
                "'party'"
            )
        corpus = corpus.columns_of_whole()
        values = complete_column(column, corpus.metadata)
        if values.dtype.kind == "f":
            raise ConfigError(
                f"content: column {column!r} holds numbers such as {values[0]}; expected levels "
                "shared by several documents, as text or whole numbers"
            )
        levels = tuple(np.unique(values).tolist())
        _check_levels(column, levels, corpus.num_docs)
        return cls(column, levels)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"content"``: each document's level, as its position.

        The array has shape ``(num_docs,)``. A corpus that is encoded already comes back unchanged,
        and if the documents lack the column, an existing array ``"content"`` is kept.

        Raises:
            CorpusError: The column and the array are missing, the column lacks values, or a value
                of the column is no level of the training documents.
        """
        if self.column not in corpus.metadata and CONTENT in corpus.covariates:
            return corpus.without_encodings(CONTENT)
        return corpus.with_encoding(CONTENT, self, lambda: self._derive(corpus))

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values = complete_column(self.column, corpus.metadata)
        positions = pd.Index(self.levels, dtype=object).get_indexer(values.astype(object))
        if (positions < 0).any():
            raise CorpusError(
                f"column {self.column!r} is {values.tolist()[positions.argmin()]!r} in some "
                "documents, and the model has no topics for this level; it knows "
                f"{', '.join(map(str, self.levels))}. Leave these documents out, or use the mean "
                "of the levels' topics: model.with_parts(topics=model.topics.at())"
            )
        return positions.astype(np.int64)

    def position(self, level: Level) -> int:
        """Position of a level in ``levels``.

        Raises:
            ConfigError: The level is unknown.
        """
        if level not in self.levels:
            raise ConfigError(
                f"level {level!r} of column {self.column!r}; expected one of "
                f"{', '.join(map(repr, self.levels))}"
            )
        return self.levels.index(level)

    def to_json(self) -> dict[str, Any]:
        """The levels as JSON-able data."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> Levels:
        """The levels, or periods, from the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are something else.
        """
        kind = Periods if isinstance(data, Mapping) and "positions" in data else Levels
        try:
            values: Any = {n: tuple(x) if isinstance(x, list) else x for n, x in data.items()}
            return kind(**values)
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                f"content is {data!r:.80}; expected the result of {kind.__name__}.to_json(). Make "
                "the model by models.stm(num_topics, corpus, content='party')"
            ) from error


@dataclass(frozen=True)
class Periods(Levels):
    """Periods of a metadata column of numbers or dates, in order.

    Attributes:
        column: Name of the column.
        levels: Names of the T periods in the training documents, in order: numbers, dates, months
            such as ``"2004-09"``, quarters such as ``"2004Q3"``, or the first value of a bin.
        positions: ``(num_periods,)`` ascending positions of the periods: values of the column, or
            numbers of bins.
        shares: ``(num_periods,)`` shares of the training tokens.
        dates: Whether the column holds dates.
        bins: Length of a period of dates, if the periods are bins of dates.
        width: Length of a period, if the periods are bins of equal width. Days for dates.
        first: Start of the first bin, for ``width``.

    Example:
        >>> years = lntm.models.Periods.of(posts, "~ rw(year)")
        >>> years.column, len(years.gaps) == len(years.levels) - 1
        ('year', True)
    """

    positions: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    dates: bool = False
    bins: Bins | None = None
    width: float | None = None
    first: float = 0.0

    @classmethod
    def of(cls, corpus: Corpus, column: str) -> Periods:
        """Learn the periods of training documents.

        Args:
            corpus: The documents. For a part of a corpus, the column of the whole corpus is read.
                It has no tokens, so the shares of periods are those of the documents.
            column: ``"~ rw(year)"``: each value of the column is a period. ``"~ rw(date,
                bins='month')"``: days, weeks, months, quarters or years of dates. ``"~ rw(day,
                width=7)"``: bins of equal width, from the smallest value on. The column holds
                numbers, dates such as 2004-09-30 or 2004-09, or text that reads as either.

        Raises:
            ConfigError: The formula or the column is unsuitable, or the column has a single period.
            CorpusError: The column is missing, lacks values, or holds other text.
        """
        corpus = corpus.columns_of_whole()
        name, bins, width = _parsed(column)
        values, dates = _numbers(name, complete_column(name, corpus.metadata))
        if bins is not None and not dates:
            raise ConfigError(
                f"content: column {name!r} holds numbers, and bins={bins!r} needs dates; take "
                f"rw({name}, width=...)"
            )
        rule = cls(name, (), dates=dates, bins=bins, width=width, first=float(values.min()))
        positions, inverse = np.unique(rule._positions_of(values), return_inverse=True)
        levels = tuple(map(rule._name_of, positions.tolist()))
        _check_levels(name, levels, corpus.num_docs)
        tokens = np.bincount(inverse, np.asarray(corpus.lengths, np.float64))
        shares = tokens / max(tokens.sum(), 1.0) if tokens.any() else np.bincount(inverse)
        return replace(
            rule,
            levels=levels,
            positions=tuple(positions.tolist()),
            shares=tuple((shares / shares.sum()).tolist()),
        )

    @property
    def gaps(self) -> tuple[float, ...]:
        """``(num_periods - 1,)`` distances of successive periods, in units of their mean."""
        steps = np.diff(self.positions)
        return tuple((steps / steps.mean()).tolist()) if len(steps) else ()

    def place(self, value: Level) -> float:
        """Position of a value of the column, or of a name of a period, on the axis of `positions`.

        Raises:
            ConfigError: The value is no number or date.
        """
        if value in self.levels:
            return self.positions[self.levels.index(value)]
        try:
            number: Any = value
            if self.dates:
                text = str(value)
                if not (_DATE.fullmatch(text) or _YEAR_OR_QUARTER.fullmatch(text)):
                    raise ValueError(text)  # pandas would guess what 5 or 1/2/2004 means
                number = pd.Period(text).asfreq("D", "start").ordinal
            found = float(self._positions_of(np.array([number], np.float64))[0])
            if not math.isfinite(found):
                raise ValueError(found)
            return found
        except (TypeError, ValueError) as error:
            kind = "a date such as 2004-09-30" if self.dates else "a number"
            message = f"period {value!r} of column {self.column!r}; expected {kind}"
            raise ConfigError(message) from error

    def position(self, level: Level) -> int:
        """Number of a period, by its name or by a value in it.

        Raises:
            ConfigError: The training documents have no such period.
        """
        place = self.place(level)
        if place not in self.positions:
            raise ConfigError(
                f"period {level!r} of column {self.column!r} is not among those of the training "
                f"documents, from {self.levels[0]} to {self.levels[-1]}; topics.at({level!r}) "
                "gives its topics"
            )
        return self.positions.index(place)

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values, dates = _numbers(self.column, complete_column(self.column, corpus.metadata))
        if dates != self.dates:
            kinds = ("dates", "numbers") if dates else ("numbers", "dates")
            raise CorpusError(f"column {self.column!r} holds {kinds[0]}; expected {kinds[1]}")
        found = self._positions_of(values)
        periods = pd.Index(self.positions).get_indexer(found)
        if (periods < 0).any():
            row = int(periods.argmin())
            name = self._name_of(float(found[row]))
            raise CorpusError(
                f"column {self.column!r} has the period {name} in document {row}, which is not "
                f"among those of the training documents, from {self.levels[0]} to "
                f"{self.levels[-1]}. Leave such documents out, or take the topics of the period: "
                f"model.with_parts(topics=model.topics.at({name!r}))"
            )
        return periods.astype(np.int64)

    def _positions_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions of numbers, or of days since 1970-01-01."""
        if self.width is not None:
            bins = (values - self.first) / self.width
            # A value at the start of a bin may lie a few units in the last place below it.
            rounding = (np.abs(values) + abs(self.first)) / self.width + np.abs(bins)
            return np.floor(bins + 16 * np.finfo(np.float64).eps * rounding)
        if self.bins is None:
            return values
        days = values.astype("datetime64[D]").astype("datetime64[s]")
        numbers = pd.PeriodIndex(days, freq=_FREQUENCIES[self.bins]).asi8.astype(np.float64)
        return numbers - _FIRST_WEEK if self.bins == "week" else numbers

    def _name_of(self, position: float) -> Level:
        """Name of a period by its position."""
        if self.bins == "year":
            return 1970 + int(position)
        if self.bins in ("month", "quarter"):
            return str(pd.Period(ordinal=int(position), freq=_FREQUENCIES[self.bins]))
        start = position
        if self.width is not None:
            start = float(f"{self.first + self.width * position:.13g}")
        elif self.bins == "week":
            week = pd.Period(ordinal=int(position) + _FIRST_WEEK, freq="W")
            start = week.asfreq("D", "start").ordinal
        if self.dates:
            return str(np.datetime64(round(start), "D"))
        return int(start) if start == int(start) else start


def learn_levels(corpus: Corpus, content: str) -> Levels:
    """Learn the levels of a column of training documents, or the periods of ``"~ rw(column)"``.

    Raises:
        ConfigError: As for :meth:`Levels.of` and :meth:`Periods.of`.
        CorpusError: As for :meth:`Levels.of` and :meth:`Periods.of`.
    """
    is_formula = isinstance(content, str) and content.lstrip().startswith("~")
    return (Periods if is_formula else Levels).of(corpus, content)


def _check_levels(column: str, levels: tuple[Level, ...], num_docs: int) -> None:
    """Raise if a column has a single level, or few documents of each."""
    if len(levels) < 2:
        raise ConfigError(
            f"content: column {column!r} gives all documents the one level {levels[0]!r}; leave it "
            "out, or take shorter periods"
        )
    if 2 * len(levels) > num_docs:
        raise ConfigError(
            f"content: column {column!r} has {len(levels)} different values in {num_docs} "
            "documents; expected levels of several documents each, or longer periods, as in "
            f"{_EXAMPLES}"
        )


def _parsed(formula: str) -> tuple[str, Bins | None, float | None]:
    """Column, bins and width of a formula ``~ rw(column, bins=..., width=...)``."""
    found = _FORMULA.fullmatch(formula.strip())
    if found is None or found[4] not in (None, "bins", "width"):
        message = f"content {formula!r:.80}; expected {_EXAMPLES}, with bins or width alone"
        raise ConfigError(message)
    name, option, value = found[1] or found[2] or found[3], found[4], found[5]
    if option == "bins":
        require_one(_FREQUENCIES, bins=value)
    bins: Any = value if option == "bins" else None
    try:
        width = float(value) if option == "width" else None
    except ValueError:
        width = math.nan
    if width is not None and not 0 < width < math.inf:
        raise ConfigError(f"width is {value!r}; expected a positive number")
    return name, bins, width


def _numbers(column: str, values: NDArray[Any]) -> tuple[NDArray[np.float64], bool]:
    """Values of a column as numbers, or as days since 1970-01-01, and whether they are dates.

    Raises:
        CorpusError: A value is infinite, or neither a number nor a date.
    """
    texts = [str(value).strip() for value in values.tolist()]
    is_number = values.dtype.kind in "bif"
    dates = not is_number and _DATE.fullmatch(texts[0]) is not None
    numbers = values.astype(float) if is_number else np.array([_number(t, dates) for t in texts])
    if not np.isfinite(numbers).all():
        row = int(np.isfinite(numbers).argmin())
        expected = "a date as in 2004-09-30" if dates else "a number, or dates throughout"
        raise CorpusError(
            f"column {column!r} holds {texts[row]!r:.40} in document {row}; expected {expected}"
        )
    return numbers, dates


def _number(text: str, is_date: bool) -> float:
    """A number, or the days of a date since 1970-01-01. NaN for other text."""
    try:
        if not is_date:
            return float(text)
        is_date = _DATE.fullmatch(text) is not None  # NumPy reads "today" and "NaT" too
        return float(np.datetime64(text[:10], "D").astype(np.int64)) if is_date else math.nan
    except ValueError:
        return math.nan
