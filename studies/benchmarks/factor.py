"""Training time of LDA, IFTM and CTM: Table 1 of Putthividhya et al. 2009.

    python -m benchmarks.factor [--num-topics 20 40 60 80 100 120 140 160] [--quick]

Every model is fitted to the same corpus with the defaults, and then, from where the fit ended, a
few more EM iterations are timed at solver tolerances that are the same for all models of eta. CPU
seconds, one thread, the systems in turn at each number of topics. The second line of ratios is that
of the sums over the numbers of topics, which is what the paper's ×0.45, ×1, ×1.5 and ×5 are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from benchmarks.common import (
    DATA,
    RESULTS,
    Stopwatch,
    corpus_path,
    describe,
    print_table,
    write_json,
)
from benchmarks.systems import phase_seconds

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference.run import MAX_NUMBERS, MAX_STEP_DOCS
from torch_lntm.inference.statistics import Statistics, sufficient_statistics
from torch_lntm.models import TopicModel, ctm, iftm, lda

#: Gain in nats at which the documents' posteriors have converged; of LDA, relative change of gamma.
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
    # What the paper timed: the posterior of Blei & Lafferty's own program.
    "CTM BL": System(ctm, "blei-lafferty", {}, 5.0),
}


def em_iterations(
    guide: Guide, corpus: Corpus, means: torch.Tensor, tolerance: float, repeats: int
) -> dict[str, float]:
    """CPU seconds of EM iterations that start from the documents' last means.

    Args:
        guide: A guide over a fitted model, which the iterations go on changing.
        corpus: Its documents.
        means: ``(num_docs, latent_dim)`` posterior means; overwritten.
        tolerance: The solver's.
        repeats: Iterations to time, after one that is not.

    Returns:
        Median CPU seconds of the E-step and of the M-step, and the solver's mean iterations.
    """
    # As many documents at once as a fit takes.
    size = guide.numbers_per_document(corpus.nnz / corpus.num_docs)
    max_docs = min(max(16, int(MAX_NUMBERS / size)), MAX_STEP_DOCS)
    batches = list(corpus.batches(max_docs=max_docs, dtype=guide.model.dtype))
    e_seconds, m_seconds, steps = [], [], []
    for _ in range(1 + repeats):
        iterations = 0
        parts: list[Statistics] = []
        with Stopwatch() as e_step, guide.model.topics.fixed():
            for batch in batches:
                posterior = guide.posterior(
                    batch,
                    means[batch.index],
                    tolerance=tolerance,
                    max_iterations=MAX_SOLVER_ITERATIONS,
                )
                means[batch.index] = posterior.mean.to(means)
                iterations += int(posterior.iterations.sum())
                parts.append(sufficient_statistics(guide, batch, posterior))
        with Stopwatch() as m_step:
            reduce(Statistics.__add__, parts).maximise(guide.model)
        e_seconds.append(e_step.cpu_seconds)
        m_seconds.append(m_step.cpu_seconds)
        steps.append(iterations / corpus.num_docs)
    return {
        "e_step": median(e_seconds[1:]),
        "m_step": median(m_seconds[1:]),
        "solver_iterations": fmean(steps[1:]),
    }


def measure(corpus: Corpus, name: str, num_topics: int, args: argparse.Namespace) -> dict[str, Any]:
    """A default fit, then EM iterations at each tolerance, each from the fit's end."""
    system = SYSTEMS[name]
    model = system.make(num_topics, corpus.num_words, seed=args.seed, **system.options)
    guide = make_guide(system.posterior, model)
    engine = lntm.inference.VariationalEM(model, guide, seed=args.seed, progress=False)
    with Stopwatch() as watch:
        result = engine.fit(corpus)
    fitted = {key: value.clone() for key, value in model.state_dict().items()}
    iterations = {}
    for tolerance in TOLERANCES:
        model.load_state_dict(fitted)
        means = result.means.clone()
        iterations[f"{tolerance:g}"] = em_iterations(guide, corpus, means, tolerance, args.repeats)
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


def show(rows: list[dict[str, Any]], what: str) -> dict[str, float]:
    """Print one table of CPU seconds; returns each system's ratio of sums to the reference."""
    found = {(row["system"], row["num_topics"]): seconds_of(row, what) for row in rows}
    names = list(dict.fromkeys(row["system"] for row in rows))
    topics = sorted({row["num_topics"] for row in rows})
    lines = [{"K": str(k), **{n: f"{found[n, k]:.3f}" for n in names}} for k in topics]
    sums = {name: sum(found[name, k] for k in topics) for name in names}
    ratios = {name: sums[name] / sums[REFERENCE] for name in names}
    last = {name: found[name, topics[-1]] / found[REFERENCE, topics[-1]] for name in names}
    printed = {name: SYSTEMS[name].printed for name in names}
    lines.append({"K": f"ratio, K = {topics[-1]}", **{n: f"×{last[n]:.2f}" for n in names}})
    lines.append({"K": "ratio of sums", **{n: f"×{ratios[n]:.2f}" for n in names}})
    lines.append({"K": "the paper's", **{n: f"×{r:g}" if r else "" for n, r in printed.items()}})
    title = "default fit" if what == "fit" else f"EM iteration, solver tolerance {what}"
    print(f"\n{title}: CPU seconds")
    print_table(lines)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, nargs="+", default=list(range(20, 161, 20)))
    parser.add_argument("--quick", action="store_true", help="K = 20 and 80 only")
    parser.add_argument("--repeats", type=int, default=3, help="EM iterations timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/factor-CORPUS.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    corpus = corpus[corpus.lengths.nonzero()[0]]
    record = describe(
        corpus=repr(corpus),
        nnz=corpus.nnz,
        threads=args.threads,
        seed=args.seed,
        repeats=args.repeats,
        tolerances=TOLERANCES,
    )
    rows = []
    for num_topics in [20, 80] if args.quick else args.num_topics:
        for name in SYSTEMS:
            rows.append(measure(corpus, name, num_topics, args))
            print(f"K = {num_topics}, {name}: {rows[-1]['fit_cpu_seconds']:.1f} s", flush=True)
    tables = ("fit", *(f"{tolerance:g}" for tolerance in TOLERANCES))
    record["ratios"] = {what: show(rows, what) for what in tables}
    record["results"] = rows
    write_json(args.out or RESULTS / f"factor-{args.corpus.stem}.json", record)


if __name__ == "__main__":
    main()
