"""Effects: coefficients, predictions and differences with intervals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import scipy.special
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.effects.grids import average_rows, rows_at
from torch_lntm.effects.logit import LogitRegression
from torch_lntm.effects.mixed import RandomTerms
from torch_lntm.effects.mixed_logit import AVERAGE, NEW, MixedLogit
from torch_lntm.effects.numbers import Effect, IntervalEstimate, Prediction
from torch_lntm.effects.regression import Pooled
from torch_lntm.effects.text import (
    format_coefficients,
    format_predictions,
    format_spread,
    format_value,
)
from torch_lntm.errors import ConfigError, CorpusWarning, import_extra, warn
from torch_lntm.formulas import Formula
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import is_skewed, topic_labels
from torch_lntm.reports.prevalence import SHORT_DOCUMENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Values of the columns that a prediction does not set.
Others = Literal["average", "typical"]
#: Scale of a regression of predictions.
Link = Literal["identity", "logit"]
#: Maximum number of the logit's coefficients if the link is not specified.
MAX_BY_DEFAULT = 2000
#: Most documents in the average of a prediction, and grid values of a number or date.
MAX_AVERAGED, GRID = 10_000, 50


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """Effects of metadata on topic proportions, the result of :func:`estimate`.

    Attributes:
        formula: The fitted formula, with levels and knots.
        topics: Numbers of the topics, then names of the groups of topics, in the order of the
            coefficients.
        pooled: Coefficients and covariances, pooled over draws.
        columns: ``(num_docs,)`` values of the formula's columns.
        weights: ``(num_docs,)`` weights of the documents.
        sources_of_uncertainty: Sources of uncertainty in the intervals beside the regression.
        fixed: Estimated quantities that the intervals treat as known.
        method: Kind of the regression's standard errors.
        model: The model.
        mean_length: Mean number of tokens of a document.
        groups: Groups of topics, if some were regressed.
        responses: ``(num_responses, num_topics)`` matrix from all topics to the regressed ones.
        regress_logit: Function that makes the logit regression of all topics.
        random: Random terms of the linear regression, if any.
        positions: ``(num_docs, num_random_terms)`` levels of the documents in random terms, if any.
    """

    formula: Formula
    topics: tuple[int | str, ...]
    pooled: Pooled
    columns: Mapping[str, NDArray[Any]]
    weights: NDArray[np.float64]
    sources_of_uncertainty: tuple[str, ...]
    fixed: tuple[str, ...]
    method: str
    model: TopicModel
    mean_length: float
    groups: TopicGroups | None = None
    responses: Tensor | None = None
    regress_logit: Callable[[], LogitRegression | MixedLogit] | None = None
    random: RandomTerms | None = None
    positions: NDArray[np.int64] | None = None

    @cached_property
    def logit(self) -> LogitRegression | MixedLogit:
        """The logit regression of all topics, for predictions. It is made at the first use.

        Raises:
            ConfigError: There are too many coefficients.
            NumericalError: The regression did not converge.

        Warns:
            CorpusWarning: A topic is almost absent for some values of the columns.
        """
        assert self.regress_logit is not None
        regression = self.regress_logit()
        if regression.separated:
            labels = topic_labels(self.model)
            topics = ", ".join(labels[k] for k in regression.separated[:5])
            warn(
                f"formula {self.formula.text!r} separates documents without the topics {topics}: "
                "their expected proportions are almost 0 for some values of the columns, and "
                "intervals by link='logit' are unreliable there; use link='identity', or a formula "
                "with fewer terms",
                CorpusWarning,
            )
        return regression

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return len(self.weights)

    def __repr__(self) -> str:
        excluded = "".join(f"\n  {text}" for text in self._excluded)
        return (
            f"Effects({self.formula.text!r} on {self._responses} of {self.num_docs} "
            f"documents)\n  in the intervals: {self._included}{excluded}"
        )

    @property
    def description(self) -> str:
        """The regression, and sources of uncertainty inside and outside the intervals, in words."""
        return (
            f"A regression of the proportions of {self._responses} in "
            f"{self.num_docs:,} documents on {self.formula.text}. In the intervals: "
            f"{self._included}."
            + (" Predictions are by a multinomial logit." if self._is_logit(None) else "")
            + "".join(f" {text[0].upper()}{text[1:]}." for text in self._excluded)
        )

    @property
    def _responses(self) -> str:
        """Numbers of topics and of groups of topics, in words."""
        num_groups = 0 if self.groups is None else len(self.groups)
        num_topics = len(self.topics) - num_groups
        texts = [f"{num_topics} topic{'s' * (num_topics > 1)}"] * (num_topics > 0)
        texts += [f"{num_groups} group{'s' * (num_groups > 1)} of topics"] * (num_groups > 0)
        return " and ".join(texts)

    def _labels(self, num_words: int = 2) -> dict[int | str, str]:
        """Labels of topics by number, and of groups of topics by name."""
        labels: dict[int | str, str] = dict(enumerate(topic_labels(self.model, num_words)))
        if self.groups is None:
            return labels
        return labels | {name: name for name in self.groups.names}

    def _name(self, topic: int | str) -> str:
        return topic if isinstance(topic, str) else self.model.topic_names[topic]

    @property
    def _included(self) -> str:
        return (
            f"the regression ({self.method}); {'; '.join(self.sources_of_uncertainty)} "
            f"({self.pooled.num_draws} draws)"
        )

    @property
    def _excluded(self) -> list[str]:
        """Uncertainty outside the intervals, and its consequences for short documents."""
        if not self.fixed:
            return []
        text = f"not in the intervals: the uncertainty of {' and of '.join(self.fixed)}"
        if self.mean_length >= SHORT_DOCUMENT:
            return [text]
        return [
            f"{text}, which is large for documents of {self.mean_length:.0f} tokens",
            "the intervals are therefore too narrow, and effects are too small if the posteriors "
            "are approximate; "
            "lntm.inference.joint_draws, or torch-lntm effects --draws joint, includes it",
        ]

    # -- coefficients ----------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> list[Effect]:
        """Every coefficient of every topic.

        Args:
            level: Probability of the intervals, between 0 and 1.
        """
        rows = self._combine(np.eye(len(self.formula.names)), level)
        return [
            Effect(**vars(estimate), topic=topic, term=term, name=self._name(topic))
            for topic, estimates in zip(self.topics, rows, strict=True)
            for term, estimate in zip(self.formula.names, estimates, strict=True)
        ]

    def frame(
        self,
        rows: Sequence[Effect] | Sequence[Prediction] | None = None,
        *,
        level: float = 0.95,
    ) -> Any:
        """A pandas data frame with a row for each coefficient, level or prediction.

        Args:
            rows: The result of :meth:`table`, :meth:`levels`, :meth:`predict` or
                :meth:`difference`. Defaults to the coefficients.
            level: Probability of the coefficients' intervals.

        Raises:
            ConfigError: pandas is not installed.
        """
        return to_frame(self.table(level) if rows is None else rows)

    def summary(self, level: float = 0.95) -> str:
        """The coefficients as text, topic by topic.

        Args:
            level: See :meth:`table`.
        """
        text = f"{self!r}\n{format_coefficients(self.table(level), self._labels(5))}"
        if self.random is None:
            return text
        spread = torch.cat([self.random.spread, self.random.residual[:, None]], 1).tolist()
        names = (*self.formula.random, "residual")
        return f"{text}\n\n{format_spread(spread, names, self.topics, self._labels(5))}"

    def levels(self, column: str, level: float = 0.95) -> list[Effect]:
        """Effects of the levels of a random term on every topic, topic by topic.

        Effects of levels with few documents are shrunk towards 0. Intervals have the degrees of
        freedom of the levels' variance: the number of levels, less the number of columns that are
        constant within levels, the intercept among them.

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
        if self.random is None or column not in self.formula.random:
            raise ConfigError(
                f"formula {self.formula.text!r} has no random term of {column!r}; expected a "
                f"formula with (1 | {column})"
            )
        at = list(self.formula.random).index(column)
        names = self.formula.random[column]
        effects, variances = (
            values.split(self.random.sizes, 1)[at].numpy()
            for values in (self.random.effects, self.random.variances)
        )
        # An interval knows the variance of the levels' effects no better than its levels do.
        freedom = self.random.freedoms[at]
        rows = self._ends(effects, variances, np.zeros_like(variances), level, freedom=freedom)
        return [
            Effect(**vars(row), topic=topic, term=f"{column}[{name}]", name=self._name(topic))
            for topic, of_topic in zip(self.topics, rows, strict=True)
            for name, row in zip(names, of_topic, strict=True)
        ]

    # -- predictions -----------------------------------------------------------------------------

    def predict(
        self,
        *names: str,
        level: float = 0.95,
        others: Others = "average",
        link: Link | None = None,
        **values: Any,
    ) -> list[Prediction]:
        """Expected proportions at values of some columns.

        For example::

            effects.predict("party")  # at each level
            effects.predict("date", party="Left")  # over time, for one party
            effects.predict(date=["2004-01-15", "2004-06-15"], party=["Left", "Right"])

        Args:
            *names: Columns to vary over all levels, or over 50 values from the smallest to the
                largest.
            level: Probability of the intervals.
            others: Values of the other columns. ``"average"`` uses each document's own values, and
                averages the predictions over documents. ``"typical"`` uses the median or the most
                frequent value, as in R's stm. Defaults to ``"average"``.
            link: Regression behind the predictions. ``"identity"`` is the linear regression of the
                coefficients. ``"logit"`` is a multinomial logit regression of all topics together:
                predictions lie between 0 and 1 and sum to 1 over the topics, and intervals are
                formed on the logit scale, so they lie between 0 and 1 too. Its standard errors are
                robust to any variance, or by ``clusters``. Defaults to ``"logit"``, and to
                ``"identity"`` for more than 2,000 coefficients of the logit or for random terms.
                With random terms, linear predictions are for a level with the effect 0. Those of
                the logit keep each document's own level for ``others="average"``, take the effect 0
                for ``others="typical"``, and accept values of the terms' columns. A value absent
                from the documents has the effect 0, and its variance is in the interval.
            **values: A value or a list of values by column. All combinations are predicted.

        Returns:
            Predictions for each topic and combination of values, topic by topic.

        Raises:
            ConfigError: The formula does not read a column, or a setting is out of range.
            CorpusError: The formula was fitted without a value.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
            >>> [point.values["party"] for point in effects.predict("party")][:2]
            ['left', 'right']
        """
        grids = {name: self.grid(name, link) for name in names}
        for name, value in values.items():
            self._require(name, link)
            several = isinstance(value, (list, tuple, np.ndarray))
            grids[name] = list(value) if several else [value]
        points = [
            dict(zip(grids, point, strict=True)) for point in itertools.product(*grids.values())
        ]
        if self._is_logit(link):
            estimates, variances, freedom = self._logit_predictions(points, others)
            ends = self._ends(estimates, *variances, level, "logit", freedom)
        else:
            ends = self._combine(self._design(points, others), level)
        return self._predictions(ends, points)

    def difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        level: float = 0.95,
        others: Others = "average",
        link: Link | None = None,
        **values: Any,
    ) -> list[Prediction]:
        """Difference of expected proportions between two values of a column, first minus second.

        Args:
            name: The column.
            first: The first value.
            second: The second value.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            link: See :meth:`predict`. Intervals by ``"logit"`` are formed on the scale of the
                inverse hyperbolic tangent, so they lie between -1 and 1.
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
        for column in (name, *values):
            self._require(column, link)
        points = [{**values, name: value} for value in (first, second)]
        if self._is_logit(link):
            estimates, variances, freedom = self._logit_predictions(points, others, True)
            ends = self._ends(estimates, *variances, level, "atanh", freedom)
        else:
            rows = self._design(points, others)
            ends = self._combine((rows[0] - rows[1])[None], level)
        return self._predictions(ends, [{**values, name: (first, second)}])

    def format(self, rows: Sequence[Effect] | Sequence[Prediction]) -> str:
        """Predictions, differences, levels or coefficients as text, topic by topic.

        Args:
            rows: The result of :meth:`predict`, :meth:`difference`, :meth:`levels` or
                :meth:`table`.
        """
        effects = [row for row in rows if isinstance(row, Effect)]
        if effects:
            return format_coefficients(effects, self._labels(5)).lstrip("\n")
        predictions = [row for row in rows if isinstance(row, Prediction)]
        return format_predictions(predictions, self._labels(5))

    def plot(
        self,
        name: str,
        *,
        by: str | None = None,
        topics: Sequence[int | str] | None = None,
        level: float = 0.95,
        others: Others = "average",
        link: Link | None = None,
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
            link: See :meth:`predict`.
            ax: Axes to draw into. Defaults to a new figure.
            **values: Values of other columns.

        Returns:
            The axes.

        Raises:
            ConfigError: As for :meth:`predict`, or matplotlib is not installed.
        """
        from torch_lntm.plotting.effects import Series, plot_effects

        drawn_topics, labels = self._drawn(topics), self._labels()
        levels = [None] if by is None else self.grid(by)
        values = values if by is None else {**values, by: levels}
        predictions = self.predict(name, level=level, others=others, link=link, **values)
        series = []
        for value, topic in itertools.product(levels, drawn_topics):
            points = [
                point
                for point in predictions
                if point.topic == topic and (by is None or point.values[by] == value)
            ]
            series.append(
                Series(
                    labels[topic] if value is None else f"{labels[topic]}, {value}",
                    [point.values[name] for point in points],
                    np.array([[p.estimate, p.lower, p.upper] for p in points]),
                )
            )
        return plot_effects(series, name, self.formula.kinds[name], level, ax=ax)

    def plot_difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        topics: Sequence[int | str] | None = None,
        level: float = 0.95,
        others: Others = "average",
        link: Link | None = None,
        ax: Axes | None = None,
        **values: Any,
    ) -> Axes:
        """Plot differences of expected proportions between values of a column: a row per topic.

        For example::

            effects.plot_difference("party", "Left", "Right")
            effects.plot_difference("party", ["Left", "Green"], "Right")  # two colours

        Args:
            name: The column.
            first: The first value, or a list of first values. Each has its own points.
            second: The second value, the reference of all first values.
            topics: As for :meth:`plot`. Defaults to all.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            link: See :meth:`difference`.
            ax: Axes to draw into. Defaults to a new figure.
            **values: Values of other columns for both predictions.

        Returns:
            The axes. The points are those of :meth:`difference`.

        Raises:
            ConfigError: As for :meth:`difference`, there is no first value, or matplotlib is not
                installed.
            CorpusError: See :meth:`predict`.
        """
        from torch_lntm.plotting.effects import Series, plot_differences

        drawn_topics, labels = self._drawn(topics), self._labels()
        firsts = list(first) if isinstance(first, (list, tuple, np.ndarray)) else [first]
        if not firsts:
            raise ConfigError(f"first has no value; give a value of {name}, or a list of values")
        series = []
        for value in firsts:
            rows = self.difference(
                name, value, second, level=level, others=others, link=link, **values
            )
            found = {row.topic: (row.estimate, row.lower, row.upper) for row in rows}
            numbers = np.array([found[topic] for topic in drawn_topics])
            compared = format_value((value, second))
            series.append(Series(compared, [labels[topic] for topic in drawn_topics], numbers))
        return plot_differences(series, name, level, ax=ax)

    def _drawn(self, topics: Sequence[int | str] | None) -> tuple[int | str, ...]:
        """Topics of a plot: those of a user's list, or all regressed topics."""
        drawn = self.topics if topics is None else tuple(map(self._find, topics))
        unknown = [topic for topic in drawn if topic not in self.topics]
        if unknown:
            raise ConfigError(
                f"topic {unknown[0]} was not regressed; expected some of {self.topics}"
            )
        return drawn

    def _find(self, topic: int | str) -> int | str:
        """A topic by number or name, or a group of topics by name."""
        if self.groups is not None and topic in self.groups.names:
            return topic
        return find_topics(self.model.topic_names, [topic])[0]

    def _require(self, name: str, link: Link | None = None) -> None:
        if name in self.formula.random:
            if link == "logit":
                return
            raise ConfigError(
                f"linear predictions are for a level of {name!r} with the effect 0; for the levels "
                f"use link='logit', or levels({name!r})"
            )
        self.formula.check_column(name)

    def grid(self, name: str, link: Link | None = None) -> list[Any]:
        """Levels of a column, or a grid from its smallest to its largest value.

        The grid has 50 values at equal distances, or at equal ratios if the column is skewed.

        Args:
            name: The column.
            link: As for :meth:`predict`. ``"logit"`` also has the levels of random terms.

        Raises:
            ConfigError: The formula does not read the column.
        """
        self._require(name, link)
        if name in self.formula.random:
            return list(self.formula.random[name])
        column, kind = self.columns[name], self.formula.kinds[name]
        distinct = sorted(set(column.tolist()))
        if kind == "text" or len(distinct) <= 2:
            return distinct
        if kind == "date":
            days = np.array([value[:10] for value in distinct], "datetime64[D]").astype(np.int64)
            grid = np.unique(np.linspace(days[0], days[-1], GRID).round().astype(np.int64))
            return list(grid.astype("datetime64[D]").astype(str))
        word = re.compile(rf"\b{re.escape(name)}\b")
        if any(word.search(expression) for expression in self.formula.levels):
            return distinct
        spaced = np.geomspace if is_skewed(column) else np.linspace
        return list(spaced(distinct[0], distinct[-1], GRID))

    def _is_logit(self, link: Link | None) -> bool:
        if link is None and self.random is not None:
            return False
        if link is None:
            size = (self.model.num_topics - 1) * len(self.formula.names)
            return 0 < size <= MAX_BY_DEFAULT
        if link not in get_args(Link):
            raise ConfigError(f"link is {link!r}; expected 'identity' or 'logit'")
        return link == "logit"

    def _others(self, others: Others) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64]]:
        """Columns and weights of the documents to average over."""
        if others == "average":
            step = max(1, self.num_docs // MAX_AVERAGED)
            columns = {name: column[::step] for name, column in self.columns.items()}
            return columns, self.weights[::step]
        if others == "typical":
            kinds = self.formula.kinds
            typical = {name: _typical(column, kinds[name]) for name, column in self.columns.items()}
            return typical, np.ones(1)
        raise ConfigError(f"others is {others!r}; expected 'average' or 'typical'")

    def _design(self, points: Sequence[Mapping[str, Any]], others: Others) -> NDArray[np.float64]:
        """Design row of the formula at each point, for averaged or typical other columns."""
        return average_rows(self.formula, *self._others(others), points)

    def _predictions(
        self, ends: list[list[IntervalEstimate]], points: Sequence[Mapping[str, Any]]
    ) -> list[Prediction]:
        return [
            Prediction(**vars(estimate), topic=topic, values=point, name=self._name(topic))
            for topic, estimates in zip(self.topics, ends, strict=True)
            for point, estimate in zip(points, estimates, strict=True)
        ]

    def _logit_predictions(
        self, points: Sequence[Mapping[str, Any]], others: Others, difference: bool = False
    ) -> tuple[NDArray[np.float64], tuple[NDArray[np.float64], NDArray[np.float64]], Any]:
        """Predictions of the logit regression, or the first minus the second.

        Returns:
            Estimates, their variances within and between draws, ``(num_responses, num_points)``
            each, and the degrees of freedom of the points. Both are None without random terms.
        """
        assert self.responses is not None
        estimates, within, between, rows = [], [], [], []
        previous: tuple[Tensor, Tensor] | None = None
        for design, weights, positions in self._rows_of_logit(points, others):
            found = self.logit.predict(design, weights, self.responses, positions)
            rows.append((weights @ design).numpy())
            if difference:
                if previous is None:
                    previous = found
                    continue
                found = (previous[0] - found[0], previous[1] - found[1])
            of_draw, of_draws = self.logit.variances(found[1])
            estimates.append(found[0].numpy())
            within.append(of_draw.numpy())
            between.append(of_draws.numpy())
        design_rows = np.stack(rows)
        freedom = self._freedom(design_rows[:1] - design_rows[1:] if difference else design_rows)
        variances = (np.stack(within, 1), np.stack(between, 1))
        return np.stack(estimates, 1), variances, freedom

    def _rows_of_logit(
        self, points: Sequence[Mapping[str, Any]], others: Others
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Design, weights and levels of the averaged documents, point by point."""
        random = self.formula.random
        fixed = [{k: v for k, v in point.items() if k not in random} for point in points]
        columns, all_weights = self._others(others)
        levels = self.positions
        if levels is not None:
            levels = levels[:: max(1, self.num_docs // MAX_AVERAGED)]
            if others == "typical":
                levels = np.full((1, len(random)), AVERAGE)
        remaining = iter(points)
        for part, weights, at in rows_at(self.formula, columns, all_weights, fixed, levels):
            for design, point in zip(part, remaining, strict=False):
                positions = None if at is None else torch.from_numpy(at.copy())
                for j, (name, known) in enumerate(random.items()):
                    if positions is not None and name in point:
                        value = point[name]
                        positions[:, j] = known.index(value) if value in known else NEW
                yield torch.from_numpy(design.copy()), torch.from_numpy(weights), positions

    def _freedom(self, rows: NDArray[np.float64]) -> Any:
        """Fewest degrees of freedom of the coefficients in each row, with random terms."""
        if self.pooled.freedoms is None:
            return None
        each = self.pooled.freedoms.numpy()
        return np.where(np.abs(rows) > 1e-12, each, self.pooled.freedom).min(1)

    def _combine(self, rows: NDArray[np.float64], level: float) -> list[list[IntervalEstimate]]:
        """Linear combinations of the coefficients by topic, pooled by Rubin's rules.

        Args:
            rows: ``(num_rows, num_terms)``.
            level: Probability of the intervals.
        """
        pooled = self.pooled
        within, between = (
            np.einsum("mp,kpq,mq->km", rows, part.numpy(), rows).clip(0.0)
            for part in (pooled.within, pooled.between)
        )
        coefficients = pooled.coefficients.numpy()
        freedom = self._freedom(rows)
        return self._ends(coefficients @ rows.T, within, between, level, freedom=freedom)

    def _ends(
        self,
        estimates: NDArray[np.float64],
        within: NDArray[np.float64],
        between: NDArray[np.float64],
        level: float,
        scale: Literal["identity", "logit", "atanh"] = "identity",
        freedom: Any = None,
    ) -> list[list[IntervalEstimate]]:
        """Intervals by Rubin's rules.

        Args:
            estimates: ``(num_responses, num_points)``.
            within: Variances of a single regression, in the same shape.
            between: Variances between draws, in the same shape.
            level: Probability of the intervals.
            scale: Scale on which the intervals are symmetric.
            freedom: Degrees of freedom of a single regression, of each point. Defaults to those of
                the pooled regression.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
        pooled = self.pooled
        between = (1 + 1 / pooled.num_draws) * between
        total = within + between
        share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
        # A smooth minimum of the draws' and the documents' degrees of freedom. Barnard and Rubin
        # (1999) have the further factor (n + 1) / (n + 3), which makes 4 degrees 2.9 even for known
        # proportions, where a t distribution with n degrees is exact.
        draw_freedom = (pooled.num_draws - 1) / np.maximum(share, 1e-12) ** 2
        n = pooled.freedom if freedom is None else freedom
        document_freedom = n * np.maximum(1 - share, 1e-12)
        # Each variance has at least 1 degree, and a sum of two variances has no fewer degrees than
        # the lesser of them (Welch 1947). The smooth minimum would fall to 0 for uncertain draws.
        freedom = np.maximum(1 / (1 / draw_freedom + 1 / document_freedom), 1.0)
        errors = np.sqrt(total)
        half = scipy.stats.t.ppf(0.5 + level / 2, freedom) * errors
        if scale == "identity":
            lower, upper = estimates - half, estimates + half
        elif scale == "logit":
            tiny = np.finfo(np.float64).tiny
            centre = scipy.special.logit(estimates.clip(tiny, 1 - 1e-16))
            half = half / np.maximum(estimates * (1 - estimates), tiny)
            lower, upper = scipy.special.expit(centre - half), scipy.special.expit(centre + half)
        else:
            centre = np.arctanh(estimates.clip(-1 + 1e-16, 1 - 1e-16))
            half = half / np.maximum(1 - estimates**2, 1e-300)
            lower, upper = np.tanh(centre - half), np.tanh(centre + half)
        return [
            [
                IntervalEstimate(e, s, f, low, high, level)
                for e, s, f, low, high in zip(*(x.tolist() for x in columns), strict=True)
            ]
            for columns in zip(estimates, errors, freedom, lower, upper, strict=True)
        ]


def _typical(column: NDArray[Any], kind: str) -> NDArray[Any]:
    """Median of numbers and dates, most frequent value of text."""
    if kind == "number":
        return np.array([np.median(column)])
    values = column.astype(str)
    if kind == "date":
        return np.array([str(np.sort(values)[len(values) // 2])], object)
    levels, counts = np.unique(values, return_counts=True)
    return np.array([str(levels[counts.argmax()])], object)


def to_frame(rows: Sequence[Effect] | Sequence[Prediction]) -> Any:
    """A pandas data frame with a row for each effect or prediction.

    Args:
        rows: The result of :meth:`Effects.table`, :meth:`Effects.levels`,
            :meth:`Effects.predict` or :meth:`Effects.difference`.

    Raises:
        ConfigError: pandas is not installed.
    """
    pandas = import_extra("pandas", "formula", "a data frame")
    records = []
    for row in rows:
        record = asdict(row) | {"p_value": row.p_value}
        records.append({**record.pop("values", {}), **record})
    return pandas.DataFrame(records)
