"""The Dirichlet model's E-steps: variational Bayes beside scikit-learn's, and EP's cost per pass.

    python -m benchmarks.aspect [--num-topics 50] [--concentration 0.1]

Everything on the same documents, topics and concentration, from equal proportions, with one
thread. *VB* is this package's fixed point, *scikit-learn* the E-step of its
LatentDirichletAllocation given the same topics, in float64, which is its default. Their error is
the mean over topics of |γ − γ*|, tokens, γ* by VB to 1e-9. Each is timed at the loosest tolerance
of its grid at which 95 % of the documents have an error below 1e-4. Documents that ended in another
local optimum than γ* are counted apart (an error above 0.1).

A pass goes over all stored counts once. Its cost is the difference in time of two numbers of
passes without convergence, divided by their difference, so that setting up drops out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from sklearn.decomposition import LatentDirichletAllocation
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.inference.start import document_topics
from torch_lntm.kernels import expected_counts, expected_topic_counts
from torch_lntm.solvers.vb import vb

ERROR, QUANTILE = 1e-4, 0.95
#: Below it two solutions are of one local optimum.
OPTIMUM = 0.1
VB_TOLERANCES = tuple(2.0**-n * 1e-4 for n in range(9))
SKLEARN_TOLERANCES = tuple(2.0**-n * 1e-3 for n in range(12))
PASSES = (3, 13)
REPEATS = 3
MOST_ITERATIONS = 5000


def plausible_topics(corpus: Corpus, num_topics: int) -> Tensor:
    """Topics ``(num_topics, num_words)`` float64 by 60 rounds of EM from a few documents each."""
    batch = corpus.batch().to(dtype=torch.float32)
    topics = document_topics(corpus, num_topics, seed=0).float()
    theta = torch.full((corpus.num_docs, num_topics), 1.0 / num_topics)
    for _ in range(60):
        for _ in range(3):
            theta = expected_topic_counts(theta, topics, batch) + 0.3
            theta /= theta.sum(-1, keepdim=True)
        found = expected_counts(theta, topics, batch, word_counts=True)
        assert found.word_counts is not None
        topics = found.word_counts + 0.05
        topics /= topics.sum(-1, keepdim=True)
    topics = topics.double()
    return topics / topics.sum(-1, keepdim=True)


def cpu_seconds(run: Callable[[], object]) -> float:
    """The least of a few runs."""
    taken = []
    for _ in range(REPEATS):
        with Stopwatch() as watch:
            run()
        taken.append(watch.cpu_seconds)
    return min(taken)


def by_vb(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    tolerance: float,
    max_iterations: int = MOST_ITERATIONS,
) -> np.ndarray:
    """γ ``(num_docs, num_topics)`` from equal proportions."""
    num_topics = len(concentration)
    found = vb(
        batch,
        topics.to(batch.dtype),
        concentration,
        start=torch.full((batch.num_docs, num_topics), 1.0 / num_topics),
        tolerance=tolerance,
        max_iterations=max_iterations,
    )
    return found.gamma.numpy()


def by_sklearn(
    corpus: Corpus, topics: Tensor, concentration: Tensor, tolerance: float
) -> np.ndarray:
    """γ ``(num_docs, num_topics)`` from γ = 1, whose first update is that of equal proportions."""
    model = LatentDirichletAllocation(
        len(topics),
        doc_topic_prior=float(concentration[0]),
        mean_change_tol=tolerance,
        max_doc_update_iter=MOST_ITERATIONS,
    )
    # What a fit leaves; the topics themselves stand in for exp(E log topics).
    model.doc_topic_prior_ = model.doc_topic_prior
    model.exp_dirichlet_component_ = topics.numpy()
    counts = corpus.to_scipy().astype(np.float64)
    gamma, _ = model._e_step(counts, cal_sstats=False, random_init=False)
    return gamma


def loosest(
    name: str, solve: Callable[[float], np.ndarray], tolerances: tuple[float, ...], best: np.ndarray
) -> dict[str, Any]:
    """The loosest tolerance that is accurate enough (or the tightest), and what it costs."""
    for tolerance in tolerances:
        error = np.abs(solve(tolerance) - best).mean(1)
        if np.quantile(error, QUANTILE) <= ERROR:
            break
    return {
        "system": name,
        "tolerance": tolerance,
        "accurate": bool(np.quantile(error, QUANTILE) <= ERROR),
        "error_quantile": float(np.quantile(error, QUANTILE)),
        "other_optima": int((error > OPTIMUM).sum()),
        "cpu_seconds": cpu_seconds(lambda: solve(tolerance)),
    }


def seconds_per_pass(run: Callable[[int], object]) -> float:
    """CPU seconds of a pass of ``run(passes)``."""
    few, many = (cpu_seconds(partial(run, passes)) for passes in PASSES)
    return (many - few) / (PASSES[1] - PASSES[0])


def measure_passes(
    batch: DocumentBatch, topics: Tensor, concentration: Tensor
) -> dict[str, float | str]:
    """Cost of a pass of VB and of EP in the dtype of the batch; neither converges."""
    from torch_lntm.solvers.ep import ep

    vb_pass = seconds_per_pass(lambda n: by_vb(batch, topics, concentration, 1e-300, n))
    ep_pass = seconds_per_pass(
        lambda n: ep(
            batch, topics.to(batch.dtype), concentration, tolerance=1e-300, max_iterations=n
        )
    )
    return {
        "dtype": str(batch.dtype).removeprefix("torch."),
        "vb_cpu_seconds": vb_pass,
        "ep_cpu_seconds": ep_pass,
        "ep_over_vb": ep_pass / vb_pass,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, default=50)
    parser.add_argument("--concentration", type=float, default=0.1)
    parser.add_argument("--skip-passes", action="store_true", help="measure VB's E-step only")
    parser.add_argument("--out", type=Path, default=RESULTS / "aspect.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    record = describe(
        corpus=repr(corpus),
        num_topics=args.num_topics,
        concentration=args.concentration,
        threads=1,
        error=ERROR,
        quantile=QUANTILE,
    )
    topics = plausible_topics(corpus, args.num_topics)
    concentration = torch.full((args.num_topics,), args.concentration, dtype=torch.float64)
    batches = {
        dtype: corpus.batch().to(dtype=getattr(torch, dtype)) for dtype in ("float32", "float64")
    }
    best = by_vb(batches["float64"], topics, concentration, 1e-9)
    rows = [
        loosest(f"VB {dtype}", partial(by_vb, batch, topics, concentration), VB_TOLERANCES, best)
        for dtype, batch in batches.items()
    ]
    peer = loosest(
        "scikit-learn float64",
        partial(by_sklearn, corpus, topics, concentration),
        SKLEARN_TOLERANCES,
        best,
    )
    rows.append(peer)
    record["e_step"] = rows
    record["vb_over_scikit_learn"] = rows[0]["cpu_seconds"] / peer["cpu_seconds"]
    print_table(
        [
            {
                "E-step": row["system"],
                "tolerance": f"{row['tolerance']:.0e}",
                "error": f"{row['error_quantile']:.1e}",
                "other optima": str(row["other_optima"]),
                "CPU s": f"{row['cpu_seconds']:.2f}",
                "of scikit-learn": f"{row['cpu_seconds'] / peer['cpu_seconds']:.2f}",
            }
            for row in rows
        ]
    )
    if not args.skip_passes:
        passes = [measure_passes(batch, topics, concentration) for batch in batches.values()]
        record["passes"] = passes
        print_table(
            [
                {
                    "one pass": str(row["dtype"]),
                    "VB ms": f"{1e3 * float(row['vb_cpu_seconds']):.1f}",
                    "EP ms": f"{1e3 * float(row['ep_cpu_seconds']):.1f}",
                    "EP/VB": f"{row['ep_over_vb']:.1f}",
                }
                for row in passes
            ]
        )
    write_json(args.out, record)


if __name__ == "__main__":
    main()
