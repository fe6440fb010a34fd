"""Topics, documents' proportions and the topic graph: *Ahmed & Xing 2007, Figures 6 and 9*.

A correlated topic model is fitted to papers of NIPS by the Taylor posterior. Test papers get their
topic proportions under its parameters by the Taylor posterior, by the Blei–Lafferty posterior, and
by Hamiltonian chains, which are exact up to noise. The paper shows proportions as stacked bars, and
says that Taylor's have "finer details of the components" than Blei–Lafferty's. The figure also
shows the graph of correlated topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.papers.ahmed_xing_simulation import sampled_mean
from studies.papers.texts import POSTERIORS, fit
from studies.tables import entry, mean_and_error, table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.models import ctm
from torch_lntm.reports import topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The posteriors of the shown proportions.
SHOWN = ("taylor", "blei-lafferty")
#: The name of the chains beside the posteriors.
EXACT = "chains"
#: Topics with a colour of their own, the largest over all documents; the rest are grey.
COLOURS = ("#2166ac", "#c25b00", "#5aae61", "#762a83", "#92c5de", "#f9be82", "#1b7837", "#7a3600")


@dataclass(frozen=True)
class ProportionSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        train_docs: Documents to fit, drawn at random.
        test_docs: Test documents with shown proportions.
        draws: Transitions of the chains; a fifth is dropped.
        theta_samples: Draws of each posterior for its mean of θ.
        seed: Seed of everything random.
    """

    corpus: str = "nips_uci"
    num_topics: int = 30
    train_docs: int = 1000
    test_docs: int = 60
    draws: int = 600
    theta_samples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        twos = dict.fromkeys(("num_topics", "train_docs", "test_docs"), 2)
        check_numbers(self, {**twos, "draws": 5, "theta_samples": 1, "seed": 0})


@dataclass(frozen=True)
class Proportions:
    """One model and the proportions of the test documents.

    Attributes:
        names: A name for each topic.
        covariance: ``(num_topics, num_topics)`` covariance of the centred logits.
        theta: By posterior, and :data:`EXACT` for the chains, means of θ
            ``(test_docs, num_topics)``.
        modes: By posterior, θ at the posterior mean of eta.
    """

    names: list[str]
    covariance: list[list[float]]
    theta: dict[str, list[list[float]]]
    modes: dict[str, list[list[float]]]

    def distances(self, theta: list[list[float]]) -> list[float]:
        """½ Σ_k |θ_k − exact θ_k| of each document."""
        apart = np.abs(np.array(theta) - np.array(self.theta[EXACT])).sum(1) / 2
        return [float(value) for value in apart]


def run(settings: ProportionSettings, cells: Cells) -> Proportions:
    """Fit, and compute the proportions.

    Raises:
        ConfigError: The corpus does not exist, or has too few documents.
    """
    corpus = read_corpus(corpus_file(settings.corpus))
    wanted = settings.train_docs + settings.test_docs
    if corpus.num_docs < wanted:
        raise ConfigError(
            f"{settings.corpus} has {corpus.num_docs} documents; expected at least {wanted}"
        )
    order = np.random.default_rng(settings.seed).permutation(corpus.num_docs)[:wanted]
    train, test = corpus[order[settings.test_docs :]], corpus[order[: settings.test_docs]]
    return Proportions(**cells.one("proportions", lambda: measure(settings, train, test)))


def measure(settings: ProportionSettings, train: Corpus, test: Corpus) -> Proportions:
    """The model, and the proportions by every posterior."""
    model = fit("taylor", train, settings.num_topics, settings.seed).model
    names = topic_labels(model, 3)
    model = model.double()
    batch = test.batch(dtype=torch.float64)
    theta = {EXACT: _rounded(sampled_mean(model, batch, settings.draws, settings.seed))}
    modes = {}
    for name in SHOWN:
        posterior = make_guide(name, model).posterior(batch)
        theta[name] = _rounded(posterior.theta_mean(settings.theta_samples, seed=settings.seed))
        modes[name] = _rounded(posterior.theta_mode())
    return Proportions(names, _rounded(model.prior.contrast_covariance()), theta, modes)


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(number, 5) for number in row] for row in values.tolist()]


