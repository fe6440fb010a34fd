"""Training time of LDA, IFTM and CTM: *Putthividhya et al. 2009, Table 1*.

Every model is fitted to the same corpus with the defaults. From the end of the fit, a few more EM
iterations are timed at solver tolerances common to all models of eta. Times are CPU seconds on one
thread, the systems in turn at each number of topics. The second line of ratios belongs to the sums
over the numbers of topics, as the paper's ×0.45, ×1, ×1.5 and ×5 do. The study takes 15 minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import product
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import torch_lntm as lntm
from studies.benchmarks.systems import phase_seconds
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.papers.texts import MODELS
from studies.tables import table_of
from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import Statistics
from torch_lntm.inference.em.statistics import expected_statistics
from torch_lntm.models import TopicModel, ctm, iftm, lda

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Gain in nats at convergence of the documents' posteriors; for LDA, relative change of gamma.
TOLERANCES = (1e-2, 1e-4)
MAX_SOLVER_ITERATIONS = 500
REFERENCE = "IFTM-G"


class System(NamedTuple):
    """A model and its posterior.

    Attributes:
        make: The model's constructor.
        posterior: Name of the guide.
        options: Options of the constructor.
        printed: The paper's ratio to IFTM-G, None if it has none.
    """

    make: Callable[..., TopicModel]
    posterior: str
    options: dict[str, Any]
    printed: float | None


SYSTEMS = {
    "LDA": System(lda, "vb", {}, 0.45),
    "IFTM-G": System(iftm, "factor", {"source": "gaussian"}, 1.0),
    "IFTM-L": System(iftm, "factor", {"source": "laplace"}, 1.5),
    "CTM Taylor": System(ctm, "taylor", {}, None),
    # The paper timed the posterior of Blei & Lafferty's own program.
    "CTM BL": System(ctm, "blei-lafferty", {}, 5.0),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Numbers of topics.
        repeats: EM iterations timed.
        threads: Threads of torch.
        seed: Seed of everything random.
    """

    corpus: str = "ap"
    num_topics: tuple[int, ...] = tuple(range(20, 161, 20))
    repeats: int = 3
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2, "repeats": 1, "threads": 1, "seed": 0})


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Fit every system at every number of topics."""
    torch.set_num_threads(settings.threads)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    corpus = corpus[corpus.lengths.nonzero()[0]]
    return cells.each(
        product(settings.num_topics, SYSTEMS), lambda key: measure(settings, corpus, *key)
    )


def em_iterations(
    guide: Guide[Any], corpus: Corpus, means: torch.Tensor, tolerance: float, repeats: int
) -> dict[str, float]:
    """CPU seconds of EM iterations that start from the documents' last means.

    Args:
        guide: A guide over a fitted model; the iterations change the model.
        corpus: Its documents.
        means: ``(num_docs, latent_dim)`` posterior means; overwritten.
        tolerance: The solver's tolerance.
        repeats: Iterations to time, after an untimed iteration.

    Returns:
        Median CPU seconds of the E-step and of the M-step, and the solver's mean iterations.
    """
    # As the engine does.
    max_docs = docs_at_once(guide.memory_per_document(corpus.nnz / corpus.num_docs))
    batches = list(corpus.batches(max_docs=max_docs, dtype=guide.model.dtype))
    e_seconds, m_seconds, steps = [], [], []
    for _ in range(1 + repeats):
        iterations = 0
        parts: list[Statistics] = []
        with Stopwatch() as e_step, guide.model.topics.cached():
            for batch in batches:
                posterior = guide.posterior(
                    batch,
                    means[batch.index],
                    tolerance=tolerance,
                    max_iterations=MAX_SOLVER_ITERATIONS,
                )
                means[batch.index] = posterior.mean.to(means)
                iterations += int(posterior.iterations.sum())
                parts.append(expected_statistics(guide, batch, posterior))
        with Stopwatch() as m_step:
            reduce(Statistics.add_, parts).maximise(guide.model)
        e_seconds.append(e_step.cpu_seconds)
        m_seconds.append(m_step.cpu_seconds)
        steps.append(iterations / corpus.num_docs)
    return {
        "e_step": median(e_seconds[1:]),
        "m_step": median(m_seconds[1:]),
        "solver_iterations": fmean(steps[1:]),
    }


def measure(settings: Settings, corpus: Corpus, num_topics: int, name: str) -> dict[str, Any]:
    """A default fit, then EM iterations at each tolerance, each from the end of the fit."""
    system = SYSTEMS[name]
    model = system.make(num_topics, corpus.num_words, seed=settings.seed, **system.options)
    guide = make_guide(system.posterior, model)
    engine = lntm.inference.VariationalEM(model, guide, seed=settings.seed, progress=False)
    with Stopwatch() as watch:
        result = engine.fit(corpus)
    fitted = {key: value.clone() for key, value in model.state_dict().items()}
    iterations = {}
    for tolerance in TOLERANCES:
        model.load_state_dict(fitted)
        means = result.means.clone()
        iterations[f"{tolerance:g}"] = em_iterations(
            guide, corpus, means, tolerance, settings.repeats
        )
    return {
        "system": name,
        "num_topics": num_topics,
        "fit_cpu_seconds": watch.cpu_seconds,
        "phases": phase_seconds(result.history),
        "em_iteration": iterations,
    }


def seconds_of(row: dict[str, Any], what: str) -> float:
    """The CPU seconds of the default fit, or of an EM iteration at a tolerance."""
    if what == "fit":
        return float(row["fit_cpu_seconds"])
    return float(row["em_iteration"][what]["e_step"] + row["em_iteration"][what]["m_step"])


def tables(rows: list[dict[str, Any]]) -> str:
    """A table for the default fit, and a table for each tolerance of an EM iteration."""
    return "\n\n".join(
        _table(rows, what) for what in ("fit", *(f"{tolerance:g}" for tolerance in TOLERANCES))
    )


def _table(rows: list[dict[str, Any]], what: str) -> str:
    """CPU seconds by number of topics and system, and the ratios to the reference."""
    found = {(row["system"], row["num_topics"]): seconds_of(row, what) for row in rows}
    names = list(dict.fromkeys(row["system"] for row in rows))
    topics = sorted({row["num_topics"] for row in rows})
    sums = {name: sum(found[name, k] for k in topics) for name in names}
    last = {name: found[name, topics[-1]] / found[REFERENCE, topics[-1]] for name in names}
    printed = {name: SYSTEMS[name].printed for name in names}
    lines = [{"K": str(k), **{n: f"{found[n, k]:.3f}" for n in names}} for k in topics]
    lines += [
        {"K": f"ratio, K = {topics[-1]}", **{n: f"×{last[n]:.2f}" for n in names}},
        {"K": "ratio of sums", **{n: f"×{sums[n] / sums[REFERENCE]:.2f}" for n in names}},
        {"K": "the paper's", **{n: f"×{r:g}" if r else "" for n, r in printed.items()}},
    ]
    title = "default fit" if what == "fit" else f"EM iteration, solver tolerance {what}"
    return f"{title}: CPU seconds\n\n{table_of(lines)}"


#: The systems' lines in the figure.
_STYLES = {
    "LDA": MODELS["lda"],
    "IFTM-G": MODELS["iftm-g"],
    "IFTM-L": MODELS["iftm-l"],
    "CTM Taylor": MODELS["ctm"],
    "CTM BL": MODELS["ctm-bl"],
}


def figure(rows: list[dict[str, Any]]) -> Figure:
    """CPU seconds as ratios to the reference's, by topics; dotted: the paper's ratios."""
    from matplotlib.figure import Figure

    topics = sorted({row["num_topics"] for row in rows})
    found = {(row["system"], row["num_topics"]): row for row in rows}
    kinds = {"fit": "a default fit"} | {
        f"{tolerance:g}": f"an EM iteration,\nsolver tolerance {tolerance:g} nats"
        for tolerance in TOLERANCES
    }
    plot = Figure(figsize=(9.6, 4.0), layout="constrained")
    for ax, (what, title) in zip(
        plot.subplots(1, len(kinds), sharey=True), kinds.items(), strict=True
    ):
        for name, style in _STYLES.items():
            ratios = [
                seconds_of(found[name, k], what) / seconds_of(found[REFERENCE, k], what)
                for k in topics
            ]
            ax.plot(topics, ratios, **{"markersize": 5, "linewidth": 1.4, **style, "label": name})
            if (printed := SYSTEMS[name].printed) is not None:
                ax.axhline(printed, color=style["color"], linestyle=":", linewidth=1.0)
        ax.set_title(title, fontsize=10)
        ax.set_yscale("log")
        ax.set_yticks(ticks := [0.1, 0.2, 0.5, 1, 2, 5], [f"×{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_xticks(topics, [str(k) for k in topics])
        ax.set_xlabel("topics K")
        ax.grid(alpha=0.25)
    axes = plot.axes
    axes[0].set_ylabel(f"CPU time, times {REFERENCE}'s")
    handles, labels = axes[0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(Settings, run, tables, figure, quick={"num_topics": (20, 80)})
