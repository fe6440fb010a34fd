"""Document completion: torch_lntm beside other topic models, on one split, by one evaluator.

Every system is fitted to the same 90 % of the documents in a process of its own. One evaluator
scores all systems. From the system's topics and prior it finds the mode of theta given half of each
held-out document's tokens, then the perplexity of the other half,
exp(−Σ_d log p(held-out of d) / held-out tokens). ``studies/README.md`` explains the fairness.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks.systems import ALL_SYSTEMS, SYSTEMS, ctm_sweeps
from studies.machine import ROOT, thread_environment
from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.scores.completion import completion_of, completion_perplexity
from studies.tables import table_of
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import CompletionResult, unigram_perplexity
from torch_lntm.evaluation.completion.theta import dirichlet_modes

OURS = "torch_lntm ctm"
SLOW = "tomotopy CTM"
#: "Best alpha" is the best of these symmetric concentrations, on the softmax scale, and of the
#: learned concentration times SCALES. The scored tokens choose it, and so it flatters the system.
ALPHAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SCALES = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Numbers of topics.
        systems: Systems to fit.
        threads: Threads of each system.
        ctm_sweeps: Sweeps of tomotopy's CTModel; None for 1,000, but 125 at K = 100.
        seed: Seed of the split, the hold-out and the fits.
    """

    corpus: str = "ap"
    num_topics: tuple[int, ...] = (20, 50, 100)
    systems: tuple[str, ...] = tuple(SYSTEMS)
    threads: int = 2
    ctm_sweeps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"num_topics": 2, "threads": 1, "seed": 0})
        check_choices(self, "systems", SYSTEMS)


def score(
    fit: dict[str, NDArray[Any]], hold_out: lntm.corpus.WordHoldOut[lntm.Corpus]
) -> tuple[CompletionResult, CompletionResult, str]:
    """Completion under the system's own prior, and under the best Dirichlet prior of the grid."""
    observed, held_out = hold_out
    topics = torch.from_numpy(fit["topics"]).double()
    topics = topics / topics.sum(1, keepdim=True)
    candidates = {f"{alpha:g}": torch.full((len(topics),), alpha).double() for alpha in ALPHAS}
    if "alpha" in fit:
        learned = torch.from_numpy(fit["alpha"]).double()
        candidates |= {f"learned × {scale:g}": learned * scale for scale in SCALES}
    batch = observed.batch(dtype=torch.float64)
    scores = {
        name: completion_perplexity(dirichlet_modes(batch, topics, alpha), topics, held_out)
        for name, alpha in candidates.items()
    }
    best = min(scores, key=lambda name: scores[name].perplexity)
    return completion_of(prior_of(fit), topics, hold_out, "mode"), scores[best], best


def prior_of(fit: dict[str, NDArray[Any]]) -> Any:
    """The prior of a fit, in the form of :func:`completion_of`."""
    return fit["alpha"] if "alpha" in fit else (fit["loc"], fit["covariance"])


