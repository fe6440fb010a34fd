"""Fit 100,000 documents on two threads: time, memory, completion. Linux only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from studies.machine import Stopwatch, memory_mb
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table

# Before the package: later imports count as the fit's memory.
IMPORTED_MB = memory_mb()

import torch_lntm as lntm  # noqa: E402
from studies.benchmarks.systems import phase_seconds  # noqa: E402
from torch_lntm.evaluation import document_completion, unigram_perplexity  # noqa: E402


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        test_fraction: Share of the documents kept for completion.
        seed: Seed of everything random.
        threads: Threads of torch.
    """

    corpus: str = "imdb100k"
    num_topics: int = 50
    test_fraction: float = 0.01
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2, "seed": 0, "threads": 1}, ["test_fraction"])


def run(settings: Settings, cells: Cells) -> Any:
    """Fit and predict."""
    return cells.one("fit", lambda: measure(settings, cells.progress))


def measure(settings: Settings, progress: bool) -> dict[str, Any]:
    """The only cell, measured in a new process for a peak of memory of its own."""
    torch.set_num_threads(settings.threads)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    train, test = corpus.split(test_fraction=settings.test_fraction, seed=settings.seed)
    read_peak = memory_mb(peak=True)

    model = lntm.models.ctm(settings.num_topics, train.num_words, seed=settings.seed)
    guide = lntm.guides.TaylorGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, seed=settings.seed, progress=progress)
    with Stopwatch() as stopwatch:
        result = engine.fit(train)
    peak = memory_mb(peak=True)

    hold_out = test.hold_out_words(observed_fraction=0.5, seed=settings.seed)
    completion = document_completion(model, guide, hold_out)
    unigram = unigram_perplexity(train, hold_out.held_out, smoothing=1.0)
    return {
        "train": repr(train),
        "test": repr(test),
        "nnz": train.nnz,
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


def tables(found: dict[str, Any]) -> str:
    """A row per number."""
    rows = [
        [name, f"{value:.1f}" if isinstance(value, float) else str(value)]
        for name, value in found.items()
        if name not in ("train", "test", "phases")
    ]
    return f"{found['train']}\n\n{table(['', 'value'], rows)}"


STUDY = Study(Settings, run, tables, quick={"num_topics": 10})
