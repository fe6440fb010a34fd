"""Effects: effects of terms, predictions and differences with intervals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import frames
from torch_lntm.effects.averages import Averages, Documents, Others, Quantity
from torch_lntm.effects.design import Design
from torch_lntm.effects.linear import LinearRegression
from torch_lntm.effects.logit import LogitRegression
from torch_lntm.effects.regression import agreement, intervals
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import read_columns
from torch_lntm.models import TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import NEUTRAL, is_skewed, topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Scale of the regression.
Link = Literal["logit", "identity"]
#: Grid values of a number or date.
GRID = 50
#: Numbers of which each is a level of its own, where a second column divides predictions.
FEW = 10
#: Largest R-hat of chains that agree.
MOST_RHAT = 1.05
#: Columns of a table of estimates. A metadata column with one of these names gets an underscore.
OWN_COLUMNS = {
    *("topic", "name", "estimate", "std_error", "statistic", "df", "p_value", "lower", "upper")
}


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """How topic proportions depend on metadata: the result of :func:`estimate`.

    Attributes:
        formula: The fitted formula, with levels and knots.
        topics: Numbers of the topics, then names of the groups of topics, in the order of the
            responses.
        link: Scale of the regression behind all numbers.
        regression: The regression, pooled over draws.
        design: Design of the regression.
        columns: The formula's columns, with a row for each document with words.
        notes: Sentences that describe the regression, and which uncertainty its intervals include.
        model: The model.
        num_draws: Number of draws.
        measure: What is predicted: a proportion, or a value of an outcome.
        num_chains: Number of joint chains that made the draws in turn, or 0.
        constant: Positions of responses that are constant, such as the sum over all topics. They
            have no errors and no tests.
        interrupted: Whether Ctrl-C ended the regressions, so that there are fewer draws.
    """

    formula: Formula
    topics: tuple[int | str, ...]
    link: Link
    regression: LinearRegression | LogitRegression
    design: Design
    columns: pd.DataFrame
    notes: tuple[str, ...]
    model: TopicModel
    num_draws: int
    measure: Literal["proportion", "value"] = "proportion"
    num_chains: int = 0
    constant: tuple[int, ...] = ()
    interrupted: bool = False

    def __repr__(self) -> str:
        notes = [*self.notes, *self.cautions, *filter(None, [self.agreement])]
        return "\n  ".join([f"Effects({self.formula.text!r}, link={self.link!r})", *notes])

    @property
    def cautions(self) -> list[str]:
        """Sentences on columns that may be codes, and on random terms of the model left out."""
        found = [
            name
            for name, kind in self.formula.kinds.items()
            if kind == "number" and not self._averages.has_levels(name)
            if 2 < self.columns[name].nunique() <= FEW and (self.columns[name] % 1 == 0).all()
        ]
        classes = ", ".join(f"C({name})" for name in found)
        what = f"The formula has {', '.join(found)} in whole numbers, taken as amounts"
        sentences = [f"{what}; {classes} makes each value a class."] if found else []
        covariates = getattr(self.model.prior, "covariates", None)
        terms = {} if covariates is None or self.design.clusters is not None else covariates.random
        return sentences + [
            f"The model has (1 | {name}), and the formula has not: the intervals take documents of "
            f"one {name} as independent, so they may be far too narrow."
            for name in terms
            if name not in self.formula.random and name not in self.formula.kinds
        ]

    @cached_property
    def _averages(self) -> Averages:
        return Averages(self.formula, self.regression, self.design, self.columns)

    def _names(self) -> list[str]:
        """Names of the responses: those of topics, or words that tell them, and those of groups."""
        labels = topic_labels(self.model, numbered=False)
        return [labels[topic] if isinstance(topic, int) else topic for topic in self.topics]

    # -- effects of terms ------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> pd.DataFrame:
        """The effect of every column of the design on every topic, topic by topic.

        With ``link="identity"``, the effects are simply the coefficients. With ``link="logit"``,
        they are average marginal effects, which can be read in the same way: each says by how much
        the expected proportion changes, averaged over all documents while their other columns stay
        as observed. Their standard errors come from the delta method. There are four kinds of rows:

        * A level, such as ``party[T.Right]``: its difference from the reference, counting every
          term in which the column occurs, as :meth:`difference` does. Without a reference, as in
          ``~ 0 + party``, it is the expected proportion. Truth values, and numbers that are only 0
          and 1, get the difference between 1 and 0.
        * A column of numbers or dates: the derivative, again counting every term with the column.
        * Any other column of the design, such as one of a spline or an interaction: the derivative
          in this column alone. It means little by itself, so read such terms by :meth:`predict`.
        * ``Intercept``: the expected proportion at the references of all levels, and at 0 of all
          truth values and numbers that are only 0 and 1.

        Args:
            level: Probability of the intervals, between 0 and 1.

        Returns:
            A row for each topic and column: ``topic``, ``name`` (the topic's name or its first
            words, if there are any), ``term``, ``estimate``, ``std_error``, ``statistic``, ``df``
            (degrees of freedom), ``p_value``, and the interval from ``lower`` to ``upper``.
        """
        return self._estimates(
            self._averages.terms, [{"term": name} for name in self.formula.names], level
        )

    def paper_table(
        self, *, terms: Sequence[str] | None = None, stars: bool = False
    ) -> pd.DataFrame:
        """The effects as a table for a paper, which pandas writes for LaTeX, Word or a web page.

        Args:
            terms: Terms to show, such as ``["party"]`` for all levels of a column, or names of
                single columns of the design. Defaults to all: each spline has several columns.
            stars: Whether one, two and three stars mark p-values below 0.05, 0.01 and 0.001.

        Returns:
            A row for each topic by its name, and a column for each column of the design, with texts
            such as ``"0.0527 (0.0026)"``: an effect, and its standard error in parentheses. A
            typical standard error of a column has two significant digits.

        Raises:
            ConfigError: The design has no such term.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party", progress=False)
            >>> table = effects.paper_table()
            >>> latex, html = table.to_latex(escape=True), table.to_html()  # for Word
            >>> table.columns.tolist(), len(table)
            (['Intercept', 'party[T.right]'], 10)
        """
        rows = self.table()
        if terms is not None:
            columns = {name: {name, re.sub(r"\[[^]]*\]", "", name)} for name in self.formula.names}
            unknown = {*terms}.difference(*columns.values())
            if unknown or not terms or isinstance(terms, str):
                known = ", ".join(dict.fromkeys(min(both, key=len) for both in columns.values()))
                raise ConfigError(f"terms is {terms!r}; expected a list of some of {known}")
            rows = rows[[not columns[name].isdisjoint(terms) for name in rows["term"]]]
        typical = rows.groupby("term")["std_error"].transform("median").fillna(1).clip(1e-9, 1)
        digits = (1 - np.floor(np.log10(typical))).astype(int)
        marks = ["*" * sum(p < x for x in (0.05, 0.01, 0.001)) * stars for p in rows["p_value"]]
        numbers = zip(rows["estimate"], rows["std_error"], digits, marks, strict=True)
        cells = [f"{x:.{n}f}{mark} ({error:.{n}f})" for x, error, n, mark in numbers]
        table = pd.Series(cells, pd.MultiIndex.from_frame(rows[["topic", "term"]]), dtype=object)
        return table.unstack(sort=False).set_axis(self._names()).rename_axis(columns=None)

    def summary(self, level: float = 0.95) -> str:
        """The effects as text, topic by topic, with the standard deviations of random terms.

        Args:
            level: See :meth:`table`.
        """
        text = f"{self!r}\n{frames.render(self.table(level))}"
        if not self.formula.random or self.regression.spread is None:
            return text
        columns = dict(zip(self.formula.random, self.regression.spread.mT.tolist(), strict=True))
        if isinstance(self.regression, LinearRegression) and self.regression.random is not None:
            columns["residual"] = self.regression.random.residual.tolist()
        spread = pd.DataFrame({"topic": self.topics, "name": self._names(), **columns})
        scale = " on the scale of the logit" if self.link == "logit" else ""
        return f"{text}\n\nStandard deviations of effects{scale}\n{frames.render(spread)}"

    def levels(self, column: str, level: float = 0.95) -> pd.DataFrame:
        """Effects of the levels of a random term on every topic, topic by topic.

        A level with few documents says little, so its effect is shrunk towards 0. With
        ``link="logit"``, the effect compares the level with one whose effect is 0: it is the
        difference of the expected proportions, averaged over all documents.

        Few levels say little about their variance, whose estimate is often 0, so that it is
        integrated out: estimates and intervals are means over its posterior under a half-Cauchy
        prior (*Gelman 2006*). The standard deviations in :meth:`summary` are estimates. The
        posterior of a linear regression with only 2 levels has no variance, and wide intervals.

        Args:
            column: Column of the term.
            level: Probability of the intervals.

        Raises:
            ConfigError: The formula has no random term of the column.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party + (1 | year)")
            >>> effects.levels("year")["term"].tolist()[:2]
            ['year[2001]', 'year[2002]']
        """
        if column not in self.formula.random:
            raise ConfigError(
                f"formula {self.formula.text!r} has no random term of {column!r}; expected a "
                f"formula with (1 | {column})"
            )
        at = list(self.formula.random).index(column)
        terms = [{"term": f"{column}[{name}]"} for name in self.formula.random[column]]
        numbers = self._averages.random_effects(at)
        is_share = self.link == "logit" and self.measure == "proportion"
        # Intervals contain the uncertainty of the levels' variance, and need no fewer degrees.
        scale = "atanh" if is_share else "identity"
        about: Any = (self.num_draws, self.regression.freedom, level, scale)
        ends = intervals(*numbers, *about)
        return self._frame(np.stack([numbers[0], *ends]), terms)

    # -- agreement of chains ---------------------------------------------------------------------

    def convergence(self) -> pd.DataFrame:
        """How well the chains of :func:`~torch_lntm.inference.joint_draws` agree on the effects.

        Returns:
            A row for each topic and column of the design: ``rhat``, the split R-hat of the effect,
            is 1 if the halves of all chains agree; ``ess`` is its effective number of draws, by
            which :meth:`table` counts the draws.

        Raises:
            ConfigError: The draws come from no such chains.

        Example:
            >>> joint = lntm.inference.joint_draws(
            ...     model, posts, num_draws=8, num_chains=2, thinning=1, warmup_steps=3
            ... )
            >>> effects = lntm.effects.estimate(model, joint, posts, "~ party")
            >>> effects.convergence().columns.tolist()
            ['topic', 'name', 'term', 'rhat', 'ess']
        """
        if not self.num_chains:
            raise ConfigError("the draws are independent; expected those of joint_draws")
        found = [self._agreement(of) for of in self._averages.terms]
        rhat, size = (torch.stack(part, 1).flatten().numpy() for part in zip(*found, strict=True))
        return self._rows([{"term": name} for name in self.formula.names]).assign(
            rhat=rhat, ess=size
        )

    @cached_property
    def agreement(self) -> str:
        """A sentence on the agreement of the chains, if there are any."""
        if not self.num_chains or self.num_draws < 4 * self.num_chains:
            return ""
        found = self.convergence()
        rhat, size = found["rhat"].max(), found["ess"].min()
        several = self.num_chains > 1
        chains = f"{self.num_chains} chains" if several else "1 chain"
        problem = "The chains disagree" if several else "The chain has not settled"
        advice = (
            f"{problem}, so intervals are unreliable; take more warmup_steps and num_draws."
            if rhat > MOST_RHAT
            else "Further chains, from other starts, would show more." * (not several)
        )
        return (
            f"Over {chains}: R-hat of the effects at most {rhat:.2f}, and at least {size:.0f} "
            f"effective draws. {advice}"
        ).strip()

    def _agreement(self, quantity: Quantity) -> tuple[Tensor, Tensor]:
        return agreement(self.regression.moved(quantity.gradients), self.num_chains)

    # -- predictions -----------------------------------------------------------------------------

    def predict(
        self, *names: str, level: float = 0.95, others: Others = "average", **values: Any
    ) -> pd.DataFrame:
        """Predicts the expected proportions at given values of some columns.

        For example::

            effects.predict("party")  # at each level
            effects.predict("date", party="Left")  # over time, for one party
            effects.predict(date=["2004-01-15", "2004-06-15"], party=["Left", "Right"])

        With ``link="logit"``, predictions lie between 0 and 1 and sum to 1 over the topics. Their
        intervals stay between 0 and 1 too, because they are formed on the logit scale.

        Args:
            *names: Columns to vary over their :meth:`grid`; all but the first over a ``few``
                values.
            level: Probability of the intervals.
            others: Values of the other columns. ``"average"`` keeps each document's own values and
                averages the predictions over all documents; ``"typical"`` takes the median of
                numbers and dates and the most frequent level, as R's stm does. Of random terms,
                ``"average"`` keeps each document's own level in the logit; elsewhere their effect
                is 0.
            **values: A value or several values by column, in a list, a range, an array or a series;
                all combinations are predicted. The logit also takes values of random terms'
                columns. One that the documents lack has the effect 0, and the variance of the
                effects widens its interval.

        Returns:
            A row for each topic and combination of values, topic by topic: ``topic``, ``name``, the
            values, ``estimate``, ``std_error``, ``lower`` and ``upper``.

        Raises:
            ConfigError: The formula does not read a column, a column has no value, or a setting is
                out of range.
            CorpusError: The formula was fitted without a value.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
            >>> effects.predict("party")["party"].tolist()[:2]
            ['left', 'right']
        """
        grids = {name: self.grid(name, few=name != names[0]) for name in names}
        grids |= {name: self._several(name, value) for name, value in values.items()}
        points = [
            dict(zip(grids, point, strict=True)) for point in itertools.product(*grids.values())
        ]
        return self._estimates(self._averages.at(points, others), points, level, is_effect=False)

    def difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        level: float = 0.95,
        others: Others = "average",
        **values: Any,
    ) -> pd.DataFrame:
        """Difference of expected proportions between two values of a column, first minus second.

        With ``link="logit"``, intervals stay between -1 and 1, because they are formed on the scale
        of the inverse hyperbolic tangent.

        Args:
            name: The column.
            first: The first value.
            second: The second value.
            level: See :meth:`predict`.
            others: See :meth:`predict`.
            **values: Values of other columns for both predictions.

        Returns:
            A row for each topic, with the columns of :meth:`predict` and of a test as in
            :meth:`table`.

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
        one, other = self._averages.at(points, others)
        texts = " − ".join(map(_told, pair))
        return self._estimates([one.less(other)], [{**fixed, name: texts}], level)

    def avg_comparisons(
        self, *names: str, by: str | Sequence[str] = (), level: float = 0.95, **contrasts: Any
    ) -> pd.DataFrame:
        """Average comparisons, as by ``avg_comparisons`` of the package marginaleffects.

        The expected proportion is predicted for every observed document, once with each of two
        values of a column, while its other columns stay as they are. An average comparison is the
        mean difference, over all documents or over those of each level of ``by``. For example::

            effects.avg_comparisons()  # of all columns
            effects.avg_comparisons("party", by="year")
            effects.avg_comparisons(party="pairwise", age=10, income=(20_000, 40_000))

        Args:
            *names: Columns to compare in the default way. By default all columns of the formula.
            by: Column of the formula whose values divide the documents, or several columns.
            level: Probability of the intervals.
            **contrasts: What to compare, by column: two values, the lower first; an increase of
                numbers, or of dates in days, which is 1 by default; or for levels ``"reference"``,
                the default, ``"sequential"`` or ``"pairwise"``. Truth values, and numbers that are
                only 0 and 1, are levels.

        Returns:
            A row for each topic and comparison, with the columns of :meth:`table`: ``term`` is the
            column, ``contrast`` the comparison, and the columns of ``by`` follow.

        Raises:
            ConfigError: The formula does not read a column, or a contrast has another form.
            CorpusError: See :meth:`predict`.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
            >>> effects.avg_comparisons("party")[["term", "contrast"]].iloc[0].tolist()
            ['party', 'right − left']
        """
        wanted = dict.fromkeys(names) | contrasts or dict.fromkeys(self.columns)
        pairs = {name: self._contrasts(name, how) for name, how in wanted.items()}
        return self._averaged(pairs, by, level)

    def avg_slopes(
        self, *names: str, by: str | Sequence[str] = (), level: float = 0.95
    ) -> pd.DataFrame:
        """Average slopes, as by ``avg_slopes`` of the package marginaleffects.

        The slope of a column of numbers or dates is the derivative of the expected proportion at
        the observed values of a document, through every term in which the column occurs. Columns of
        levels have the comparisons with the reference instead.

        Args:
            *names: Columns. By default all columns of the formula.
            by: See :meth:`avg_comparisons`.
            level: Probability of the intervals.

        Returns:
            The columns of :meth:`avg_comparisons`.

        Raises:
            ConfigError: The formula does not read a column.

        Example:
            >>> effects = lntm.effects.estimate(model, guide, posts, "~ year")
            >>> effects.avg_slopes("year")["contrast"].iloc[0]
            'dY/dX'
        """
        pairs = {}
        for name in names or self.columns:
            found = self._contrasts(str(name), None)
            pairs[str(name)] = [("dY/dX", None, None)] if found[0][1] is None else found
        return self._averaged(pairs, by, level)

    def plot(
        self,
        name: str,
        *,
        by: str | None = None,
        topics: Sequence[int | str] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> Axes:
        """Plot expected proportions over a column: points at levels, lines over numbers and dates.

        Args:
            name: The column.
            by: A column, whose values each have their own colour; see ``few`` in :meth:`grid`.
            topics: Topics to draw, by number or name, and names of groups of topics. Defaults to
                all. Several topics with lines or with ``by`` have a panel each, with scales in
                common.
            ax: Axes to draw a single panel into, with a colour for each topic and level. Defaults
                to a new figure.
            **options: Values of other columns, and options of :meth:`predict`.

        Returns:
            The axes, of the first panel if there are several; ``.figure`` has them all.

        Raises:
            ConfigError: As for :meth:`predict`.
        """
        from torch_lntm.plotting.lines import Series, plot_effects

        levels = [None] if by is None else self.grid(by, few=True)
        options = options if by is None else {**options, by: levels}
        rows = self.predict(name, **options)
        kind, drawn = self.formula.kinds.get(name, "text"), self._drawn(topics)
        alone = ax is not None or len(drawn) == 1 or (kind == "text" and by is None)
        title = f"Topic {next(iter(drawn.values()))}" if len(drawn) == 1 else ""
        panels: dict[str, list[Any]] = {}
        for (topic, label), value in itertools.product(drawn.items(), levels):
            points = rows[rows["topic"] == topic]
            if by is not None:
                points = points[points[_key(by)] == value]
            ends = points[["estimate", "lower", "upper"]].to_numpy()
            if self.measure == "proportion":
                ends = ends.clip(0)  # intervals of a linear regression can reach below 0
            of_class = "" if value is None else _told(value)
            told = f"{label}, {of_class}".rstrip(", ") if alone and not title else of_class
            series = Series(told or label, points[_key(name)].tolist(), ends)
            panels.setdefault(title if alone else label, []).append(series)
        along = f"expected {self.measure}, {options.get('level', 0.95):.0%} intervals"
        return plot_effects(
            panels, kind, name, along, ax=ax, classes=by if title or not alone else None
        )

    def plot_difference(
        self,
        name: str,
        first: Any,
        second: Any,
        *,
        topics: Sequence[int | str] | None = None,
        ax: Axes | None = None,
        **options: Any,
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
            ax: Axes to draw into. Defaults to a new figure.
            **options: Values of other columns, and options of :meth:`difference`.

        Returns:
            The axes. The points are those of :meth:`difference`.

        Raises:
            ConfigError: As for :meth:`difference`, or there is no first value.
            CorpusError: See :meth:`predict`.
        """
        from torch_lntm.plotting.lines import Series, plot_effects

        drawn, series = self._drawn(topics), []
        for value in self._several(name, first):
            rows = self.difference(name, value, second, **options).set_index("topic")
            points = rows.loc[list(drawn)]
            ends = points[["estimate", "lower", "upper"]].to_numpy()
            series.append(Series(points[_key(name)].iloc[0], list(drawn.values()), ends))
        along = (
            f"difference of expected {self.measure}s, {options.get('level', 0.95):.0%} intervals"
        )
        title = f"{name}: {series[0].label}" if len(series) == 1 else ""
        ax = plot_effects({title: series}, "text", "topic", along, ax=ax)
        ax.axvline(0.0, color=NEUTRAL, linewidth=0.8, zorder=1)
        return ax

    def grid(self, name: str, few: bool = False) -> list[Any]:
        """Levels of a column, or a grid from its smallest to its largest value.

        The grid has 50 values at equal distances, or at equal ratios if the column is skewed.

        Args:
            name: The column.
            few: Take all values of a column of up to 10 numbers or dates, and otherwise five of
                them: the smallest, the largest and the quartiles.

        Raises:
            ConfigError: The formula does not read the column.
        """
        self._require(name)
        if name in self.formula.random:
            return list(self.formula.random[name])
        column, kind = self.columns[name].to_numpy(), self.formula.kinds[name]
        distinct_values = sorted(set(column.tolist()))
        if self._averages.has_levels(name) or len(distinct_values) <= (FEW if few else 2):
            return distinct_values
        if few:
            ordered = sorted(column.tolist())
            return sorted({ordered[round(q * (len(ordered) - 1))] for q in (0, 0.25, 0.5, 0.75, 1)})
        if kind == "date":
            days = np.array([value[:10] for value in distinct_values], "datetime64[D]")
            first, last = days[[0, -1]].astype(np.int64).tolist()
            grid = np.unique(np.linspace(first, last, GRID).round().astype(np.int64))
            return list(grid.astype("datetime64[D]").astype(str))
        spaced = np.geomspace if is_skewed(column) else np.linspace
        return list(spaced(distinct_values[0], distinct_values[-1], GRID).tolist())

    # -- parts of the above ----------------------------------------------------------------------

    def _drawn(self, topics: Sequence[int | str] | None) -> dict[int | str, str]:
        """Labels of the topics of a plot: those of a user's list, or all regressed topics."""
        every = topic_labels(self.model)
        labels = {topic: every[topic] if isinstance(topic, int) else topic for topic in self.topics}
        if topics is None:
            return labels
        names = self.model.topic_names
        found = [t if t in labels else find_topics(names, [t])[0] for t in topics]
        for topic in found:
            if topic not in labels:
                raise ConfigError(f"topic {topic} was not regressed; expected some of {[*labels]}")
        return {topic: labels[topic] for topic in found}

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

    def _contrasts(self, name: str, how: Any) -> list[tuple[str, Any, Any]]:
        """The comparisons of a column: a label, and two values as for :meth:`Averages.effect`."""
        self._require(name)
        if name in self.formula.random:
            raise ConfigError(f"{name!r} is a random term; compare its levels by levels({name!r})")
        kind, column = self.formula.kinds[name], self.columns[name]
        is_binary = kind == "number" and column.isin([0, 1]).all()
        pairs: list[Any] = []
        if has_levels := self._averages.has_levels(name) or is_binary:
            levels, of_terms = self.grid(name), self._averages.levels.values()
            known = [first for of, _, first in of_terms if of == name and first is not None]
            first = known[0] if known else levels[0]
            ways: dict[Any, Any] = {
                None: [(first, other) for other in levels if other != first],
                "sequential": itertools.pairwise(levels),
                "pairwise": itertools.combinations(levels, 2),
            }
        if pd.api.types.is_list_like(how):
            pairs = [self._several(name, how)]
        elif has_levels:
            pairs = list(ways.get(None if how == "reference" else how, ()))
        elif isinstance(step := 1 if how is None else how, int | float) and np.isfinite(step):
            pairs = [(None, step)] if step else []
        if not pairs or {len(pair) for pair in pairs} != {2}:
            forms = "'reference', 'sequential', 'pairwise'" if has_levels else "an increase"
            raise ConfigError(f"contrast of {name!r} is {how!r}; expected {forms} or two values")
        if pairs[0][0] is None:
            return [(f"{pairs[0][1]:+g}", *pairs[0])]
        found = []
        for pair in pairs:
            read, _ = read_columns(pd.DataFrame({name: list(pair)}), {name: kind}, "value")
            found.append((" − ".join(map(_told, reversed(pair))), *read[name]))
        return found

    def _averaged(
        self,
        contrasts: Mapping[str, Sequence[tuple[str, Any, Any]]],
        by: str | Sequence[str],
        level: float,
    ) -> pd.DataFrame:
        """Averages of comparisons over the documents of each level of some columns."""
        if not contrasts:
            raise ConfigError(f"formula {self.formula.text!r} has no columns to compare")
        names = [by] if isinstance(by, str) else list(by)
        groups: list[tuple[dict[str, Any], Documents]] = [({}, self._averages.everyone)]
        if names:
            table = pd.DataFrame({name: self._observed(name) for name in names})
            keys = [f"{_key(name)}_" if name in ("term", "contrast") else name for name in names]
            groups = []
            for at, part in table.groupby(names, sort=True):
                documents = self._averages.documents(rows=part.index.to_numpy())
                groups.append((dict(zip(keys, at, strict=True)), documents))
        quantities, what = [], []
        for name, pairs in contrasts.items():
            for (label, low, high), (values, documents) in itertools.product(pairs, groups):
                what.append({"term": name, "contrast": label, **values})
                try:
                    quantities.append(self._averages.effect(documents, name, low, high))
                except CorpusError as error:
                    raise ConfigError(
                        f"the formula has no value at {name} {label} in some documents, as beyond "
                        f"the ends of a spline; compare two values, as in {name}=(low, high)"
                    ) from error
        return self._estimates(quantities, what, level)

    def _observed(self, name: str) -> NDArray[Any]:
        """The documents' values of a column, or their levels of a random term."""
        self.formula.check_column(name)
        if name not in self.formula.random:
            return self.columns[name].to_numpy()
        at = self.design.positions[:, list(self.formula.random).index(name)].numpy()
        return np.array(self.formula.random[name], object)[at]

    def _estimates(
        self,
        quantities: Iterable[Quantity],
        what: Sequence[Mapping[str, Any]],
        level: float,
        is_effect: bool = True,
    ) -> pd.DataFrame:
        """Estimates of quantities, pooled by Rubin's rules.

        With random terms, degrees of freedom are the fewest of the columns in a quantity's row.

        Args:
            quantities: The quantities.
            what: Term or values of each.
            level: Probability of the intervals.
            is_effect: Whether 0 means no effect.
        """
        found, each = [], np.full(len(self.formula.names), self.regression.freedom)
        if self.formula.random:
            each = self.design.containment(self.regression.freedom).numpy()
        for quantity in quantities:
            within, between = map(Tensor.numpy, self.regression.variances(quantity.gradients))
            used = np.abs(quantity.row) > 1e-9 * np.abs(self.design.raw).max(0)
            least = np.where(used, each, self.regression.freedom).min()
            num_draws: Any = self.num_draws
            if self.num_chains:  # draws of a chain depend on each other
                num_draws = self._agreement(quantity)[1].numpy()
                between = between * (1 - 1 / self.num_draws) / (1 - 1 / num_draws)
            numbers = (quantity.estimates.numpy(), within, between, num_draws)
            ends = intervals(*numbers, least, level, quantity.scale)
            found.append(np.stack([numbers[0], *ends]))
        return self._frame(np.stack(found, -1), what, is_effect)

    def _rows(self, what: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
        """A row for each response and point."""
        rows = [
            {"topic": topic, "name": name, **{_key(column): x for column, x in of.items()}}
            for topic, name in zip(self.topics, self._names(), strict=True)
            for of in what
        ]
        frame = pd.DataFrame(rows)
        if (frame["name"] == frame["topic"].map(str)).all():
            frame = frame.drop(columns="name")
        return frame

    def _frame(
        self,
        numbers: NDArray[np.float64],
        what: Sequence[Mapping[str, Any]],
        is_effect: bool = True,
    ) -> pd.DataFrame:
        """Estimates and results of ``intervals``, ``(5, num_responses, num_points)``, as rows."""
        frame, constant = self._rows(what), list(self.constant)
        numbers[1, constant] = 0.0
        numbers[3:, constant] = numbers[0, constant]
        estimate, error, freedom, lower, upper = numbers.reshape(5, -1)
        frame = frame.assign(estimate=estimate, std_error=error)
        if is_effect:
            # There is nothing to test where an effect is undetermined or known exactly.
            statistic = estimate / np.where((error > 0) & np.isfinite(error), error, np.nan)
            p_value = 2 * scipy.stats.t.sf(np.abs(statistic), freedom)
            frame = frame.assign(statistic=statistic, df=freedom, p_value=p_value)
        return frame.assign(lower=lower, upper=upper)


def _told(value: Any) -> str:
    """A value of a column in words."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _key(column: str) -> str:
    """Name of a column of metadata in a table, whose own columns keep their names."""
    return f"{column}_" if column in OWN_COLUMNS else column
