"""Coverage of 95 % intervals of a codebook: effects from coded documents, and precision of ratings.

Two parties differ by 0.2 in a label, whose mean is 0.3 in one of them. A machine's labels are right
in 86 %, but find too many in one party and too few in the other; wrong shares know nothing of the
labels, and good shares are 0.1 + 0.5 label with an error. Coded documents are a simple random
sample, or twice as many of one party. Ratings have effects of tasks and raters on the scale of the
logit, and their truth is the precision for other tasks and raters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers
from studies.tables import table_of
from torch_lntm.inference import ThetaDraws
from torch_lntm.measurement import Intrusion, Measurement

#: Data sets of a cell.
BLOCK = 100
SURROGATES = ("labels of a machine", "wrong shares", "good shares")
TRUTH, TASKS, ALL_TASKS = 0.2, 60, 10**6


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Number of documents.
        coded: Numbers of coded documents.
        raters: Numbers of raters.
        spreads: Standard deviations of the raters; that of the tasks is 1.
        num_blocks: Number of blocks of 100 data sets of each design.
    """

    num_docs: int = 2000
    coded: tuple[int, ...] = (50, 150)
    raters: tuple[int, ...] = (3, 10)
    spreads: tuple[float, ...] = (0.5, 1.0)
    num_blocks: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"num_docs": 200, "coded": 20, "raters": 1, "num_blocks": 1})


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Share of intervals that hold the truth, and estimates, in every block of every design."""
    torch.set_num_threads(1)
    designs = [
        *product(["labels"], SURROGATES, settings.coded, ("equal", "by party")),
        *product(["ratings"], [""], settings.raters, settings.spreads),
    ]
    tasks = list(product(designs, range(settings.num_blocks)))
    return cells.each(tasks, lambda task: measured(settings, *task[0], task[1]))


def measured(
    settings: Settings, kind: str, surrogate: str, number: int, how: Any, block: int
) -> dict[str, Any]:
    """Means, and means of squares, over a block's data sets."""
    rng = np.random.default_rng([block, number, *f"{surrogate}{how}".encode()])
    if kind == "labels":
        made = [of_labels(settings, surrogate, number, how, rng) for _ in range(BLOCK)]
    else:
        truth = expit(1 + rng.normal(0, (1 + how**2) ** 0.5, ALL_TASKS)).mean()
        made = [of_ratings(number, how, truth, rng) for _ in range(BLOCK)]
    row = {"kind": kind, "surrogate": surrogate, "number": number, "how": how}
    return row | {name: moments([x[name] for x in made]) for name in made[0]}


def moments(values: list[float]) -> list[float]:
    """Mean, and mean of squares."""
    return [float(np.mean(values)), float(np.mean(np.square(values)))]


def of_labels(
    settings: Settings, surrogate: str, number: int, how: str, rng: np.random.Generator
) -> dict[str, float]:
    """Estimates of the difference, and whether the intervals hold it."""
    size = settings.num_docs
    left = rng.random(size) < 0.4
    label = rng.random(size) < np.where(left, 0.5, 0.3)
    given = np.clip(0.1 + 0.5 * label + rng.normal(0, 0.2, size), 0, 1)
    if surrogate == SURROGATES[0]:
        wrong = rng.random(size) < np.where(left, 0.4 * ~label, 0.35 * label)
        given = (label ^ wrong).astype(float)
    elif surrogate == SURROGATES[1]:
        given = rng.beta(1, 3, size)
    rate = np.full(size, number / size)
    known = np.isin(np.arange(size), rng.choice(size, number, replace=False))
    if how == "by party":
        rate = np.where(left, 2.0, 1.0) * number / (1.4 * size)
        known = rng.random(size) < rate
    columns = {"party": np.where(left, "left", "a"), "given": given}
    book = lntm.codebook(lntm.models.ctm(2, 4, seed=0))
    corpus = lntm.Corpus.from_matrix(np.ones((size, 4), int), metadata=columns)
    draws = ThetaDraws.of(torch.full((1, size, 2), 0.5), book.model)
    labels = pd.Series(label.astype(float)[known], np.flatnonzero(known), name="0")
    effects = book.debias(
        labels,
        Measurement(book.model, corpus, draws, book.hash),
        "~ party",
        surrogate="given",
        probabilities=rate,
    )
    _, found = effects.table().to_dict("records")
    taken = [columns["given"][left], columns["given"][~left]]
    plain = taken[0].mean() - taken[1].mean()
    error = sum(part.var() / len(part) for part in taken) ** 0.5
    alone = [np.average(label[known & of]) for of in (left, ~left)]  # a party has one rate
    return {
        "holds": float(found["lower"] <= TRUTH <= found["upper"]),
        "estimate": found["estimate"],
        "plain": plain,
        "plain_holds": float(abs(plain - TRUTH) < 1.96 * error),
        "coded_alone": alone[0] - alone[1],
    }


