"""The gain of a full covariance: *Khan & Bouchard 2009* beside Blei and Lafferty's diagonal.

Both posteriors maximise the same lower bound of log p(w). Khan and Bouchard's lets the covariance V
of a document's eta be full. The note has no experiment. It says that a diagonal V "will be much
faster as we don't have to compute the inverse of V at every iteration".

For several numbers of topics, on news articles and on documents drawn from the model itself, each
posterior fits a correlated topic model. Under the parameters of one fit, test documents get both
posteriors. Their bounds are compared with the log evidence by annealed importance sampling, and
their means of θ with those of Hamiltonian chains. Each fit's own test evidence shows the effect of
the full V on the learned parameters.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.papers.ahmed_xing_models import Cell, SimulationSettings, draw_model
from studies.papers.ahmed_xing_simulation import sampled_mean
from studies.papers.texts import POSTERIORS, fit
from studies.tables import entry, mean_and_error, table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import AIS, log_likelihood
from torch_lntm.guides import make_guide
from torch_lntm.models import TopicModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The two posteriors: V diagonal, and V full.
BOTH = ("blei-lafferty", "khan-bouchard")
#: Name of the documents drawn from the model itself.
SIMULATED = "simulated"


@dataclass(frozen=True)
class FullSettings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths; ``simulated`` for documents drawn
            from a random model with the fitted number of topics.
        num_topics: Numbers of topics.
        train_docs: Documents to fit.
        test_docs: Test documents.
        reference_docs: Number of test documents with sampled means of θ, from the first on.
        reference_draws: Transitions of the sampler; a fifth is dropped.
        theta_samples: Draws of each posterior for its mean of θ.
        ais_chains: Chains of annealed importance sampling.
        ais_temperatures: Its temperatures.
        num_words: Words of the simulated documents.
        num_tokens: Tokens of each simulated document.
        tolerance: Gain in nats at convergence of the test documents' posteriors.
        seed: Seed of everything random.
    """

    corpora: tuple[str, ...] = ("ap", SIMULATED)
    num_topics: tuple[int, ...] = (5, 10, 20, 50, 100)
    train_docs: int = 500
    test_docs: int = 60
    reference_docs: int = 30
    reference_draws: int = 300
    theta_samples: int = 200
    ais_chains: int = 10
    ais_temperatures: int = 200
    num_words: int = 1000
    num_tokens: int = 150
    tolerance: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        twos = dict.fromkeys(("num_topics", "train_docs", "test_docs", "ais_chains"), 2)
        ones = dict.fromkeys(("theta_samples", "num_words", "num_tokens"), 1)
        more = {"reference_docs": 2, "reference_draws": 5, "ais_temperatures": 3, "seed": 0}
        check_numbers(self, {**twos, **ones, **more}, ["tolerance"])
        if self.reference_docs > self.test_docs or not self.corpora:
            raise ConfigError(
                f"reference_docs is {self.reference_docs} of {self.test_docs} test documents, and "
                f"corpora are {', '.join(self.corpora) or 'none'}; expected as many documents at "
                "most, and a corpus"
            )


@dataclass(frozen=True)
class Compared:
    """Both posteriors with one number of topics.

    ``evidence``, ``bounds``, ``distances`` and ``milliseconds`` belong to test documents under the
    parameters learned by Blei and Lafferty's posterior, one number a document. Lists of two have
    Blei and Lafferty's first.

    Attributes:
        corpus: Name of the corpus.
        num_topics: Topics.
        evidence: Log evidence of each test document, nats.
        bounds: Each posterior's bound of it.
        distances: ½ Σ_k |E_q θ_k − E_p θ_k| of the reference documents, by each posterior.
        milliseconds: Processor time of each posterior per document.
        learned: Log evidence of each test document under the parameters learned by each
            posterior.
        fit_seconds: Processor time of each fit.
        tokens: Tokens of each test document.
    """

    corpus: str
    num_topics: int
    evidence: list[float]
    bounds: list[list[float]]
    distances: list[list[float]]
    milliseconds: list[float]
    learned: list[list[float]]
    fit_seconds: list[float]
    tokens: list[int]

    @property
    def gaps(self) -> list[list[float]]:
        """Gap between the evidence and each bound in nats, document by document."""
        return [[a - b for a, b in zip(self.evidence, bound, strict=True)] for bound in self.bounds]

    @property
    def tighter(self) -> tuple[float, float]:
        """Gain of the full V's bound in nats a document, and its standard error."""
        return mean_and_error([b - a for a, b in zip(*self.bounds, strict=True)])

    @property
    def closer(self) -> tuple[float, float]:
        """Reduction of misplaced θ by the full V, and its standard error."""
        return mean_and_error([a - b for a, b in zip(*self.distances, strict=True)])

    @property
    def better(self) -> tuple[float, float]:
        """Gain in test evidence by learning with the full V, nats a document, and its error."""
        return mean_and_error([b - a for a, b in zip(*self.learned, strict=True)])


