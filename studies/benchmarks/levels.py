"""Coverage of 95 % intervals of the levels of a random term, with known proportions.

A document's logits are normal around the effect of its group, and groups have normal effects of a
standard deviation that is a ratio of the documents'. The truth of a level is the difference of its
expected proportions from those of a group with the effect 0, from draws of documents. A row of the
table is a number of groups, with their documents, and a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers
from studies.tables import entry, mean_and_error, table_of
from torch_lntm.effects.result import Link

#: Documents of a truth.
TRUTH_DOCS = 20_000
LINKS: tuple[Link, ...] = ("identity", "logit")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        groups: Numbers of groups.
        docs: Documents of a group, for each number of groups.
        ratios: Standard deviations of the groups' effects, in units of the documents'.
        num_topics: Number of topics.
        num_corpora: Number of corpora of each design.
    """

    groups: tuple[int, ...] = (6, 20)
    docs: tuple[int, ...] = (20, 10)
    ratios: tuple[float, ...] = (0.1, 0.2, 0.3, 1.0)
    num_topics: int = 3
    num_corpora: int = 40

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"groups": 2, "docs": 1, "num_topics": 2, "num_corpora": 1})


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Share of intervals that hold the truth, and their width, in every corpus of every design."""
    torch.set_num_threads(1)
    designs = zip(settings.groups, settings.docs, strict=True)
    tasks = list(product(designs, settings.ratios, range(settings.num_corpora)))
    return cells.each(tasks, lambda task: measured(settings, *task[0], *task[1:]))


def measured(settings: Settings, groups: int, docs: int, ratio: float, seed: int) -> dict[str, Any]:
    """Coverage and mean width by link in one corpus."""
    rng = np.random.default_rng([seed, groups, round(1000 * ratio)])
    size, group = settings.num_topics, np.repeat(np.arange(groups), docs)
    effects, noise = rng.normal(0, ratio, (groups, size)), rng.normal(0, 1, (TRUTH_DOCS, size))
    average = softmax(noise, 1).mean(0)
    truth = np.stack([softmax(row + noise, 1).mean(0) - average for row in effects], 1).ravel()
    theta = softmax(effects[group] + rng.normal(0, 1, (len(group), size)), 1)
    # Levels are sorted by name.
    names = [f"g{i:04}" for i in group]
    corpus = lntm.Corpus.from_matrix(np.ones((len(group), 2), int), metadata={"group": names})
    row: dict[str, Any] = {"groups": groups, "docs": docs, "ratio": ratio}
    model = lntm.models.ctm(size, 2)
    for link in LINKS:
        found = lntm.effects.estimate(
            model, np.stack([theta, theta]), corpus, "~ (1 | group)", link=link
        ).levels("group")
        inside = (found["lower"] <= truth) & (truth <= found["upper"])
        row[link] = [float(inside.mean()), float((found["upper"] - found["lower"]).mean())]
    return row


def tables(rows: list[dict[str, Any]]) -> str:
    """Coverage in per cent with its standard error over corpora, and mean width, by link."""
    designs = list(dict.fromkeys((row["groups"], row["docs"], row["ratio"]) for row in rows))
    lines = []
    for groups, docs, ratio in designs:
        own = [r for r in rows if (r["groups"], r["docs"], r["ratio"]) == (groups, docs, ratio)]
        line = {"groups": str(groups), "documents of each": str(docs), "ratio": f"{ratio:g}"}
        for link in LINKS:
            mean, error = mean_and_error([100 * row[link][0] for row in own])
            line[f"{link}, %"] = entry(mean, error, 1)
            line[f"{link}, width"] = f"{fmean(row[link][1] for row in own):.3f}"
        lines.append(line)
    return table_of(lines)


STUDY = Study(Settings, run, tables, quick={"groups": (4,), "docs": (5,), "num_corpora": 2})
