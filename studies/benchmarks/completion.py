"""Document completion: torch_lntm beside other topic models, on one split, by one evaluator.

    python -m benchmarks.completion [--num-topics 20 50 100] [--quick]

Every system is fitted to the same 90 % of the documents in a process of its own, and seen by one
evaluator: from the system's topics and prior, the mode of theta given half of each held-out
document's tokens, then the perplexity of the other half,
exp(−Σ_d log p(held-out of d) / held-out tokens).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from benchmarks.common import (
    DATA,
    RESULTS,
    ROOT,
    corpus_path,
    describe,
    print_table,
    thread_environment,
    write_json,
)
from benchmarks.systems import SYSTEMS, ctm_sweeps
from numpy.typing import NDArray
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.evaluation import completion_perplexity, unigram_perplexity
from torch_lntm.evaluation.completion import CompletionResult
from torch_lntm.evaluation.ratio import per_token
from torch_lntm.kernels import expected_topic_counts

OURS = "torch_lntm ctm"
SLOW = "tomotopy CTM"
#: Symmetric concentrations, on the softmax scale, that "best alpha" is the best of, beside the
#: learned one times SCALES. Chosen on the very tokens scored, so it flatters whom it is given to.
ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SCALES = (1.0, 2.0, 5.0, 10.0)
MAX_UPDATES, UPDATE_TOLERANCE = 5000, 1e-6


def dirichlet_mode(observed: lntm.Corpus, topics: Tensor, alpha: Tensor) -> Tensor:
    """Mode of theta under a Dirichlet prior, its density taken on the softmax scale.

    The fixed point theta ∝ expected topic counts + alpha, iterated until no proportion moves by
    more than ``UPDATE_TOLERANCE``. On that scale the mode exists for every alpha > 0.

    Args:
        observed: The tokens to condition on.
        topics: ``(num_topics, num_words)`` float64.
        alpha: ``(num_topics,)`` float64.

    Returns:
        ``(num_docs, num_topics)`` float64.
    """
    batch = observed.batch(dtype=torch.float64)
    theta = (alpha / alpha.sum()).expand(batch.num_docs, -1)
    for _ in range(MAX_UPDATES):
        weights = expected_topic_counts(theta, topics, batch) + alpha
        weights /= weights.sum(-1, keepdim=True)
        moved = float((weights - theta).abs().max())
        theta = weights
        if moved <= UPDATE_TOLERANCE:
            break
    return theta


def logistic_normal_mode(
    observed: lntm.Corpus, topics: Tensor, loc: Tensor, covariance: Tensor
) -> Tensor:
    """Theta ``(num_docs, num_topics)`` at the mode of eta under a logistic-normal prior."""
    model = lntm.models.ctm(
        *topics.shape, topics=topics, loc=loc, covariance=covariance, dtype=torch.float64
    )
    guide = lntm.guides.LaplaceGuide(model, tolerance=1e-6, max_iterations=500)
    return guide.posterior(observed.batch(dtype=torch.float64)).theta_mode()


def score(
    fit: dict[str, NDArray[Any]], hold_out: lntm.corpus.WordHoldOut
) -> tuple[CompletionResult, CompletionResult, str]:
    """Completion under the system's own prior, and under the best Dirichlet prior of the grid."""
    observed, held_out = hold_out
    topics = torch.from_numpy(fit["topics"]).double()
    topics = topics / topics.sum(1, keepdim=True)
    candidates = {f"{alpha:g}": torch.full((len(topics),), alpha).double() for alpha in ALPHAS}
    if "alpha" in fit:
        learned = torch.from_numpy(fit["alpha"]).double()
        theta = dirichlet_mode(observed, topics, learned)
        candidates |= {f"learned × {scale:g}": learned * scale for scale in SCALES}
    else:
        loc, covariance = (torch.from_numpy(fit[name]).double() for name in ("loc", "covariance"))
        theta = logistic_normal_mode(observed, topics, loc, covariance)
    scores = {
        name: completion_perplexity(dirichlet_mode(observed, topics, alpha), topics, held_out)
        for name, alpha in candidates.items()
    }
    best = min(scores, key=lambda name: scores[name].perplexity)
    return completion_perplexity(theta, topics, held_out), scores[best], best