def run(settings: FullSettings, cells: Cells) -> list[Compared]:
    """Fit and compare."""

    def measure(key: tuple[str, int]) -> Compared:
        return compare(settings, *key)

    keys = [(name, k) for name in settings.corpora for k in settings.num_topics]
    return [Compared(**row) for row in cells.each(keys, measure)]


def read_texts(settings: FullSettings, name: str, num_topics: int) -> tuple[Corpus, Corpus]:
    """Training documents and test documents.

    Raises:
        ConfigError: The corpus does not exist, or has too few documents.
    """
    wanted = settings.train_docs + settings.test_docs
    if name == SIMULATED:
        drawn = SimulationSettings(seed=settings.seed)
        cell = Cell(num_topics, settings.num_words, settings.num_tokens, drawn.prior_variance)
        truth = draw_model(drawn, cell, 0)
        corpus = truth.generate([settings.num_tokens] * wanted, seed=settings.seed)[0]
    else:
        corpus = read_corpus(corpus_file(name))
        corpus = corpus[corpus.lengths.nonzero()[0]]
    if corpus.num_docs < wanted:
        raise ConfigError(f"{name} has {corpus.num_docs} documents; expected at least {wanted}")
    order = np.random.default_rng(settings.seed).permutation(corpus.num_docs)[:wanted]
    return corpus[order[settings.test_docs :]], corpus[order[: settings.test_docs]]


def compare(settings: FullSettings, name: str, num_topics: int) -> Compared:
    """Both fits, and both posteriors under the parameters of the first."""
    train, test = read_texts(settings, name, num_topics)
    fits = [fit(posterior, train, num_topics, settings.seed) for posterior in BOTH]
    learned = [evidence(settings, fitted.model, test) for fitted in fits]
    model = fits[0].model.double()
    batch = test.batch(dtype=torch.float64)
    some = batch.select(torch.arange(settings.reference_docs))
    reference = sampled_mean(model, some, settings.reference_draws, settings.seed)
    bounds, distances, milliseconds = [], [], []
    for posterior in BOTH:
        guide = make_guide(posterior, model, tolerance=settings.tolerance, max_iterations=500)
        began = time.process_time()
        solved = guide.posterior(batch)
        milliseconds.append(1e3 * (time.process_time() - began) / test.num_docs)
        bounds.append(solved.objective.tolist())
        mean = solved.theta_mean(settings.theta_samples, seed=settings.seed)
        apart = (mean[: settings.reference_docs] - reference).abs().sum(1) / 2
        distances.append(apart.tolist())
    return Compared(
        name,
        num_topics,
        learned[0],
        bounds,
        distances,
        milliseconds,
        learned,
        [fitted.seconds for fitted in fits],
        test.lengths.tolist(),
    )


def evidence(settings: FullSettings, model: TopicModel, test: Corpus) -> list[float]:
    """Log evidence of each test document by annealed importance sampling, nats."""
    ais = AIS(
        num_chains=settings.ais_chains, num_temperatures=settings.ais_temperatures, start="prior"
    )
    with warnings.catch_warnings():
        # Disagreeing chains make the evidence too low; the order of the bounds stays.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        found = log_likelihood(model, test, ais, seed=settings.seed).log_likelihood
    return [float(value) for value in found]


