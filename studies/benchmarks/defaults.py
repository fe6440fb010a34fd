"""Starts, priors and smoothing compared by held-out completion, to choose defaults.

Every variant changes one default. All variants are fitted to the same training documents. The table
gives the perplexity of the other half of the test documents' tokens, at the mode of theta, and the
CPU seconds of the fit, each as a mean over the splits. Each seed has a split. The default seeds
leave out 0, the split of the study ``completion``. The study takes five minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import torch

from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.evaluation import document_completion
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import Annealing, VariationalEM
from torch_lntm.models import ctm

#: Name of each variant, the options of its model, and the options of its engine.
VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
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


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        seeds: Seeds, each of a split and of the fits to it.
        threads: Threads of torch.
    """

    corpus: str = "ap"
    num_topics: int = 50
    seeds: tuple[int, ...] = (1, 2, 3)
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2, "seeds": 0, "threads": 1})


@dataclass(frozen=True)
class Result:
    """The numbers of every variant, one for each split, in the order of :data:`VARIANTS`."""

    perplexity: list[list[float]]
    cpu_seconds: list[list[float]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit every variant on every split."""
    torch.set_num_threads(settings.threads)
    corpus = read_corpus(corpus_file(settings.corpus))
    options = {name: (model, engine) for name, model, engine in VARIANTS}
    found = cells.each(
        product(options, settings.seeds),
        lambda key: measure(corpus, settings.num_topics, key[1], *options[key[0]]),
    )
    size = len(settings.seeds)
    parts = [found[i : i + size] for i in range(0, len(found), size)]
    return Result(
        *([[cell[name] for cell in part] for part in parts] for name in ("perplexity", "cpu"))
    )


def measure(
    corpus: Corpus, num_topics: int, seed: int, model: dict[str, Any], engine: dict[str, Any]
) -> dict[str, float]:
    """Completion perplexity and CPU seconds of one variant on one split."""
    train, test = corpus.split(0.1, seed=seed)
    fitted = ctm(num_topics, corpus.num_words, **model)
    guide = TaylorGuide(fitted)
    with Stopwatch() as watch:
        VariationalEM(fitted, guide, seed=seed, progress=False, **engine).fit(train)
    perplexity = document_completion(fitted, test, theta="mode", guide=guide, seed=seed).perplexity
    return {"perplexity": perplexity, "cpu": watch.cpu_seconds}


def tables(result: Result) -> str:
    """A row per variant."""
    base = result.perplexity[0]
    rows = [
        [
            name,
            f"{fmean(perplexity):.0f}",
            f"{fmean(a / b for a, b in zip(perplexity, base, strict=True)):.3f}",
            f"{fmean(seconds):.1f}",
        ]
        for (name, *_), perplexity, seconds in zip(
            VARIANTS, result.perplexity, result.cpu_seconds, strict=True
        )
    ]
    return table(["variant", "perplexity", "of the defaults'", "CPU s"], rows)


STUDY = Study(Settings, run, tables, quick={"num_topics": 20, "seeds": (1,)})
