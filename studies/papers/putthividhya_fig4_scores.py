"""Settings, scores and tables of *Putthividhya et al. 2009, Figure 4*."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from studies.measure import check_choices, check_numbers
from studies.papers.texts import MODELS
from studies.tables import entry_of_fits, mean_and_error, table
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.per_token import per_token

#: The reference of all comparisons.
BASELINE = "iftm-g"
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7
#: Estimates of the log likelihood, with descriptions.
ESTIMATES = {
    "importance": "importance sampling around a posterior",
    "annealed": "annealed importance sampling",
    "higher": "the higher of both estimates, fit by fit",
}
#: Posteriors that predict the rest of a document at one observed share, with descriptions. A model
#: may lack the second and the third.
PREDICTIONS = {
    "own": "own posterior",
    "blei-lafferty": "Blei–Lafferty's",
    "taylor": "Taylor's",
    "exact": "exact posterior mean of θ",
}


@dataclass(frozen=True)
class RealSettings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        models: Names of :data:`studies.papers.texts.MODELS`.
        num_topics: Numbers of topics.
        completion_topics: Topics with a varied observed share.
        observed_shares: Observed shares of a test document's words.
        exact_share: The observed share for predictions by further posteriors and by the exact
            posterior mean of θ.
        exact_tolerance: Monte-Carlo standard error of the exact posterior mean, nats per token.
        fits: Fits of each model, from different random starts.
        train_docs: Documents to fit, drawn at random.
        test_docs: Test documents.
        num_samples: Draws of importance sampling.
        ais_chains: Chains of annealed importance sampling.
        ais_temperatures: Its temperatures.
        theta_samples: Draws of each posterior for its mean of θ.
        seed: Seed of everything random.
    """

    corpora: tuple[str, ...] = ("ap", "nips_uci")
    models: tuple[str, ...] = ("lda", "iftm-g", "iftm-l", "ctm", "ctm-bl")
    num_topics: tuple[int, ...] = (20, 60, 120)
    completion_topics: int = 60
    observed_shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    exact_share: float = 0.1
    exact_tolerance: float = 0.002
    fits: int = 3
    train_docs: int = 500
    test_docs: int = 60
    num_samples: int = 1000
    ais_chains: int = 5
    ais_temperatures: int = 100
    theta_samples: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        least = {"num_topics": 2, "ais_temperatures": 3, "theta_samples": 1, "fits": 1, "seed": 0}
        twos = dict.fromkeys(("train_docs", "test_docs", "num_samples", "ais_chains"), 2)
        check_numbers(self, least | twos, ["observed_shares", "exact_tolerance"])
        check_choices(self, "models", MODELS)
        if self.completion_topics not in self.num_topics or max(self.observed_shares) >= 1:
            raise ConfigError(
                f"completion_topics is {self.completion_topics} and observed_shares are "
                f"{self.observed_shares}; expected a value of num_topics, and shares below 1"
            )
        if self.exact_share not in self.observed_shares:
            raise ConfigError(
                f"exact_share is {self.exact_share}; expected one of {self.observed_shares}"
            )


@dataclass(frozen=True)
class Scored:
    """Scores of one fit of a model.

    Attributes:
        corpus: Name of the corpus.
        num_topics: Topics.
        model: Name of the model.
        fit: Number of the fit.
        importance: Log likelihood of each test document by importance sampling, nats.
        unreliable: Share of the test documents with a Pareto k̂ above 0.7.
        annealed: Log likelihood by annealed importance sampling.
        annealed_error: Monte-Carlo standard error of the sum of ``annealed``, nats.
        completions: By observed share as text, nats of each test document's unobserved words.
        predictions: By key of :data:`PREDICTIONS`, nats of each test document's unobserved words
            at ``exact_share``.
        exact_error: Monte-Carlo standard error of the exact prediction, nats per token; NaN
            without it.
        seconds: Processor time of the fit.
    """

    corpus: str
    num_topics: int
    model: str
    fit: int
    importance: list[float]
    unreliable: float
    annealed: list[float]
    annealed_error: float
    completions: dict[str, list[float]]
    predictions: dict[str, list[float]]
    exact_error: float
    seconds: float

    @property
    def higher(self) -> list[float]:
        """The log likelihoods of the estimate with the larger sum."""
        return max(self.importance, self.annealed, key=sum)


@dataclass(frozen=True)
class Scores:
    """Nats of the same tokens by several fits.

    Attributes:
        nats: ``(fits, num_docs)`` nats.
        tokens: ``(num_docs,)`` tokens.
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]

    @property
    def perplexity(self) -> float:
        """Perplexity of the tokens, by the mean of the fits' nats."""
        return math.exp(-self.gap[0])

    @property
    def gap(self) -> tuple[float, float, float]:
        """Nats per token, with standard errors over documents and over fits."""
        mean, error = per_token(torch.from_numpy(self.nats.mean(0)), torch.from_numpy(self.tokens))
        return mean, error, mean_and_error((self.nats.sum(1) / self.tokens.sum()).tolist())[1]

    def __sub__(self, other: Scores) -> Scores:
        """Gain over another fit in nats, document by document and fit by fit."""
        return Scores(self.nats - other.nats, self.tokens)


