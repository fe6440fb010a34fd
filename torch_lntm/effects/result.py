"""Effects: coefficients, predictions and differences with intervals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.effects.grids import average_rows
from torch_lntm.effects.numbers import Effect, IntervalEstimate, Prediction
from torch_lntm.effects.regression import Pooled
from torch_lntm.effects.text import format_coefficients, format_predictions
from torch_lntm.errors import ConfigError, import_extra
from torch_lntm.formulas import Formula
from torch_lntm.models import TopicModel
from torch_lntm.reports.groups import is_skewed
from torch_lntm.reports.labels import topic_labels
from torch_lntm.reports.prevalence import SHORT_DOCUMENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What is done with the columns that a prediction does not name.
Others = Literal["average", "typical"]
#: Documents that a prediction averages over, at most, and values of a number or date.
MAX_AVERAGED, GRID = 10_000, 50


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """How topic proportions depend on the documents' columns.

    Attributes:
        formula: The formula, with its levels and knots.
        topics: The topics, in the order of the coefficients.
        pooled: The coefficients and their covariances.
        columns: ``(num_docs,)`` values of the formula's columns.
        weights: ``(num_docs,)`` weights of the documents.
        sources_of_uncertainty: Sources of uncertainty in the intervals beside the regression.
        fixed: Quantities that the fit estimates and that the intervals take as known.
        method: How the standard errors of a regression were found.
        model: The model.
        mean_length: Tokens of a document, on average.
    """

    formula: Formula
    topics: tuple[int, ...]
    pooled: Pooled
    columns: Mapping[str, NDArray[Any]]
    weights: NDArray[np.float64]
    sources_of_uncertainty: tuple[str, ...]
    fixed: tuple[str, ...]
    method: str
    model: TopicModel
    mean_length: float

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return len(self.weights)

    def __repr__(self) -> str:
        missing = "".join(f"\n  {text}" for text in self._excluded)
        return (
            f"Effects({self.formula.text!r} on {len(self.topics)} topics of {self.num_docs} "
            f"documents)\n  in the intervals: {self._included}{missing}"
        )

    @property
    def description(self) -> str:
        """What was regressed, and what the intervals hold and do not, in sentences to read."""
        return (
            f"A regression of the proportions of {len(self.topics)} topics in "
            f"{self.num_docs:,} documents on {self.formula.text}. In the intervals: "
            f"{self._included}."
            + "".join(f" {text[0].upper()}{text[1:]}." for text in self._excluded)
        )

    @property
    def _included(self) -> str:
        return (
            f"the regression ({self.method}); {'; '.join(self.sources_of_uncertainty)} "
            f"({self.pooled.num_draws} draws)"
        )

    @property
    def _excluded(self) -> list[str]:
        """What is not in the intervals, and what that does where documents are short."""
        if not self.fixed:
            return []
        text = f"not in them: what the fit leaves open of {' and of '.join(self.fixed)}"
        if self.mean_length >= SHORT_DOCUMENT:
            return [text]
        return [
            f"{text}, which is much in documents of {self.mean_length:.0f} tokens",
            "so intervals are too narrow, and effects by approximate posteriors too small; "
            "lntm.inference.joint_draws, or torch-lntm effects --draws joint, holds it",
        ]

    # -- coefficients ----------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> list[Effect]:
        """Every coefficient of every topic.

        Args:
            level: Probability of the intervals, between 0 and 1.
        """
        rows = self._combine(np.eye(len(self.formula.names)), level)
        return [
            Effect(**vars(found), topic=topic, term=term)
            for topic, of_topic in zip(self.topics, rows, strict=True)
            for term, found in zip(self.formula.names, of_topic, strict=True)
        ]

    def frame(self, level: float = 0.95) -> Any:
        """:meth:`table` as a pandas data frame with a row for each coefficient.

        Args:
            level: As for :meth:`table`.

        Raises:
            ConfigError: pandas is not installed.
        """
        return to_frame(self.table(level))

    def summary(self, level: float = 0.95) -> str:
        """The coefficients as text to read, topic by topic.

        Args:
            level: As for :meth:`table`.
        """
        return f"{self!r}\n{format_coefficients(self.table(level), topic_labels(self.model, 5))}"

    # -- predictions -----------------------------------------------------------------------------

    def predict(
        self,
        *names: str,
        level: float = 0.95,
        others: Others = "average",
        **values: Any,
    ) -> list[Prediction]:
        """Expected proportions at values of some columns.

        For example::

            effects.predict("party")  # at each level
            effects.predict("date", party="Left")  # over time, for one party
            effects.predict(date=["2004-01-15", "2004-06-15"], party=["Left", "Right"])

        Args:
            *names: Columns to take all levels of, or 50 values from the least to the largest.
            level: Probability of the intervals.
            others: What the other columns are: ``"average"``, each document's own, and predictions
                are averaged over the documents; ``"typical"``, their median or most frequent value,
                as in R's stm.
            **values: A value, or several, of a column; all are combined with each other.

        Returns:
            One prediction for each topic and combination of values, topic by topic.

        Raises:
            ConfigError: A column that the formula does not read, or a setting that cannot be used.
            CorpusError: A value that the formula was not fitted to.
        """
        grids = {name: self._grid(name) for name in names}
        for name, given in values.items():
            self._require(name)
            several = isinstance(given, (list, tuple, np.ndarray))
            grids[name] = list(given) if several else [given]
        points = [dict(zip(grids, at, strict=True)) for at in itertools.product(*grids.values())]
        return self._predictions(self._design(points, others), points, level)

    def difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        level: float = 0.95,
        others: Others = "average",
        **values: Any,
    ) -> list[Prediction]:
        """Expected proportions at one value of a column less those at another.

        Args:
            name: The column.
            first: Its value in the first.
            second: Its value in the second, which is subtracted.
            level: As for :meth:`predict`.
            others: As for :meth:`predict`.
            **values: Values of other columns, the same in both.

        Returns:
            One difference for each topic.

        Raises:
            ConfigError: As for :meth:`predict`.
            CorpusError: As for :meth:`predict`.
        """
        for column in (name, *values):
            self._require(column)
        rows = self._design([{**values, name: value} for value in (first, second)], others)
        at = {**values, name: (first, second)}
        return self._predictions((rows[0] - rows[1])[None], [at], level)

    def format(self, rows: Sequence[Prediction]) -> str:
        """Predictions or differences as text to read, topic by topic.

        Args:
            rows: What :meth:`predict` or :meth:`difference` gave.
        """
        return format_predictions(rows, topic_labels(self.model, 5))

    def plot(
        self,
        name: str,
        *,
        by: str | None = None,
        topics: Sequence[int] | None = None,
        level: float = 0.95,
        others: Others = "average",
        ax: Axes | None = None,
        **values: Any,
    ) -> Axes:
        """Draw expected proportions over a column: points at levels, lines over numbers and dates.

        Args:
            name: The column.
            by: A column of levels, each of which has lines or points of its own.
            topics: Topics to draw; all by default, which is much where there are more than a few.
            level: As for :meth:`predict`.
            others: As for :meth:`predict`.
            ax: Where to draw; a new figure by default.
            **values: Values of other columns.

        Returns:
            The axes.

        Raises:
            ConfigError: As for :meth:`predict`, or matplotlib is not installed.
        """
        from torch_lntm.plotting.effects import Series, plot_effects

        chosen = self.topics if topics is None else tuple(topics)
        unknown = [k for k in chosen if k not in self.topics]
        if unknown:
            raise ConfigError(
                f"topic {unknown[0]} was not regressed; expected some of {self.topics}"
            )
        labels = topic_labels(self.model)
        levels = [None] if by is None else self._grid(by)
        at = values if by is None else {**values, by: levels}
        found = self.predict(name, level=level, others=others, **at)
        series = []
        for value, topic in itertools.product(levels, chosen):
            points = [
                point
                for point in found
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

    def _require(self, name: str) -> None:
        if name not in self.formula.kinds:
            known = ", ".join(self.formula.kinds) or "none"
            raise ConfigError(
                f"formula {self.formula.text!r} does not read the column {name!r}; it reads {known}"
            )

    def _grid(self, name: str) -> list[Any]:
        """The levels of a column, or values from its least to its largest.

        The values are evenly spaced, on a logarithmic axis where the column is skewed.
        """
        self._require(name)
        column, kind = self.columns[name], self.formula.kinds[name]
        distinct = sorted(set(column.tolist()))
        if kind == "text" or len(distinct) <= 2:
            return distinct
        if kind == "date":
            days = np.array([value[:10] for value in distinct], "datetime64[D]").astype(np.int64)
            at = np.unique(np.linspace(days[0], days[-1], GRID).round().astype(np.int64))
            return list(at.astype("datetime64[D]").astype(str))
        word = re.compile(rf"\b{re.escape(name)}\b")
        if any(word.search(expression) for expression in self.formula.levels):
            return distinct
        spaced = np.geomspace if is_skewed(column) else np.linspace
        return list(spaced(distinct[0], distinct[-1], GRID))

    def _design(self, points: Sequence[Mapping[str, Any]], others: Others) -> NDArray[np.float64]:
        """The formula's row at each point, the other columns averaged or typical."""
        if others == "average":
            step = max(1, self.num_docs // MAX_AVERAGED)
            columns = {name: column[::step] for name, column in self.columns.items()}
            return average_rows(self.formula, columns, self.weights[::step], points)
        if others == "typical":
            kinds = self.formula.kinds
            typical = {name: _typical(column, kinds[name]) for name, column in self.columns.items()}
            return average_rows(self.formula, typical, np.ones(1), points)
        raise ConfigError(f"others is {others!r}; expected 'average' or 'typical'")

    def _predictions(
        self, design: NDArray[np.float64], points: Sequence[Mapping[str, Any]], level: float
    ) -> list[Prediction]:
        return [
            Prediction(**vars(found), topic=topic, values=point)
            for topic, of_topic in zip(self.topics, self._combine(design, level), strict=True)
            for point, found in zip(points, of_topic, strict=True)
        ]

    def _combine(self, rows: NDArray[np.float64], level: float) -> list[list[IntervalEstimate]]:
        """Linear combinations of the coefficients, by topic, pooled by Rubin's rules.

        Args:
            rows: ``(num_rows, num_terms)``.
            level: Probability of the intervals.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
        pooled = self.pooled
        estimates = pooled.coefficients.numpy() @ rows.T
        within, between = (
            np.einsum("mp,kpq,mq->km", rows, part.numpy(), rows).clip(0.0)
            for part in (pooled.within, pooled.between)
        )
        between = (1 + 1 / pooled.num_draws) * between
        total = within + between
        share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
        # The smaller of the draws' and the documents' degrees of freedom, and smoothly so.
        of_draws = (pooled.num_draws - 1) / np.maximum(share, 1e-12) ** 2
        n = pooled.freedom
        of_documents = (n + 1) / (n + 3) * n * np.maximum(1 - share, 1e-12)
        freedom = 1 / (1 / of_draws + 1 / of_documents)
        errors = np.sqrt(total)
        half = scipy.stats.t.ppf(0.5 + level / 2, freedom) * errors
        return [
            [
                IntervalEstimate(e, s, f, e - h, e + h, level)
                for e, s, f, h in zip(*(x.tolist() for x in of_topic), strict=True)
            ]
            for of_topic in zip(estimates, errors, freedom, half, strict=True)
        ]


def _typical(column: NDArray[Any], kind: str) -> NDArray[Any]:
    """The median of numbers and dates, the most frequent value of text."""
    if kind == "number":
        return np.array([np.median(column)])
    values = column.astype(str)
    if kind == "date":
        return np.array([str(np.sort(values)[len(values) // 2])], object)
    levels, counts = np.unique(values, return_counts=True)
    return np.array([str(levels[counts.argmax()])], object)


def to_frame(rows: Sequence[Effect] | Sequence[Prediction]) -> Any:
    """Effects or predictions as a pandas data frame with a row for each.

    Args:
        rows: What :meth:`Effects.table`, :meth:`Effects.predict` or :meth:`Effects.difference`
            gave.

    Raises:
        ConfigError: pandas is not installed.
    """
    pandas = import_extra("pandas", "formula", "a data frame")
    records = []
    for row in rows:
        record = asdict(row) | {"p_value": row.p_value}
        records.append({**record.pop("values", {}), **record})
    return pandas.DataFrame(records)
