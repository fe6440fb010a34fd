"""Is this checkout as fast as another one? The same small work in both, by turns.

``--other`` names the folder of another checkout of the repository, such as a git worktree of an
earlier commit. In each round either checkout has a process of its own, with one thread, and the two
take turns at each workload (``workloads.py``). A round's ratio is of the least CPU seconds of
either. *Results* is how much the numbers that the two computed differ, relative to their size.
Ten minutes on an idle machine; ``--quick`` takes two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import scipy.sparse as sp

import torch_lntm as lntm
from studies.machine import ROOT, git, thread_environment
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.errors import ConfigError

WORKLOADS = Path(__file__).with_name("workloads.py")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        other: The folder of the other checkout.
        corpus: Name of a corpus in the folder of data, or the path of one.
        num_topics: Topics.
        num_docs: First documents to use.
        rounds: Rounds, each with new processes.
        repeats: Turns of either process at each workload in a round, after one that is not timed.
        only: Workloads to time: those whose name contains one of these. All by default.
    """

    other: str | None = None
    corpus: str = "ap"
    num_topics: int = 50
    num_docs: int = 200
    rounds: int = 5
    repeats: int = 3
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = dict.fromkeys(("num_docs", "rounds", "repeats"), 1)
        check_numbers(self, {"num_topics": 2, **ones})


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        commit: The other checkout's commit; None if git does not know.
        rounds: For each workload of each round, the least CPU seconds and the number computed, by
            ``"this"`` and ``"other"``.
    """

    commit: str | None
    rounds: list[dict[str, dict[str, dict[str, float]]]]


def run(settings: Settings, cells: Cells) -> Result:
    """Time every round.

    Raises:
        ConfigError: There is no other checkout, or one of the two cannot do a workload.
    """
    if settings.other is None:
        raise ConfigError("name the folder of another checkout by --other")
    other = Path(settings.other).resolve()
    if not (other / "torch_lntm" / "__init__.py").exists():
        raise ConfigError(f"{other} is no checkout: it has no torch_lntm/__init__.py")
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    corpus = corpus[corpus.lengths.nonzero()[0][: settings.num_docs]]
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.npz"
        sp.save_npz(counts, corpus.to_scipy())
        commit = cells.one("other", lambda: git("rev-parse", "HEAD", folder=other))
        rounds = cells.each(
            [("round", number) for number in range(settings.rounds)],
            lambda _: one_round(settings, other, counts),
        )
    return Result(commit, rounds)


def one_round(
    settings: Settings, other: Path, counts: Path
) -> dict[str, dict[str, dict[str, float]]]:
    """The workloads in two new processes."""
    checkouts = {"this": ROOT, "other": other}
    with ExitStack() as stack:
        workers = {
            side: stack.enter_context(worker(checkout, counts, settings.num_topics))
            for side, checkout in checkouts.items()
        }
        chosen = [
            name
            for name in workers["this"].names
            if not settings.only or any(part in name for part in settings.only)
        ]
        if not chosen:
            raise ConfigError(
                f"no workload has any of {', '.join(settings.only)} in its name; expected parts of "
                + "; ".join(workers["this"].names)
            )
        found = {}
        for name in chosen:
            turns = [{side: workers[side].do(name) for side in workers}]
            for turn in range(settings.repeats):
                order = list(workers) if turn % 2 else list(workers)[::-1]
                turns.append({side: workers[side].do(name) for side in order})
            found[name] = {
                side: {
                    "cpu_seconds": min(turn[side]["cpu_seconds"] for turn in turns[1:]),
                    "value": turns[-1][side]["value"],
                }
                for side in workers
            }
    return found


class Worker:
    """A process that does workloads with one checkout.

    Args:
        process: The process.
        checkout: The folder of its checkout.
    """

    def __init__(self, process: subprocess.Popen[str], checkout: Path) -> None:
        self._process, self._checkout = process, checkout
        first = self._answer()
        found = Path(first["package"]).resolve()
        if not found.is_relative_to(checkout):
            raise ConfigError(f"the process for {checkout} imported {found}")
        self.names: list[str] = first["workloads"]

    def do(self, name: str) -> dict[str, float]:
        """Do a workload once: its CPU seconds, and the number that it computed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise ConfigError(f"{self._checkout} cannot do {name!r}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"the process for {self._checkout} ended; its error is above")
        return dict(json.loads(line))


@contextmanager
def worker(checkout: Path, counts: Path, num_topics: int) -> Iterator[Worker]:
    """A process that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(WORKLOADS), str(counts), str(num_topics)],
        env={**thread_environment(1), "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Worker(process, checkout)
        finally:
            process.kill()


def tables(result: Result) -> str:
    """A row per workload: milliseconds, ratios over rounds, and whether results are the same."""
    rows = []
    for name in result.rounds[0]:
        pairs = [(each[name]["this"], each[name]["other"]) for each in result.rounds]
        ratios = [this["cpu_seconds"] / other["cpu_seconds"] for this, other in pairs]
        this, other = pairs[0]
        size = max(abs(this["value"]), abs(other["value"])) or 1.0
        rows.append(
            {
                "workload": name,
                "other ms": f"{1e3 * min(pair[1]['cpu_seconds'] for pair in pairs):.1f}",
                "this ms": f"{1e3 * min(pair[0]['cpu_seconds'] for pair in pairs):.1f}",
                "this / other": f"{median(ratios):.2f}",
                "least": f"{min(ratios):.2f}",
                "most": f"{max(ratios):.2f}",
                "results": f"{abs(this['value'] - other['value']) / size:.0e}",
            }
        )
    title = f"CPU milliseconds; the other checkout is at {result.commit or 'an unknown commit'}"
    return f"{title}\n\n{table_of(rows)}"


STUDY = Study(
    Settings, run, tables, quick={"num_topics": 20, "num_docs": 100, "rounds": 2, "repeats": 2}
)
