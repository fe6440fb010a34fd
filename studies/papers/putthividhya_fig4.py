"""Held-out likelihood by topics, perplexity by observed share: *Putthividhya et al. 2009, Fig. 4*.

LDA, the factor models and correlated topic models are fitted to real texts, and judged by other
documents: by their log likelihood, for several numbers of topics, and by the perplexity of the rest
of a document given a share of its words. The paper's texts are abstracts of grants, in four folds.
Here they are news articles and conference papers, in one division each; differences between models
are paired by document.

The log likelihood is estimated twice: as in the paper, by importance sampling around a posterior,
and by annealed importance sampling, which needs no good posterior. Both are too low on average, the
first where the posterior is bad and the second where the path is short. So a model is judged by the
higher of the two.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.papers.texts import MODELS, fit
from studies.tables import entry, table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import AIS, document_completion, log_likelihood
from torch_lntm.evaluation.per_token import per_token

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The model that the others are compared with, the paper's.
BASELINE = "iftm-g"
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7
#: The estimates of the log likelihood, and what each is.
ESTIMATES = {
    "importance": "importance sampling around a posterior",
    "annealed": "annealed importance sampling",
    "higher": "the higher of these two estimates, a model at a time",
}


@dataclass(frozen=True)
class RealSettings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        models: Names of :data:`studies.papers.texts.MODELS`.
        num_topics: Numbers of topics.
        completion_topics: Topics where the observed share is varied.
        observed_shares: Shares of a test document's words to observe.
        train_docs: Documents to fit, drawn at random.
        test_docs: Other documents, to judge by.
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
    train_docs: int = 500
    test_docs: int = 60
    num_samples: int = 1000
    ais_chains: int = 10
    ais_temperatures: int = 100
    theta_samples: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value that cannot be used.
        """
        twos = dict.fromkeys(("train_docs", "test_docs", "num_samples", "ais_chains"), 2)
        check_numbers(
            self,
            {"num_topics": 2, "ais_temperatures": 3, "theta_samples": 1, "seed": 0, **twos},
            ["observed_shares"],
        )
        check_choices(self, "models", MODELS)
        if self.completion_topics not in self.num_topics or max(self.observed_shares) >= 1:
            raise ConfigError(
                f"completion_topics is {self.completion_topics} and observed_shares are "
                f"{self.observed_shares}; expected one of num_topics, and shares below 1"
            )


@dataclass(frozen=True)
class Scored:
    """One model, fitted and judged.

    Attributes:
        corpus: Name of the corpus.
        num_topics: Topics.
        model: Name of the model.
        importance: Log likelihood of each test document by importance sampling, nats.
        unreliable: Share of the test documents whose weights have a Pareto k̂ above 0.7.
        annealed: The same by annealed importance sampling.
        annealed_error: Monte-Carlo standard error of the sum of ``annealed``, nats.
        completions: By observed share as text, nats of each test document's other words.
        seconds: Processor time of the fit.
    """

    corpus: str
    num_topics: int
    model: str
    importance: list[float]
    unreliable: float
    annealed: list[float]
    annealed_error: float
    completions: dict[str, list[float]]
    seconds: float

    @property
    def higher(self) -> list[float]:
        """The log likelihoods of the estimate that has the larger sum."""
        return max(self.importance, self.annealed, key=sum)


