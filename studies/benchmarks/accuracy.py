"""Distance of each posterior from long chains of the same documents under equal parameters.

One model of each kind is fitted with the default settings. All posteriors of a kind are then
judged under the parameters of its model, against the same chains: a table for each kind. The
study takes 15 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import torch_lntm as lntm
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.scores.accuracy import posterior_accuracy
from torch_lntm.models.registry import find_constructor

#: By name: the kind of model, its settings, the posterior that fits it, and the judged ones.
CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "ctm": ("ctm", {}, "taylor", ("taylor", "laplace", "blei-lafferty", "khan-bouchard")),
    "iftm": ("iftm", {}, "factor", ("factor", "taylor", "laplace")),
    "iftm, Laplace sources": ("iftm", {"source": "laplace"}, "factor", ("factor",)),
    "lda": ("lda", {}, "vb", ("vb", "ep")),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        num_docs: Documents judged, drawn at random.
        num_samples: Draws of each of four chains per document.
        seed: Seed of everything random.
        threads: Threads of torch.
    """

    corpus: str = "ap"
    num_topics: int = 50
    num_docs: int = 100
    num_samples: int = 2000
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        least = {"num_topics": 2, "num_docs": 1, "num_samples": 100, "threads": 1, "seed": 0}
        check_numbers(self, least)


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Fit and judge each case."""
    torch.set_num_threads(settings.threads)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    return cells.each(CASES, lambda case: judge(settings, corpus, case))


def judge(settings: Settings, corpus: lntm.Corpus, case: str) -> dict[str, Any]:
    """The accuracy of the posteriors of one case."""
    kind, options, fitted_by, judged = CASES[case]
    make = find_constructor(kind)
    model = make(settings.num_topics, corpus.num_words, seed=settings.seed, **options)
    guide = lntm.guides.make_guide(fitted_by, model)
    engine = lntm.inference.VariationalEM(model, guide, seed=settings.seed, progress=False)
    with Stopwatch() as fit:
        engine.fit(corpus)
    guides = {name: lntm.guides.make_guide(name, model) for name in judged}
    with Stopwatch() as chains:
        result = posterior_accuracy(
            model,
            guides,
            corpus,
            num_docs=settings.num_docs,
            num_draws=settings.num_samples,
            seed=settings.seed,
        )
    return {
        "model": case,
        "fitted_by": fitted_by,
        "fit_cpu_seconds": fit.cpu_seconds,
        "accuracy_cpu_seconds": chains.cpu_seconds,
        "table": str(result),
        **result.to_dict(),
    }


def tables(found: list[dict[str, Any]]) -> str:
    """A table for each case, in the package's own format."""
    return "\n\n".join(
        f"{cell['model']}, fitted by {cell['fitted_by']}\n\n```\n{cell['table']}\n```"
        for cell in found
    )


STUDY = Study(Settings, run, tables, quick={"num_topics": 10, "num_docs": 20, "num_samples": 200})
