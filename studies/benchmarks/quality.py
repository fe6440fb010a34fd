"""Held-out words of several systems by one fair score: theta integrated out exactly.

Every system is fitted with one thread in a process of its own. From its topics and its prior the
held-out half of each test document's tokens is scored twice: at the exact posterior mean of theta
given the observed half (``studies.scores.completion``), and at the mode on the softmax
scale. Splits are frozen: ``studies/results/quality-splits.json`` has their hashes. A system without
its library is skipped, and measured later by the same command.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from studies.benchmarks.completion import fit_in_process, missing_library, prior_of
from studies.benchmarks.frozen import CORPORA, MAX_DOCS, MAX_TEST_DOCS, SEEDS, Frozen, frozen
from studies.benchmarks.splits import Scores, difference, pooled
from studies.benchmarks.systems import SYSTEMS
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers
from studies.scores.completion import completion_of
from studies.tables import table_of
from torch_lntm.corpus import Corpus
from torch_lntm.errors import LNTMError, UnreliableEstimateWarning
from torch_lntm.evaluation import CompletionResult, unigram_perplexity
from torch_lntm.evaluation.completion.result import ExactCompletion

UNIGRAM, OWN_COUNTS = "unigram", "unigram and own counts"
#: Default systems: this package's, and the peers.
CHOSEN = (
    *("torch_lntm ctm", "torch_lntm lda, VB", "torch_lntm iftm", "torch_lntm ctm, auto"),
    *("tomotopy LDA", "tomotopy CTM", "topica LDA", "topica CTM"),
    *("scikit-learn LDA", "gensim LDA"),
)
#: Training documents and iterations for the weight of a document's own counts.
WEIGHT_DOCS, WEIGHT_ITERATIONS = 2000, 200


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        num_topics: Numbers of topics.
        seeds: Seeds, each of a split, a hold-out and the fits.
        systems: Systems to fit.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
        ctm_sweeps: Sweeps of tomotopy's CTModel; None for 1,000, but 125 at K = 100.
    """

    corpora: tuple[str, ...] = CORPORA
    num_topics: tuple[int, ...] = (50, 100)
    seeds: tuple[int, ...] = SEEDS
    systems: tuple[str, ...] = CHOSEN
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.001
    ctm_sweeps: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 0, "max_docs": 2, "max_test_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", SYSTEMS)
        check_filled(self, "corpora", "num_topics", "seeds")


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        splits: One for each corpus and seed: its sizes, hashes, test documents and baselines.
        rows: One for each corpus, number of topics, seed and system.
        skipped: Skipped systems, and their missing libraries.
    """

    settings: Settings
    splits: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    skipped: dict[str, str]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every system on every corpus.

    Raises:
        ConfigError: A corpus does not exist, or a split differs from its frozen record.
        CorpusError: The scored tokens differ from their frozen record.
    """
    torch.set_num_threads(1)
    lacking = {system: missing_library(system) for system in settings.systems}
    systems = [system for system, library in lacking.items() if library is None]

    @cache
    def split_of(corpus: str, seed: int) -> Frozen:
        return frozen(corpus, seed, settings.max_docs, settings.max_test_docs)

    def describe(corpus: str, seed: int) -> dict[str, Any]:
        split = split_of(corpus, seed)
        held_out = split.hold_out.held_out
        unigram = unigram_perplexity(split.train, held_out, smoothing=1.0)
        weight = own_weight(split.train, seed)
        mixed = own_counts_completion(split.train, split.hold_out, weight)
        return {
            "corpus": corpus,
            "seed": seed,
            "train": repr(split.train),
            "test_docs": len(held_out),
            "held_out_tokens": held_out.num_tokens,
            "dropped_tokens": split.dropped_tokens,
            **split.hashes,
            "test_index": packed(split.test_index),
            "tokens": packed(held_out.lengths),
            UNIGRAM: packed(unigram.log_predictive.tolist(), 4),
            OWN_COUNTS: packed(mixed.log_predictive.tolist(), 4),
            "own_weight": weight,
        }

    splits: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    # Seed by seed: the first seed already compares all systems.
    for seed, corpus in product(settings.seeds, settings.corpora):
        split = cells.one(f"split, {corpus}, {seed}", partial(describe, corpus, seed))
        splits.append(split)

        def compare(key: tuple[str, int, int, str]) -> dict[str, Any]:
            corpus, num_topics, seed, system = key
            found = measured(
                split_of(corpus, seed),
                system,
                num_topics,
                seed,
                settings.tolerance,
                ctm_sweeps=settings.ctm_sweeps,
            )
            return {
                "corpus": corpus,
                "num_topics": num_topics,
                "seed": seed,
                "system": system,
                **found,
            }

        keys = product([corpus], settings.num_topics, [seed], systems)
        rows += cells.each(keys, compare)
        split_of.cache_clear()
    skipped = {system: library for system, library in lacking.items() if library is not None}
    return Result(settings, splits, rows, skipped)


