"""How prevalent topics are at the levels of metadata columns, and errors of their correlations.

The levels of a column are its distinct names, periods of its dates, or bins of its numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import find_column
from torch_lntm.errors import ConfigError, require_level
from torch_lntm.formulas.columns import Survey, read_survey
from torch_lntm.frames import render
from torch_lntm.inference import DocumentTopics, DrawSource, theta_draws
from torch_lntm.models import TopicGroups
from torch_lntm.models.topic_groups import as_groups, with_groups
from torch_lntm.plotting.style import format_number, is_skewed

Array = NDArray[np.float64]
#: Positions of levels on an axis, None for names; and a note on the axis for readers.
Axis = tuple[Array | None, str]

#: Documents with fewer tokens on average count as short. For them, the uncertainty of the topics'
#: words matters, although the intervals of this module leave it out.
SHORT_DOCUMENT = 50.0
#: Most levels of a column of names, of a column of numbers, and of a column of dates.
MOST_NAMES, MOST_BINS, MOST_PERIODS = 12, 10, 36
#: A column with more distinct names than this is taken for ids, which do not divide the documents.
_MOST_DIFFERENT = 50

_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|NaT")


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


@dataclass(frozen=True, eq=False, repr=False)
class Prevalence:
    """Mean proportions of topics, and of groups of topics, at the levels of a column.

    Attributes:
        levels: The levels, and the level of each document.
        num_docs: ``(num_levels,)`` documents with words of each level.
        mean: ``(num_levels, num_columns)`` mean proportions.
        lower: ``(num_levels, num_columns)`` lower ends of the intervals.
        upper: ``(num_levels, num_columns)`` upper ends of the intervals.
        standard_error: ``(num_levels, num_columns)`` standard errors; infinite for a level of one
            document.
        columns: Number of each topic, followed by the name of each group of topics.
    """

    levels: Levels
    num_docs: NDArray[np.int64]
    mean: Array
    lower: Array
    upper: Array
    standard_error: Array
    columns: tuple[int | str, ...]

    def frame(self) -> pd.DataFrame:
        """A row for each level and topic, or group of topics.

        Returns:
            The columns ``level``, ``topic`` (its number, or the name of a group of topics),
            ``share``, ``lower``, ``upper``, ``std_error`` and ``documents``.
        """
        pairs = pd.MultiIndex.from_product([self.levels.names, self.columns])
        return pairs.to_frame(index=False, name=["level", "topic"]).assign(
            share=self.mean.ravel(),
            lower=self.lower.ravel(),
            upper=self.upper.ravel(),
            std_error=self.standard_error.ravel(),
            documents=np.repeat(self.num_docs, len(self.columns)),
        )

    def __repr__(self) -> str:
        return render(self.frame())


def differences(mean: Array, standard_error: Array) -> Array:
    """Mean squared distance of the levels' means from the common mean, in squared standard errors.

    Args:
        mean: ``(num_levels, num_topics)`` means.
        standard_error: ``(num_levels, num_topics)`` standard errors.

    Returns:
        ``(num_topics,)`` distances.
    """
    precision = standard_error.clip(1e-12) ** -2.0
    common = (precision * mean).sum(0) / precision.sum(0).clip(1e-300)
    return np.asarray((precision * np.square(mean - common)).mean(0))


@dataclass(frozen=True, eq=False, repr=False)
class CorpusSummary:
    """Summary of a corpus: mean proportions, prevalence, and errors of correlations.

    Attributes:
        documents: Posterior means of the documents' proportions, by draws.
        overall: Prevalence in all documents, as one level.
        prevalence: Prevalence by each requested column.
        correlation_error: ``(num_topics, num_topics)`` standard errors of the topics' correlations,
            on the scale of Fisher's z; infinite for correlations that the documents do not
            determine.
        groups: Groups of topics, if asked for. Their prevalence follows that of the topics.
        design: How the documents count: weights, clusters and strata in words, if there are any.
    """

    documents: DocumentTopics
    overall: Prevalence
    prevalence: tuple[Prevalence, ...]
    correlation_error: Array
    groups: TopicGroups | None = None
    design: str = ""

    def frame(self) -> pd.DataFrame:
        """The topics in all documents, and then the groups of topics.

        Returns:
            The columns ``topic``, ``name``, ``share``, ``lower``, ``upper``, ``std_error`` and
            ``documents``. ``prevalence`` has a frame for each column of the metadata.
        """
        frame = self.overall.frame().drop(columns="level")
        names = dict(enumerate(self.documents.topic_names))
        frame.insert(1, "name", [names.get(k, k) for k in frame["topic"]])
        return frame

    def __repr__(self) -> str:
        return render(self.frame())


@torch.no_grad()
def summarise_corpus(
    source: DrawSource,
    corpus: Corpus,
    by: Sequence[str] = (),
    *,
    level: float = 0.95,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    weights: Any = None,
    clusters: Any = None,
    strata: Any = None,
    num_draws: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> CorpusSummary:
    """Prevalence of topics, overall and by metadata columns, and errors of their correlations.

    The documents are taken as a sample from a population, and the topics as known. A mean
    proportion is then uncertain for two reasons: documents are sampled, and each document's
    proportions are themselves uncertain. Rubin's rule adds the two as W + (1 + 1/S)B, where W is
    the squared standard error over documents, averaged over S draws, and B is the variance of the
    mean over draws. The intervals use Student's t.

    If the logits were observed, a correlation would have the information I = D - 3 on the scale of
    Fisher's z. Since they are not, the information drops to I - I²B (*Louis 1982*), where B is the
    variance over draws of the z of the drawn logits. Each correlation is treated by itself.

    Args:
        source: Source of the documents' proportions; see :func:`torch_lntm.inference.theta_draws`.
        corpus: The documents.
        by: Columns of the metadata.
        level: Coverage probability of each interval.
        groups: Groups of topics, such as ``{"economy": [3, 7]}``; see :class:`TopicGroups`. Their
            intervals are those of the summed draws.
        weights: Survey or frequency weights of the documents, as for
            :func:`torch_lntm.effects.estimate`: shares are weighted means, with the errors of a
            survey. Correlations take no weights. Defaults to equal weights.
        clusters: Clusters of dependent documents, likewise. The errors are then those over
            clusters, and infinite for a level of one cluster.
        strata: Strata of the sample, likewise. The errors are then those within strata, of a level
            as a domain of the whole sample.
        num_draws: Draws of each document. Defaults to 50, and to fewer for large corpora, but at
            least 25.
        seed: Seed of a guide's draws. Chains have a seed of their own.
        progress: Show a progress bar on standard error.

    Returns:
        The summary, on the CPU.

    Raises:
        ConfigError: ``source`` is of another type, the level is outside (0, 1), there are fewer
            than 2 draws, a group or a weight is refused, or the corpus has other words or none.
        MissingColumnError: A column is missing from the metadata.

    Example:
        >>> summary = lntm.reports.summarise_corpus(guide, posts, by=["party"])
        >>> summary.overall.mean.shape, summary.prevalence[0].levels.names
        ((1, 10), ('left', 'right'))
    """
    require_level(level)
    about: dict[str, Any] = {"seed": seed, "keep": False, "progress": progress}
    draws = theta_draws(source, corpus, num_draws, **about).several()
    if not corpus.num_tokens:
        raise ConfigError("the documents have no words; give documents with words")
    survey = read_survey(corpus, weights, clusters, strata)
    weighted = f"weights {weights}" if isinstance(weights, str) else "given weights"
    design = ", ".join(filter(None, ["" if weights is None else weighted, str(survey)]))
    model, nonempty = draws.model, torch.from_numpy(corpus.lengths > 0)
    size, table, merged = model.num_topics, corpus.metadata, as_groups(model, groups)
    columns = (*range(size), *(() if merged is None else merged.names))
    everything = Levels("all documents", ("all documents",), np.zeros(len(corpus), np.int64))
    divisions = [everything, *(levels_of(name, find_column(name, table)) for name in by)]
    sums = [_LevelSums(levels, survey, draws.num_draws, columns) for levels in divisions]
    logits = _LogitMoments(draws.num_draws, size)
    theta = torch.full((len(corpus), size), 1.0 / size, dtype=model.dtype)
    converged = torch.ones(len(corpus), dtype=torch.bool)
    for part in draws:
        rows, drawn = torch.from_numpy(part.rows), part.theta.double()
        by_document = with_groups(drawn, merged).transpose(0, 1).flatten(1)
        for each in sums:
            each.add(by_document, rows)
        logits.add(drawn[:, nonempty[rows]])
        theta[rows] = drawn.mean(0).to(model.dtype)
        converged[rows] = part.converged
    documents = DocumentTopics(
        theta, converged, corpus.lengths, "mean", model.topic_names, metadata=table
    )
    overall, *by_column = (each.result(level) for each in sums)
    return CorpusSummary(documents, overall, tuple(by_column), logits.error(), merged, design)


class _LevelSums:
    """Weighted sums of drawn proportions over the units of each level and stratum.

    A unit is a document, or a cluster's documents at a level, for which their weighted mean stands.
    """

    def __init__(
        self, levels: Levels, survey: Survey, num_draws: int, columns: tuple[int | str, ...]
    ) -> None:
        self.levels, self.columns, self.num_draws = levels, columns, num_draws
        of_levels, shape = levels.codes[survey.rows], (num_draws * len(columns),)
        at = of_levels >= 0
        self.num_docs = np.bincount(of_levels[at], minlength=len(levels.names))
        weights = np.ones(len(at)) if survey.weights is None else survey.weights
        units = np.arange(len(at)) if survey.clusters is None else survey.clusters
        strata = np.zeros(units.max() + 1, int) if survey.strata is None else survey.strata
        pairs = of_levels[at] * len(strata) + units[at]
        pairs, codes = np.unique(pairs, return_inverse=True)
        totals = np.bincount(codes, weights[at], len(pairs))
        units, shares = np.full(len(levels.codes), -1), np.zeros(len(levels.codes))
        units[survey.rows[at]] = codes
        shares[survey.rows[at]] = weights[at] / totals[codes]
        self.units, self.shares = torch.from_numpy(units), torch.from_numpy(shares)
        self.sizes = None if survey.strata is None else np.bincount(strata)
        self.shape = (len(levels.names), strata.max() + 1)
        of_pairs, unit = np.divmod(pairs, len(strata))
        cells = of_pairs * self.shape[1] + strata[unit]
        self.totals = [
            np.bincount(cells, totals**power, math.prod(self.shape)).reshape(self.shape)
            for power in (0, 1, 2)
        ]
        self.cells, self.weights = torch.from_numpy(cells), torch.from_numpy(totals)
        self.means = None
        if survey.clusters is not None:
            self.means = torch.zeros(len(cells), *shape, dtype=torch.float64)
        self.first = torch.zeros(math.prod(self.shape), *shape, dtype=torch.float64)
        self.second, self.crossed = torch.zeros_like(self.first), torch.zeros_like(self.first)

    def add(self, theta: Tensor, rows: Tensor) -> None:
        """Add the draws ``(num_docs, num_draws * num_columns)`` of some documents."""
        rows, theta = (part[self.units[rows] >= 0] for part in (rows, theta))
        if self.means is None:
            self._add_units(theta, self.units[rows])
        else:
            self.means.index_add_(0, self.units[rows], self.shares[rows, None] * theta)

    def _add_units(self, means: Tensor, units: Tensor) -> None:
        cells, weights = self.cells[units], self.weights[units, None]
        weighted = weights * means
        self.first.index_add_(0, cells, weighted)
        self.second.index_add_(0, cells, weighted.square())
        self.crossed.index_add_(0, cells, weights * weighted)

    def result(self, level: float) -> Prevalence:
        """The prevalence, with intervals of a coverage probability."""
        if self.means is not None:
            self._add_units(self.means, torch.arange(len(self.means)))
        by_cell = (*self.shape, self.num_draws, len(self.columns))
        sums = (self.first, self.second, self.crossed)
        first, second, crossed = (part.view(by_cell).numpy() for part in sums)
        count, weight, square = (part[:, :, None, None] for part in self.totals)
        total = weight.sum(1)
        by_draw = first.sum(1) / np.where(total > 0, total, 1)
        mean, centre = by_draw.mean(1), by_draw[:, None]
        # Σ w² (θ − mean)² less the squared sum over the stratum, by linearisation of the mean
        scatter = second - 2 * centre * crossed + square * centre**2
        size = count if self.sizes is None else self.sizes[:, None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            scatter -= (first - weight * centre) ** 2 / size
            within = (size / (size - 1) * scatter.clip(0)).sum(1).mean(1) / total[:, 0] ** 2
        freedom = (count - (count > 0)).sum(1)[:, 0]
        within = np.where(freedom > 0, within, np.inf)
        between = (1 + 1 / self.num_draws) * by_draw.var(1, ddof=1)
        error = np.sqrt(within + between)
        reach = stdtrit(np.maximum(freedom, 1), (1 + level) / 2) * error
        ends = (mean - reach).clip(0), (mean + reach).clip(max=1)
        return Prevalence(self.levels, self.num_docs, mean, *ends, error, self.columns)


class _LogitMoments:
    """Second moments over documents of the draws of the centred logits of theta."""

    def __init__(self, num_draws: int, num_topics: int) -> None:
        self.num_docs = 0
        self.first = torch.zeros(num_draws, num_topics, dtype=torch.float64)
        self.second = torch.zeros(num_draws, num_topics, num_topics, dtype=torch.float64)

    def add(self, theta: Tensor) -> None:
        """Add the draws ``(num_draws, num_docs, num_topics)`` of some documents."""
        logits = theta.clamp_min(torch.finfo(torch.float32).tiny).log()
        logits -= logits.mean(-1, keepdim=True)
        self.num_docs += logits.shape[1]
        self.first += logits.sum(1)
        self.second += logits.mT @ logits

    def error(self) -> Array:
        """Standard errors of the correlations' Fisher z; see :func:`summarise_corpus`."""
        information = self.num_docs - 3
        if information < 1:
            return np.full(self.second.shape[1:], np.inf)
        mean = self.first / self.num_docs
        covariance = self.second / self.num_docs - mean[:, :, None] * mean[:, None, :]
        scale = covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-300).sqrt()
        correlation = covariance / scale[:, :, None] / scale[:, None, :]
        z = correlation.clamp(-1 + 1e-12, 1 - 1e-12).atanh()
        remaining = information - information**2 * z.var(0)
        error = remaining.clamp_min(1e-12).rsqrt()
        return np.where(remaining.numpy() > 0, error.numpy(), np.inf)