def of_ratings(
    raters: int, spread: float, truth: float, rng: np.random.Generator
) -> dict[str, float]:
    """Whether the interval of the precision, and that for independent answers, hold the truth."""
    names = [f"{i:02}" for i in range(TASKS)]
    about = {"task": names, "topic": 0, "name": "t", "answer": "a", "a": "x", "b": "y"}
    tasks = Intrusion("words", pd.DataFrame(about))
    logits = 1 + rng.normal(size=(TASKS, 1)) + spread * rng.normal(size=raters)
    answers = np.where(rng.random(logits.shape) < expit(logits), "a", "b")
    table = pd.DataFrame(product(names, range(raters)), columns=["task", "rater"])
    found = tasks.read_ratings(table.assign(answer=answers.ravel())).iloc[0]
    size, p = answers.size, found["precision"]
    centre = (p + 1.92 / size) / (1 + 3.84 / size)
    half = 1.96 / (1 + 3.84 / size) * (p * (1 - p) / size + 0.96 / size**2) ** 0.5
    return {
        "holds": float(found["lower"] <= truth <= found["upper"]),
        "plain_holds": float(abs(truth - centre) <= half),
        "width": float(found["upper"] - found["lower"]),
    }


def tables(rows: list[dict[str, Any]]) -> str:
    """Coverage in per cent, and for labels the estimates, by design."""
    designs = list(dict.fromkeys((r["kind"], r["surrogate"], r["number"], r["how"]) for r in rows))
    lines: dict[str, list[dict[str, str]]] = {"labels": [], "ratings": []}
    for kind, surrogate, number, how in designs:
        own = [
            row
            for row in rows
            if (row["kind"], row["surrogate"], row["number"], row["how"])
            == (kind, surrogate, number, how)
        ]
        names = [x for x, value in own[0].items() if isinstance(value, list)]
        all_of = {x: np.mean([row[x] for row in own], 0) for x in names}
        spread = {x: (square - mean**2) ** 0.5 for x, (mean, square) in all_of.items()}
        mean = {x: of[0] for x, of in all_of.items()}
        holds = {
            "holds, %": f"{100 * mean['holds']:.1f}",
            "plain holds, %": f"{100 * mean['plain_holds']:.1f}",
        }
        if kind == "ratings":
            about = {"raters": str(number), "their spread": f"{how:g}"}
            lines[kind].append(about | holds | {"width": f"{mean['width']:.2f}"})
            continue
        ratio = spread["estimate"] / spread["coded_alone"]
        about = {"surrogate": surrogate, "coded": str(number), "rates": how}
        means = {
            "mean": f"{mean['estimate']:.3f}",
            "plain mean": f"{mean['plain']:.3f}",
            "s.d. / coded alone": f"{ratio:.2f}",
        }
        lines[kind].append(about | holds | means)
    return "\n\n".join(map(table_of, filter(None, lines.values())))


STUDY = Study(
    Settings, run, tables, quick={"num_docs": 300, "coded": (50,), "raters": (3,), "num_blocks": 1}
)