def fit_in_process(
    system: str, num_topics: int, train: Path, args: argparse.Namespace
) -> dict[str, NDArray[Any]]:
    """Fit one system in a process of its own and return what it wrote."""
    out = train.with_name("fit.npz")
    options = {
        "--train": train,
        "--num-topics": num_topics,
        "--seed": args.seed,
        "--threads": args.threads,
        "--out": out,
    }
    if args.ctm_sweeps:
        options["--ctm-sweeps"] = args.ctm_sweeps
    words = [str(word) for option in options.items() for word in option]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.systems", system, *words],
        cwd=ROOT,
        env=thread_environment(args.threads),
        check=True,
    )
    with np.load(out) as arrays:
        return dict(arrays)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Fit and score every system at every number of topics; print the table."""
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    train, test = corpus.split(test_fraction=0.1, seed=args.seed)
    hold_out = test.hold_out_words(observed_fraction=0.5, seed=args.seed)
    systems = [name for name in args.systems if not (args.quick and name == SLOW)]
    record = describe(
        corpus=corpus.name,
        train=repr(train),
        test=repr(test),
        held_out_tokens=hold_out.held_out.num_tokens,
        seed=args.seed,
        threads=args.threads,
        evaluator="theta at its mode given half of the tokens (Dirichlet: on the softmax scale), "
        "perplexity of the rest; standard error over documents by the delta method",
        best_alpha="best of a grid of Dirichlet priors, chosen on the tokens scored",
    )
    unigram = unigram_perplexity(train, hold_out.held_out, smoothing=1.0)
    record["unigram"] = {
        "perplexity": unigram.perplexity,
        "standard_error": unigram.standard_error,
        "smoothing": 1.0,
    }
    record["results"] = results = []
    scores: dict[tuple[str, int], CompletionResult] = {}
    print(f"{corpus!r}: {train.num_docs} training and {test.num_docs} test documents")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npz"
        sp.save_npz(path, train.to_scipy())
        for num_topics in args.num_topics:
            for system in systems:
                print(f"fitting {system}, K = {num_topics} ...", file=sys.stderr, flush=True)
                fit = fit_in_process(system, num_topics, path, args)
                own, best, best_alpha = score(fit, hold_out)
                scores[system, num_topics] = own
                results.append(
                    {
                        "system": system,
                        "num_topics": num_topics,
                        "perplexity": own.perplexity,
                        "standard_error": own.standard_error,
                        "perplexity_best_alpha": best.perplexity,
                        "best_alpha": best_alpha,
                        **json.loads(str(fit["record"])),
                    }
                )
    _add_ratios(results, scores)
    print_table([_cells(row) for row in results])
    print(f"unigram: perplexity {unigram.perplexity:.0f} ± {unigram.standard_error:.0f}")
    print(
        "'better by' is how much lower this package's nats per held-out token are, with the\n"
        "standard error of the difference over the same documents. tomotopy's seconds leave out\n"
        "add_doc()."
    )
    if SLOW in systems:
        sweeps = (f"{args.ctm_sweeps or ctm_sweeps(k)} at K = {k}" for k in args.num_topics)
        print(f"sweeps of {SLOW}: {', '.join(sweeps)}; more may improve it")
    return record


def _add_ratios(
    results: list[dict[str, Any]], scores: dict[tuple[str, int], CompletionResult]
) -> None:
    """Add to each row how it compares with this package's of the same number of topics."""
    for row in results:
        num_topics = row["num_topics"]
        ours = next(
            (r for r in results if r["system"] == OURS and r["num_topics"] == num_topics), None
        )
        if ours is None or ours is row:
            continue
        a, b = scores[OURS, num_topics], scores[row["system"], num_topics]
        gain, error = per_token(a.log_predictive - b.log_predictive, a.held_out_tokens)
        row["versus_ours"] = {
            "perplexity_ratio": row["perplexity"] / ours["perplexity"],
            "cpu_ratio": row["cpu_seconds"] / ours["cpu_seconds"],
            "nats_per_token_worse": gain,
            "nats_per_token_worse_standard_error": error,
        }


def _cells(row: dict[str, Any]) -> dict[str, str]:
    versus = row.get("versus_ours")
    cells = {
        "system": row["system"],
        "K": str(row["num_topics"]),
        "perplexity ± s.e.": f"{row['perplexity']:.0f} ± {row['standard_error']:.0f}",
        "(best alpha)": f"{row['perplexity_best_alpha']:.0f} ({row['best_alpha']})",
        "CPU s": f"{row['cpu_seconds']:.1f}",
        "wall s": f"{row['wall_seconds']:.1f}",
        "peak MB": f"{row['peak_mb']:.0f}",
        "× perplexity": "",
        "× CPU": "",
        "better by (nats/token)": "",
    }
    if versus:
        worse = versus["nats_per_token_worse"]
        cells["× perplexity"] = f"{versus['perplexity_ratio']:.3f}"
        cells["× CPU"] = f"{versus['cpu_ratio']:.2f}"
        cells["better by (nats/token)"] = (
            f"{worse:.3f} ± {versus['nats_per_token_worse_standard_error']:.3f}"
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help=f"leave out {SLOW}, which is slow")
    parser.add_argument("--ctm-sweeps", type=int, help=f"sweeps of {SLOW}, whatever K")
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/completion-CORPUS.json"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    out = args.out or RESULTS / f"completion-{args.corpus.stem}.json"
    write_json(out, compare(args))


if __name__ == "__main__":
    main()
