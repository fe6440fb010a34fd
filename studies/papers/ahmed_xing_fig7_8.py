"""Held-out perplexity and iterations on conference papers: *Ahmed & Xing 2007, §4.2, Figures 7–8*.

Correlated topic models with 10 to 40 topics are fitted by the Taylor and by the Blei–Lafferty
posterior, and LDA beside them, on three divisions of papers of NIPS. The paper's perplexity comes
from importance sampling around each posterior. Annealed importance sampling judges both alike.

Figure 8 counts iterations of the inference on held-out documents. This study counts iterations of
the guides, which ascend, and of the paper's two algorithms, update by update.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.papers.ahmed_xing_updates import blei_lafferty_as_printed, taylor_as_printed
from studies.papers.texts import POSTERIORS, fit
from studies.tables import entry, mean_and_error, table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import AIS, log_likelihood
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.guides import make_guide
from torch_lntm.latents import NormalSpace
from torch_lntm.models import TopicModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The reference of all comparisons.
BASELINE = "taylor"
#: The paper's own updates, by posterior.
AS_PRINTED = {"taylor": taylor_as_printed, "blei-lafferty": blei_lafferty_as_printed}
#: Estimates of the perplexity, with descriptions.
ESTIMATES = {
    "importance": "importance sampling around its own posterior, as in the paper",
    "annealed": "annealed importance sampling",
}
#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7


@dataclass(frozen=True)
class PapersSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        posteriors: ``taylor``, ``laplace``, ``blei-lafferty`` or ``khan-bouchard``, or ``lda`` for
            the LDA model.
        num_topics: Numbers of topics.
        splits: Random divisions of the documents.
        train_docs: Documents to fit in each division.
        test_docs: Test documents of each division.
        iteration_docs: Number of test documents with counted iterations, from the first on.
        relative_tolerance: Relative change of the bound at convergence of a document, the
            paper's. Guides get it times the average ``|bound|``, in nats.
        max_iterations: Bound on the iterations of a document.
        num_samples: Draws of importance sampling.
        ais_chains: Chains of annealed importance sampling.
        ais_temperatures: Its temperatures.
        seed: Seed of everything random.
    """

    corpus: str = "nips_uci"
    posteriors: tuple[str, ...] = ("taylor", "blei-lafferty", "lda")
    num_topics: tuple[int, ...] = (10, 20, 30, 40)
    splits: int = 3
    train_docs: int = 300
    test_docs: int = 40
    iteration_docs: int = 5
    relative_tolerance: float = 1e-6
    max_iterations: int = 500
    num_samples: int = 500
    ais_chains: int = 10
    ais_temperatures: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        twos = dict.fromkeys(
            ("num_topics", "train_docs", "test_docs", "num_samples", "ais_chains"), 2
        )
        ones = dict.fromkeys(("splits", "iteration_docs", "max_iterations"), 1)
        check_numbers(
            self, {**twos, **ones, "ais_temperatures": 3, "seed": 0}, ["relative_tolerance"]
        )
        check_choices(self, "posteriors", POSTERIORS)
        if BASELINE not in self.posteriors or self.iteration_docs > self.test_docs:
            raise ConfigError(
                f"posteriors are {', '.join(self.posteriors)} and iteration_docs is "
                f"{self.iteration_docs} of {self.test_docs} test documents; expected {BASELINE} "
                "among the posteriors, and at most all documents"
            )


@dataclass(frozen=True)
class Perplexity:
    """Scores of one fit.

    Attributes:
        num_topics: Topics.
        split: Number of the division.
        posterior: Posterior of the fit.
        importance: Log likelihood of each test document by importance sampling, nats.
        unreliable: Share of the test documents with a Pareto k̂ above 0.7.
        annealed: The same by annealed importance sampling.
        tokens: Tokens of each test document.
        iterations: Mean iterations of the guide on a held-out document; NaN for LDA.
        printed: Mean iterations of the paper's updates, over converged documents; NaN for none.
        unconverged: Share of the documents on which the paper's updates do not converge.
    """

    num_topics: int
    split: int
    posterior: str
    importance: list[float]
    unreliable: float
    annealed: list[float]
    tokens: list[int]
    iterations: float
    printed: float
    unconverged: float