def tables(rows: list[Compared]) -> str:
    """The bounds, the means of θ, the learned parameters and the times."""
    under, learned = [], []
    for row in rows:
        where = [row.corpus, str(row.num_topics)]
        diagonal, full = (mean_and_error(gap) for gap in row.gaps)
        near, nearer = (mean_and_error(apart) for apart in row.distances)
        under.append(
            [
                *where,
                entry(*diagonal, 2),
                entry(*full, 2),
                entry(*row.tighter, 2),
                entry(*near, 3),
                entry(*nearer, 3),
                entry(*row.closer, 3),
                f"{row.milliseconds[0]:.1f}",
                f"{row.milliseconds[1]:.1f}",
            ]
        )
        perplexities = [math.exp(-sum(evidence) / sum(row.tokens)) for evidence in row.learned]
        learned.append(
            [
                *where,
                *(f"{value:.0f}" for value in perplexities),
                entry(*row.better, 2),
                *(f"{seconds:.1f}" for seconds in row.fit_seconds),
                f"×{row.fit_seconds[1] / row.fit_seconds[0]:.1f}",
            ]
        )
    return "\n\n".join(
        [
            "Test documents under the parameters of Blei and Lafferty's fit: gap between evidence "
            "and bound, nats a document; total variation of the mean of θ from the chains', "
            "milliseconds of processor time a document",
            table(
                [
                    "corpus",
                    "K",
                    "gap, diagonal V",
                    "gap, full V",
                    "bound gained",
                    "θ off, diagonal V",
                    "θ off, full V",
                    "θ gained",
                    "ms, diagonal V",
                    "ms, full V",
                ],
                under,
            ),
            "Parameters learned by each: perplexity of the test documents, nats of evidence gained "
            "a document, processor seconds of the fit",
            table(
                [
                    "corpus",
                    "K",
                    "perplexity, diagonal V",
                    "full V",
                    "evidence gained",
                    "s, diagonal V",
                    "s, full V",
                    "ratio",
                ],
                learned,
            ),
        ]
    )


def figure(rows: list[Compared]) -> Figure:
    """By topics: the bounds' gaps, the distance of θ, the gain in evidence, and the time."""
    from matplotlib.figure import Figure

    corpora = list(dict.fromkeys(row.corpus for row in rows))
    plot = Figure(figsize=(9.6, 2.9 * len(corpora) + 0.5), layout="constrained")
    axes = plot.subplots(len(corpora), 4, squeeze=False)
    for line, corpus in zip(axes, corpora, strict=True):
        mine = [row for row in rows if row.corpus == corpus]
        topics = [row.num_topics for row in mine]
        for i, name in enumerate(BOTH):
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **POSTERIORS[name]}
            gaps = [mean_and_error(row.gaps[i]) for row in mine]
            apart = [mean_and_error(row.distances[i]) for row in mine]
            for ax, pairs in ((line[0], gaps), (line[1], apart)):
                means, errors = zip(*pairs, strict=True)
                ax.errorbar(topics, means, errors, **style)
            line[3].errorbar(topics, [row.milliseconds[i] for row in mine], **style)
        means, errors = zip(*(row.better for row in mine), strict=True)
        line[2].errorbar(topics, means, errors, color="#4d4d4d", marker="o", markersize=5)
        line[2].axhline(0.0, color="#4d4d4d", linewidth=0.8)
        line[3].set_yscale("log")
        titles = (
            "evidence less bound,\nnats a document",
            "mean of θ: total\nvariation from chains'",
            "test evidence gained by\nlearning with full V, nats",
            "milliseconds a document",
        )
        for ax, title in zip(line, titles, strict=True):
            ax.set_title(f"{corpus}\n{title}", fontsize=9)
            ax.set_xscale("log")
            ax.set_xticks(topics, [str(k) for k in topics], fontsize=8)
            ax.minorticks_off()
            ax.tick_params(labelsize=8)
            ax.set_xlabel("topics K", fontsize=9)
            ax.grid(alpha=0.25)
        for ax in line[:2]:
            ax.set_ylim(0)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return plot


STUDY = Study(
    FullSettings,
    run,
    tables,
    figure,
    quick={
        "num_topics": (5, 10),
        "train_docs": 100,
        "test_docs": 20,
        "reference_docs": 5,
        "reference_draws": 50,
        "ais_temperatures": 50,
    },
)
