"""Fits on a GPU, with PyTorch's and with fused kernels, beside fits on the machine's CPU.

Small fits run first, so compilation and the start of CUDA are not measured. Every fit is made from
the same seed. Random numbers are equal on all devices, but rounding differs and chains magnify it.
Perplexities therefore differ as between seeds.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

import torch_lntm as lntm
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_filled, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError

#: Where a fit runs: device, value of the variable LNTM_TRITON, and name in the table.
PLACES = {
    "cpu": ("cpu", "0", "CPU"),
    "cuda": ("cuda", "0", "GPU, PyTorch's kernels"),
    "fused": ("cuda", "1", "GPU, fused kernels"),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        topics: Topics of each corpus, in the order of ``corpora``.
        places: Places: cpu, cuda (PyTorch's kernels on the GPU), fused (fused kernels on the GPU).
        epochs: Largest number of epochs; 0 for the default of the engine.
        threads: Threads on the CPU.
        repeats: Fits of each kind.
        seed: Seed of the fits.
    """

    corpora: tuple[str, ...] = ("m10", "ap", "nips_uci", "imdb100k")
    topics: tuple[int, ...] = (50, 50, 100, 100)
    places: tuple[str, ...] = tuple(PLACES)
    epochs: int = 0
    threads: int = 8
    repeats: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"topics": 2, "threads": 1, "repeats": 1, "seed": 0, "epochs": 0})
        check_filled(self, "corpora", "places")
        if len(self.topics) != len(self.corpora):
            raise ConfigError(
                f"{len(self.topics)} numbers of topics and {len(self.corpora)} corpora; expected a "
                "number for each corpus"
            )
        if unknown := [name for name in self.places if name not in PLACES]:
            raise ConfigError(f"place {unknown[0]!r}; expected one of {', '.join(PLACES)}")


@dataclass(frozen=True)
class Fit:
    """A measured fit.

    Attributes:
        corpus: Name of the corpus.
        num_topics: Topics.
        place: Name of the place.
        device: Name of the GPU, or None.
        wall_seconds: Wall seconds of the fit.
        cpu_seconds: CPU seconds of the fit.
        epochs: Epochs of the chains.
        epoch_seconds: Median wall seconds of an epoch.
        perplexity: Perplexity of the training documents in the last epoch.
        peak_mb: Largest memory of PyTorch's tensors on the GPU, MB, or None.
    """

    corpus: str
    num_topics: int
    place: str
    device: str | None
    wall_seconds: float
    cpu_seconds: float
    epochs: int
    epoch_seconds: float
    perplexity: float
    peak_mb: float | None


def run(settings: Settings, cells: Cells) -> list[Fit]:
    """Make the fits.

    Raises:
        ConfigError: A place needs a GPU, and PyTorch finds none.
    """
    needs_gpu = any(PLACES[place][0] == "cuda" for place in settings.places)
    if needs_gpu and not torch.cuda.is_available():
        raise ConfigError("PyTorch finds no GPU; expected one, or --places cpu")
    topics = dict(zip(settings.corpora, settings.topics, strict=True))
    keys = [
        (name, place, repeat)
        for name in settings.corpora
        for place in settings.places
        for repeat in range(settings.repeats)
    ]

    def measure(key: tuple[str, str, int]) -> Fit:
        name, place, _ = key
        corpus = lntm.read_corpus(corpus_file(name))
        with _at(place, settings.threads):
            small = corpus[: min(len(corpus), 500)]
            _fit(small, name, topics[name], place, 2, settings.seed)
            return _fit(corpus, name, topics[name], place, settings.epochs, settings.seed)

    return [Fit(**found) for found in cells.each(keys, measure)]


@contextmanager
def _at(place: str, threads: int) -> Iterator[None]:
    """Sets the number of threads and the kernels of a place."""
    before, variable = torch.get_num_threads(), os.environ.get("LNTM_TRITON")
    torch.set_num_threads(threads)
    os.environ["LNTM_TRITON"] = PLACES[place][1]
    try:
        yield
    finally:
        torch.set_num_threads(before)
        del os.environ["LNTM_TRITON"]
        if variable is not None:
            os.environ["LNTM_TRITON"] = variable


def _fit(
    corpus: Corpus,
    name: str,
    num_topics: int,
    place: str,
    epochs: int,
    seed: int,
) -> Fit:
    device = PLACES[place][0]
    model = lntm.models.ctm(num_topics, corpus.num_words, seed=seed).to(device)
    limit: dict[str, Any] = {"max_epochs": epochs} if epochs else {}
    engine = lntm.inference.MonteCarloEM(model, seed=seed, progress=False, **limit)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    with Stopwatch() as stopwatch, warnings.catch_warnings():
        # Few epochs warn that they have not converged.
        warnings.simplefilter("ignore", UserWarning)
        result = engine.fit(corpus, callback=lambda _: ends.append(time.perf_counter()))
        if on_gpu:
            torch.cuda.synchronize()
    pauses = [after - before for before, after in pairwise(ends)]
    return Fit(
        corpus=name,
        num_topics=num_topics,
        place=place,
        device=torch.cuda.get_device_name() if on_gpu else None,
        wall_seconds=stopwatch.wall_seconds,
        cpu_seconds=stopwatch.cpu_seconds,
        epochs=len(result.history),
        epoch_seconds=median(pauses) if pauses else float("nan"),
        perplexity=math.exp(-result.history[-1]["objective"]),
        peak_mb=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
    )


def tables(fits: list[Fit]) -> str:
    """A row for each fit."""
    return table_of(
        [
            {
                "corpus": fit.corpus,
                "topics": str(fit.num_topics),
                "on": PLACES[fit.place][2],
                "wall s": f"{fit.wall_seconds:.1f}",
                "CPU s": f"{fit.cpu_seconds:.1f}",
                "epochs": str(fit.epochs),
                "ms an epoch": f"{1000 * fit.epoch_seconds:.0f}",
                "perplexity": f"{fit.perplexity:.1f}",
                "GPU MB": "–" if fit.peak_mb is None else f"{fit.peak_mb:.0f}",
            }
            for fit in fits
        ]
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"corpora": ("m10",), "topics": (10,), "epochs": 3},
    selects=("corpora", "topics", "places"),
)
