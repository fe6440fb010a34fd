"""Effects: effects of terms, predictions and differences with intervals."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import frames
from torch_lntm.corpus.metadata import as_metadata
from torch_lntm.effects.design import Design
from torch_lntm.effects.linear import LinearRegression
from torch_lntm.effects.logit import AVERAGE, NEW, LogitRegression
from torch_lntm.effects.regression import Scale, agreement, intervals
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import read_columns
from torch_lntm.formulas.language import level_column
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import NEUTRAL, is_skewed, topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Values of the columns that a prediction does not set.
Others = Literal["average", "typical"]
#: Scale of the regression.
Link = Literal["logit", "identity"]
#: Grid values of a number or date.
GRID = 50
#: Numbers of which each is a level of its own, where a second column divides predictions.
FEW = 10
#: Step of a derivative, in standard deviations of the column.
STEP = 1e-3
#: Largest R-hat of chains that agree.
MOST_RHAT = 1.05
#: Columns of a table of estimates. A metadata column with one of these names gets an underscore.
OWN_COLUMNS = {
    *("topic", "name", "estimate", "std_error", "statistic", "df", "p_value", "lower", "upper")
}
#: Most rows of a formula evaluated at once, to bound the memory of large grids.
MAX_ROWS = 50_000


class Documents(NamedTuple):
    """The distinct documents, each with the weight of all that equal it in the relevant columns.

    Attributes:
        first: ``(num_distinct,)`` the first of the equal documents.
        read: A row for each of them, as read by the formula.
        weights: ``(num_distinct,)`` weights, with the sum 1.
        positions: ``(num_distinct, num_random_terms)`` levels of the random terms.
    """

    first: NDArray[np.int64]
    read: pd.DataFrame
    weights: NDArray[np.float64]
    positions: NDArray[np.int64]

    @classmethod
    def of(
        cls, read: pd.DataFrame, weights: NDArray[np.float64], positions: NDArray[np.int64]
    ) -> Documents:
        """The different documents among all documents."""
        columns = [read[name].to_numpy() for name in read]
        codes = [np.unique(x, return_inverse=True)[1] for x in (*columns, *positions.T)]
        _, first, inverse = np.unique(
            np.stack(codes, 1), axis=0, return_index=True, return_inverse=True
        )
        sums = np.bincount(inverse.ravel(), weights).astype(np.float64)
        different = read.iloc[first].reset_index(drop=True)
        return cls(first.astype(np.int64), different, sums / sums.sum(), positions[first])

    def rows(self, formula: Formula, fixed: pd.DataFrame) -> Iterator[NDArray[np.float64]]:
        """Design rows of the documents at each point. Large grids are evaluated in parts.

        Args:
            formula: The formula.
            fixed: A row of values of all other columns for each point, as read by the formula.

        Yields:
            ``(num_distinct, num_terms)`` for each point.
        """
        size = len(self.first)
        step = max(1, MAX_ROWS // size)
        for start in range(0, len(fixed), step):
            points = fixed.iloc[start : start + step]
            repeated = points.loc[points.index.repeat(size)].reset_index(drop=True)
            own = self.read.iloc[np.tile(np.arange(size), len(points))].reset_index(drop=True)
            values = pd.concat([repeated, own], axis=1)
            yield from formula.evaluate(values, "value", size).reshape(len(points), size, -1)


class Quantity(NamedTuple):
    """A function of the coefficients: an average of predictions, a difference or a derivative.

    Attributes:
        estimates: ``(num_responses,)``.
        gradients: ``(num_responses, num_coefficients)``.
        row: ``(num_terms,)`` average of the rows of the design.
        scale: Scale on which intervals are symmetric.
    """

    estimates: Tensor
    gradients: Tensor
    row: NDArray[np.float64]
    scale: Scale

    def less(self, other: Quantity) -> Quantity:
        """The difference."""
        gradients, row = self.gradients - other.gradients, self.row - other.row
        scale: Scale = "atanh" if self.scale == "logit" else "identity"
        return Quantity(self.estimates - other.estimates, gradients, row, scale)


class Contrast(NamedTuple):
    """A comparison of two values of a column.

    Attributes:
        label: The comparison, in words.
        low: The lower value; ``None`` for the observed values.
        high: The higher value, or what is added to the observed values; ``None`` for a slope.
    """

    label: str
    low: Any
    high: Any


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
        groups: Groups of topics, if some were regressed or named in an outcome.
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
    groups: TopicGroups | None = None
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
            if kind == "number" and not self._has_levels(name)
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
        return self._estimates(self._terms, [{"term": name} for name in self.formula.names], level)

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
        pooled, scale = np.zeros((3, len(self.topics), len(terms))), "identity"
        if isinstance(self.regression, LinearRegression):
            assert self.regression.random is not None
            found = self.regression.random.effects
            pooled[:2] = [part.split(self.design.sizes, 1)[at].numpy() for part in found]
        else:
            squares, everyone = np.zeros_like(pooled[0]), self._everyone
            for weight, regression in self.regression.at_variances(at):
                numbers = replace(self, regression=regression)._of_levels(at, len(terms), everyone)
                pooled += weight * numbers
                squares += weight * numbers[0] ** 2
            pooled[1] += squares - pooled[0] ** 2
            scale = "atanh" if self.measure == "proportion" else "identity"
        # Intervals contain the uncertainty of the levels' variance, and need no fewer degrees.
        about: Any = (self.num_draws, self.regression.freedom, level, scale)
        return self._frame(np.stack([pooled[0], *intervals(*pooled, *about)]), terms)

    def _of_levels(self, at: int, size: int, everyone: Documents) -> NDArray[np.float64]:
        """Effects of a term's levels on the proportions, with variances within and between draws.

        Args:
            at: The term.
            size: Number of its levels.
            everyone: The documents.

        Returns:
            ``(3, num_responses, size)``.
        """
        means = []
        for position in (AVERAGE, *range(size)):
            positions = everyone.positions.copy()
            positions[:, at] = position
            means.append(self._mean(self.design.raw[everyone.first], everyone.weights, positions))
        numbers = []
        for mean in means[1:]:
            effect = mean.less(means[0])
            covariances = self.regression.covariance(effect.gradients[:, None])
            parts = (effect.estimates, *(part[:, 0, 0] for part in covariances))
            numbers.append(torch.stack(parts))
        return torch.stack(numbers, -1).numpy()

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
        found = [agreement(self._moved(of), self.num_chains) for of in self._terms]
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
        chains = f"{self.num_chains} chains" if self.num_chains > 1 else "1 chain"
        advice = (
            "The chains disagree, so intervals are unreliable; see convergence()."
            if rhat > MOST_RHAT
            else "Further chains, from other starts, would show more." * (self.num_chains == 1)
        )
        return (
            f"Over {chains}: R-hat of the effects at most {rhat:.2f}, and at least {size:.0f} "
            f"effective draws. {advice}"
        ).strip()

    def _moved(self, quantity: Quantity) -> Tensor:
        """Deviations of a quantity in each draw ``(num_responses, num_draws)``."""
        return self.regression.moved(quantity.gradients[:, None])[:, 0]

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
        return self._estimates(self._averages(points, others), points, level, is_effect=False)

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
        one, other = self._averages(points, others)
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
            is_step = found[0].low is None
            pairs[str(name)] = [Contrast("dY/dX", None, None)] if is_step else found
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
        if self._has_levels(name) or len(distinct_values) <= (FEW if few else 2):
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

    def _has_levels(self, name: str) -> bool:
        """Whether the values of a column are levels: text, truth values, or numbers within C()."""
        within = any(level_column(expression) == name for expression in self.formula.levels)
        return within or self.columns[name].dtype.kind == "b"

    def _typical(self, name: str) -> Any:
        """The most frequent level, or the median of numbers and dates."""
        column = self.columns[name].to_numpy()
        if self._has_levels(name):
            levels, counts = np.unique(column, return_counts=True)
            return levels[counts.argmax()]
        return np.sort(column)[len(column) // 2] if column.dtype == object else np.median(column)

    def _documents(
        self,
        others: Others = "average",
        *replaced: str,
        rows: NDArray[np.int64] | slice = slice(None),
    ) -> Documents:
        """The documents, distinct in all columns but the replaced ones, or the typical document."""
        if others == "typical":
            columns = as_metadata({name: [self._typical(name)] for name in self.columns})
            weights, positions = np.ones(1), np.full((1, len(self.design.sizes)), AVERAGE)
        else:
            columns, weights = self.columns.iloc[rows], self.design.weights.numpy()[rows]
            positions = self.design.positions.numpy()[rows]
        kinds = {name: kind for name, kind in self.formula.kinds.items() if name not in replaced}
        found = Documents.of(read_columns(columns, kinds)[0], weights, positions)
        return found._replace(first=np.arange(len(self.columns))[rows][found.first])

    @cached_property
    def _everyone(self) -> Documents:
        return self._documents()

    def _contrasts(self, name: str, how: Any) -> list[Contrast]:
        """The comparisons of a column; see :meth:`avg_comparisons`."""
        self._require(name)
        if name in self.formula.random:
            raise ConfigError(f"{name!r} is a random term; compare its levels by levels({name!r})")
        kind, column = self.formula.kinds[name], self.columns[name]
        has_levels = self._has_levels(name) or (kind == "number" and column.isin([0, 1]).all())
        levels = self.grid(name) if has_levels else []
        pairs: list[Any] = []
        if pd.api.types.is_list_like(how):
            pairs = [self._several(name, how)]
        elif has_levels and how in (None, "reference"):
            known = [reference for column, _, reference in self._levels.values() if column == name]
            first = known[0] if known and known[0] is not None else levels[0]
            pairs = [(first, other) for other in levels if other != first]
        elif has_levels and isinstance(how, str):
            kinds: dict[str, Any] = {"sequential": itertools.pairwise}
            kinds["pairwise"] = partial(itertools.combinations, r=2)
            pairs = list(kinds[how](levels)) if how in kinds else []
        elif not has_levels and isinstance(how := 1 if how is None else how, int | float):
            pairs = [(None, how)] if how and np.isfinite(how) else []
        if not pairs or {len(pair) for pair in pairs} != {2}:
            forms = "'reference', 'sequential', 'pairwise'" if has_levels else "an increase"
            raise ConfigError(f"contrast of {name!r} is {how!r}; expected {forms} or two values")
        found = []
        for pair in pairs:
            if pair[0] is None:
                return [Contrast(f"{pair[1]:+g}", *pair)]
            read, _ = read_columns(pd.DataFrame({name: list(pair)}), {name: kind}, "value")
            texts = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in reversed(pair)]
            found.append(Contrast(" − ".join(texts), *read[name]))
        return found

    def _averaged(
        self, contrasts: Mapping[str, Sequence[Contrast]], by: str | Sequence[str], level: float
    ) -> pd.DataFrame:
        """Averages of comparisons over the documents of each level of some columns."""
        if not contrasts:
            raise ConfigError(f"formula {self.formula.text!r} has no columns to compare")
        names = [by] if isinstance(by, str) else list(by)
        groups: list[tuple[dict[str, Any], Documents]] = [({}, self._everyone)]
        if names:
            table = pd.DataFrame({name: self._observed(name) for name in names})
            parts = table.groupby(names, sort=True)
            keys = [f"{_key(name)}_" if name in ("term", "contrast") else name for name in names]
            groups = [
                (dict(zip(keys, at, strict=True)), self._documents(rows=part.index.to_numpy()))
                for at, part in parts
            ]
        quantities, what = [], []
        for name, pairs in contrasts.items():
            for (label, low, high), (values, documents) in itertools.product(pairs, groups):
                what.append({"term": name, "contrast": label, **values})
                if high is None:
                    quantities.append(self._slope(name, documents))
                    continue
                up = high if low is not None else documents.read[name] + high
                down = {} if low is None else {name: low}
                try:
                    one = self._changed(documents, {name: up})
                except CorpusError as error:
                    raise ConfigError(
                        f"the formula has no value at {name} {label} in some documents, as beyond "
                        f"the ends of a spline; compare two values, as in {name}=(low, high)"
                    ) from error
                quantities.append(one.less(self._changed(documents, down)))
        return self._estimates(quantities, what, level)

    def _observed(self, name: str) -> NDArray[Any]:
        """The documents' values of a column, or their levels of a random term."""
        self.formula.check_column(name)
        if name not in self.formula.random:
            return self.columns[name].to_numpy()
        at = self.design.positions[:, list(self.formula.random).index(name)].numpy()
        return np.array(self.formula.random[name], object)[at]

    def _averages(self, points: Sequence[Mapping[str, Any]], others: Others) -> Iterator[Quantity]:
        """The average prediction at each point."""
        if others not in ("average", "typical"):
            raise ConfigError(f"others is {others!r}; expected 'average' or 'typical'")
        random = self.formula.random
        kinds = {name: self.formula.kinds[name] for name in points[0] if name not in random}
        fixed, _ = read_columns(pd.DataFrame(points), kinds, "value")
        documents = self._documents(others, *kinds)
        for rows, point in zip(documents.rows(self.formula, fixed), points, strict=True):
            positions = documents.positions.copy()
            for j, (name, known) in enumerate(random.items()):
                if name in point:
                    value = point[name]
                    positions[:, j] = known.index(value) if value in known else NEW
            yield self._mean(rows, documents.weights, positions)

    def _mean(
        self,
        rows: NDArray[np.float64],
        weights: NDArray[np.float64],
        positions: NDArray[np.int64],
        moved: Tensor | float = 0.0,
    ) -> Quantity:
        """The weighted sum of predictions at rows of the design, perhaps shifted in its basis."""
        parts = (torch.from_numpy(weights), torch.from_numpy(positions))
        found = self.regression.predict(self.design.rows(rows) + moved, *parts)
        scale: Scale = "identity"
        if isinstance(self.regression, LogitRegression):
            scale = "atanh" if bool((self.regression.responses < 0).any()) else "logit"
        return Quantity(*found, weights @ rows, scale)

    @cached_property
    def _terms(self) -> list[Quantity]:
        """The effects of all columns of the design."""
        return [self._of_term(name) for name in self.formula.names]

    def _of_term(self, name: str) -> Quantity:
        """The effect of a column of the design; see :meth:`table`."""
        j = self.formula.names.index(name)
        unit = np.eye(len(self.formula.names))[j]
        if isinstance(self.regression, LinearRegression):
            row = self.design.back[j].expand(len(self.topics), -1)
            return Quantity((self.regression.coefficients * row).sum(1), row, unit, "identity")
        everyone = self._everyone
        if name == "Intercept":
            flags = [self.formula.names[i] for i in self.design.flags]
            references = {column: reference for column, _, reference in self._levels.values()}
            zeros = {column: 0 for column in flags if column in everyone.read}
            fixed = {c: v for c, v in (zeros | references).items() if v is not None}
            return self._changed(everyone, fixed)
        if name in self._levels:
            column, level, reference = self._levels[name]
            one = self._changed(everyone, {column: level})
            return (
                one if reference is None else one.less(self._changed(everyone, {column: reference}))
            )
        if name in everyone.read and j in self.design.flags:
            return self._changed(everyone, {name: 1}).less(self._changed(everyone, {name: 0}))
        if name in everyone.read:
            return self._slope(name, everyone)
        along = self.design.rows(unit[None])
        step = STEP / float(along.norm()) / len(self.design.x) ** 0.5
        up, down = (
            self._changed(everyone, {}, 0.5 / step, sign * step * along) for sign in (1, -1)
        )
        return up.less(down)._replace(row=unit, scale="identity")

    def _changed(
        self, documents: Documents, values: Mapping[str, Any], scale: Any = 1.0, moved: Any = 0.0
    ) -> Quantity:
        """The average prediction with other values of some columns, and scaled weights."""
        rows = self.design.raw[documents.first]
        if values:
            kinds = self.formula.kinds
            numbers = {c: np.float64 for c in documents.read if kinds[str(c)] != "text"}
            read = documents.read.astype(numbers)
            rows = self.formula.evaluate(read.assign(**values).astype(read.dtypes))
        return self._mean(rows, documents.weights * scale, documents.positions, moved)

    def _slope(self, name: str, documents: Documents) -> Quantity:
        """The average derivative in a column of numbers or dates, by central differences."""
        column = documents.read[name].to_numpy(np.float64)
        known = self._everyone.read[name].to_numpy(np.float64)
        step = STEP * np.std(known - known[0])
        high, low = ((column + sign * step).clip(known.min(), known.max()) for sign in (1, -1))
        up, down = (self._changed(documents, {name: x}, 1 / (high - low)) for x in (high, low))
        return up.less(down)._replace(scale="identity")

    @cached_property
    def _levels(self) -> dict[str, tuple[str, Any, Any]]:
        """Column, level and reference level, if any, by name of a column of the design."""
        found: dict[str, tuple[str, Any, Any]] = {}
        for expression, levels in self.formula.levels.items():
            names = {f"{expression}[{sign}{x}]": x for x in levels for sign in ("", "T.")}
            present = {name: names[name] for name in self.formula.names if name in names}
            rest = [level for level in levels if level not in present.values()]
            column = level_column(expression)
            if column is not None and len(rest) < 2:
                reference = rest[0] if rest else None
                found |= {name: (column, level, reference) for name, level in present.items()}
        return found

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
            covariances = self.regression.covariance(quantity.gradients[:, None])
            within, between = (covariance[:, 0, 0].numpy() for covariance in covariances)
            used = np.abs(quantity.row) > 1e-9 * np.abs(self.design.raw).max(0)
            least = np.where(used, each, self.regression.freedom).min()
            num_draws: Any = self.num_draws
            if self.num_chains:  # draws of a chain depend on each other
                num_draws = agreement(self._moved(quantity), self.num_chains)[1].numpy()
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
