"""Held-out words with and without the document's own observed words.

Splits, fits and rule are those of the study ``quality``: theta at its exact posterior mean. A cache
language model mixes in the own words (``torch_lntm.evaluation.document_completion``). Its weight is
the one that makes a hold-out of training documents most probable; a bursty model has a weight of
its own. The corpus's word frequencies are a system too, as one topic.
"""

from __future__ import annotations

import json
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
from studies.benchmarks.splits import Scores, pooled
from studies.benchmarks.systems import SYSTEMS
from studies.measure import Cells, Study, check_choices, check_numbers
from studies.scores.cache import fit_cache_weight
from studies.scores.completion import completion_of, model_of
from studies.tables import table_of
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation import CompletionResult, coherence, paired_difference
from torch_lntm.evaluation.completion.result import ExactCompletion

#: Names of both predictions in rows and in tables.
PREDICTIONS = {"alone": "topics alone", "own": "and own words"}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        num_topics: Topics.
        seeds: Seeds of the split, the hold-out and the fits.
        systems: Systems to fit.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        weight_docs: Training documents that choose the weight of the own words.
        tolerance: Monte-Carlo standard error of the scores, nats per token.
    """

    corpora: tuple[str, ...] = ("searchsnippets", "cora", "bbc", "ap", "nips_uci")
    num_topics: int = 50
    seeds: tuple[int, ...] = (0, 1, 2)
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
        whole = {"num_topics": 2, "seeds": 0, "max_docs": 2, "max_test_docs": 1, "weight_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", SYSTEMS)


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Fit and score every system on every corpus. A system without its library is left out."""
    torch.set_num_threads(1)
    split_of = cache(
        lambda corpus, seed: frozen(corpus, seed, settings.max_docs, settings.max_test_docs)
    )
    systems = [system for system in settings.systems if missing_library(system) is None]

    def compare(key: tuple[str, str, int]) -> dict[str, Any]:
        corpus, system, seed = key
        found = measured(split_of(corpus, seed), system, seed, settings)
        return {"corpus": corpus, "system": system, "seed": seed} | found

    return cells.each(product(settings.corpora, [UNIGRAM, *systems], settings.seeds), compare)


def measured(split: Frozen, system: str, seed: int, settings: Settings) -> dict[str, Any]:
    """Scores of a system's topics alone, and with the documents' own words."""
    of_fit: dict[str, Any] = {}
    if system == UNIGRAM:
        # One topic of all words: all priors are equal.
        prior, topics, concentration = np.ones(1), split.train.word_totals[None] + 1.0, None
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.npz"
            sp.save_npz(path, split.train.to_scipy())
            fit = fit_in_process(system, path, num_topics=settings.num_topics, seed=seed, threads=1)
        prior, topics = prior_of(fit), fit["topics"]
        concentration = float(fit["concentration"]) if "concentration" in fit else None
        of_fit["cpu_seconds"] = json.loads(str(fit["record"]))["cpu_seconds"]
        of_fit["npmi"] = float(coherence(topics, split.hold_out.corpus).mean())
    weight = concentration
    if weight is None:
        chosen = np.random.default_rng(seed).permutation(split.train.num_docs)
        some = split.train[np.sort(chosen[: settings.weight_docs])].hold_out_words(0.5, seed=seed)
        weight = fit_cache_weight(model_of(prior, topics), some)
    with warnings.catch_warnings():
        # The row holds the error of the simulation.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        alone, own = (
            completion_of(
                prior,
                topics,
                split.hold_out,
                cache_weight=a,
                concentration=concentration,
                tolerance=settings.tolerance,
                seed=seed,
                fingerprint=split.hashes["hold_out_fingerprint"],
            )
            for a in (None, weight)
        )
    assert isinstance(alone, ExactCompletion)
    assert isinstance(own, ExactCompletion)
    return {
        **of_fit,
        "weight": weight,
        "index": packed(split.test_index),
        "tokens": packed(alone.held_out_tokens.tolist()),
        "alone": packed(alone.log_predictive.tolist(), 4),
        "own": packed(own.log_predictive.tolist(), 4),
        "simulation_error": max(alone.simulation_error, own.simulation_error),
        "within_tolerance": alone.within_tolerance and own.within_tolerance,
    }


def score_of(rows: list[dict[str, Any]], prediction: str) -> CompletionResult:
    """Scores of a system's rows together, ``"alone"`` or ``"own"``."""
    names = ("index", prediction, "tokens")
    return pooled([Scores(*(unpacked(row[name]) for name in names)) for row in rows])


def tables(rows: list[dict[str, Any]]) -> str:
    """A row for each corpus and system, with the leads of the first two systems."""
    of: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        of.setdefault(row["corpus"], {}).setdefault(row["system"], []).append(row)
    lines = []
    for corpus, systems in of.items():
        ours = [system for system in systems if system != UNIGRAM][:2]
        for system, found in systems.items():
            line = {"corpus": Path(corpus).stem, "system": system}
            for prediction, name in PREDICTIONS.items():
                score = score_of(found, prediction)
                line[name] = f"{score.perplexity:.1f} ± {score.perplexity_standard_error:.1f}"
            for place, first in zip(("1st", "2nd"), ours, strict=False):
                better = ""
                if system != first:
                    scores = (score_of(each, "own") for each in (systems[first], found))
                    gain, error = paired_difference(*scores)
                    better = f"{gain:.4f} ± {error:.4f}"
                line[f"{place} better by"] = better
            line["a"] = f"{np.mean([row['weight'] for row in found]):.3g}"
            for name, column in {"npmi": "NPMI", "cpu_seconds": "CPU s"}.items():
                values = [row[name] for row in found if name in row]
                line[column] = f"{np.mean(values):.3g}" if values else ""
            reached = "" if all(row["within_tolerance"] for row in found) else " (!)"
            error_of = max(row["simulation_error"] for row in found)
            line["simulation"] = f"{error_of:.4f}{reached}"
            lines.append(line)
    return (
        f"{table_of(lines)}\n\nperplexity of held-out tokens at the exact posterior mean of theta, "
        "over all seeds; s.e. over\ndocuments.\n\n'1st better by': lead of the first system with "
        "topics, nats per token with own words,\nand its paired s.e. '2nd better by': lead of the "
        "second system. Column a: weight of the topics in\ntokens of the document. NPMI: coherence "
        "of ten top words in the test documents. Simulation:\nMonte-Carlo s.e., nats per "
        "token."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("m10",),
        "num_topics": 20,
        "seeds": (0,),
        "systems": ("torch_lntm ctm", "torch_lntm ctm, auto, bursty", "scikit-learn LDA"),
        "max_docs": 1000,
        "max_test_docs": 100,
        "weight_docs": 100,
    },
)
