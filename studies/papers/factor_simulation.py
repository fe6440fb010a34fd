"""Factor, correlated and Dirichlet topic models on simulated text: *IFTM 2009, §3.2.1*.

A correlated topic model with full covariance is drawn at random and a corpus from it. Models with
fewer topics are fitted to four fifths of the documents and scored on the rest, in turn. The scores
are the held-out log likelihood against the number of topics, and the perplexity of words given a
share of the document, as in Figure 3 of *Putthividhya, Attias & Nagarajan 2009*. The study takes 25
minutes on one core; ``--quick`` takes under two.

The paper says only that the true parameters "are drawn randomly from some distribution".
:class:`FactorSettings` has this study's choices; ``studies/pages/experiments.md`` has the results.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.measure import Cells, Study
from studies.papers.factor_models import (
    CANDIDATES,
    FactorSettings,
    draw_corpus,
    draw_model,
    split_folds,
)
from studies.tables import entry, mean_and_error, table
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import document_completion, log_likelihood
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import VariationalEM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Name of the true model of the documents, scored beside the fitted models.
TRUTH = "truth"
#: Observed share of a test document's words, unless the share is varied.
HALF = 0.5
#: Draws of theta per document for its posterior mean.
THETA_SAMPLES = 200
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7


#: Pairs of models with a claim of the paper about their difference, fold by fold.
CONTRASTS = (("iftm", "ctm-ml"), ("iftm", "ctm"), ("iftm", "lda"), ("ctm-ml", "lda"))
#: The numbers of a row, with descriptions and printed digits.
STATISTICS = {
    "log_likelihood": ("log p(test documents) by importance sampling, nats", 0),
    "completion": ("nats per token of half of a test document's words given the rest", 4),
    "unreliable": ("share of test documents with Pareto k above 0.7", 3),
    "effective_sample_size": ("effective sample size, median over test documents", 0),
    "iterations": ("EM iterations after the stochastic start", 0),
    "cpu_seconds": ("processor time of the fit", 1),
}


@dataclass(frozen=True)
class Row:
    """One model on one fold.

    Fields without a description are those of :data:`STATISTICS`; the truth has 0 iterations and
    seconds. All fields but ``cpu_seconds`` are equal from run to run.

    Attributes:
        model: Name in :data:`CANDIDATES`, or :data:`TRUTH`.
        num_topics: Its topics.
        fold: Number of the test fold.
        log_likelihood_error: Monte Carlo standard error of ``log_likelihood``, nats; too low if
            documents are unreliable.
        converged: Whether EM ended by its tolerance.
        completions: ``completion`` by observed share as text, if the share is varied.
    """

    model: str
    num_topics: int
    fold: int
    log_likelihood: float
    log_likelihood_error: float
    completion: float
    unreliable: float
    effective_sample_size: float
    iterations: int
    cpu_seconds: float
    converged: bool
    completions: dict[str, float]


@dataclass(frozen=True)
class FactorResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each model, number of topics and fold.
    """

    settings: FactorSettings
    rows: list[Row]

    def select(self, model: str, num_topics: int) -> list[Row]:
        """The rows of a model and number of topics, fold by fold.

        Raises:
            ConfigError: No row matches.
        """
        found = [row for row in self.rows if (row.model, row.num_topics) == (model, num_topics)]
        if not found:
            raise ConfigError(f"nothing was measured for {model!r} with {num_topics} topics")
        return sorted(found, key=lambda row: row.fold)

    def average(self, model: str, num_topics: int, statistic: str) -> tuple[float, float]:
        """Mean over folds and its standard error; ``statistic`` is a key of :data:`STATISTICS`."""
        rows = self.select(model, num_topics)
        return mean_and_error([float(getattr(row, statistic)) for row in rows])

    def difference(
        self, model: str, other: str, num_topics: int, statistic: str
    ) -> tuple[float, float]:
        """Mean over folds of one model's statistic less another's, and its standard error."""
        pairs = zip(self.select(model, num_topics), self.select(other, num_topics), strict=True)
        return mean_and_error([getattr(a, statistic) - getattr(b, statistic) for a, b in pairs])

    def perplexity(self, model: str, share: float) -> tuple[float, float]:
        """Mean over folds of the completion perplexity at an observed share, and its error."""
        topics = self.settings.true_topics if model == TRUTH else self.settings.completion_topics
        rows = self.select(model, topics)
        return mean_and_error([math.exp(-row.completions[str(share)]) for row in rows])

    def tables(self) -> str:
        """Every table, as Markdown."""
        settings = self.settings
        names, topics = list(settings.models), sorted(settings.num_topics)
        labels = [CANDIDATES[name].label for name in names]
        parts = []
        for statistic, (text, digits) in STATISTICS.items():
            found = [[self.average(name, k, statistic) for name in names] for k in topics]
            truth = entry(*self.average(TRUTH, settings.true_topics, statistic), digits)
            title = f"{statistic}: {text}; of the truth {truth}"
            parts += [title, _table("K", topics, labels, found, digits)]
        pairs = [pair for pair in CONTRASTS if set(pair) <= set(names)]
        differences = [" − ".join(CANDIDATES[name].label for name in pair) for pair in pairs]
        for statistic in ("log_likelihood", "completion") if pairs else ():
            digits = STATISTICS[statistic][1]
            found = [[self.difference(*pair, k, statistic) for pair in pairs] for k in topics]
            title = f"{statistic}: mean difference over the same folds"
            parts += [title, _table("K", topics, differences, found, digits)]
        shares = sorted(settings.observed_shares)
        found = [[self.perplexity(name, share) for name in (*names, TRUTH)] for share in shares]
        title = f"perplexity of the unobserved words, K = {settings.completion_topics}"
        parts += [title, _table("observed", shares, [*labels, TRUTH], found, 1)]
        return "\n\n".join(parts)