def measured(
    split: Frozen,
    system: str,
    num_topics: int,
    seed: int,
    tolerance: float,
    *,
    ctm_sweeps: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fit of a system and its two scores, or the reason of a failure.

    Args:
        split: The split.
        system: Name of the system.
        num_topics: Number of topics.
        seed: Seed of the fit and of the scores.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
        ctm_sweeps: Sweeps of tomotopy's CTModel. None for the study's choice.
        options: Options of the system in place of its own settings.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.npz"
            sp.save_npz(path, split.train.to_scipy())
            fit = fit_in_process(
                system,
                path,
                num_topics=num_topics,
                seed=seed,
                threads=1,
                ctm_sweeps=ctm_sweeps,
                options=options,
            )
        stopwatch = Stopwatch()
        with stopwatch, warnings.catch_warnings():
            # The row holds the error of the simulation.
            warnings.simplefilter("ignore", UnreliableEstimateWarning)
            mean, mode = (
                completion_of(
                    prior_of(fit),
                    fit["topics"],
                    split.hold_out,
                    theta,
                    tolerance=tolerance,
                    seed=seed,
                    fingerprint=split.hashes["hold_out_fingerprint"],
                )
                for theta in ("exact", "mode")
            )
    except subprocess.CalledProcessError as error:
        return {"failed": f"the fit ended with {error.returncode}"}
    except LNTMError as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    assert isinstance(mean, ExactCompletion)
    return {
        "log_predictive": packed(mean.log_predictive.tolist(), 4),
        "log_predictive_mode": packed(mode.log_predictive.tolist(), 4),
        "simulation_error": mean.simulation_error,
        "simulation_bias": mean.simulation_bias,
        "within_tolerance": mean.within_tolerance,
        "max_rhat": mean.max_rhat,
        "share_above_rhat": mean.share_above_rhat,
        "scoring_cpu_seconds": stopwatch.cpu_seconds,
        **json.loads(str(fit["record"])),
    }


def packed(values: Iterable[float], digits: int = 0) -> str:
    """Numbers as one string, on one line of JSON; a list takes a line for each number."""
    return " ".join(f"{value:.{digits}f}" for value in values)


def unpacked(text: str) -> torch.Tensor:
    """The numbers of a string, float64."""
    return torch.tensor([float(value) for value in text.split()], dtype=torch.float64)


# -------------------------------------------------------------------- a document's own counts


def own_weight(train: Corpus, seed: int) -> float:
    """The weight of a document's own observed frequencies that predicts training documents best."""
    some = np.random.default_rng(seed).permutation(train.num_docs)[:WEIGHT_DOCS]
    unigram, own, counts, _ = _own_shares(
        train, train[np.sort(some)].hold_out_words(0.5, seed=seed)
    )
    weight = 0.5
    for _ in range(WEIGHT_ITERATIONS):
        share = weight * own / (weight * own + (1.0 - weight) * unigram)
        weight = float((counts * share).sum() / counts.sum())
    return weight


def own_counts_completion(train: Corpus, hold_out: Any, weight: float) -> CompletionResult:
    """Scores under the corpus's word frequencies mixed with the document's own frequencies."""
    unigram, own, counts, row = _own_shares(train, hold_out)
    scores = counts * np.log((1.0 - weight) * unigram + weight * own)
    return CompletionResult(
        torch.from_numpy(np.bincount(row, scores, minlength=len(hold_out.corpus))),
        torch.tensor(hold_out.held_out.lengths),
        "given",
        f"unigram frequencies and {weight:.3f} of the document's own",
    )


def _own_shares(train: Corpus, hold_out: Any) -> tuple[np.ndarray, ...]:
    """For each held-out entry: frequency in the corpus, in the document, count and document."""
    observed, held_out = (part.to_scipy() for part in hold_out)
    total = np.bincount(train.word_index, train.counts, minlength=train.num_words) + 1.0
    row = np.repeat(np.arange(held_out.shape[0]), np.diff(held_out.indptr))
    length = np.maximum(np.asarray(observed.sum(1)).ravel(), 1)
    own = np.asarray(observed[row, held_out.indices]).ravel() / length[row]
    return (total / total.sum())[held_out.indices], own, held_out.data.astype(float), row


# -------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Score:
    """Scores of a system over all seeds, document by document of the corpus.

    Attributes:
        exact: At the exact mean of theta, by seed.
        mode: At the mode, all seeds together. None for a system without theta.
        rows: The scored rows.
    """

    exact: dict[int, Scores]
    mode: CompletionResult | None
    rows: list[dict[str, Any]]

    @property
    def total(self) -> CompletionResult:
        """Scores at the exact mean, all seeds together."""
        return pooled(list(self.exact.values()))


def tables(result: Result) -> str:
    """A table for each corpus, with differences to the best peer at the same number of topics."""
    parts = [_table(result, corpus) for corpus in result.settings.corpora]
    parts += [f"skipped: {name} ({lib} is not installed)" for name, lib in result.skipped.items()]
    parts.append(
        "perplexity: exact posterior mean of theta given the observed half, over all seeds; "
        "s.e. over\ndocuments. (mode): theta at its mode on the softmax scale. Simulation: "
        "Monte-Carlo s.e. in nats per\ntoken, and the share of documents with an R-hat above "
        "1.05. 'better by': nats per token above the\nbest peer, with the "
        "s.e. over documents and seeds; over documents\nalone with one seed. A document tested by "
        "several seeds counts once."
    )
    return "\n\n".join(parts)


def _table(result: Result, corpus: str) -> str:
    splits = {split["seed"]: split for split in result.splits if split["corpus"] == corpus}
    lines = []
    for num_topics in result.settings.num_topics:
        rows = [r for r in result.rows if (r["corpus"], r["num_topics"]) == (corpus, num_topics)]
        scores = {
            system: _score([row for row in rows if row["system"] == system], splits)
            for system in result.settings.systems
            if system not in result.skipped
        }
        for name in (UNIGRAM, OWN_COUNTS):
            exact = {seed: scores_of(split, split[name]) for seed, split in splits.items()}
            scores[name] = Score(exact, None, [])
        scored = {name: score for name, score in scores.items() if isinstance(score, Score)}
        peers = [name for name, score in scored.items() if score.rows and not _ours(name)]
        best = max(peers, key=lambda name: scored[name].total.nats_per_token, default=None)
        for name, score in scores.items():
            lines.append({"system": name, "K": str(num_topics), **_cells(score, best, scored)})
    first = next(iter(splits.values()))
    head = f"## {Path(corpus).stem}\n\n{first['train']}, {first['test_docs']} test documents"
    return f"{head}, {len(splits)} seeds\n\n{table_of(lines)}"


def _ours(system: str) -> bool:
    return system.startswith("torch_lntm")


def _score(rows: list[dict[str, Any]], splits: dict[int, dict[str, Any]]) -> Score | str:
    """The scores of a system's rows, or the reason of a failure."""
    failed = [row["failed"] for row in rows if "failed" in row]
    if failed:
        return str(failed[0])
    exact, mode = (
        {row["seed"]: scores_of(splits[row["seed"]], row[name]) for row in rows}
        for name in ("log_predictive", "log_predictive_mode")
    )
    return Score(exact, pooled(list(mode.values())), rows)


def scores_of(split: dict[str, Any], nats: str) -> Scores:
    """Scores on a split, from its record and a row's :func:`packed` numbers."""
    return Scores(unpacked(split["test_index"]), unpacked(nats), unpacked(split["tokens"]))


def _cells(score: Score | str, best: str | None, scored: dict[str, Score]) -> dict[str, str]:
    names = ("perplexity ± s.e.", "(mode)", "simulation", "CPU s", "better by", "than")
    cells = dict.fromkeys(names, "")
    if isinstance(score, str):
        return cells | {"perplexity ± s.e.": "failed"}
    total = score.total
    cells["perplexity ± s.e."] = f"{total.perplexity:.1f} ± {total.perplexity_standard_error:.1f}"
    if score.mode is not None:
        error, share, seconds = (
            float(np.mean([row[name] for row in score.rows]))
            for name in ("simulation_error", "share_above_rhat", "cpu_seconds")
        )
        reached = "" if all(row["within_tolerance"] for row in score.rows) else " (!)"
        cells["(mode)"] = f"{score.mode.perplexity:.1f}"
        cells["simulation"] = f"{error:.4f}{reached}, {share:.0%}"
        cells["CPU s"] = f"{seconds:.1f}"
    if best is not None and scored[best] is not score:
        found = difference(list(score.exact.values()), list(scored[best].exact.values()))
        error = found.document_error if math.isnan(found.error) else found.error
        cells |= {"better by": f"{found.gain:.4f} ± {error:.4f}", "than": best}
    return cells


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("m10",),
        "num_topics": (20,),
        "seeds": (0,),
        "systems": ("torch_lntm ctm", "torch_lntm lda, VB", "scikit-learn LDA"),
        "max_docs": 1000,
        "max_test_docs": 100,
    },
    selects=("corpora", "num_topics", "seeds", "systems"),
)
