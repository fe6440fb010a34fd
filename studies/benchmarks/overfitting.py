"""Effects in the words in which the topics were found, and in others.

Some words of each document are drawn from a real corpus with a column of two values. A structural
model with this column is fitted to those of half of the documents. The effect is the difference of
a topic's mean proportion between the two values. It is estimated

* in the words of the fit, by its chains (`fit`);
* in the same words by joint draws, which draw the topics too (`joint`);
* in the drawn words of the other documents, by joint draws that keep the topics and draw the prior
  (`new documents`);
* in the same, by chains of a model that was fitted without the column (`new documents, ctm`).

The same topics in all other words of the same documents give the reference, by joint draws that
keep the topics. `ratio` is the slope of the regression of the topics' effects on those of the
reference, without an intercept, with its standard error over splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table

KINDS = ("fit", "joint", "new documents", "new documents, ctm")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        designs: Designs: a corpus, documents, and words of a document.
        num_topics: Topics.
        num_splits: Splits of each design.
        num_draws: Draws.
        threads: Threads.
    """

    designs: tuple[str, ...] = (
        "poliblog5k 4000 15",
        "poliblog5k 4000 50",
        "imdb100k 4000 15",
        "imdb100k 4000 50",
    )
    num_topics: int = 10
    num_splits: int = 10
    num_draws: int = 25
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2, "num_splits": 1, "num_draws": 8, "threads": 1})


def run(settings: Settings, cells: Cells) -> dict[str, Any]:
    """Effects of every design and split."""
    torch.set_num_threads(settings.threads)
    tasks = [(d, s) for s, d in product(range(settings.num_splits), settings.designs)]
    found = cells.each(tasks, lambda task: measured(settings, *task))
    return {
        "settings": settings,
        "cells": [[*task, x] for task, x in zip(tasks, found, strict=True)],
    }


def divided(design: str, seed: int) -> list[lntm.Corpus]:
    """Drawn words of half of the documents, their others, and both of the other half."""
    name, number, length = design.split()
    corpus = lntm.read_corpus(corpus_file(name))
    labels = corpus.metadata["label"].astype(str)
    rng = np.random.default_rng([seed, int(length)])
    known = np.flatnonzero(~labels.str.startswith("unsup"))
    chosen = rng.permutation(known)[: int(number)]
    counts, x = corpus.to_scipy()[chosen], labels.iloc[chosen].str.match("pos|Conservative")
    rows = np.repeat(np.repeat(np.arange(len(chosen)), np.diff(counts.indptr)), counts.data)
    words = np.repeat(counts.indices, counts.data)
    order = np.lexsort([rng.random(len(rows)), rows])
    starts = np.searchsorted(rows, np.arange(len(chosen)))
    is_drawn = np.arange(len(rows)) - starts[rows] < int(length)
    parts = []
    for mask in (is_drawn, ~is_drawn):
        at = rows[mask], words[order][mask]
        parts.append(sp.csr_matrix((np.ones(mask.sum()), at), counts.shape))
    halves = np.split(np.arange(len(chosen)), 2)
    return [
        lntm.Corpus.from_matrix(part[half], metadata={"x": x.to_numpy()[half].astype(float)})
        for half, part in product(halves, parts)
    ]


def measured(settings: Settings, design: str, seed: int) -> dict[str, list[list[float]]]:
    """Effects of the topics by each kind of estimate, and their references."""
    drawn, others, new, others_of_new = divided(design, seed)
    options: dict[str, Any] = {"num_draws": settings.num_draws, "progress": False}

    def effect(draws: Any, corpus: lntm.Corpus) -> list[float]:
        at: dict[str, Any] = {"link": "identity", "progress": False}
        found = lntm.effects.estimate(draws.model, draws, corpus, "~ x", **at).table()
        values: list[float] = found[found["term"] == "x"]["estimate"].tolist()
        return values

    def fixed(model: Any, corpus: lntm.Corpus) -> list[float]:
        """Effects at the model's topics, by a prior that this corpus informs."""
        draws = lntm.inference.joint_draws(model, corpus, seed=seed, topics=False, **options)
        return effect(draws, corpus)

    stm = lntm.models.stm(settings.num_topics, drawn, prevalence="~ x", seed=seed)
    ctm = lntm.models.ctm(settings.num_topics, drawn.num_words, seed=seed)
    fit, _ = (
        lntm.inference.MonteCarloEM(model, seed=seed, progress=False).fit(drawn)
        for model in (stm, ctm)
    )
    draws = lntm.inference.theta_draws(fit.source, drawn, **options)
    joint = lntm.inference.joint_draws(stm, drawn, seed=seed, **options)
    chains = lntm.inference.DocumentHMC(ctm, seed=seed)
    known = lntm.models.stm(settings.num_topics, drawn, prevalence="~ x", seed=seed)
    known.topics.set_(ctm.topics.probs)
    return {
        "fit": [effect(draws, drawn), fixed(stm, others)],
        "joint": [effect(joint, drawn), fixed(joint.model, others)],
        "new documents": [fixed(stm, new), fixed(stm, others_of_new)],
        "new documents, ctm": [
            effect(lntm.inference.theta_draws(chains, new, **options), new),
            fixed(known, others_of_new),
        ],
    }


def tables(result: dict[str, Any]) -> str:
    """A row for each design and kind of estimate."""
    of_design: dict[str, list[Any]] = {}
    for design, _, cell in result["cells"]:
        of_design.setdefault(design, []).append(cell)
    lines = []
    for design, cells in of_design.items():
        for kind in KINDS:
            pairs = np.array([cell[kind] for cell in cells])
            ratios = (pairs[:, 0] * pairs[:, 1]).sum(1) / (pairs[:, 1] ** 2).sum(1)
            error = ratios.std(ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else np.nan
            lines.append([design, f"{len(cells)}", kind, f"{ratios.mean():.2f} ± {error:.2f}"])
    return table(["design", "splits", "effects", "ratio"], lines)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"num_splits": 1, "designs": ("poliblog5k 200 15",), "num_topics": 3, "num_draws": 8},
    selects=("designs", "num_splits"),
)
