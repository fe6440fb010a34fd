"""Which defaults? Starts, priors and smoothing compared by held-out completion.

    python -m benchmarks.defaults [--corpus PATH] [--num-topics 50] [--seeds 1 2 3]

Every setting differs from the defaults in one thing and is fitted to the same training documents;
the table gives the perplexity of the other half of the test documents' tokens, plugging in the mode
of theta, and the CPU seconds of the fit, each as a mean over the splits. Splits are those of the
seeds; the default seeds leave out 0, on which ``benchmarks.completion`` reports.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import DATA, RESULTS, Stopwatch, corpus_path, describe, write_json

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.evaluation import document_completion
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import Annealing, VariationalEM
from torch_lntm.models import ctm

#: (what differs, model options, engine options)
SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("defaults", {}, {}),
    ("start: documents", {}, {"start": "documents"}),
    ("start: documents, no stepwise EM", {}, {"start": "documents", "stepwise_epochs": 0}),
    ("start: documents, annealed", {}, {"start": "documents", "annealing": "ahmed-xing"}),
    (
        "start: documents, annealed, no noise",
        {},
        {"start": "documents", "annealing": Annealing(noise=0.0)},
    ),
    ("no stepwise EM", {}, {"stepwise_epochs": 0}),
    ("stochastic phases only", {}, {"max_iterations": 0}),
    ("tolerance 1e-2", {}, {"tolerance": 1e-2}),
    ("tolerance 1e-3", {}, {"tolerance": 1e-3}),
    ("tolerance 1e-4", {}, {"tolerance": 1e-4}),
    ("start epochs: 20", {}, {"start_epochs": 20}),
    ("start epochs: 80", {}, {"start_epochs": 80}),
    ("restarts: 4", {}, {"restarts": 4}),
    ("smoothing 0.02", {"topic_smoothing": 0.02}, {}),
    ("smoothing 0.1", {"topic_smoothing": 0.1}, {}),
    ("covariance prior: none", {"pseudo_documents": 0.0}, {}),
    ("covariance prior: 500 documents", {"pseudo_documents": 500.0}, {}),
    ("covariance prior: variance 3", {"pseudo_variance": 3.0}, {}),
    ("anchored", {"anchored": True}, {}),
]


def measure(
    corpus: Corpus, num_topics: int, seed: int, model: dict[str, Any], engine: dict[str, Any]
) -> tuple[float, float]:
    """Completion perplexity and CPU seconds of one setting on one split."""
    train, test = corpus.split(0.1, seed=seed)
    fitted = ctm(num_topics, corpus.num_words, **model)
    guide = TaylorGuide(fitted)
    with Stopwatch() as watch:
        VariationalEM(fitted, guide, seed=seed, progress=False, **engine).fit(train)
    return document_completion(fitted, guide, test, seed=seed).perplexity, watch.cpu_seconds


def main() -> None:
    """Run every setting on every split, print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "defaults.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus = read_corpus(corpus_path(options.corpus))
    rows: list[dict[str, Any]] = []
    print(f"{'setting':<36} {'perplexity':>10} {'vs defaults':>12} {'CPU s':>7}")
    for name, model, engine in SETTINGS:
        found = np.array(
            [measure(corpus, options.num_topics, seed, model, engine) for seed in options.seeds]
        )
        ratio = found[:, 0] / (found[:, 0] if not rows else np.array(rows[0]["perplexity"]))
        rows.append(
            {"setting": name, "perplexity": found[:, 0].tolist(), "cpu": found[:, 1].tolist()}
        )
        perplexity, seconds = found.mean(0)
        print(f"{name:<36} {perplexity:>10.0f} {ratio.mean():>12.3f} {seconds:>7.1f}", flush=True)
    settings = {name: getattr(options, name) for name in ("num_topics", "seeds", "threads")}
    write_json(options.out, {**describe(corpus=options.corpus.name, **settings), "rows": rows})


if __name__ == "__main__":
    main()
