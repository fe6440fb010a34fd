"""CPU time of small pieces of work beside another checkout, in turns.

``--other`` names the folder of another checkout of the repository, such as a git worktree of an
earlier commit. In each round both checkouts have a process of their own, with one thread, and take
turns at each workload (``workloads.py``). The ratio of a round is between the least CPU seconds of
both. *Results* is the difference of the computed numbers, relative to their size. The study takes
ten minutes on an idle machine, and two with ``--quick``.
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
        other: Folder of the other checkout.
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        num_docs: Number of documents to use, from the first on.
        rounds: Rounds, each with new processes.
        repeats: Turns of each process at each workload in a round, after an untimed turn.
        only: Workloads to time: a workload counts if its name contains one of these. Defaults to
            all.
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
        commit: Commit of the other checkout. None if git does not know.
        rounds: For each workload of each round, the least CPU seconds and the computed number, by
            ``"this"`` and ``"other"``.
    """

    commit: str | None
    rounds: list[dict[str, dict[str, dict[str, float]]]]


def run(settings: Settings, cells: Cells) -> Result:
    """Time every round.

    Raises:
        ConfigError: The other checkout is missing, or a checkout cannot do a workload.
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
        checkout: Folder of its checkout.
    """

    def __init__(self, process: subprocess.Popen[str], checkout: Path) -> None:
        self._process, self._checkout = process, checkout
        first = self._answer()
        found = Path(first["package"]).resolve()
        if not found.is_relative_to(checkout):
            raise ConfigError(f"the process for {checkout} imported {found}")
        self.names: list[str] = first["workloads"]

    def do(self, name: str) -> dict[str, float]:
        """Do a workload once. Returns its CPU seconds and the computed number."""
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
    """A row for each workload: milliseconds, ratios over rounds, and the equality of results."""
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