@dataclass(frozen=True)
class RealResult:
    """The result of the study.

    Attributes:
        settings: What was asked for.
        rows: One per corpus, number of topics and model.
        tokens: By corpus, tokens of each test document.
        held_out: By corpus and observed share as text, tokens of each test document's other words.
    """

    settings: RealSettings
    rows: list[Scored]
    tokens: dict[str, list[int]]
    held_out: dict[str, dict[str, list[int]]]

    def find(self, corpus: str, num_topics: int, model: str) -> Scored:
        """One model's scores.

        Raises:
            ConfigError: It was not measured.
        """
        for row in self.rows:
            if (row.corpus, row.num_topics, row.model) == (corpus, num_topics, model):
                return row
        raise ConfigError(f"nothing was measured for {model!r} with {num_topics} topics")

    def perplexity(self, corpus: str, num_topics: int, model: str, estimate: str) -> float:
        """Perplexity of the test documents by an estimate of :data:`ESTIMATES`."""
        scores = getattr(self.find(corpus, num_topics, model), estimate)
        return math.exp(-sum(scores) / sum(self.tokens[corpus]))

    def gap(self, corpus: str, num_topics: int, model: str, estimate: str) -> tuple[float, float]:
        """Nats per token that :data:`BASELINE` is better by, and its error over documents."""
        ours, other = (
            torch.tensor(
                getattr(self.find(corpus, num_topics, name), estimate), dtype=torch.float64
            )
            for name in (BASELINE, model)
        )
        return per_token(ours - other, torch.tensor(self.tokens[corpus]))

    def completion(self, corpus: str, model: str, share: float) -> float:
        """Perplexity of the other words at an observed share."""
        scores = self.find(corpus, self.settings.completion_topics, model).completions[str(share)]
        return math.exp(-sum(scores) / sum(self.held_out[corpus][str(share)]))

    def completion_gap(self, corpus: str, model: str, share: float) -> tuple[float, float]:
        """Nats per token of the other words that :data:`BASELINE` is better by, and its error."""
        topics, key = self.settings.completion_topics, str(share)
        ours, other = (
            torch.tensor(self.find(corpus, topics, name).completions[key], dtype=torch.float64)
            for name in (BASELINE, model)
        )
        return per_token(ours - other, torch.tensor(self.held_out[corpus][key]))

    def tables(self) -> str:
        """Every table, as Markdown."""
        settings = self.settings
        labels = [str(MODELS[name]["label"]) for name in settings.models]
        others = [name for name in settings.models if name != BASELINE]
        compared = BASELINE in settings.models and others
        gaps = [f"IFTM-G − {MODELS[name]['label']}" for name in others]
        parts = []
        for corpus in settings.corpora:
            for estimate, text in ESTIMATES.items():
                rows = [
                    [
                        str(k),
                        *(
                            f"{self.perplexity(corpus, k, name, estimate):.0f}"
                            for name in settings.models
                        ),
                    ]
                    for k in settings.num_topics
                ]
                parts += [f"{corpus}: perplexity by {text}", table(["K", *labels], rows)]
                if compared:
                    rows = [
                        [str(k), *(entry(*self.gap(corpus, k, n, estimate), 4) for n in others)]
                        for k in settings.num_topics
                    ]
                    parts += [f"{corpus}: nats per token by {text}", table(["K", *gaps], rows)]
            rows = [
                [str(k), *(f"{self.find(corpus, k, n).unreliable:.0%}" for n in settings.models)]
                for k in settings.num_topics
            ]
            parts += [
                f"{corpus}: test documents with a Pareto k̂ above {PARETO_K_LIMIT}",
                table(["K", *labels], rows),
            ]
            rows = [
                [
                    f"{share:.0%}",
                    *(f"{self.completion(corpus, name, share):.0f}" for name in settings.models),
                ]
                for share in settings.observed_shares
            ]
            title = f"perplexity of the other words, K = {settings.completion_topics}"
            parts += [f"{corpus}: {title}", table(["observed", *labels], rows)]
            if compared:
                rows = [
                    [
                        f"{share:.0%}",
                        *(entry(*self.completion_gap(corpus, n, share), 4) for n in others),
                    ]
                    for share in settings.observed_shares
                ]
                parts += [f"{corpus}: nats per token of these", table(["observed", *gaps], rows)]
        return "\n\n".join(parts)


def run(settings: RealSettings, cells: Cells) -> RealResult:
    """Fit and judge every model."""
    parts = {name: read_texts(settings, name) for name in settings.corpora}
    keys = [
        (corpus, k, name)
        for corpus in settings.corpora
        for k in settings.num_topics
        for name in settings.models
    ]

    def measure(key: tuple[str, int, str]) -> Scored:
        corpus, num_topics, name = key
        return score(settings, *parts[corpus], corpus, num_topics, name)

    found = cells.each(keys, measure)
    tokens = {name: test.lengths.tolist() for name, (_, test) in parts.items()}
    held_out = {
        name: {
            str(share): test.hold_out_words(share, settings.seed).held_out.lengths.tolist()
            for share in settings.observed_shares
        }
        for name, (_, test) in parts.items()
    }
    return RealResult(settings, [Scored(**row) for row in found], tokens, held_out)


