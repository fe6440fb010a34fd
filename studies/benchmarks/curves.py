"""Perplexity of held-out words against CPU seconds: a curve of several budgets for each system.

Budgets are epochs of this package and sweeps of the peers. Each point is a fit of its own, scored
as in the study ``quality`` on its splits. Tuned peers average 40 states of further sweeps. The
further sweeps are about as many as the budget, and at most 400.

*By threads*, a fit of each system is timed with 1, 2, 4, … threads up to the cores of the machine,
and a fit of this package also beside a process that keeps a core busy. Wall seconds need an idle
machine; CPU seconds show what other threads cost.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import scipy.sparse as sp
import torch

import torch_lntm as lntm
from studies.benchmarks.completion import check_installed, fit_in_process
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, Frozen, frozen
from studies.benchmarks.quality import measured, unpacked
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers
from studies.tables import table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS, SWEEPS = (4, 8, 15, 30, 60), (40, 100, 400, 1000, 2000)
#: Budgets of each system.
BUDGETS = {
    "torch_lntm ctm, auto": EPOCHS,
    "topica LDA": SWEEPS,
    "topica LDA, tuned": SWEEPS,
    "tomotopy LDA": SWEEPS,
    "tomotopy LDA, tuned": SWEEPS,
}
STATES, LARGEST_LAG, TOPICA_BURN_IN = 40, 10, 200


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        systems: Systems to fit.
        num_topics: Topics.
        seed: Seed of the split, the hold-out and the fits.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
        threads: Numbers of threads of the timed fits. Without any, 1, 2, 4, … and all cores.
    """

    corpora: tuple[str, ...] = ("m10", "bbc", "cora")
    systems: tuple[str, ...] = tuple(BUDGETS)
    num_topics: int = 50
    seed: int = 0
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.003
    threads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seed": 0, "max_docs": 2, "max_test_docs": 1, "threads": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", BUDGETS)
        check_filled(self, "corpora")


@dataclass(frozen=True)
class Point:
    """One fit.

    Attributes:
        corpus: Name of the corpus.
        system: Name of the system.
        budget: Epochs, or sweeps before the averaged ones.
        cpu_seconds: CPU seconds of the fit.
        nats: Mean score of a held-out token, nats.
    """

    corpus: str
    system: str
    budget: int
    cpu_seconds: float
    nats: float


@dataclass(frozen=True)
class Timing:
    """A timed fit at a usual budget.

    Attributes:
        corpus: Name of the corpus.
        system: Name of the system.
        threads: Number of threads.
        busy: Whether another process kept a core busy.
        wall_seconds: Wall seconds of the fit.
        cpu_seconds: CPU seconds of the fit, over all threads.
    """

    corpus: str
    system: str
    threads: int
    busy: bool
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        points: The curves.
        timings: Fits by the number of threads.
    """

    points: list[Point]
    timings: list[Timing]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit every system with a library at every budget. Failed fits have no point.

    Raises:
        ConfigError: A system is not installed, or a corpus does not exist.
    """
    check_installed(settings.systems)
    torch.set_num_threads(1)
    # The first fit on a machine compiles kernels, which belongs to no cell.
    lntm.inference.MonteCarloEM(
        lntm.models.ctm(2, lntm.example_corpus()), max_epochs=1, progress=False
    ).fit(lntm.example_corpus())
    points, timings = [], []
    for corpus in settings.corpora:
        split = frozen(corpus, settings.seed, settings.max_docs, settings.max_test_docs)
        tokens = split.hold_out.held_out.num_tokens

        def compare(key: tuple[str, str, int]) -> dict[str, Any]:
            _, system, budget = key
            row = measured(
                split,  # noqa: B023 (called before the next corpus)
                system,
                settings.num_topics,
                settings.seed,
                settings.tolerance,
                options=options_at(system, budget),
            )
            if "failed" in row:
                return {"failed": row["failed"]}
            total = float(unpacked(row["log_predictive"]).sum())
            return {"cpu_seconds": row["cpu_seconds"], "nats": total / tokens}  # noqa: B023

        keys = [
            (corpus, system, budget) for system in settings.systems for budget in BUDGETS[system]
        ]
        for key, row in zip(keys, cells.each(keys, compare), strict=True):
            if "failed" not in row:
                points.append(Point(*key, row["cpu_seconds"], row["nats"]))
        timings += _timings(settings, cells, corpus, split)
    return Result(points, timings)


def _timings(settings: Settings, cells: Cells, corpus: str, split: Frozen) -> list[Timing]:
    """Fits of every system by the number of threads, and some of ours on a busy machine."""
    cores = joblib.cpu_count()
    threads = settings.threads or sorted({2**n for n in range(cores.bit_length() - 1)} | {cores})
    keys = [
        (corpus, system, number, "threads" + ", busy" * busy)
        for system in settings.systems
        for busy in range(1 + ours(system))
        for number in threads
    ]

    def timed(key: tuple[str, str, int, str]) -> list[float]:
        with tempfile.TemporaryDirectory() as folder, _load("busy" in key[3]):
            path = Path(folder) / "train.npz"
            sp.save_npz(path, split.train.to_scipy())
            budget = BUDGETS[key[1]][-1 if ours(key[1]) else -2]
            fit = fit_in_process(
                key[1],
                path,
                num_topics=settings.num_topics,
                seed=settings.seed,
                threads=key[2],
                options=options_at(key[1], budget),
            )
        record = json.loads(str(fit["record"]))
        return [record["wall_seconds"], record["cpu_seconds"]]

    rows = zip(keys, cells.each(keys, timed), strict=True)
    return [Timing(*key[:3], "busy" in key[3], *seconds) for key, seconds in rows]