def tables(result: Proportions) -> str:
    """Distances of the proportions from the chains', and the topics by their size."""
    rows = []
    for name in SHOWN:
        found = [mean_and_error(result.distances(x[name])) for x in (result.theta, result.modes)]
        rows.append([str(POSTERIORS[name]["label"]), *(entry(*pair, 4) for pair in found)])
    gaps = [
        [a - b for a, b in zip(*(result.distances(x[name]) for name in SHOWN), strict=True)]
        for x in (result.theta, result.modes)
    ]
    rows.append(["difference", *(entry(*mean_and_error(gap), 4) for gap in gaps)])
    sizes = np.array(result.theta[EXACT]).mean(0)
    topics = [[result.names[k], f"{sizes[k]:.3f}"] for k in np.argsort(-sizes, kind="stable")]
    return "\n\n".join(
        [
            "Total variation from the chains' mean of θ, mean over documents",
            table(["", "mean of θ", "θ at the mean of eta"], rows),
            "Topics, and their mean share of a test document",
            table(["topic", "share"], topics),
        ]
    )


def figure(result: Proportions) -> Figure:
    """Stacked bars by the chains and both posteriors, and the topic graph."""
    from matplotlib.figure import Figure

    from torch_lntm.plotting import correlation_graph

    num_topics = len(result.names)
    plot = Figure(figsize=(9.6, 12.5), layout="constrained")
    axes = plot.subplots(4, 1, height_ratios=(1.0, 1.0, 1.0, 4.2))
    exact = np.array(result.theta[EXACT])
    large = np.argsort(-exact.mean(0), kind="stable")[: len(COLOURS)]
    # Documents with equal largest topics stand side by side.
    main = exact[:, large]
    order = np.lexsort((-main.max(1), main.argmax(1)))
    titles = {EXACT: "Hamiltonian chains"} | {n: str(POSTERIORS[n]["label"]) for n in SHOWN}
    for ax, (name, title) in zip(axes, titles.items(), strict=False):
        stacked_bars(ax, np.array(result.theta[name])[order], large)
        ax.set_ylabel(title, fontsize=9)
    axes[2].set_xlabel("papers: mean of θ", fontsize=9)
    handles = axes[0].containers[: len(large) + 1]
    labels = [*(result.names[k] for k in large), "other topics"]
    axes[0].legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.02),
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    # A shift common to all logits leaves θ unchanged and makes the covariance regular.
    covariance = torch.tensor(result.covariance, dtype=torch.float64) + 1.0
    shown = ctm(num_topics, 1, covariance=covariance, dtype="float64")
    correlation_graph(shown, labels=result.names, ax=axes[3])
    return plot


def stacked_bars(ax: Axes, theta: NDArray[np.float64], large: NDArray[np.int64]) -> None:
    """A bar for each document: its large topics in their colours, and the rest in grey."""
    parts: list[Any] = [*theta[:, large].T, np.delete(theta, large, 1).sum(1)]
    floor = np.zeros(len(theta))
    for part, colour in zip(parts, (*COLOURS[: len(large)], "#d9d9d9"), strict=True):
        ax.bar(np.arange(len(theta)), part, 1.0, bottom=floor, color=colour)
        floor = floor + part
    ax.set_xlim(-0.5, len(theta) - 0.5)
    ax.set_ylim(0, 1)
    ax.set_xticks([])
    ax.tick_params(labelsize=8)


STUDY = Study(
    ProportionSettings,
    run,
    tables,
    figure,
    quick={"num_topics": 12, "train_docs": 150, "test_docs": 12, "draws": 40},
)