@dataclass(frozen=True)
class PapersResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each number of topics, division and posterior.
    """

    settings: PapersSettings
    rows: list[Perplexity]

    def select(self, num_topics: int, posterior: str) -> list[Perplexity]:
        """The rows of all divisions.

        Raises:
            ConfigError: No row matches.
        """
        found = [r for r in self.rows if (r.num_topics, r.posterior) == (num_topics, posterior)]
        if not found:
            raise ConfigError(f"nothing was measured for {posterior!r} with {num_topics} topics")
        return sorted(found, key=lambda row: row.split)

    def perplexities(self, num_topics: int, posterior: str, estimate: str) -> list[float]:
        """Perplexity of each division's test documents by an estimate of :data:`ESTIMATES`."""
        return [
            math.exp(-sum(getattr(row, estimate)) / sum(row.tokens))
            for row in self.select(num_topics, posterior)
        ]

    def gap(self, num_topics: int, posterior: str, estimate: str) -> tuple[float, float]:
        """Lead of :data:`BASELINE` in nats per token, and its error over documents."""
        ours, other = (self.select(num_topics, name) for name in (BASELINE, posterior))
        gaps = [
            a - b
            for left, right in zip(ours, other, strict=True)
            for a, b in zip(getattr(left, estimate), getattr(right, estimate), strict=True)
        ]
        tokens = [count for row in ours for count in row.tokens]
        return per_token(torch.tensor(gaps, dtype=torch.float64), torch.tensor(tokens))

    def tables(self) -> str:
        """Perplexities, differences to the baseline, and iterations."""
        settings = self.settings
        names = list(settings.posteriors)
        labels = [str(POSTERIORS[name]["label"]) for name in names]
        others = [name for name in names if name != BASELINE]
        parts = []
        for estimate, text in ESTIMATES.items():
            rows, gaps = [], []
            for k in settings.num_topics:
                found = [mean_and_error(self.perplexities(k, name, estimate)) for name in names]
                rows.append([str(k), *(entry(*pair, 1) for pair in found)])
                gaps.append([str(k), *(entry(*self.gap(k, n, estimate), 4) for n in others)])
            parts += [f"perplexity by {text}: mean over divisions", table(["K", *labels], rows)]
            header = [f"Taylor − {POSTERIORS[name]['label']}" for name in others]
            if others:
                parts += ["nats per token, by the same", table(["K", *header], gaps)]
        rows = []
        for k in settings.num_topics:
            shares = [mean_and_error([r.unreliable for r in self.select(k, n)])[0] for n in names]
            rows.append([str(k), *(f"{share:.0%}" for share in shares)])
        title = f"test documents with a Pareto k̂ above {PARETO_K_LIMIT}"
        parts += [title, table(["K", *labels], rows)]
        solved = [name for name in names if name != "lda"]
        rows = []
        for k in settings.num_topics:
            line = [str(k)]
            for name in solved:
                each = self.select(k, name)
                line.append(entry(*mean_and_error([row.iterations for row in each]), 1))
                line.append(entry(*mean_and_error([row.printed for row in each]), 1))
                line.append(f"{mean_and_error([row.unconverged for row in each])[0]:.0%}")
            rows.append(line)
        header = [
            f"{POSTERIORS[name]['label']}{what}"
            for name in solved
            for what in ("", ", as printed", ", as printed: unconverged")
        ]
        parts += ["iterations on a held-out document", table(["K", *header], rows)]
        return "\n\n".join(parts)


def run(settings: PapersSettings, cells: Cells) -> PapersResult:
    """Fit and judge every model."""
    corpus = read_corpus(corpus_file(settings.corpus))
    wanted = settings.train_docs + settings.test_docs
    if corpus.num_docs < wanted:
        raise ConfigError(
            f"{settings.corpus} has {corpus.num_docs} documents; expected at least {wanted}"
        )

    def measure(key: tuple[int, int, str]) -> Perplexity:
        num_topics, split, name = key
        rng = np.random.default_rng([settings.seed, split])
        order = rng.permutation(corpus.num_docs)[:wanted]
        train, test = order[settings.test_docs :], order[: settings.test_docs]
        return judge(settings, corpus[train], corpus[test], num_topics, split, name)

    keys = [
        (k, split, name)
        for k in settings.num_topics
        for split in range(settings.splits)
        for name in settings.posteriors
    ]
    return PapersResult(settings, [Perplexity(**row) for row in cells.each(keys, measure)])


