"""Settings of peers and of ``auto`` that predict held-out words best, by the length of documents.

The search goes setting by setting through ``studies/benchmarks/tuned.py``. It tries every value of
a setting, and keeps the value with the best mean score over the corpora of a class. The splits are
for tuning: no table has them. The score is that of the study ``quality``: theta integrated out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from studies.benchmarks.completion import check_installed
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, Frozen, frozen
from studies.benchmarks.quality import measured, unpacked
from studies.benchmarks.tuned import CENTRE, GRID, length_class
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers
from studies.tables import table_of

#: System whose fits read their options only; the names of the others are those of the tables.
FITTED_AS = {name: f"{name}, tuned" for name in CENTRE}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        systems: Systems to search for.
        num_topics: Topics.
        seed: Seed of the splits, the hold-outs and the fits; from 7 on, no table has them.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
    """

    corpora: tuple[str, ...] = ("m10", "searchsnippets", "cora", "reuters21578", "bbc", "ap")
    systems: tuple[str, ...] = tuple(CENTRE)
    num_topics: int = 50
    seed: int = 7
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.003

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seed": 7, "max_docs": 2, "max_test_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", GRID)
        check_filled(self, "corpora")


@dataclass(frozen=True)
class Trial:
    """Fits of one system with one set of settings, on all corpora of a class.

    Attributes:
        length: The class of the corpora.
        system: Name of the system.
        changed: The changed setting in words.
        options: All settings.
        nats: Mean score over the corpora, nats per token. Minus infinity after a failure.
        scores: Score of each corpus.
        seconds: CPU seconds of each corpus's fit.
    """

    length: str
    system: str
    changed: str
    options: dict[str, Any]
    nats: float
    scores: dict[str, float]
    seconds: dict[str, float]


def run(settings: Settings, cells: Cells) -> list[Trial]:
    """Search for every class of corpora and every system.

    Raises:
        ConfigError: A system is not installed, or a corpus does not exist.
    """
    check_installed(tuple(FITTED_AS.get(system, system) for system in settings.systems))
    torch.set_num_threads(1)
    split_of = cache(
        lambda name: frozen(
            name, settings.seed, settings.max_docs, settings.max_test_docs, tuning=True
        )
    )
    classes: dict[str, list[str]] = {}
    for corpus in settings.corpora:
        length = cells.one(f"length, {corpus}", partial(mean_length, split_of, corpus))
        classes.setdefault(length_class(length), []).append(corpus)
    trials: list[Trial] = []
    for name, corpora in classes.items():
        for system in settings.systems:
            trials += Search(settings, cells, split_of, name, corpora, system).trials()
    return trials


def mean_length(split_of: Callable[[str], Frozen], corpus: str) -> float:
    """Mean number of tokens of a training document."""
    train = split_of(corpus).train
    return float(train.num_tokens / train.num_docs)


@dataclass(frozen=True)
class Search:
    """The search of one system on the corpora of a class.

    Attributes:
        settings: Settings of the study.
        cells: The study's cells.
        split_of: The split of each corpus.
        length: The class.
        corpora: Its corpora.
        system: The system.
    """

    settings: Settings
    cells: Cells
    split_of: Callable[[str], Frozen]
    length: str
    corpora: list[str]
    system: str

    def trials(self) -> list[Trial]:
        """All trials, in the order of the search."""
        best = self.trial("start", dict(CENTRE.get(self.system, {})))
        found = [best]
        for setting, values in GRID[self.system].items():
            current = best.options.get(setting, values[0])
            others = [value for value in values if value != current]
            tried = [
                self.trial(f"{setting} = {value}", {**best.options, setting: value})
                for value in others
            ]
            winner = max([best, *tried], key=lambda trial: trial.nats)
            found += tried
            best = winner
        return found

    def trial(self, changed: str, options: dict[str, Any]) -> Trial:
        """Fits with some settings."""
        words = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"

        rows = {}
        for corpus in self.corpora:
            measure = partial(self.measure, corpus, options)
            rows[corpus] = self.cells.one(f"{corpus}, {self.system}, {words}", measure)
        scores = {corpus: row["nats"] for corpus, row in rows.items()}
        seconds = {corpus: row["cpu_seconds"] for corpus, row in rows.items()}
        return Trial(
            self.length, self.system, changed, options, fmean(scores.values()), scores, seconds
        )

    def measure(self, corpus: str, options: dict[str, Any]) -> dict[str, Any]:
        """Score and CPU seconds of a fit with some options."""
        settings, split = self.settings, self.split_of(corpus)
        name = FITTED_AS.get(self.system, self.system)
        row = measured(
            split, name, settings.num_topics, settings.seed, settings.tolerance, options=options
        )
        if "failed" in row:
            return {"nats": -float("inf"), "cpu_seconds": 0.0, "failed": row["failed"]}
        nats = float(unpacked(row["log_predictive"]).sum()) / split.hold_out.held_out.num_tokens
        return {"nats": nats, "cpu_seconds": row["cpu_seconds"]}


def tables(trials: list[Trial]) -> str:
    """A table for each class of documents and system, with every trial."""
    parts = []
    for length, system in dict.fromkeys((trial.length, trial.system) for trial in trials):
        some = [trial for trial in trials if (trial.length, trial.system) == (length, system)]
        lines = [_line(trial, some[0]) for trial in some]
        best = max(some, key=lambda trial: trial.nats)
        chosen = ", ".join(f"{key}={value}" for key, value in best.options.items()) or "defaults"
        parts.append(f"## {length}: {system}\n\n{table_of(lines)}\n\nbest: {chosen}")
    parts.append(
        "nats: mean score of a held-out token over the corpora; gain: over the first row. A trial\n"
        "has the best settings of all rows above it, but for the named one."
    )
    return "\n\n".join(parts)


def _line(trial: Trial, first: Trial) -> dict[str, str]:
    scores = {name: f"{nats:.4f}, {trial.seconds[name]:.0f}" for name, nats in trial.scores.items()}
    return {
        "changed": trial.changed,
        "nats": f"{trial.nats:.4f}",
        "gain": f"{trial.nats - first.nats:+.4f}",
        **{f"{Path(name).stem}: nats, CPU s": text for name, text in scores.items()},
    }


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"corpora": ("m10",), "num_topics": 5, "max_docs": 300, "max_test_docs": 30},
    selects=("corpora", "systems"),
)
