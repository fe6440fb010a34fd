"""Fit 100,000 documents on two threads: time, memory, completion.

python -m benchmarks.scale [--num-topics 50]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from benchmarks.common import (
    DATA,
    RESULTS,
    Stopwatch,
    corpus_path,
    describe,
    memory_mb,
    write_json,
)

# Before the package: what is imported from here on counts as the fit's memory.
IMPORTED_MB = memory_mb()

from benchmarks.systems import phase_seconds  # noqa: E402

import torch_lntm as lntm  # noqa: E402
from torch_lntm.evaluation import document_completion, unigram_perplexity  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "imdb100k.npz")
    parser.add_argument("--num-topics", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--test-fraction", type=float, default=0.01)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/scale-CORPUS.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    train, test = corpus.split(test_fraction=args.test_fraction, seed=args.seed)
    record = describe(
        corpus=corpus.name,
        train=repr(train),
        test=repr(test),
        nnz=train.nnz,
        num_topics=args.num_topics,
        seed=args.seed,
        threads=args.threads,
    )
    read_peak = memory_mb(peak=True)

    model = lntm.models.ctm(args.num_topics, train.num_words, seed=args.seed)
    guide = lntm.guides.TaylorGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, seed=args.seed)
    with Stopwatch() as stopwatch:
        result = engine.fit(train)
    peak = memory_mb(peak=True)

    hold_out = test.hold_out_words(observed_fraction=0.5, seed=args.seed)
    completion = document_completion(model, guide, hold_out)
    unigram = unigram_perplexity(train, hold_out.held_out, smoothing=1.0)
    record["results"] = {
        "wall_seconds": stopwatch.wall_seconds,
        "cpu_seconds": stopwatch.cpu_seconds,
        "docs_per_second": train.num_docs / stopwatch.wall_seconds,
        "peak_mb": peak - IMPORTED_MB,
        "peak_mb_after_reading": read_peak - IMPORTED_MB,
        "perplexity": completion.perplexity,
        "standard_error": completion.standard_error,
        "unigram_perplexity": unigram.perplexity,
        "stop_reason": result.stop_reason,
        "unconverged": result.num_unconverged,
        "phases": phase_seconds(result.history),
    }
    print(f"{train!r}, K = {args.num_topics}, {args.threads} threads")
    for name, value in record["results"].items():
        print(f"  {name}: {value:.1f}" if isinstance(value, float) else f"  {name}: {value}")
    write_json(args.out or RESULTS / f"scale-{args.corpus.stem}.json", record)


if __name__ == "__main__":
    main()
