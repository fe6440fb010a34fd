"""Effects: effects of terms, predictions and differences with intervals."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import frames
from torch_lntm.effects.design import Design
from torch_lntm.effects.grids import distinct, rows_at
from torch_lntm.effects.linear import LinearRegression
from torch_lntm.effects.logit import AVERAGE, NEW, LogitRegression
from torch_lntm.effects.numbers import Estimate, Estimates, Scale, format_value, intervals
from torch_lntm.errors import ConfigError
from torch_lntm.formulas import Formula
from torch_lntm.formulas.language import level_column
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import is_skewed, topic_labels
from torch_lntm.reports.prevalence import SHORT_DOCUMENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Values of the columns that a prediction does not set.
Others = Literal["average", "typical"]
#: Scale of the regression.
Link = Literal["logit", "identity"]
#: Grid values of a number or date.
GRID = 50
#: Step of a derivative, in standard deviations of the column.
STEP = 1e-3


class Mean(NamedTuple):
    """An average of predictions, or a difference of averages.

    Attributes:
        estimates: ``(num_responses,)``.
        gradients: ``(num_responses, num_coefficients)``.
        row: ``(num_terms,)`` average of the rows of the design.
    """

    estimates: Tensor
    gradients: Tensor
    row: NDArray[np.float64]

    def less(self, other: Mean) -> Mean:
        """The difference."""
        gradients = self.gradients - other.gradients
        return Mean(self.estimates - other.estimates, gradients, self.row - other.row)


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """Effects of metadata on topic proportions, the result of :func:`estimate`.

    Attributes:
        formula: The fitted formula, with levels and knots.
        topics: Numbers of the topics, then names of the groups of topics, in the order of the
            responses.
        link: Scale of the regression behind all numbers.
        regression: The regression, pooled over draws.
        design: Design of the regression.
        columns: ``(num_docs,)`` values of the formula's columns.
        sources_of_uncertainty: Sources of uncertainty in the intervals beside the regression.
        fixed: Estimated quantities that the intervals treat as known.
        method: Kind of the regression's standard errors.
        model: The model.
        num_draws: Number of draws.
        mean_length: Mean number of tokens of a document.
        groups: Groups of topics, if some were regressed.
    """

    formula: Formula
    topics: tuple[int | str, ...]
    link: Link
    regression: LinearRegression | LogitRegression
    design: Design
    columns: Mapping[str, NDArray[Any]]
    sources_of_uncertainty: tuple[str, ...]
    fixed: tuple[str, ...]
    method: str
    model: TopicModel
    num_draws: int
    mean_length: float
    groups: TopicGroups | None = None

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return len(self.design.weights)

    def __repr__(self) -> str:
        head = f"Effects({self.formula.text!r}, link={self.link!r})"
        return "\n  ".join([head, *self._sentences])

    @property
    def description(self) -> str:
        """The regression, and sources of uncertainty inside and outside the intervals, in words."""
        return " ".join(self._sentences)

    @property
    def _sentences(self) -> list[str]:
        """The sentences of the description."""
        num_groups = 0 if self.groups is None else len(self.groups)
        num_topics = len(self.topics) - num_groups
        texts = [f"{num_topics} topic{'s' * (num_topics > 1)}"] * (num_topics > 0)
        texts += [f"{num_groups} group{'s' * (num_groups > 1)} of topics"] * (num_groups > 0)
        kind = "multinomial logit" if self.link == "logit" else "linear"
        said = [
            f"A {kind} regression of the proportions of {' and '.join(texts)} in "
            f"{self.num_docs:,} documents on {self.formula.text}.",
            f"In the intervals: the regression ({self.method}); "
            f"{'; '.join(self.sources_of_uncertainty)} ({self.num_draws} draws).",
        ]
        if not self.fixed:
            return said
        unknown = f"Not in the intervals: the uncertainty of {' and of '.join(self.fixed)}"
        if self.mean_length >= SHORT_DOCUMENT:
            return [*said, f"{unknown}."]
        return [
            *said,
            f"{unknown}, which is large for documents of {self.mean_length:.0f} tokens.",
            "The intervals are therefore too narrow, and effects are too small if the posteriors "
            "are approximate; "
            "lntm.inference.joint_draws, or torch-lntm effects --draws joint, includes it.",
        ]

    def _labels(self, num_words: int = 2) -> dict[int | str, str]:
        """Labels of topics by number, and of groups of topics by name."""
        labels: dict[int | str, str] = dict(enumerate(topic_labels(self.model, num_words)))
        return labels | {name: name for name in (self.groups.names if self.groups else ())}

    # -- effects of terms ------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> Estimates:
        """The effect of every column of the design on every topic, topic by topic.

        With ``link="identity"``, effects are the coefficients. With ``link="logit"``, they are
        average marginal effects on the expected proportion, which read as coefficients do: changes
        of the proportion, averaged over all documents, whose other columns stay as observed.
        Standard errors are by the delta method. The rows are:

        * A level, such as ``party[T.Right]``: the difference between this level and the reference,
          in all terms of the column, as by :meth:`difference`. A level without a reference, as in
          ``~ 0 + party``: the expected proportion. Truth values, and numbers that are 0 or 1: the
          difference between 1 and 0.
        * A column of numbers or dates: the derivative, in all terms of the column.
        * Any other column of the design, such as those of splines and interactions: the derivative
          in this column alone. Read such terms by :meth:`predict` and :meth:`difference`.
        * ``Intercept``: the expected proportion at the references of all levels, and at 0 of all
          truth values and numbers that are 0 or 1. (The coefficient has all numbers at 0.)

        Args:
            level: Probability of the intervals, between 0 and 1.
        """
        found = [self._of_term(j) for j in range(len(self.formula.names))]
        what: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in self.formula.names]
        return self._estimates([mean for mean, _ in found], what, level, [s for _, s in found])

    def frame(self, rows: Iterable[Estimate] | None = None, *, level: float = 0.95) -> pd.DataFrame:
        """A data frame with a row for each effect, level or prediction.

        Args:
            rows: The result of :meth:`table`, :meth:`levels`, :meth:`predict` or
                :meth:`difference`. Defaults to :meth:`table`.
            level: Probability of the intervals of the table.

        Returns:
            See :meth:`Estimates.frame`.
        """
        return self.table(level).frame() if rows is None else Estimates(rows).frame()

    def summary(self, level: float = 0.95) -> str:
        """The effects as text, topic by topic, and standard deviations of random terms.

        Args:
            level: See :meth:`table`.
        """
        text = f"{self!r}\n{self.format(self.table(level))}"
        if self.regression.spread is None or not self.formula.random:
            return text
        columns = dict(zip(self.formula.random, self.regression.spread.mT.tolist(), strict=True))
        if isinstance(self.regression, LinearRegression) and self.regression.random is not None:
            columns["residual"] = self.regression.random.residual.tolist()
        labels = self._labels(5)
        spread = pd.DataFrame({"topic": [labels[topic] for topic in self.topics]} | columns)
        scale = " on the scale of the logit" if self.link == "logit" else ""
        return f"{text}\n\nStandard deviations of effects{scale}\n{frames.render(spread)}"

    def levels(self, column: str, level: float = 0.95) -> Estimates:
        """Effects of the levels of a random term on every topic, topic by topic.

        Effects of levels with few documents are shrunk towards 0. With ``link="logit"``, an effect
        is the difference of the expected proportion, averaged over all documents, between the level
        and a level with the effect 0. Intervals have the degrees of freedom of the levels'
        variance: the number of levels, less the number of columns that are constant within levels,
        the intercept among them.

        Args:
            column: Column of the term.
            level: Probability of the intervals.

        Raises:
            ConfigError: The formula has no random term of the column.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party + (1 | year)")
            >>> [effect.term for effect in effects.levels("year")[:2]]
            ['year[2001]', 'year[2002]']
        """
        if column not in self.formula.random:
            raise ConfigError(
                f"formula {self.formula.text!r} has no random term of {column!r}; expected a "
                f"formula with (1 | {column})"
            )
        at = list(self.formula.random).index(column)
        terms = [f"{column}[{name}]" for name in self.formula.random[column]]
        what: list[tuple[str, dict[str, Any]]] = [(term, {}) for term in terms]
        # An interval knows the variance of the levels' effects no better than its levels do.
        freedom = self.design.containment(self.regression.freedom)[1][at]
        if isinstance(self.regression, LinearRegression):
            random = self.regression.random
            assert random is not None
            effects, variances = (
                values.split(self.design.sizes, 1)[at].numpy()
                for values in (random.effects, random.variances)
            )
            ends = intervals(effects, variances, 0 * variances, self.num_draws, freedom, level)
            return self._rows([effects, *ends], what, level)
        first, weights, positions = self._distinct()
        means = []
        for value in (AVERAGE, *range(len(terms))):
            moved = positions.clone()
            moved[:, at] = value
            means.append(self._mean(self.design.raw[first], weights, moved))
        found = [mean.less(means[0]) for mean in means[1:]]
        return self._estimates(found, what, level, ["atanh"] * len(what), freedom)

    # -- predictions -----------------------------------------------------------------------------

    def predict(
        self, *names: str, level: float = 0.95, others: Others = "average", **values: Any
    ) -> Estimates:
        """Expected proportions at values of some columns.

        For example::

            effects.predict("party")  # at each level
            effects.predict("date", party="Left")  # over time, for one party
            effects.predict(date=["2004-01-15", "2004-06-15"], party=["Left", "Right"])

        With ``link="logit"``, predictions lie between 0 and 1 and sum to 1 over the topics.
        Intervals are formed on the logit scale, so they lie between 0 and 1 too.

        Args:
            *names: Columns to vary over all levels, or over 50 values from the smallest to the
                largest.
            level: Probability of the intervals.
            others: Values of the other columns. ``"average"`` uses each document's own values, and
                averages the predictions over all documents. ``"typical"`` uses the median of
                numbers and dates and the most frequent level, as in R's stm. With random terms,
                linear predictions are for a level with the effect 0. Those of the logit keep each
                document's own level for ``"average"``, and take the effect 0 for ``"typical"``.
            **values: A value or several values by column: a list, a range, an array, a series, and
                so forth. All combinations are predicted. The logit also takes values of random
                terms' columns. A value absent from the documents has the effect 0, and its
                variance is in the interval.

        Returns:
            Predictions for each topic and combination of values, topic by topic.

        Raises:
            ConfigError: The formula does not read a column, a column has no value, or a setting is
                out of range.
            CorpusError: The formula was fitted without a value.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
            >>> [point.values["party"] for point in effects.predict("party")][:2]
            ['left', 'right']
        """
        grids = {}
        for name in names:
            if not isinstance(name, str):
                raise ConfigError(
                    f"predict takes names of columns, got {name!r:.60}; values go by the name of "
                    "their column, as in predict(party=['Left', 'Right'])"
                )
            grids[name] = self.grid(name)
        grids |= {name: self._several(name, value) for name, value in values.items()}
        points = [
            dict(zip(grids, point, strict=True)) for point in itertools.product(*grids.values())
        ]
        scale: Scale = "logit" if self.link == "logit" else "identity"
        what = [("", point) for point in points]
        return self._estimates(self._averages(points, others), what, level, [scale] * len(what))

    def difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        level: float = 0.95,
        others: Others = "average",
        **values: Any,
    ) -> Estimates:
        """Difference of expected proportions between two values of a column, first minus second.

        With ``link="logit"``, intervals are formed on the scale of the inverse hyperbolic tangent,
        so they lie between -1 and 1.

        Args:
            name: The column.
            first: The first value.
            second: The second value.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            **values: Values of other columns for both predictions.

        Returns:
            A difference for each topic.

        Raises:
            ConfigError: See :meth:`predict`.
            CorpusError: See :meth:`predict`.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
            >>> len(effects.difference("party", "left", "right"))
            10
        """
        given = {**values, name: first}
        fixed = {column: self._several(column, value)[0] for column, value in given.items()}
        pair = (fixed[name], self._several(name, second)[0])
        points = [{**fixed, name: value} for value in pair]
        one, other = self._averages(points, others)
        scale: Scale = "atanh" if self.link == "logit" else "identity"
        return self._estimates([one.less(other)], [("", {**fixed, name: pair})], level, [scale])

    def format(self, rows: Iterable[Estimate]) -> str:
        """Predictions, differences, levels or effects as text, topic by topic.

        Args:
            rows: The result of :meth:`predict`, :meth:`difference`, :meth:`levels` or
                :meth:`table`.
        """
        rows, labels = Estimates(rows), self._labels(5)
        frame = rows.frame().drop(columns="name", errors="ignore")
        frame["topic"] = [labels[row.topic] for row in rows]
        if "p_value" in frame:
            frame.insert(frame.columns.get_loc("p_value"), "df", [row.freedom for row in rows])
        return frames.render(frame)

    def plot(
        self,
        name: str,
        *,
        by: str | None = None,
        topics: Sequence[int | str] | None = None,
        level: float = 0.95,
        others: Others = "average",
        ax: Axes | None = None,
        **values: Any,
    ) -> Axes:
        """Plot expected proportions over a column: points at levels, lines over numbers and dates.

        Args:
            name: The column.
            by: A column of levels. Each level has its own lines or points.
            topics: Topics to draw, by number or name, and names of groups of topics. Defaults to
                all; choose a few for a readable plot.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            ax: Axes to draw into. Defaults to a new figure.
            **values: Values of other columns.

        Returns:
            The axes.

        Raises:
            ConfigError: As for :meth:`predict`.
        """
        from torch_lntm.plotting.effects import Series, plot_effects

        drawn_topics, labels = self._drawn(topics), self._labels()
        levels = [None] if by is None else self.grid(by)
        values = values if by is None else {**values, by: levels}
        predictions = self.predict(name, level=level, others=others, **values)
        series = []
        for value, topic in itertools.product(levels, drawn_topics):
            points = [
                point
                for point in predictions
                if point.topic == topic and (by is None or point.values[by] == value)
            ]
            label = labels[topic] if value is None else f"{labels[topic]}, {value}"
            numbers = np.array([[p.estimate, p.lower, p.upper] for p in points])
            series.append(Series(label, [point.values[name] for point in points], numbers))
        return plot_effects(series, name, self.formula.kinds.get(name, "text"), level, ax=ax)

    def plot_difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        topics: Sequence[int | str] | None = None,
        level: float = 0.95,
        others: Others = "average",
        ax: Axes | None = None,
        **values: Any,
    ) -> Axes:
        """Plot differences of expected proportions between values of a column: a row per topic.

        For example::

            effects.plot_difference("party", "Left", "Right")
            effects.plot_difference("party", ["Left", "Green"], "Right")  # two colours

        Args:
            name: The column.
            first: The first value, or several first values. Each has its own points.
            second: The second value, the reference of all first values.
            topics: As for :meth:`plot`. Defaults to all.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            ax: Axes to draw into. Defaults to a new figure.
            **values: Values of other columns for both predictions.

        Returns:
            The axes. The points are those of :meth:`difference`.

        Raises:
            ConfigError: As for :meth:`difference`, or there is no first value.
            CorpusError: See :meth:`predict`.
        """
        from torch_lntm.plotting.effects import Series, plot_differences

        drawn_topics, labels = self._drawn(topics), self._labels()
        series = []
        for value in self._several(name, first):
            rows = self.difference(name, value, second, level=level, others=others, **values)
            found = {row.topic: [row.estimate, row.lower, row.upper] for row in rows}
            numbers = np.array([found[topic] for topic in drawn_topics])
            compared = format_value(rows[0].values[name])
            series.append(Series(compared, [labels[topic] for topic in drawn_topics], numbers))
        return plot_differences(series, name, level, ax=ax)

    def grid(self, name: str) -> list[Any]:
        """Levels of a column, or a grid from its smallest to its largest value.

        The grid has 50 values at equal distances, or at equal ratios if the column is skewed.

        Args:
            name: The column.

        Raises:
            ConfigError: The formula does not read the column.
        """
        self._require(name)
        if name in self.formula.random:
            return list(self.formula.random[name])
        column, kind = self.columns[name], self.formula.kinds[name]
        distinct_values = sorted(set(column.tolist()))
        if self._has_levels(name) or len(distinct_values) <= 2:
            return distinct_values
        if kind == "date":
            days = np.array([value[:10] for value in distinct_values], "datetime64[D]")
            first, last = days[[0, -1]].astype(np.int64).tolist()
            grid = np.unique(np.linspace(first, last, GRID).round().astype(np.int64))
            return list(grid.astype("datetime64[D]").astype(str))
        spaced = np.geomspace if is_skewed(column) else np.linspace
        return list(spaced(distinct_values[0], distinct_values[-1], GRID).tolist())

    # -- parts of the above ----------------------------------------------------------------------

    def _drawn(self, topics: Sequence[int | str] | None) -> tuple[int | str, ...]:
        """Topics of a plot: those of a user's list, or all regressed topics."""
        names = () if self.groups is None else self.groups.names
        drawn = self.topics if topics is None else topics
        found = [t if t in names else find_topics(self.model.topic_names, [t])[0] for t in drawn]
        unknown = [topic for topic in found if topic not in self.topics]
        if unknown:
            raise ConfigError(
                f"topic {unknown[0]} was not regressed; expected some of {self.topics}"
            )
        return tuple(found)

    def _require(self, name: str) -> None:
        self.formula.check_column(name)
        if name in self.formula.random and self.link == "identity":
            raise ConfigError(
                f"linear predictions are for a level of {name!r} with the effect 0; for the levels "
                f"use levels({name!r}), or estimate with link='logit'"
            )

    def _several(self, name: str, value: Any) -> list[Any]:
        """One or more values of a column as a list."""
        self._require(name)
        ordered = sorted if isinstance(value, (set, frozenset)) else list
        several = ordered(value) if pd.api.types.is_list_like(value) else [value]
        if not several:
            raise ConfigError(f"{name} has no value; expected a value of the column, or several")
        several = [v.item() if hasattr(v, "item") else v for v in several]
        is_date = self.formula.kinds.get(name) == "date"
        return [str(v)[:10] if is_date and not isinstance(v, str) else v for v in several]

    def _has_levels(self, name: str) -> bool:
        """Whether the values of a column are levels: text, truth values, or numbers within C()."""
        within = any(level_column(expression) == name for expression in self.formula.levels)
        return within or self.columns[name].dtype.kind == "b"

    def _typical(self, name: str) -> NDArray[Any]:
        """The most frequent level, or the median of numbers and dates."""
        column = self.columns[name]
        if self._has_levels(name):
            levels, counts = np.unique(column, return_counts=True)
            return levels[[counts.argmax()]]
        if column.dtype == object:
            return np.sort(column)[[len(column) // 2]]
        return np.array([np.median(column)])

    def _averages(self, points: Sequence[Mapping[str, Any]], others: Others) -> Iterator[Mean]:
        """The average prediction at each point."""
        if others not in ("average", "typical"):
            raise ConfigError(f"others is {others!r}; expected 'average' or 'typical'")
        random = self.formula.random
        fixed = [{k: v for k, v in point.items() if k not in random} for point in points]
        levels = self.design.positions.numpy()
        columns, weights = self.columns, self.design.weights.numpy()
        if others == "typical":
            columns = {name: self._typical(name) for name in columns}
            weights, levels = np.ones(1), np.full((1, levels.shape[1]), AVERAGE)
        averaged = rows_at(self.formula, columns, weights, fixed, levels)
        for (rows, of_rows, at), point in zip(averaged, points, strict=True):
            assert at is not None
            positions = torch.from_numpy(at.copy())
            for j, (name, known) in enumerate(random.items()):
                if name in point:
                    value = point[name]
                    positions[:, j] = known.index(value) if value in known else NEW
            yield self._mean(rows, torch.from_numpy(of_rows), positions)

    def _mean(self, rows: NDArray[np.float64], weights: Tensor, positions: Tensor) -> Mean:
        """The sum of weighted predictions at rows of the design."""
        found = self.regression.predict(self.design.rows(rows), weights, positions)
        return Mean(*found, weights.numpy() @ rows)

    def _distinct(self) -> tuple[NDArray[np.int64], Tensor, Tensor]:
        """Documents that differ in their columns, their weights, and their levels."""
        positions = self.design.positions
        columns = [*self.columns.values(), *positions.mT.numpy()]
        first, weights = distinct(columns, self.design.weights.numpy())
        return first, torch.from_numpy(weights), positions[first]

    def _of_term(self, j: int) -> tuple[Mean, Scale]:
        """The effect of a column of the design, and its interval's scale; see :meth:`table`."""
        name, unit = self.formula.names[j], np.eye(len(self.formula.names))[j]
        if isinstance(self.regression, LinearRegression):
            row = self.design.back[j]
            estimates = self.regression.coefficients @ row
            return Mean(estimates, row.expand(len(estimates), -1), unit), "identity"
        first, weights, positions = self._distinct()
        read = {n: self.formula.read(n, column[first]) for n, column in self.columns.items()}
        read = {n: v if v.dtype == object else v.astype(np.float64) for n, v in read.items()}

        def at(changed: Mapping[str, Any], scaled: Tensor = weights) -> Mean:
            full = {c: np.full(len(first), v, read[c].dtype) for c, v in changed.items()}
            rows = self.formula.evaluate(read | full, len(first))
            return self._mean(rows, scaled, positions)

        references = dict(self._references())
        if name == "Intercept":
            zeros = [t[0] for i, t in enumerate(self.formula.terms) if i in self.design.flags]
            references |= dict.fromkeys([c for c in zeros if c in read and c not in references], 0)
            fixed = {c: value for c, value in references.items() if value is not None}
            return at(fixed), "logit"
        term = self.formula.terms[j]
        column = level_column(term[0]) if len(term) == 1 else None
        level = self._level_of(j)
        if column in references and level is not None:
            mean = at({column: level})
            if references[column] is None:
                return mean, "logit"
            return mean.less(at({column: references[column]})), "atanh"
        if column in read and term == (column,):
            values = read[column]
            if j in self.design.flags:
                return at({column: 1}).less(at({column: 0})), "atanh"
            step = STEP * np.std(values - values[0])
            high = (values + step).clip(max=values.max())
            low = (values - step).clip(min=values.min())
            scaled = weights / torch.from_numpy(high - low)
            return at({column: high}, scaled).less(at({column: low}, scaled)), "identity"
        x, along = self.design.x[first], self.design.rows(unit[None])
        step = STEP / float(along.norm()) / self.num_docs**0.5
        high, low = (
            self.regression.predict(x + sign * step * along, weights, positions) for sign in (1, -1)
        )
        estimates, gradients = ((a - b) / (2 * step) for a, b in zip(high, low, strict=True))
        return Mean(estimates, gradients, unit), "identity"

    def _level_of(self, j: int) -> Any:
        """The level of a column of the design by its name, or None."""
        expression = self.formula.terms[j][0]
        names = {
            f"{expression}[{sign}{level}]": level
            for level in self.formula.levels.get(expression, ())
            for sign in ("", "T.")
        }
        return names.get(self.formula.names[j])

    def _references(self) -> Iterator[tuple[str, Any]]:
        """Columns with levels, and their reference levels, which have no column of the design."""
        for expression, levels in self.formula.levels.items():
            terms = enumerate(self.formula.terms)
            found = {self._level_of(j) for j, term in terms if term == (expression,)} - {None}
            rest = [level for level in levels if level not in found]
            column = level_column(expression)
            if column is not None and found and len(rest) < 2:
                yield column, rest[0] if rest else None

    def _freedom(self, row: NDArray[np.float64]) -> float:
        """Fewest degrees of freedom of the columns in a row, with random terms."""
        freedom = self.regression.freedom
        if not self.formula.random:
            return freedom
        each = self.design.containment(freedom)[0].numpy()
        used = np.abs(row) > 1e-9 * np.abs(self.design.raw).max(0)
        return float(np.where(used, each, freedom).min())

    def _estimates(
        self,
        means: Iterable[Mean],
        what: Sequence[tuple[str, Mapping[str, Any]]],
        level: float,
        scales: Sequence[Scale],
        freedom: float | None = None,
    ) -> Estimates:
        """Estimates of averages, pooled by Rubin's rules.

        Args:
            means: The averages.
            what: Term and values of each average.
            level: Probability of the intervals.
            scales: Scale of each interval.
            freedom: Degrees of freedom. Defaults to those of the rows of the averages.
        """
        found = []
        for mean, scale in zip(means, scales, strict=True):
            within, between = self.regression.covariance(mean.gradients[:, None])
            variances = (within[:, 0, 0].numpy(), between[:, 0, 0].numpy())
            of_row = self._freedom(mean.row) if freedom is None else freedom
            estimates = mean.estimates.numpy()
            ends = intervals(estimates, *variances, self.num_draws, of_row, level, scale)
            found.append((estimates, *ends))
        numbers = [np.stack(column, 1) for column in zip(*found, strict=True)]
        return self._rows(numbers, what, level)

    def _rows(
        self,
        numbers: Sequence[NDArray[np.float64]],
        what: Sequence[tuple[str, Mapping[str, Any]]],
        level: float,
    ) -> Estimates:
        """Estimates ``(num_responses, num_points)`` and the results of ``intervals`` as rows."""
        names, table = self.model.topic_names, np.stack(numbers, -1).tolist()
        found = Estimates()
        for topic, of_topic in zip(self.topics, table, strict=True):
            name = names[topic] if isinstance(topic, int) else topic
            for (term, values), row in zip(what, of_topic, strict=True):
                found.append(Estimate(topic, name, term, values, level, *row))
        return found

    def joint_statistics(self, column: str) -> NDArray[np.float64]:
        """``(num_responses,)`` Wald statistics per effect, for the terms of a column."""
        found = [
            self._of_term(j)[0]
            for j, term in enumerate(self.formula.terms)
            if any(column in self.formula.columns_in(expression) for expression in term)
        ]
        gradients = torch.stack([mean.gradients for mean in found], 1)
        within, between = self.regression.covariance(gradients)
        total = (within + (1 + 1 / self.num_draws) * between).numpy()
        beta = torch.stack([mean.estimates for mean in found], 1).numpy()
        # In units of standard errors. An effect that the documents do not tell has a ratio of 0.
        errors = np.sqrt(total.diagonal(axis1=1, axis2=2))
        ratios, scale = beta / errors, errors[:, :, None] * errors[:, None]
        correlations = np.divide(total, scale, out=np.zeros_like(total), where=np.isfinite(scale))
        correlations += np.eye(len(found)) * ~np.isfinite(errors)[..., None]
        solved = np.linalg.solve(correlations, ratios[..., None])[..., 0]
        return np.asarray((ratios * solved).sum(1) / len(found))