def _table(
    name: str,
    keys: Sequence[float],
    labels: Sequence[str],
    found: Sequence[Sequence[tuple[float, float]]],
    digits: int,
) -> str:
    """A Markdown table of means with their standard errors in parentheses."""
    rows = [
        [f"{key:g}", *(entry(*pair, digits) for pair in pairs)]
        for key, pairs in zip(keys, found, strict=True)
    ]
    return table([name, *labels], rows)


def run(settings: FactorSettings, cells: Cells) -> FactorResult:
    """Run the simulation, on the CPU."""
    truth = draw_model(settings)
    folds = split_folds(settings, draw_corpus(settings, truth))

    def measure(key: tuple[int, int, str]) -> Row:
        fold, num_topics, name = key
        train, test = folds[fold]
        if name == TRUTH:
            return _score(settings, TRUTH, make_guide("taylor", truth), test, fold, vary_share=True)
        return _fit(settings, name, num_topics, train, test, fold)

    truths = [(fold, settings.true_topics, TRUTH) for fold in range(settings.folds)]
    fits = product(range(settings.folds), settings.num_topics, settings.models)
    return FactorResult(settings, [Row(**row) for row in cells.each([*truths, *fits], measure)])


def _fit(
    settings: FactorSettings, name: str, num_topics: int, train: Corpus, test: Corpus, fold: int
) -> Row:
    """Fit a model to one fold's training documents and score it on the test fold."""
    candidate = CANDIDATES[name]
    model = candidate.make(num_topics, train.num_words, seed=settings.seed, **candidate.options)
    guide = make_guide(candidate.posterior, model)
    engine = VariationalEM(
        model,
        guide,
        tolerance=settings.tolerance,
        max_iterations=settings.max_iterations,
        seed=settings.seed,
        progress=False,
    )
    began = time.process_time()
    result = engine.fit(train)
    seconds = time.process_time() - began
    return _score(
        settings,
        name,
        guide,
        test,
        fold,
        vary_share=num_topics == settings.completion_topics,
        iterations=max(0, sum(record["phase"] == "em" for record in result.history) - 1),
        cpu_seconds=seconds,
        converged=result.stop_reason == "converged",
    )


