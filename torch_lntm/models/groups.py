"""Groups of documents with different words in their topics, and periods: groups in order."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.formulas.columns import complete_column

#: The name of the array in a batch's covariates.
CONTENT = "content"

Level = str | int | float | bool
#: Lengths of a period of dates.
Bins = Literal["day", "week", "month", "quarter", "year"]

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?")
#: Monday, 29 December 1969, in days since 1970-01-01: the first day of week 0.
_MONDAY = -3
_EXAMPLES = "'~ rw(year)', '~ rw(date, bins=\"month\")' or '~ rw(day, width=7)'"


@dataclass(frozen=True)
class Groups:
    """Groups of documents by the values of a metadata column.

    Attributes:
        column: Name of the column.
        levels: Values of the column in the training documents, sorted. Each value is a group.

    Example:
        >>> lntm.models.Groups.of(posts, "party")
        Groups(column='party', levels=('left', 'right'))
    """

    column: str
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, corpus: Corpus, column: str) -> Groups:
        """Learn the groups of training documents.

        Args:
            corpus: The documents.
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
        values = complete_column(column, corpus.metadata)
        if values.dtype.kind == "f":
            raise ConfigError(
                f"content: column {column!r} holds numbers such as {values[0]}; expected groups "
                "of documents, as text or whole numbers"
            )
        levels = tuple(np.unique(values).tolist())
        if len(levels) < 2:
            raise ConfigError(
                f"content: column {column!r} is {levels[0]!r} in all documents; leave it out"
            )
        if 2 * len(levels) > corpus.num_docs:
            raise ConfigError(
                f"content: column {column!r} has {len(levels)} different values in "
                f"{corpus.num_docs} documents; expected groups of several documents each"
            )
        return cls(column, levels)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"content"``: each document's group, as its position.

        The array has shape ``(num_docs,)``. An encoded corpus is returned unchanged. If the
        documents lack the column, an existing array ``"content"`` is kept.

        Raises:
            CorpusError: The column and the array are missing, the column lacks values, or a value
                of the column is no level of the training documents.
        """
        if self.column not in corpus.metadata and CONTENT in corpus.covariates:
            return corpus.without_encodings(CONTENT)
        return corpus.with_encoding(CONTENT, self, lambda: self._derive(corpus))

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values = complete_column(self.column, corpus.metadata)
        levels, inverse = np.unique(values, return_inverse=True)
        position = {level: g for g, level in enumerate(self.levels)}
        unknown = [value for value in levels.tolist() if value not in position]
        if unknown:
            raise CorpusError(
                f"column {self.column!r} is {unknown[0]!r} in some documents, and the model has no "
                f"topics for this group; it knows {', '.join(map(str, self.levels))}. Leave these "
                "documents out, or use the mean of the groups' topics: "
                "model.with_parts(topics=model.topics.in_group())"
            )
        groups = np.array([position[value] for value in levels.tolist()], np.int64)
        return groups[inverse]

    def to_json(self) -> dict[str, Any]:
        """The groups as JSON-able data."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: list(x) if isinstance(x, tuple) else x for name, x in values}

    @classmethod
    def from_json(cls, data: Any) -> Groups:
        """The groups, or periods, from the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged.
        """
        kind = Periods if isinstance(data, Mapping) and "positions" in data else Groups
        try:
            values: Any = {n: tuple(x) if isinstance(x, list) else x for n, x in data.items()}
            groups = kind(**values)
            valid = groups._is_valid()
        except (AttributeError, TypeError):
            valid = False
        if not valid:
            raise ConfigError(
                f"content is {data!r:.80}; expected the result of {kind.__name__}.to_json(). Make "
                "the model by models.stm(num_topics, corpus, content='party')"
            )
        return groups

    def _is_valid(self) -> bool:
        """Whether the fields hold values as :meth:`of` makes them. May raise a ``TypeError``."""
        kinds = all(isinstance(level, str | int) for level in self.levels)
        return (
            isinstance(self.column, str) and kinds and 0 < len(set(self.levels)) == len(self.levels)
        )

    def position(self, level: Level) -> int:
        """Position of a level in ``levels``.

        Raises:
            ConfigError: The level is unknown.
        """
        if level not in self.levels:
            raise ConfigError(
                f"group {level!r} of column {self.column!r}; expected one of "
                f"{', '.join(map(repr, self.levels))}"
            )
        return self.levels.index(level)


