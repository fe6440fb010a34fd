"""How far each posterior is from long chains of the same documents under the same parameters.

    python -m benchmarks.accuracy [--num-topics 50] [--num-docs 100]

One model of each kind is fitted by the default settings. All of a kind's posteriors are then judged
under its parameters, against the same chains of the same documents: a table for each kind.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import torch_lntm as lntm
from benchmarks.common import DATA, RESULTS, Stopwatch, corpus_path, describe, write_json
from torch_lntm.corpus import Corpus
from torch_lntm.evaluation.accuracy import posterior_accuracy

#: Kind of model, its other settings, the posterior it is fitted by, and those that are judged.
CASES: tuple[tuple[str, dict[str, Any], str, tuple[str, ...]], ...] = (
    ("ctm", {}, "taylor", ("taylor", "laplace", "blei-lafferty", "khan-bouchard")),
    ("iftm", {}, "factor", ("factor", "taylor", "laplace")),
    ("iftm", {"source": "laplace"}, "factor", ("factor",)),
    ("lda", {}, "vb", ("vb", "ep")),
)


def measure(
    corpus: Corpus,
    case: tuple[str, dict[str, Any], str, tuple[str, ...]],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The accuracy of one case's posteriors, printed and as a record."""
    kind, options, fitted_by, judged = case
    make = lntm.models.CONSTRUCTORS[kind]
    model = make(args.num_topics, corpus.num_words, seed=args.seed, **options)
    guide = lntm.guides.make_guide(fitted_by, model)
    engine = lntm.inference.VariationalEM(model, guide, seed=args.seed, progress=False)
    with Stopwatch() as fit:
        engine.fit(corpus)
    guides = {name: lntm.guides.make_guide(name, model) for name in judged}
    with Stopwatch() as chains:
        result = posterior_accuracy(
            model,
            guides,
            corpus,
            num_docs=args.num_docs,
            num_samples=args.num_samples,
            seed=args.seed,
        )
    print(f"\n{model.prior.family}, K = {args.num_topics}, fitted by {fitted_by}")
    print(result)
    return {
        "model": model.prior.family,
        "fitted_by": fitted_by,
        "fit_cpu_seconds": fit.cpu_seconds,
        "accuracy_cpu_seconds": chains.cpu_seconds,
        **result.to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, default=50)
    parser.add_argument("--num-docs", type=int, default=100)
    parser.add_argument("--num-samples", type=int, default=2000, help="draws of each of 4 chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/accuracy-CORPUS.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    record = describe(
        corpus=repr(corpus),
        num_topics=args.num_topics,
        num_docs=args.num_docs,
        num_samples=args.num_samples,
        seed=args.seed,
        threads=args.threads,
    )
    record["results"] = []
    for case in CASES:
        record["results"].append(measure(corpus, case, args))
        write_json(args.out or RESULTS / f"accuracy-{args.corpus.stem}.json", record)


if __name__ == "__main__":
    main()
