"""Fits of a corpus in parts by 1, 2 and 4 processes, and a fit that goes on after a killed process.

The documents are drawn from a logistic-normal topic model and written in shards. Every process of a
fit opens its own shards. The processes run side by side, each on one thread, and share the cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.benchmarks.large import corpus_of
from studies.machine import ROOT, Stopwatch, memory_mb, thread_environment
from studies.measure import Cells, Study, check_numbers
from studies.tables import table
from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.mapped import Rows
from torch_lntm.errors import ConfigError
from torch_lntm.inference import MonteCarloEM, Processes
from torch_lntm.models import ctm

#: Documents drawn at once.
_DRAWN = 10_000
#: Fits: name, number of processes, and whether every process opens the whole corpus.
FITS = {"whole, 1": (1, True), "1": (1, False), "2": (2, False), "4": (4, False)}
#: The fit with a killed process: processes before and after.
BEFORE, AFTER = 2, 3


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Documents.
        num_words: Words of the vocabulary.
        tokens_per_doc: Mean tokens of a document.
        num_shards: Shards of the corpus.
        num_topics: Topics, of the truth and of the fits.
        max_epochs: Epochs of chains. The killed fit continues after its first epoch.
        seed: Seed of the documents and of the fits.
        fits: Fits to measure. "1", "2" and "4" are numbers of processes with their parts.
            "continued" is a fit with a killed process. "whole, 1" is one process with the whole
            corpus. The start of "whole, 1" visits all documents, and takes most of its time.
        folder: Folder of the corpus and the checkpoints, which are removed at the end. Defaults to
            a temporary folder.
    """

    num_docs: int = 2_000_000
    num_words: int = 5_000
    tokens_per_doc: int = 20
    num_shards: int = 16
    num_topics: int = 20
    max_epochs: int = 2
    seed: int = 0
    fits: tuple[str, ...] = ("1", "2", "4", "continued")
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "num_words", "tokens_per_doc", "num_shards")
        check_numbers(self, {**dict.fromkeys(ones, 1), "num_topics": 2, "max_epochs": 2, "seed": 0})
        unknown = [name for name in self.fits if name not in (*FITS, "continued")]
        if unknown:
            raise ConfigError(
                f"fits: {unknown[0]!r}; expected some of {', '.join(FITS)}, continued"
            )


def run(settings: Settings, cells: Cells) -> Any:
    """Write the corpus, and fit it by each number of processes."""
    names = list(settings.fits)
    with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
        if any(name not in cells.done for name in names):
            # The corpus of an interrupted study is gone.
            write(settings, Path(folder, "corpus"))
        measured = cells.each(names, lambda name: measure_fit(settings, name, Path(folder)))
    return dict(zip(names, measured, strict=True))


def measure_fit(settings: Settings, name: str, folder: Path) -> list[dict[str, Any]]:
    """Measurements of all processes of a fit, by rank."""
    if name in FITS:
        return in_processes(settings, *FITS[name], folder, None)
    checkpoint = folder / "fit.safetensors"
    kill(settings, folder, checkpoint)
    return in_processes(settings, AFTER, False, folder, checkpoint)


def kill(settings: Settings, folder: Path, checkpoint: Path) -> None:
    """Run a fit, and end its last process by SIGKILL at its first checkpoint."""
    started = start(settings, BEFORE, False, folder, checkpoint)
    while not checkpoint.exists():
        if any(process.poll() is not None for process in started):
            raise RuntimeError("a process of the fit ended before its first checkpoint")
        time.sleep(0.01)
    os.kill(started[-1].pid, signal.SIGKILL)
    for process in started:
        process.communicate()
    if not all(process.returncode for process in started):
        raise RuntimeError("a process of the fit ended without an error after SIGKILL of another")


def in_processes(
    settings: Settings, size: int, whole: bool, folder: Path, checkpoint: Path | None
) -> list[dict[str, Any]]:
    """Measurements of the processes of a fit, by rank."""
    found = []
    for process in start(settings, size, whole, folder, checkpoint):
        text, error = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a fit by {size} processes failed: {error}")
        found.append(json.loads(text))
    return found


