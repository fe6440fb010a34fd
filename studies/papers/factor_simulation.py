r"""Factor, correlated and Dirichlet topic models on simulated text: *IFTM 2009, §3.2.1*.

A correlated topic model with full covariance is drawn at random and a corpus from it. Models with
fewer topics than the true one are fitted to four fifths of the documents and scored on the rest, in
turn: the held-out log likelihood against the number of topics, and the perplexity of words given a
share of the others, as in Figure 3 of *Putthividhya, Attias & Nagarajan 2009*. Run it by

    python -m torch_lntm.experiments.factor_simulation \
        --config configs/factor_simulation.yaml --out runs/factor_simulation

The paper says of the true parameters that they "are drawn randomly from some distribution".
:class:`FactorSettings` says what is drawn here; ``docs/experiments.md`` says what came out.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError, LNTMError
from torch_lntm.evaluation import document_completion, log_likelihood
from torch_lntm.evaluation.likelihood import PARETO_K_LIMIT
from torch_lntm.experiments._result import Result, command, mean_and_error, table
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import TopicModel, ctm, iftm, lda

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Name of the model that the documents come from, scored beside those fitted.
TRUTH = "truth"
#: Share of a test document's words that completion observes where the share is not varied.
HALF = 0.5
#: Draws of theta per document for its posterior mean.
THETA_SAMPLES = 200


class Candidate(NamedTuple):
    """A model to fit.

    Attributes:
        label: What tables and the figure call it.
        make: Its constructor.
        posterior: Name of its guide.
        options: Options of the constructor.
    """

    label: str
    make: Callable[..., TopicModel]
    posterior: str
    options: dict[str, Any]


#: The models by name. The paper's CTM has no prior on its covariance, and the posterior of Blei &
#: Lafferty; this package's default has an inverse-Wishart prior, and Taylor's.
CANDIDATES = {
    "ctm": Candidate("CTM", ctm, "taylor", {}),
    "iftm": Candidate("IFTM-G", iftm, "factor", {}),
    "lda": Candidate("LDA", lda, "vb", {}),
    "ctm-ml": Candidate("CTM, no prior (BL)", ctm, "blei-lafferty", {"pseudo_documents": 0.0}),
    "ctm-taylor-ml": Candidate("CTM, no prior (Taylor)", ctm, "taylor", {"pseudo_documents": 0.0}),
}
#: Pairs of models whose difference, fold by fold, the paper makes a claim about.
CONTRASTS = (("iftm", "ctm-ml"), ("iftm", "ctm"), ("iftm", "lda"), ("ctm-ml", "lda"))
#: What a row measures, what it says, and the digits it is printed with.
STATISTICS = {
    "log_likelihood": ("log p(test documents) by importance sampling, nats", 0),
    "completion": ("nats per token of one half of a test document's words given the other", 4),
    "unreliable": ("share of test documents with Pareto k above 0.7", 3),
    "effective_sample_size": ("effective sample size, median over test documents", 0),
    "iterations": ("EM iterations after the stochastic start", 0),
    "cpu_seconds": ("processor time of the fit", 1),
}


@dataclass(frozen=True)
class FactorSettings:
    """What to simulate and what to fit.

    The true model has μ ~ N(0, loc_variance · I); Σ = Q diag(ℓ) Qᵀ, Q uniform over rotations and
    the i-th largest eigenvalue ℓ_i ∝ i^−covariance_decay with mean prior_variance; each topic ~
    symmetric Dirichlet(topic_concentration). So Σ is full, and no small number of sources has all
    of it. Documents have Poisson(mean_length) tokens.

    Attributes:
        true_topics: Topics of the true model.
        num_words: Words in the vocabulary.
        num_docs: Documents.
        mean_length: Mean number of tokens.
        folds: Parts that the documents are divided into, each the test set in turn.
        num_topics: Topics of the models fitted.
        completion_topics: The one of them at which the observed share is varied.
        observed_shares: Shares of each test document's words to observe there.
        models: Names of models to fit; see :data:`CANDIDATES`. IFTM has a quarter as many sources
            as topics.
        loc_variance: Variance of the components of μ.
        prior_variance: Mean variance of a component of eta.
        covariance_decay: Exponent of the eigenvalues' decay; 0 makes topics independent.
        topic_concentration: Dirichlet parameter of the topics.
        tolerance: Relative change of the objective at which EM has converged.
        max_iterations: Bound on the EM iterations. The paper names none.
        num_samples: Draws per document of the importance sampling.
        seed: Seed of everything.
    """

    true_topics: int = 300
    num_words: int = 625
    num_docs: int = 1000
    mean_length: float = 80.0
    folds: int = 5
    num_topics: list[int] | tuple[int, ...] = (10, 25, 50, 100, 200)
    completion_topics: int = 100
    observed_shares: list[float] | tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    models: list[str] | tuple[str, ...] = ("ctm", "iftm", "lda", "ctm-ml")
    loc_variance: float = 1.0
    prior_variance: float = 4.0
    covariance_decay: float = 1.0
    topic_concentration: float = 0.05
    tolerance: float = 1e-5
    max_iterations: int = 60
    num_samples: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value that cannot be used.
        """
        whole = {"true_topics": 2, "num_words": 1, "num_docs": 2, "folds": 2, "seed": 0}
        for name in (*whole, "num_topics", "max_iterations", "num_samples"):
            value = getattr(self, name)
            least = whole.get(name, {"num_topics": 2, "num_samples": 25}.get(name, 1))
            for v in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(v, int) or isinstance(v, bool) or v < least:
                    raise ConfigError(f"{name} is {v!r}; expected a whole number >= {least}")
        may_be_zero = ("loc_variance", "covariance_decay", "tolerance")
        for name in ("mean_length", "prior_variance", "topic_concentration", *may_be_zero):
            v = getattr(self, name)
            number = isinstance(v, int | float) and math.isfinite(v)
            if not number or v < 0 or (v == 0 and name not in may_be_zero):
                raise ConfigError(f"{name} is {v!r}; expected a positive number")
        if self.folds > self.num_docs:
            raise ConfigError(f"folds is {self.folds}, more than the {self.num_docs} documents")
        if not self.num_topics or self.completion_topics not in self.num_topics:
            raise ConfigError(
                f"completion_topics is {self.completion_topics}; expected one of num_topics "
                f"{list(self.num_topics)}"
            )
        if any(not 0 < share < 1 for share in self.observed_shares):
            raise ConfigError(f"observed_shares are {self.observed_shares}; expected within 0 to 1")
        if not self.models or any(name not in CANDIDATES for name in self.models):
            raise ConfigError(
                f"models are {', '.join(self.models) or 'none'}; expected some of "
                f"{', '.join(CANDIDATES)}"
            )