def judge(
    settings: PapersSettings, train: Corpus, test: Corpus, num_topics: int, split: int, name: str
) -> Perplexity:
    """One fit, and its perplexities and iterations."""
    fitted = fit(name, train, num_topics, settings.seed + split)
    ais = AIS(
        num_chains=settings.ais_chains, num_temperatures=settings.ais_temperatures, start="prior"
    )
    with warnings.catch_warnings():
        # The result holds the share of unreliable documents.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        importance = log_likelihood(
            fitted.model,
            test,
            guide=fitted.guide,
            num_draws=settings.num_samples,
            seed=settings.seed,
        )
        annealed = log_likelihood(fitted.model, test, ais, seed=settings.seed)
    assert importance.pareto_k is not None
    counted = (math.nan,) * 3
    if name != "lda":
        counted = iterations(settings, fitted.model, test[: settings.iteration_docs], name)
    return Perplexity(
        num_topics,
        split,
        name,
        [round(value, 3) for value in importance.log_likelihood.tolist()],
        float((importance.pareto_k > PARETO_K_LIMIT).double().mean()),
        [round(value, 3) for value in annealed.log_likelihood.tolist()],
        test.lengths.tolist(),
        *counted,
    )


def iterations(
    settings: PapersSettings, model: TopicModel, test: Corpus, name: str
) -> tuple[float, float, float]:
    """Iterations of the guide and of the paper's updates, and the share without convergence."""
    model = model.double()
    batch = test.batch(dtype=torch.float64)
    scale = float(make_guide(name, model).posterior(batch).objective.abs().mean())
    guide = make_guide(
        name,
        model,
        tolerance=settings.relative_tolerance * scale,
        max_iterations=settings.max_iterations,
    )
    steps = float(guide.posterior(batch).iterations.double().mean())
    if name not in AS_PRINTED:
        return steps, math.nan, math.nan
    space = model.prior.space(batch)
    assert isinstance(space, NormalSpace)
    printed = AS_PRINTED[name](
        batch,
        model.topics.probs.detach(),
        space,
        relative_tolerance=settings.relative_tolerance,
        max_iterations=settings.max_iterations,
    )
    done = printed.converged
    return (
        steps,
        float(printed.iterations[done].double().mean()),
        float((~done).double().mean()),
    )


def figure(result: PapersResult) -> Figure:
    """The paper's Figures 7 and 8: perplexity by both estimates, and iterations, by topics.

    Bars are one standard error over divisions of the difference from the models' average.
    """
    from matplotlib.figure import Figure

    settings = result.settings
    topics = list(settings.num_topics)
    plot = Figure(figsize=(9.6, 4.0), layout="constrained")
    axes = plot.subplots(1, 3)
    for ax, estimate in zip(axes, ESTIMATES, strict=False):
        names = settings.posteriors
        found = np.array([[result.perplexities(k, n, estimate) for k in topics] for n in names])
        # The difficulty of a division's documents is common to all models.
        many = found.shape[-1] > 1
        bars = (
            (found - found.mean(0)).std(-1, ddof=1) / math.sqrt(settings.splits) if many else None
        )
        for i, name in enumerate(names):
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **POSTERIORS[name]}
            ax.errorbar(topics, found[i].mean(-1), None if bars is None else bars[i], **style)
        ax.set_ylabel("perplexity")
        ax.set_title(ESTIMATES[estimate].replace(" around", "\naround"), fontsize=9)
    axes[1].sharey(axes[0])
    for name in settings.posteriors:
        if name == "lda":
            continue
        style = {"markersize": 5, "linewidth": 1.4, **POSTERIORS[name]}
        for field, more in (("iterations", {}), ("printed", {"linestyle": ":", "label": None})):
            counts = [
                mean_and_error([getattr(row, field) for row in result.select(k, name)])[0]
                for k in topics
            ]
            axes[2].plot(topics, counts, **{**style, **more})
    axes[2].set_yscale("log")
    axes[2].set_yticks(ticks := [5, 10, 20, 50, 100, 200, 500], [str(tick) for tick in ticks])
    axes[2].minorticks_off()
    axes[2].set_title("iterations on a held-out document\n(dotted: as printed)", fontsize=9)
    for ax in axes:
        ax.set_xticks(topics, [str(k) for k in topics])
        ax.set_xlabel("topics K")
        ax.grid(alpha=0.25)
    handles, labels = axes[0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    PapersSettings,
    run,
    PapersResult.tables,
    figure,
    quick={
        "num_topics": (10, 20),
        "splits": 2,
        "train_docs": 100,
        "test_docs": 10,
        "iteration_docs": 5,
        "max_iterations": 100,
        "num_samples": 200,
        "ais_temperatures": 50,
    },
)