def start(
    settings: Settings, size: int, whole: bool, folder: Path, checkpoint: Path | None
) -> list[subprocess.Popen[str]]:
    """Start the processes of a fit."""
    store = folder / f"store-{time.monotonic_ns()}"
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "studies.benchmarks.parts"),
                *(json.dumps(asdict(settings)), str(rank), str(size), json.dumps(whole)),
                *(str(folder / "corpus"), str(store), str(checkpoint or "")),
            ],
            cwd=ROOT,
            env=thread_environment(1),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def main(
    settings: Settings, rank: int, size: int, whole: bool, path: Path, store: str, checkpoint: str
) -> None:
    """Fit in this process of a group, and print the measurements as JSON."""
    if size > 1:
        options: dict[str, Any] = {"rank": rank, "world_size": size}
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", **options)
    imported_mb = memory_mb()
    with Stopwatch() as opening:
        corpus = read_corpus(path) if whole else read_corpus(path, rank=rank, world_size=size)
        opened_mb = opened(path)
    model = ctm(settings.num_topics, settings.num_words, seed=settings.seed)
    engine = MonteCarloEM(model, max_epochs=settings.max_epochs, seed=settings.seed, progress=False)
    epoch_ends: list[float] = []
    with Stopwatch() as fitting:
        began = time.process_time()
        result = engine.fit(
            corpus,
            checkpoint=checkpoint or None,
            checkpoint_seconds=0.0,
            callback=lambda _: epoch_ends.append(time.process_time() - began),
        )
    about = {
        "objectives": [record["objective"] for record in result.history],
        "seconds": [record["seconds"] for record in result.history],
        # CPU seconds of this process since the start of the fit; empty in all but the first.
        "epoch_ends": epoch_ends,
        "documents": corpus.num_docs,
        "tokens": corpus.num_tokens,
        "opened_mb": opened_mb,
        "opening_cpu_seconds": opening.cpu_seconds,
        "fit_cpu_seconds": fitting.cpu_seconds,
        "fit_wall_seconds": fitting.wall_seconds,
        "peak_mb": memory_mb(peak=True),
        "peak_mb_beyond_imports": memory_mb(peak=True) - imported_mb,
    }
    if size > 1:
        Processes().gather(None)  # all processes have finished
        torch.distributed.destroy_process_group()
    print(json.dumps(about))


def opened(path: Path) -> float:
    """Size in MB of the shards of which this process keeps files open; Linux only."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    folders = {link.resolve().parent for link in links}
    shards = [folder for folder in folders if folder.parent == path.resolve()]
    return sum(file.stat().st_size for folder in shards for file in folder.iterdir()) / 2.0**20


def write(settings: Settings, path: Path) -> None:
    """Write the documents to a folder in shards."""
    corpus = corpus_of(draw(settings), settings.num_words)
    corpus.save(path, shard_size=-(-settings.num_docs // settings.num_shards))


def draw(settings: Settings) -> Iterator[Rows]:
    """Documents of a logistic-normal topic model with sparse topics."""
    rng = np.random.default_rng(settings.seed)
    num_topics, num_words = settings.num_topics, settings.num_words
    frequency = 1 / np.arange(10, num_words + 10)
    topics = rng.gamma(0.1, size=(num_topics, num_words)) * frequency + 1e-9
    # The words of topic k have the numbers from k to k + 1.
    below = np.cumsum(topics / topics.sum(1, keepdims=True), 1) + np.arange(num_topics)[:, None]
    below[:, -1] = np.arange(1, num_topics + 1)
    factor = rng.normal(0, 1 / np.sqrt(num_topics), (num_topics, num_topics)) + np.eye(num_topics)
    for first in range(0, settings.num_docs, _DRAWN):
        num_docs = min(_DRAWN, settings.num_docs - first)
        theta = np.exp(1.5 * rng.standard_normal((num_docs, num_topics)) @ factor)
        theta = np.cumsum(theta / theta.sum(1, keepdims=True), 1)
        rows = np.repeat(np.arange(num_docs), rng.poisson(settings.tokens_per_doc, num_docs))
        topic = (theta[rows, :-1] < rng.random(rows.size)[:, None]).sum(1)
        place = np.searchsorted(below.ravel(), topic + rng.random(rows.size), "right")
        words = np.minimum(place - topic * num_words, num_words - 1)
        entries, counts = np.unique(rows * num_words + words, return_counts=True)
        sizes = np.bincount(entries // num_words, minlength=num_docs)
        yield Rows(sizes, entries % num_words, counts)


def tables(found: dict[str, Any]) -> str:
    """A row for each process of each fit."""
    rows = []
    for name, ranks in found.items():
        for rank, cell in enumerate(ranks):
            rows.append(
                [
                    name if not rank else "",
                    str(rank),
                    str(cell["documents"]),
                    f"{cell['opened_mb']:.0f}",
                    f"{cell['peak_mb_beyond_imports']:.0f}",
                    f"{cell['peak_mb']:.0f}",
                    f"{cell['opening_cpu_seconds'] + cell['fit_cpu_seconds']:.0f}",
                    f"{cell['fit_wall_seconds']:.0f}",
                    f"{cell['objectives'][-1]:.6f}",
                ]
            )
    columns = [
        *("processes", "rank", "documents", "opened MB", "peak MB beyond imports", "peak MB"),
        *("CPU seconds", "seconds of the fit", "objective"),
    ]
    return table(columns, rows)


STUDY = Study(Settings, run, tables, quick={"num_docs": 4_000, "num_words": 500}, selects=("fits",))

if __name__ == "__main__":
    _, _settings, _rank, _size, _whole, _path, _store, _checkpoint = sys.argv
    main(
        Settings(**json.loads(_settings)),
        *(int(_rank), int(_size), json.loads(_whole)),
        *(Path(_path), _store, _checkpoint),
    )