@dataclass(frozen=True)
class Row:
    """One model on one fold.

    Attributes:
        model: Name in :data:`CANDIDATES`, or :data:`TRUTH`.
        num_topics: Its topics.
        fold: Number of the fold that was the test set.
        log_likelihood: See :data:`STATISTICS`, as for all without a description.
        log_likelihood_error: Monte Carlo standard error of ``log_likelihood``, nats; an
            underestimate where documents are unreliable.
        completion: See there.
        unreliable: See there.
        effective_sample_size: See there.
        iterations: See there; 0 for the truth, as the following.
        cpu_seconds: See there; the only number that differs from run to run.
        converged: Whether EM ended by its tolerance.
        completions: ``completion`` by observed share, where the share is varied.
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
    completions: dict[float, float]


@dataclass(frozen=True)
class FactorResult(Result):
    """What a simulation measured.

    Attributes:
        settings: What was asked for.
        rows: One per model, number of topics and fold.
        seconds: Wall-clock time.
    """

    settings: FactorSettings
    rows: list[Row]
    seconds: float

    def select(self, model: str, num_topics: int) -> list[Row]:
        """The rows of a model and number of topics, fold by fold.

        Raises:
            ConfigError: There are none.
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
        return mean_and_error([math.exp(-row.completions[share]) for row in rows])

    def report(self) -> str:
        """Every table, as Markdown."""
        settings = self.settings
        names, topics = list(settings.models), sorted(settings.num_topics)
        labels = [CANDIDATES[name].label for name in names]
        parts = []
        for statistic, (text, digits) in STATISTICS.items():
            found = [[self.average(name, k, statistic) for name in names] for k in topics]
            truth = _entry(self.average(TRUTH, settings.true_topics, statistic), digits)
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
        title = f"perplexity of the other words, K = {settings.completion_topics}"
        parts += [title, _table("observed", shares, [*labels, TRUTH], found, 1)]
        return "\n\n".join(parts)

    def figure(self) -> Figure:
        """The paper's Figure 3."""
        from torch_lntm.experiments.factor_figure import figure

        return figure(self)


def _entry(found: tuple[float, float], digits: int) -> str:
    return f"{found[0]:.{digits}f} ({found[1]:.{digits}f})"