@dataclass(frozen=True)
class Periods(Groups):
    """Periods of documents by a metadata column of numbers or dates, in order.

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
            corpus: The documents.
            column: ``"~ rw(year)"``: each value of the column is a period. ``"~ rw(date,
                bins='month')"``: days, weeks, months, quarters or years of dates. ``"~ rw(day,
                width=7)"``: bins of equal width, from the smallest value on. The column holds
                numbers, dates such as 2004-09-30 or 2004-09, or text that reads as either.

        Raises:
            ConfigError: The formula or the column is unsuitable, or the column has a single period.
            CorpusError: The column is missing, lacks values, or holds other text.
        """
        name, bins, width = _parsed(column)
        values, dates = _read(name, complete_column(name, corpus.metadata))
        if bins is not None and not dates:
            raise ConfigError(
                f"content: column {name!r} holds numbers, and bins={bins!r} needs dates; take "
                f"rw({name}, width=...)"
            )
        rule = cls(name, (), dates=dates, bins=bins, width=width, first=float(values.min()))
        positions, inverse = np.unique(rule._positions_of(values), return_inverse=True)
        if len(positions) < 2:
            raise ConfigError(
                f"content: all documents are of the same period of column {name!r}; leave it out"
            )
        if 2 * len(positions) > corpus.num_docs:
            raise ConfigError(
                f"content: column {name!r} has {len(positions)} periods in {corpus.num_docs} "
                "documents; expected periods of several documents each, such as those of "
                f"{_EXAMPLES}"
            )
        tokens = np.bincount(inverse, np.asarray(corpus.lengths, np.float64))
        shares = tokens / max(tokens.sum(), 1.0) if tokens.any() else np.bincount(inverse)
        return cls(
            name,
            tuple(rule._name_of(position) for position in positions.tolist()),
            tuple(positions.tolist()),
            tuple((shares / shares.sum()).tolist()),
            dates,
            bins,
            width,
            rule.first,
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
        quarter = re.fullmatch(r"(\d{4})Q([1-4])", str(value))
        if quarter and self.dates:
            value = f"{quarter[1]}-{3 * int(quarter[2]) - 2:02}"
        text = f"{value}-01" if self.dates and re.fullmatch(r"\d{4}", str(value)) else value
        try:
            number, dates = _read(self.column, np.array([text], object))
            if dates == self.dates and bool(np.isfinite(number).all()):
                return float(self._positions_of(number)[0])
        except CorpusError:
            pass
        kind = "a date such as 2004-09-30" if self.dates else "a number"
        raise ConfigError(f"period {value!r} of column {self.column!r}; expected {kind}")

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

    def _is_valid(self) -> bool:
        """See :meth:`Groups._is_valid`."""
        numbers = (*self.positions, *self.shares, self.first, self.width or 1.0)
        return (
            isinstance(self.column, str)
            and isinstance(self.dates, bool)
            and all(isinstance(level, str | int | float) for level in self.levels)
            and all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
            and 0 < len(self.levels) == len(self.positions) == len(self.shares)
            and bool((np.diff(self.positions) > 0).all())
            and min(self.shares) >= 0
            and abs(sum(self.shares) - 1) < 1e-6
            and (self.width is None or self.width > 0)
            and self.bins in (None, *get_args(Bins))
        )

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values, dates = _read(self.column, complete_column(self.column, corpus.metadata))
        if dates != self.dates:
            kinds = ("dates", "numbers") if dates else ("numbers", "dates")
            raise CorpusError(f"column {self.column!r} holds {kinds[0]}; expected {kinds[1]}")
        found = self._positions_of(values)
        known = np.array(self.positions)
        periods = np.searchsorted(known, found).clip(0, len(known) - 1)
        unknown = known[periods] != found
        if unknown.any():
            name = self._name_of(float(found[unknown.argmax()]))
            raise CorpusError(
                f"column {self.column!r} has the period {name} in document {unknown.argmax()}, "
                f"which is not among those of the training documents, from {self.levels[0]} to "
                f"{self.levels[-1]}. Leave such documents out, or take the topics of the period: "
                f"model.with_parts(topics=model.topics.at({name!r}))"
            )
        return periods.astype(np.int64)

    def _positions_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions of numbers, or of days since 1970-01-01."""
        if self.width is not None:
            bins = (values - self.first) / self.width
            # A value at the start of a bin may be a few units of its last place below the start.
            rounding = (np.abs(values) + abs(self.first)) / self.width + np.abs(bins)
            return np.floor(bins + 16 * np.finfo(np.float64).eps * rounding)
        if self.bins in (None, "day"):
            return values
        if self.bins == "week":
            return np.floor((values - _MONDAY) / 7)
        days = values.astype(np.int64).astype("datetime64[D]")
        if self.bins == "year":
            return days.astype("datetime64[Y]").astype(np.float64)
        months = days.astype("datetime64[M]").astype(np.float64)
        return months if self.bins == "month" else np.floor(months / 3)

    def _name_of(self, position: float) -> Level:
        """Name of a period by its position."""
        if self.bins == "year":
            return 1970 + int(position)
        if self.bins == "month":
            return str(np.datetime64(int(position), "M"))
        if self.bins == "quarter":
            return f"{1970 + int(position) // 4}Q{int(position) % 4 + 1}"
        start = position
        if self.width is not None:
            start = float(f"{self.first + self.width * position:.13g}")
        elif self.bins == "week":
            start = 7 * position + _MONDAY
        if self.dates:
            return str(np.datetime64(round(start), "D"))
        return int(start) if start == int(start) else start


def learn_groups(corpus: Corpus, content: str) -> Groups:
    """Learn the groups of training documents, or the periods of a formula ``"~ rw(column)"``.

    Args:
        corpus: The documents. For a part of a corpus, the columns of the whole corpus are read.
            They have no tokens, so the weights of periods are by documents.
        content: Name of a column, or a formula.

    Raises:
        ConfigError: As for :meth:`Groups.of` and :meth:`Periods.of`.
        CorpusError: As for :meth:`Groups.of` and :meth:`Periods.of`.
    """
    corpus = corpus.columns_of_whole()
    is_formula = isinstance(content, str) and content.lstrip().startswith("~")
    return Periods.of(corpus, content) if is_formula else Groups.of(corpus, content)


def _parsed(formula: str) -> tuple[str, Bins | None, float | None]:
    """Column, bins and width of a formula ``~ rw(column, bins=..., width=...)``."""
    message = f"content {formula!r:.80}; expected {_EXAMPLES}"
    try:
        call = ast.parse(formula.strip().removeprefix("~").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(message) from None
    match call:
        case ast.Call(
            func=ast.Name(id="rw"), args=[ast.Name(id=name) | ast.Constant(value=str(name))]
        ):
            options = {word.arg: word.value for word in call.keywords}
        case _:
            raise ConfigError(message)
    values: dict[Any, Any] = {n: x.value for n, x in options.items() if isinstance(x, ast.Constant)}
    bins, width = values.get("bins"), values.get("width")
    if len(values) < len(options) or not {"bins", "width"} >= set(values) or len(values) > 1:
        raise ConfigError(f"{message}, with bins or width alone")
    if bins is not None and bins not in get_args(Bins):
        raise ConfigError(f"bins is {bins!r}; expected one of {', '.join(get_args(Bins))}")
    is_number = isinstance(width, int | float) and not isinstance(width, bool)
    if width is not None and not (is_number and 0 < width < math.inf):
        raise ConfigError(f"width is {width!r}; expected a positive number")
    return name, bins, None if width is None else float(width)


def _read(column: str, values: NDArray[Any]) -> tuple[NDArray[np.float64], bool]:
    """Values of a column as numbers, or as days since 1970-01-01, and whether they are dates.

    Raises:
        CorpusError: A value is infinite, or neither a number nor a date.
    """
    if values.dtype.kind in "bif":
        numbers = values.astype(np.float64)
        if not np.isfinite(numbers).all():
            raise CorpusError(f"column {column!r} holds an infinite number; leave it out")
        return numbers, False
    texts = [str(value).strip() for value in values.tolist()]
    dates = bool(texts) and _DATE.fullmatch(texts[0]) is not None
    numbers = np.empty(len(texts))
    for row, text in enumerate(texts):
        try:
            if dates and _DATE.fullmatch(text):
                numbers[row] = np.datetime64(text[:10], "D").astype(np.int64)
            else:
                numbers[row] = math.nan if dates else float(text)
        except ValueError:
            numbers[row] = math.nan
        if not math.isfinite(numbers[row]):
            expected = "a date as in 2004-09-30" if dates else "a number, or dates throughout"
            raise CorpusError(
                f"column {column!r} holds {text!r:.40} in document {row}; expected {expected}"
            )
    return numbers, dates