@contextmanager
def _load(busy: bool) -> Iterator[None]:
    """Keep a core busy with another process, if asked."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def options_at(system: str, budget: int) -> dict[str, Any]:
    """Options of a system at a budget. Tuned peers average states of their last sweeps."""
    if system.startswith("torch_lntm"):
        return {"max_epochs": budget}
    lag = min(LARGEST_LAG, max(1, budget // STATES)) if "tuned" in system else None
    if system.startswith("topica"):
        options: dict[str, Any] = {"iters": budget, "burn_in": min(TOPICA_BURN_IN, budget // 2)}
        return options if lag is None else options | {"sample_interval": lag}
    return {"sweeps": budget} if lag is None else {"sweeps": budget, "lag": lag}


def seconds_to(points: Sequence[Point], nats: float) -> float:
    """CPU seconds after which a curve reaches a score, or infinity.

    Between two points the score is linear in the logarithm of the seconds. A curve that starts with
    a better score has the seconds of its first point.
    """
    curve = sorted(points, key=lambda point: point.cpu_seconds)
    if curve and curve[0].nats >= nats:
        return curve[0].cpu_seconds
    for before, after in pairwise(curve):
        if after.nats >= nats:
            share = (nats - before.nats) / (after.nats - before.nats)
            low, high = math.log(before.cpu_seconds), math.log(after.cpu_seconds)
            return math.exp(low + share * (high - low))
    return math.inf


def ours(system: str) -> bool:
    """Whether a system is this package's."""
    return system.startswith("torch_lntm")


def tables(result: Result) -> str:
    """Points and times of each corpus, and the seconds to the best peer's best score."""
    parts = []
    for corpus in dict.fromkeys(point.corpus for point in result.points):
        some = [point for point in result.points if point.corpus == corpus]
        times = [
            {
                "system": time.system,
                "threads": f"{time.threads}{', busy machine' * time.busy}",
                "wall s": f"{time.wall_seconds:.1f}",
                "CPU s": f"{time.cpu_seconds:.1f}",
            }
            for time in result.timings
            if time.corpus == corpus
        ]
        lines = [
            {
                "system": point.system,
                "budget": str(point.budget),
                "CPU s": f"{point.cpu_seconds:.1f}",
                "perplexity": f"{math.exp(-point.nats):.1f}",
            }
            for point in some
        ]
        parts.append(f"## {Path(corpus).stem}\n\n{table_of(lines)}{_race(some)}")
        if times:
            parts.append(f"### By threads\n\n{table_of(times)}")
    return "\n\n".join(parts)


def _race(points: list[Point]) -> str:
    """Seconds of this package's curves to the best score of all peers, and the peer's seconds."""
    peers = [point for point in points if not ours(point.system)]
    if not peers:
        return ""
    best = max(peers, key=lambda point: point.nats)
    text = (
        f"\n\nbest peer: {best.system}, {math.exp(-best.nats):.1f} after "
        f"{best.cpu_seconds:.1f} CPU s"
    )
    for system in dict.fromkeys(point.system for point in points if ours(point.system)):
        curve = [point for point in points if point.system == system]
        seconds = seconds_to(curve, best.nats)
        reached = f"in {seconds:.1f} CPU s" if math.isfinite(seconds) else "at no budget"
        text += f"\n\n{system} reaches this {reached}"
    return text


def figure(result: Result) -> Figure:
    """The picture ``docs/figures/curves.png``: a panel for each corpus, a line for each system."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    points = result.points
    corpora = list(dict.fromkeys(point.corpus for point in points))
    plot, axes = plt.subplots(
        1, len(corpora), figsize=(3.9 * len(corpora), 4.2), layout="constrained", squeeze=False
    )
    for ax, corpus in zip(axes[0], corpora, strict=True):
        for place, system in enumerate(dict.fromkeys(point.system for point in points)):
            curve = [p for p in points if (p.corpus, p.system) == (corpus, system)]
            curve.sort(key=lambda point: point.cpu_seconds)
            ax.plot(
                [point.cpu_seconds for point in curve],
                [math.exp(-point.nats) for point in curve],
                marker="o" if ours(system) else "s",
                markersize=4,
                linestyle="-" if ours(system) or "tuned" in system else ":",
                color=f"C{place}",
                label=system,
            )
        ax.set(xscale="log", yscale="log", title=Path(corpus).stem, xlabel="CPU seconds of the fit")
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.yaxis.set_minor_formatter(ScalarFormatter())
    axes[0][0].set_ylabel("perplexity of held-out words (lower is better)")
    axes[0][-1].legend(fontsize=8)
    return plot


STUDY = Study(
    Settings,
    run,
    tables,
    figure,
    quick={
        "corpora": ("m10",),
        "systems": ("torch_lntm ctm, auto",),
        "num_topics": 5,
        "max_docs": 300,
        "max_test_docs": 30,
    },
    selects=("corpora", "systems", "threads"),
)