def correlation_intervals(correlation: Array, error: Array, level: float) -> tuple[Array, Array]:
    """Intervals of correlations, symmetric on the scale of Fisher's z.

    Args:
        correlation: ``(num_topics, num_topics)`` correlations.
        error: Standard errors of z, ``correlation_error`` of a :class:`CorpusSummary`.
        level: Coverage probability of each interval.

    Returns:
        ``(lower, upper)``, each ``(num_topics, num_topics)``.
    """
    z = np.arctanh(correlation.clip(-1 + 1e-12, 1 - 1e-12))
    reach = ndtri((1 + level) / 2) * error
    return np.tanh(z - reach), np.tanh(z + reach)


def correlation_lines(correlation: Array, error: Array, level: float) -> pd.DataFrame:
    """Correlations that differ from 0 when all pairs are tested together, the strongest first.

    Each test has the level (1 − level) divided by the number of pairs (*Bonferroni*), whereas the
    intervals are for single correlations. See :func:`correlation_intervals` for the arguments.

    Returns:
        A row for each pair: ``first``, ``second``, ``correlation``, ``lower``, ``upper`` and ``z``,
        the absolute value of Fisher's z.
    """
    pairs = np.triu_indices(len(correlation), 1)
    lower, upper = correlation_intervals(correlation, error, level)
    values = {"correlation": correlation, "lower": lower, "upper": upper}
    of_pairs = {name: x[pairs] for name, x in values.items()}
    lines = pd.DataFrame({"first": pairs[0], "second": pairs[1], **of_pairs})
    lines["z"] = np.abs(np.arctanh(lines["correlation"].clip(-1 + 1e-12, 1 - 1e-12)))
    clear = lines["z"] > -ndtri((1 - level) / 2 / max(len(lines), 1)) * error[pairs]
    return lines[clear].sort_values("z", ascending=False, kind="stable")


def levels_of(column: str, values: Any) -> Levels:
    """Levels of a column by name, by period of dates, or by bins of numbers.

    * Names: each name is a level. If there are many, the most frequent ones are kept, and the rest
      become ``other``.
    * Dates: texts such as 2008-03 or 2008-03-01 are dates. The levels are days, months, years or
      several years, whichever is shortest and gives at most 36 of them.
    * Numbers: if there are few distinct values, each is a level. Otherwise they are cut into 10
      bins with about as many documents in each, named by their smallest and largest value.

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

    Columns with a single value are left out, and so are columns with many distinct names, such as
    ids. If several columns of names divide the documents in the same way, the last is kept.
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
    if is_skewed(numbers):
        return np.log(numbers), "The axis is logarithmic."
    return numbers, ""


def is_time(column: str, values: pd.Series) -> bool:
    """Whether a column has dates, or numbers that its name calls days, months or years."""
    named = (
        column.lower() in ("date", "day", "week", "month", "year") and values.dtype.kind in "iuf"
    )
    return named or _days(values) is not None


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
    note = "The bins have about equal numbers of documents, and are drawn equally spaced."
    return Levels(column, names, codes, (np.arange(len(numbers), dtype=np.float64), note))


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