def _table(
    name: str,
    keys: Sequence[float],
    labels: Sequence[str],
    found: Sequence[Sequence[tuple[float, float]]],
    digits: int,
) -> str:
    """A Markdown table of means with their standard errors in parentheses."""
    rows = [
        [f"{key:g}", *(_entry(entry, digits) for entry in entries)]
        for key, entries in zip(keys, found, strict=True)
    ]
    return table([name, *labels], rows)


def run(settings: FactorSettings | None = None, *, progress: bool = True) -> FactorResult:
    """Run the simulation, on the CPU.

    Args:
        settings: What to simulate; the defaults if not given.
        progress: Show a progress bar.

    Returns:
        The result; the same for the same settings, but for processor times.
    """
    settings = FactorSettings() if settings is None else settings
    start = time.perf_counter()
    truth = draw_model(settings)
    corpus = draw_corpus(settings, truth)
    folds = split_folds(settings, corpus)
    rows = [
        _score(settings, TRUTH, make_guide("taylor", truth), test, fold, vary_share=True)
        for fold, (_, test) in enumerate(folds)
    ]
    work = list(product(range(settings.folds), settings.num_topics, settings.models))
    for fold, num_topics, name in tqdm(work, desc="fits", disable=not progress):
        train, test = folds[fold]
        rows.append(_fit(settings, name, num_topics, train, test, fold))
    return FactorResult(settings, rows, time.perf_counter() - start)


def draw_model(settings: FactorSettings) -> TopicModel:
    """The true model, float64, from the distributions that the settings state."""
    k = settings.true_topics
    rng = np.random.default_rng([settings.seed, 0])
    loc = math.sqrt(settings.loc_variance) * rng.standard_normal(k)
    # QR of normals is uniform over rotations once the signs of R's diagonal are taken out, which
    # Q diag(ℓ) Qᵀ does not see.
    rotation = np.linalg.qr(rng.standard_normal((k, k)))[0]
    values = np.arange(1.0, k + 1.0) ** -settings.covariance_decay
    root = rotation * np.sqrt(values * settings.prior_variance / values.mean())
    return ctm(
        k,
        settings.num_words,
        loc=torch.from_numpy(loc),
        covariance=torch.from_numpy(root @ root.T),
        topics=synthetic_topics(k, settings.num_words, settings.topic_concentration, rng),
        dtype=torch.float64,
    )


def draw_corpus(settings: FactorSettings, truth: TopicModel) -> Corpus:
    """The documents, of at least two tokens, so that each has one to observe and one to predict."""
    rng = np.random.default_rng([settings.seed, 1])
    lengths = np.maximum(rng.poisson(settings.mean_length, settings.num_docs), 2)
    return truth.generate(lengths.tolist(), seed=settings.seed)[0]


def split_folds(settings: FactorSettings, corpus: Corpus) -> list[tuple[Corpus, Corpus]]:
    """Training and test documents of each fold; every document is in one test set."""
    order = np.random.default_rng([settings.seed, 2]).permutation(corpus.num_docs)
    parts = np.array_split(order, settings.folds)
    return [(corpus[np.setdiff1d(order, test)], corpus[np.sort(test)]) for test in parts]


def _fit(
    settings: FactorSettings, name: str, num_topics: int, train: Corpus, test: Corpus, fold: int
) -> Row:
    """A model fitted to one fold's training documents and scored on the others."""
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
    guide: Guide,
    test: Corpus,
    fold: int,
    *,
    vary_share: bool,
    iterations: int = 0,
    cpu_seconds: float = 0.0,
    converged: bool = True,
) -> Row:
    """A model's row; completion by the guide's own posterior, its mean of theta integrated."""
    model = guide.model
    with warnings.catch_warnings():
        # The row says of how many documents.
        warnings.filterwarnings("ignore", ".*Pareto k above", UserWarning)
        estimate = log_likelihood(model, test, num_samples=settings.num_samples, seed=settings.seed)
    assert estimate.pareto_k is not None
    assert estimate.effective_sample_size is not None
    completions = {
        share: document_completion(
            model,
            guide,
            test,
            share,
            seed=settings.seed,
            predictive="mean",
            num_samples=THETA_SAMPLES,
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
        completions=dict(sorted(completions.items())) if vary_share else {},
    )


def main(argv: Sequence[str] | None = None) -> FactorResult:
    """Run from the command line; writes the result and prints its tables.

    Args:
        argv: Arguments instead of the process's own.

    Returns:
        The result.

    Raises:
        ConfigError: Settings that cannot be used, or an output folder that holds a result.
    """
    return command("factor_simulation", FactorSettings, run, argv)


if __name__ == "__main__":
    try:
        main()
    except LNTMError as error:
        sys.exit(f"error: {error}")
