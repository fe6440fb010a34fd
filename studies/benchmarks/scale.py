"""Time and memory of fits by chains against the sizes of a corpus, topics and processes.

Documents are generated. Each fit multiplies one quantity of a base fit by a factor. The quantities
are documents, tokens of a document, topics and words. Further fits of a larger corpus divide its
documents between processes. Every process runs on one thread and opens its own shards.

An exponent b says that a cost grows as quantity^b. It is the slope of a line through the logarithms
of costs and quantities by least squares, with its standard error. The start ends within the time of
the first epoch. Its CPU seconds are those of the first epoch less the mean of later epochs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from studies.benchmarks import parts
from studies.measure import Cells, Study, check_filled, check_numbers
from studies.tables import entry, table_of

#: Quantities, by the names of the settings of the base fit.
QUANTITIES = {
    "documents": "num_docs",
    "tokens of a document": "tokens_per_doc",
    "topics": "num_topics",
    "words": "num_words",
}
PROCESSES = "processes"


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Documents of the base fit.
        tokens_per_doc: Mean tokens of a document of the base fit.
        num_topics: Topics of the base fit.
        num_words: Words of the base fit.
        factors: Factors of every quantity, ascending.
        processes: Numbers of processes.
        process_docs: Documents of the fits in several processes.
        max_epochs: Epochs of chains.
        seed: Seed of the documents and of the fits.
    """

    num_docs: int = 20_000
    tokens_per_doc: int = 50
    num_topics: int = 50
    num_words: int = 5_000
    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    processes: tuple[int, ...] = (1, 2, 4)
    process_docs: int = 80_000
    max_epochs: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "tokens_per_doc", "num_words", "processes", "process_docs")
        least = {"num_topics": 2, "max_epochs": 2, "seed": 0}
        check_numbers(self, {**dict.fromkeys(ones, 1), **least}, ["factors"])
        check_filled(self, "factors")


@dataclass(frozen=True)
class Cost:
    """Costs of a fit in its first process.

    Attributes:
        quantity: The quantity that differs from the base fit.
        value: Its value.
        tokens: Tokens of the documents of the process.
        start_seconds: CPU seconds of the start.
        epoch_seconds: CPU seconds of an epoch of chains.
        peak_mb: Peak memory beyond the imports, MB.
        opened_mb: Opened shards, MB.
    """

    quantity: str
    value: int
    tokens: int
    start_seconds: float
    epoch_seconds: float
    peak_mb: float
    opened_mb: float


def fits(settings: Settings) -> Iterator[tuple[str, int, parts.Settings, int]]:
    """Quantity, its value, corpus and fit, and number of processes of every fit."""
    base = parts.Settings(
        num_docs=settings.num_docs,
        num_words=settings.num_words,
        tokens_per_doc=settings.tokens_per_doc,
        num_topics=settings.num_topics,
        max_epochs=settings.max_epochs,
        seed=settings.seed,
    )
    for quantity, name in QUANTITIES.items():
        for factor in settings.factors:
            value = max(2, round(factor * getattr(settings, name)))
            yield quantity, value, replace(base, **{name: value}), 1
    for size in settings.processes:
        yield PROCESSES, size, replace(base, num_docs=settings.process_docs), size


def run(settings: Settings, cells: Cells) -> list[Cost]:
    """Make the fits, each in processes of its own."""
    todo = {(quantity, value): (fit, size) for quantity, value, fit, size in fits(settings)}
    found = cells.each(todo, lambda key: cost(*todo[key]))
    return [Cost(*key, **cell) for key, cell in zip(todo, found, strict=True)]


def cost(fit: parts.Settings, size: int) -> dict[str, Any]:
    """The numbers of a :class:`Cost`."""
    with tempfile.TemporaryDirectory() as folder:
        parts.write(fit, Path(folder, "corpus"))
        first = parts.in_processes(fit, size, False, Path(folder), None)[0]
    ends = first["epoch_ends"]
    epoch = fmean(np.diff(ends).tolist())
    return {
        "tokens": first["tokens"],
        "start_seconds": max(ends[0] - epoch, 0.0),
        "epoch_seconds": epoch,
        "peak_mb": first["peak_mb_beyond_imports"],
        "opened_mb": first["opened_mb"],
    }


def exponent(quantities: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Slope of log costs on log quantities, and its standard error.

    A single point has no slope, and two points have no error. Both are then NaN.
    """
    x, y = np.log(quantities), np.log(costs)
    x, y = x - x.mean(), y - y.mean()
    if len(x) < 2:
        return math.nan, math.nan
    slope = float(x @ y / (x @ x))
    if len(x) < 3:
        return slope, math.nan
    return slope, math.sqrt(float(np.square(y - slope * x).sum()) / (len(x) - 2) / float(x @ x))


#: Costs in the table of exponents.
COSTS: dict[str, Callable[[Cost], float]] = {
    "start": lambda cost: cost.start_seconds,
    "epoch": lambda cost: cost.epoch_seconds,
    "memory": lambda cost: cost.peak_mb,
}


def tables(found: list[Cost]) -> str:
    """The costs of every fit, and the exponents of every quantity."""
    rows = [
        {
            "quantity": cost.quantity,
            "value": f"{cost.value:,}",
            "tokens": f"{cost.tokens:,}",
            "start, CPU s": f"{cost.start_seconds:.2f}",
            "epoch, CPU s": f"{cost.epoch_seconds:.2f}",
            "peak MB": f"{cost.peak_mb:.0f}",
            "opened MB": f"{cost.opened_mb:.1f}",
        }
        for cost in found
    ]
    slopes = []
    for quantity in dict.fromkeys(cost.quantity for cost in found):
        costs = [cost for cost in found if cost.quantity == quantity]
        line = {"exponents": quantity}
        for name, value in COSTS.items():
            values = [value(cost) for cost in costs]
            # A start of a few milliseconds may come out as 0, which has no logarithm.
            known = min(values) > 0
            line[name] = entry(*exponent([c.value for c in costs], values), 2) if known else "–"
        slopes.append(line)
    return (
        f"{table_of(rows)}\n\n{table_of(slopes)}\n\nCosts of the first process. Exponents with "
        "their standard errors over the fits of a row."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"num_docs": 1_000, "num_topics": 8, "num_words": 300, "process_docs": 2_000},
)
