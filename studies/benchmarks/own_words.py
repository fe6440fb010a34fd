"""Held-out words with and without the document's own observed words.

The splits, the fits and the rule are those of the study ``quality``: theta at its exact posterior
mean. The own words are mixed in as ``torch_lntm.evaluation.document_completion`` says, with the
weight under which a hold-out of training documents is most probable; a bursty model has found its
own. The corpus's word frequencies are a system too, as one topic.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from studies.benchmarks.completion import fit_in_process, missing_library, prior_of
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, Frozen, frozen
from studies.benchmarks.quality import UNIGRAM, packed, unpacked
from studies.benchmarks.systems import SYSTEMS
from studies.measure import Cells, Study, check_choices, check_numbers
from studies.tables import table_of
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation import (
    CompletionResult,
    ExactCompletion,
    completion_of,
    fit_own_words,
    paired_difference,
)

#: Both predictions, by their names in rows and in tables.
PREDICTIONS = {"alone": "topics alone", "own": "and own words"}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        num_topics: Topics.
        seed: Seed of the split, the hold-out and the fits.
        systems: Systems to fit.
        max_docs: Most documents of a corpus; of more, so many at random.
        max_test_docs: Most documents to score.
        weight_docs: Training documents that the weight of the own words is learned from.
        tolerance: Monte-Carlo standard error of the scores, nats per token.
    """

    corpora: tuple[str, ...] = ("searchsnippets", "cora", "bbc", "ap", "nips_uci")
    num_topics: int = 50
    seed: int = 0
    systems: tuple[str, ...] = (
        "torch_lntm ctm, auto",
        "torch_lntm ctm, auto, bursty",
        "topica LDA",
        "tomotopy LDA",
    )
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    weight_docs: int = 500
    tolerance: float = 0.002

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seed": 0, "max_docs": 2, "max_test_docs": 1, "weight_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", SYSTEMS)


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Fit and score every system on every corpus; those whose library is missing are left out."""
    torch.set_num_threads(1)
    split_of = cache(
        lambda corpus: frozen(corpus, settings.seed, settings.max_docs, settings.max_test_docs)
    )
    systems = [system for system in settings.systems if missing_library(system) is None]

    def compare(key: tuple[str, str]) -> dict[str, Any]:
        corpus, system = key
        return {"corpus": corpus, "system": system} | measured(split_of(corpus), system, settings)

    return cells.each(product(settings.corpora, [UNIGRAM, *systems]), compare)


def measured(split: Frozen, system: str, settings: Settings) -> dict[str, Any]:
    """Scores of a system's topics alone, and with the documents' own words."""
    if system == UNIGRAM:
        # One topic of all words, of which every prior is the same.
        prior, topics, concentration = np.ones(1), split.train.word_totals[None] + 1.0, None
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.npz"
            sp.save_npz(path, split.train.to_scipy())
            fit = fit_in_process(
                system, path, num_topics=settings.num_topics, seed=settings.seed, threads=1
            )
        prior, topics = prior_of(fit), fit["topics"]
        concentration = float(fit["concentration"]) if "concentration" in fit else None
    weight = _weight(prior, topics, split, settings) if concentration is None else concentration
    with warnings.catch_warnings():
        # The row says how far the simulation got.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        alone, own = (
            completion_of(
                prior,
                topics,
                split.hold_out,
                own_words=a,
                concentration=concentration,
                tolerance=settings.tolerance,
                seed=settings.seed,
                fingerprint=split.hashes["hold_out_fingerprint"],
            )
            for a in (None, weight)
        )
    assert isinstance(alone, ExactCompletion)
    assert isinstance(own, ExactCompletion)
    return {
        "weight": weight,
        "tokens": packed(alone.held_out_tokens.tolist()),
        "alone": packed(alone.log_predictive.tolist(), 4),
        "own": packed(own.log_predictive.tolist(), 4),
        "simulation_error": max(alone.simulation_error, own.simulation_error),
        "within_tolerance": alone.within_tolerance and own.within_tolerance,
    }


def _weight(prior: Any, topics: Any, split: Frozen, settings: Settings) -> float:
    """The weight of the own words, from training documents."""
    chosen = np.random.default_rng(settings.seed).permutation(split.train.num_docs)
    some = split.train[np.sort(chosen[: settings.weight_docs])].hold_out_words(0.5, settings.seed)
    return fit_own_words(prior, topics, some)


def score_of(row: dict[str, Any], prediction: str) -> CompletionResult:
    """A row's scores, ``"alone"`` or ``"own"``."""
    tokens = unpacked(row["tokens"]).long()
    return CompletionResult(unpacked(row[prediction]), tokens, "given", prediction)


def tables(rows: list[dict[str, Any]]) -> str:
    """A row for each corpus and system, and what the first system is better by than the others."""
    lines = []
    for row in rows:
        of_corpus = [r for r in rows if r["corpus"] == row["corpus"] and r["system"] != UNIGRAM]
        line = {"corpus": Path(row["corpus"]).stem, "system": row["system"]}
        for prediction, name in PREDICTIONS.items():
            score, first = (score_of(r, prediction) for r in (row, of_corpus[0]))
            line[name] = f"{score.perplexity:.1f} ± {score.standard_error:.1f}"
            line[f"first better by, {name}"] = ""
            if row is not of_corpus[0]:
                gain, error = paired_difference(first, score)
                line[f"first better by, {name}"] = f"{gain:.4f} ± {error:.4f}"
        line["a"] = f"{row['weight']:.3g}"
        reached = "" if row["within_tolerance"] else " (!)"
        line["simulation"] = f"{row['simulation_error']:.4f}{reached}"
        lines.append(line)
    return (
        f"{table_of(lines)}\n\nperplexity of held-out tokens at the exact posterior mean of theta; "
        "s.e. over documents. 'first better by':\nnats per token that the first system is better "
        "by, with the paired s.e. a: tokens that the topics\nweigh as much as, beside the "
        "document's own. simulation: Monte-Carlo s.e., nats per token."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("m10",),
        "num_topics": 20,
        "systems": ("torch_lntm ctm", "scikit-learn LDA"),
        "max_docs": 1000,
        "max_test_docs": 100,
        "weight_docs": 100,
    },
)