def read_texts(settings: RealSettings, name: str) -> tuple[Corpus, Corpus]:
    """Documents to fit, and others to judge by.

    Raises:
        ConfigError: There is no such corpus, or it has too few documents.
    """
    corpus = read_corpus(corpus_file(name))
    corpus = corpus[(corpus.lengths > 1).nonzero()[0]]
    wanted = settings.train_docs + settings.test_docs
    if corpus.num_docs < wanted:
        raise ConfigError(f"{name} has {corpus.num_docs} documents; expected at least {wanted}")
    order = np.random.default_rng(settings.seed).permutation(corpus.num_docs)[:wanted]
    return corpus[order[settings.test_docs :]], corpus[order[: settings.test_docs]]


def score(
    settings: RealSettings, train: Corpus, test: Corpus, corpus: str, num_topics: int, name: str
) -> Scored:
    """A model fitted to the training documents, and scored on the others."""
    fitted = fit(name, train, num_topics, settings.seed)
    model, guide = fitted.model, fitted.guide
    ais = AIS(
        num_chains=settings.ais_chains, num_temperatures=settings.ais_temperatures, start="prior"
    )
    with warnings.catch_warnings():
        # How many documents are unreliable is in the result.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        # A factor model's own mean field leaves most draws without weight: the package's choice.
        proposal = None if model.name == "iftm" else guide
        importance = log_likelihood(
            model,
            test,
            guide=proposal,
            num_samples=settings.num_samples,
            seed=settings.seed,
        )
        annealed = log_likelihood(model, test, ais, seed=settings.seed)
    assert importance.pareto_k is not None
    shares = settings.observed_shares if num_topics == settings.completion_topics else ()
    completions = {
        str(share): document_completion(
            model,
            guide,
            test,
            share,
            seed=settings.seed,
            predictive="mean",
            num_samples=settings.theta_samples,
        ).log_predictive
        for share in shares
    }
    return Scored(
        corpus,
        num_topics,
        name,
        _rounded(importance.log_likelihood.tolist()),
        float((importance.pareto_k > PARETO_K_LIMIT).double().mean()),
        _rounded(annealed.log_likelihood.tolist()),
        annealed.total_error,
        {share: _rounded(scores.tolist()) for share, scores in completions.items()},
        fitted.seconds,
    )


def _rounded(nats: list[float]) -> list[float]:
    """Nats to three digits, below every error here."""
    return [round(value, 3) for value in nats]


def figure(result: RealResult) -> Figure:
    """The paper's Figure 4, a row a corpus: likelihood by topics, perplexity by observed share.

    Both are shown less :data:`BASELINE`'s, as the documents' differences hide those of the models.
    """
    from matplotlib.figure import Figure

    settings = result.settings
    plot = Figure(figsize=(9.6, 3.5 * len(settings.corpora) + 0.5), layout="constrained")
    axes = plot.subplots(len(settings.corpora), 2, squeeze=False)
    topics = list(settings.num_topics)
    percent = [100 * share for share in settings.observed_shares]
    for (left, right), corpus in zip(axes, settings.corpora, strict=True):
        for name in settings.models:
            by_topics = [result.gap(corpus, k, name, "higher") for k in topics]
            by_share = [result.completion_gap(corpus, name, s) for s in settings.observed_shares]
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **MODELS[name]}
            for ax, x, found in ((left, topics, by_topics), (right, percent, by_share)):
                means, errors = zip(*found, strict=True)
                ax.errorbar(x, [-mean for mean in means], errors, **style)
        left.set_xscale("log")
        left.set_xticks(topics, [str(k) for k in topics])
        left.minorticks_off()
        left.set_xlabel("topics K")
        left.set_ylabel(f"{corpus}: log likelihood less IFTM-G's,\nnats per token")
        right.set_xlabel("observed share of a document's words, %")
        right.set_ylabel(f"the rest, K = {settings.completion_topics},\nnats per token")
        for ax in (left, right):
            ax.grid(alpha=0.25)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    RealSettings,
    run,
    RealResult.tables,
    figure,
    quick={
        "num_topics": (10, 20),
        "completion_topics": 20,
        "observed_shares": (0.1, 0.5),
        "train_docs": 200,
        "test_docs": 30,
        "num_samples": 200,
        "ais_temperatures": 50,
        "theta_samples": 20,
    },
)