def fit_in_process(
    system: str,
    train: Path,
    *,
    num_topics: int,
    seed: int,
    threads: int,
    ctm_sweeps: int | None = None,
    covariates: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Fit one system in a process of its own and return the fit.

    Args:
        system: Name of the system.
        train: scipy's file of the training counts. The fit is written beside it.
        num_topics: Number of topics.
        seed: Seed of the fit.
        threads: Threads of the process.
        ctm_sweeps: Sweeps of tomotopy's CTModel. None for the study's choice.
        covariates: numpy's file of the training documents' covariates, for a structural model.
        options: Options of the system in place of its own settings.
    """
    out = train.with_name("fit.npz")
    arguments: dict[str, Any] = {
        "--train": train,
        "--num-topics": num_topics,
        "--seed": seed,
        "--threads": threads,
        "--out": out,
    }
    if ctm_sweeps:
        arguments["--ctm-sweeps"] = ctm_sweeps
    if covariates is not None:
        arguments["--covariates"] = covariates
    if options:
        arguments["--options"] = json.dumps(dict(options))
    words = [str(word) for argument in arguments.items() for word in argument]
    subprocess.run(
        [sys.executable, "-m", "studies.benchmarks.systems", system, *words],
        cwd=ROOT,
        env=thread_environment(threads),
        check=True,
    )
    with np.load(out, allow_pickle=False) as arrays:
        return dict(arrays)


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        corpus: Sizes of the parts, and the perplexity of the training documents' frequencies.
        rows: One row for each system and number of topics.
    """

    settings: Settings
    corpus: dict[str, Any]
    rows: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every system at every number of topics.

    Raises:
        ConfigError: A system is not installed, or the corpus does not exist.
    """
    check_installed(settings.systems)
    torch.set_num_threads(settings.threads)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    train, test = corpus.split(test_fraction=0.1, seed=settings.seed)
    hold_out = test.hold_out_words(observed_fraction=0.5, seed=settings.seed)

    def parts() -> dict[str, Any]:
        unigram = unigram_perplexity(train, hold_out.held_out, smoothing=1.0)
        return {
            "train": repr(train),
            "test": repr(test),
            "held_out_tokens": hold_out.held_out.num_tokens,
            "unigram_perplexity": unigram.perplexity,
            "unigram_standard_error": unigram.perplexity_standard_error,
        }

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.npz"
        sp.save_npz(path, train.to_scipy())

        def compare(key: tuple[str, int, str]) -> dict[str, Any]:
            _, num_topics, system = key
            fit = fit_in_process(
                system,
                path,
                num_topics=num_topics,
                seed=settings.seed,
                threads=settings.threads,
                ctm_sweeps=settings.ctm_sweeps,
            )
            own, best, best_alpha = score(fit, hold_out)
            return {
                "system": system,
                "num_topics": num_topics,
                "perplexity": own.perplexity,
                "standard_error": own.perplexity_standard_error,
                "perplexity_best_alpha": best.perplexity,
                "best_alpha": best_alpha,
                **json.loads(str(fit["record"])),
                "log_predictive": own.log_predictive.tolist(),
                "held_out_tokens": own.held_out_tokens.tolist(),
            }

        keys = product(["topics"], settings.num_topics, settings.systems)
        return Result(settings, cells.one("corpus", parts), cells.each(keys, compare))


def missing_library(system: str) -> str | None:
    """The library of a system, if it is not installed."""
    library = ALL_SYSTEMS[system][0].partition(".")[0]
    return library if find_spec(library) is None else None


def check_installed(systems: tuple[str, ...]) -> None:
    """Find the library of every system.

    Raises:
        ConfigError: A library is not installed.
    """
    for system in systems:
        library = missing_library(system)
        if library is not None:
            raise ConfigError(
                f"{system!r} needs {library}, which is not installed; "
                "pip install -r studies/requirements.txt, or leave it out of --systems"
            )


def difference(row: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Gain of a row over another in nats per held-out token, with its standard error.

    The error is that of a ratio of sums over the same documents, by the delta method.
    """
    tokens = np.array(row["held_out_tokens"])
    gain = np.array(row["log_predictive"]) - np.array(other["log_predictive"])
    gain, tokens = gain[tokens > 0], tokens[tokens > 0]
    ratio = gain.sum() / tokens.sum()
    residual = np.square(gain - ratio * tokens).sum() * len(tokens) / (len(tokens) - 1)
    return float(ratio), float(np.sqrt(residual) / tokens.sum())


def tables(result: Result) -> str:
    """A row for each system and number of topics, each beside this package's row."""
    ours = {row["num_topics"]: row for row in result.rows if row["system"] == OURS}
    corpus = result.corpus
    text = (
        f"{corpus['train']}, {corpus['test']}\n\n"
        f"{table_of([_cells(row, ours.get(row['num_topics'])) for row in result.rows])}\n\n"
        f"unigram: perplexity {corpus['unigram_perplexity']:.0f} ± "
        f"{corpus['unigram_standard_error']:.0f}\n\n"
        "'ours better by' is how much lower this package's nats per held-out token are, with the\n"
        "standard error of the difference over the same documents. tomotopy's seconds leave out\n"
        "add_doc()."
    )
    if SLOW in result.settings.systems:
        given = result.settings.ctm_sweeps
        sweeps = (f"{given or ctm_sweeps(k)} at K = {k}" for k in result.settings.num_topics)
        text += f"\n\nsweeps of {SLOW}: {', '.join(sweeps)}; more may improve it"
    return text


def _cells(row: dict[str, Any], ours: dict[str, Any] | None) -> dict[str, str]:
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
        "ours better by (nats/token)": "",
    }
    if ours is not None and ours is not row:
        gain, error = difference(ours, row)
        cells["× perplexity"] = f"{row['perplexity'] / ours['perplexity']:.3f}"
        cells["× CPU"] = f"{row['cpu_seconds'] / ours['cpu_seconds']:.2f}"
        cells["ours better by (nats/token)"] = f"{gain:.3f} ± {error:.3f}"
    return cells


STUDY = Study(
    Settings, run, tables, quick={"systems": tuple(name for name in SYSTEMS if name != SLOW)}
)