def _score(
    settings: FactorSettings,
    name: str,
    guide: Guide[Any],
    test: Corpus,
    fold: int,
    *,
    vary_share: bool,
    iterations: int = 0,
    cpu_seconds: float = 0.0,
    converged: bool = True,
) -> Row:
    """Row of a model; completion integrates theta under the guide's own posterior."""
    model = guide.model
    with warnings.catch_warnings():
        # The row holds the share of unreliable documents.
        warnings.filterwarnings("ignore", ".*Pareto k above", UserWarning)
        estimate = log_likelihood(model, test, num_draws=settings.num_samples, seed=settings.seed)
    assert estimate.pareto_k is not None
    assert estimate.effective_sample_size is not None
    completions = {
        share: document_completion(
            model,
            test,
            guide=guide,
            observed_fraction=share,
            seed=settings.seed,
            theta="mean",
            num_draws=THETA_SAMPLES,
        ).nats_per_token
        for share in {HALF, *(settings.observed_shares if vary_share else ())}
    }
    return Row(
        name,
        model.num_topics,
        fold,
        log_likelihood=estimate.total,
        log_likelihood_error=estimate.total_error,
        completion=completions[HALF],
        unreliable=float((estimate.pareto_k > PARETO_K_LIMIT).double().mean()),
        effective_sample_size=float(estimate.effective_sample_size.median()),
        iterations=iterations,
        cpu_seconds=cpu_seconds,
        converged=converged,
        completions={str(share): completions[share] for share in sorted(completions)}
        if vary_share
        else {},
    )


#: Dashed: without a prior on the covariance.
_STYLES: dict[str, dict[str, Any]] = {
    "ctm": {"color": "#2166ac", "marker": "o"},
    "iftm": {"color": "#c25b00", "marker": "^"},
    "lda": {"color": "#4d4d4d", "marker": "s"},
    "ctm-ml": {"color": "#2166ac", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "ctm-taylor-ml": {"color": "#5aae61", "marker": "D", "linestyle": "--"},
}


def figure(result: FactorResult) -> Figure:
    """The paper's Figure 3: held-out log likelihood, and completion by the observed share.

    Bars are one standard error over folds of the difference from the models' average: the
    difficulty of a fold's documents is common to all models.
    """
    from matplotlib.figure import Figure

    settings = result.settings
    fitted = settings.completion_topics
    topics, shares = sorted(settings.num_topics), sorted(settings.observed_shares)
    plot = Figure(figsize=(9.6, 4.3), layout="constrained")
    left, right = plot.subplots(1, 2)
    likelihoods = [
        [[row.log_likelihood for row in result.select(name, k)] for k in topics]
        for name in settings.models
    ]
    perplexities = [
        [
            [math.exp(-row.completions[str(share)]) for row in result.select(name, fitted)]
            for share in shares
        ]
        for name in settings.models
    ]
    percent = [100.0 * share for share in shares]
    for ax, x, values in ((left, topics, likelihoods), (right, percent, perplexities)):
        found = np.array(values)  # models × points × folds
        bars = (found - found.mean(0)).std(-1, ddof=1) / math.sqrt(settings.folds)
        for name, mean, bar in zip(settings.models, found.mean(-1), bars, strict=True):
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **_STYLES[name]}
            ax.errorbar(x, mean, bar, label=CANDIDATES[name].label, **style)
        ax.grid(alpha=0.25)
    left.set_xscale("log")
    left.set_xticks(topics, [str(k) for k in topics])
    left.minorticks_off()
    left.set_xlabel("topics K")
    left.set_ylabel("held-out log likelihood, nats")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.set_xlabel("observed share of a document's words, %")
    right.set_ylabel(f"perplexity of the rest, K = {fitted}")
    handles, labels = left.get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    FactorSettings,
    run,
    FactorResult.tables,
    figure,
    quick={
        "true_topics": 100,
        "num_words": 300,
        "num_docs": 400,
        "folds": 2,
        "num_topics": (10, 25, 50),
        "completion_topics": 25,
        "observed_shares": (0.1, 0.5, 0.9),
        "max_iterations": 30,
        "num_samples": 200,
    },
)