@dataclass(frozen=True)
class RealResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each fit, corpus, number of topics and model.
        tokens: By corpus, tokens of each test document.
        held_out: By corpus and observed share as text, unobserved tokens of each test document.
    """

    settings: RealSettings
    rows: list[Scored]
    tokens: dict[str, list[int]]
    held_out: dict[str, dict[str, list[int]]]

    def find(self, corpus: str, num_topics: int, model: str) -> list[Scored]:
        """The fits of a model.

        Raises:
            ConfigError: The value was not measured.
        """
        asked = (corpus, num_topics, model)
        found = [row for row in self.rows if (row.corpus, row.num_topics, row.model) == asked]
        if not found:
            raise ConfigError(f"nothing was measured for {model!r} with {num_topics} topics")
        return found

    def likelihood(self, corpus: str, num_topics: int, model: str, estimate: str) -> Scores:
        """Log likelihood of the test documents by an estimate of :data:`ESTIMATES`."""
        rows = self.find(corpus, num_topics, model)
        nats = np.array([getattr(row, estimate) for row in rows])
        return Scores(nats, np.array(self.tokens[corpus]))

    def completion(self, corpus: str, model: str, share: float) -> Scores:
        """Unobserved words at an observed share, by the model's own posterior."""
        rows = self.find(corpus, self.settings.completion_topics, model)
        nats = np.array([row.completions[str(share)] for row in rows])
        return Scores(nats, np.array(self.held_out[corpus][str(share)]))

    def prediction(self, corpus: str, model: str, posterior: str) -> Scores:
        """Unobserved words by a posterior of :data:`PREDICTIONS`."""
        rows = self.find(corpus, self.settings.completion_topics, model)
        nats = np.array([row.predictions[posterior] for row in rows])
        return Scores(nats, np.array(self.held_out[corpus][str(self.settings.exact_share)]))

    def tables(self) -> str:
        """Every table, as Markdown."""
        parts = [
            "In parentheses standard errors over documents and over fits; perplexities are of "
            "the fits' mean nats per token"
        ]
        for corpus in self.settings.corpora:
            parts += [*self._likelihoods(corpus), *self._completions(corpus)]
            parts += self._predictions(corpus)
        return "\n\n".join(parts)

    @property
    def _labels(self) -> list[str]:
        return [str(MODELS[name]["label"]) for name in self.settings.models]

    @property
    def _others(self) -> list[str]:
        """All models but the baseline."""
        names = self.settings.models
        return [name for name in names if name != BASELINE] if BASELINE in names else []

    @property
    def _gaps(self) -> list[str]:
        return [f"IFTM-G − {MODELS[name]['label']}" for name in self._others]

    def _likelihoods(self, corpus: str) -> list[str]:
        names, topics, parts = self.settings.models, self.settings.num_topics, []
        for estimate, text in ESTIMATES.items():
            found = {
                (k, name): self.likelihood(corpus, k, name, estimate)
                for k in topics
                for name in names
            }
            rows = [[str(k), *(f"{found[k, n].perplexity:.0f}" for n in names)] for k in topics]
            parts += [f"{corpus}: perplexity by {text}", table(["K", *self._labels], rows)]
            if self._others:
                rows = [
                    [
                        str(k),
                        *(
                            entry_of_fits(*(found[k, BASELINE] - found[k, n]).gap, 4)
                            for n in self._others
                        ),
                    ]
                    for k in topics
                ]
                parts += [f"{corpus}: nats per token by {text}", table(["K", *self._gaps], rows)]
        rows = [
            [
                str(k),
                *(f"{fmean(row.unreliable for row in self.find(corpus, k, n)):.0%}" for n in names),
            ]
            for k in topics
        ]
        title = f"{corpus}: test documents with a Pareto k̂ above {PARETO_K_LIMIT}"
        return [*parts, title, table(["K", *self._labels], rows)]

    def _completions(self, corpus: str) -> list[str]:
        shares = self.settings.observed_shares
        found = {
            (share, name): self.completion(corpus, name, share)
            for share in shares
            for name in self.settings.models
        }
        rows = [
            [f"{share:.0%}", *(f"{found[share, n].perplexity:.0f}" for n in self.settings.models)]
            for share in shares
        ]
        title = f"perplexity of the unobserved words, K = {self.settings.completion_topics}"
        parts = [f"{corpus}: {title}", table(["observed", *self._labels], rows)]
        if self._others:
            rows = [
                [
                    f"{share:.0%}",
                    *(
                        entry_of_fits(*(found[share, BASELINE] - found[share, n]).gap, 4)
                        for n in self._others
                    ),
                ]
                for share in shares
            ]
            title = f"{corpus}: nats per token of these"
            parts += [title, table(["observed", *self._gaps], rows)]
        return parts

    def _predictions(self, corpus: str) -> list[str]:
        topics, error, rows = self.settings.completion_topics, 0.0, []
        for name in self.settings.models:
            fits = self.find(corpus, topics, name)
            error = max(error, *(row.exact_error for row in fits))
            found = (
                f"{self.prediction(corpus, name, posterior).perplexity:.0f}"
                if posterior in fits[0].predictions
                else "–"
                for posterior in PREDICTIONS
            )
            rows.append([str(MODELS[name]["label"]), *found])
        share = f"{self.settings.exact_share:.0%}"
        title = (
            f"{corpus}: perplexity of unobserved words by posterior; K = {topics}, {share} seen"
            f". Monte-Carlo error of the exact mean: at most {error:.4f} nats per token"
        )
        parts = [title, table(["", *PREDICTIONS.values()], rows)]
        if self._others:
            ours = self.prediction(corpus, BASELINE, "exact")
            gaps = (ours - self.prediction(corpus, name, "exact") for name in self._others)
            row = [share, *(entry_of_fits(*gap.gap, 4) for gap in gaps)]
            title = f"{corpus}: nats per token by the exact posterior mean of θ"
            parts += [title, table(["observed", *self._gaps], [row])]
        return parts
