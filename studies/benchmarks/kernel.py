"""The sparse operation beside a plain version, and beside the traffic it must cause.

Each batch computes the log likelihood Σ_v c_dv log Σ_k t_dk φ_kv of every document and its
gradients in t and φ, on real documents, in float32. *Fast* is the package's operation. *E-step* is
its part for an iteration of a posterior (no gradient in φ). *Naive* gathers a row of K numbers for
each stored count, and autograd adds the rows up again (``index_add``). *Rows* is three times one
weighted sum of a row of K numbers for each stored count; s and both gradients each read the rows
once. *Floor* is the bytes that must move even with every row in the cache (counts, indices,
weights, topics and both gradients once), at the speed of summing 256 MB. The study takes a minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.mixture import expected_topic_counts, mixture_log_likelihood

ROW_PASSES = 3
MAX_NAIVE_ELEMENTS = 2**27
STREAM_FLOATS = 2**26


def naive(weights: Tensor, words: Tensor, batch: DocumentBatch) -> Tensor:
    """Log likelihoods by indexing alone; ``words`` is ``(num_words, num_topics)``."""
    s = (weights[batch.row_index] * words[batch.word_index]).sum(-1)
    terms = batch.counts * s.log()
    return terms.new_zeros(batch.num_docs).index_add(0, batch.row_index, terms)


def in_turn(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each function, run in turn to share the state of the machine."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(taken.values()))) < 5:
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in taken.items()}


def stream_bytes_per_ms() -> float:
    """Bytes of main memory read by a sum in a millisecond."""
    numbers = torch.ones(STREAM_FLOATS)
    return 4 * STREAM_FLOATS / in_turn({"sum": numbers.sum}, seconds=1.0)["sum"]


def least_bytes(batch: DocumentBatch, num_topics: int) -> int:
    """Bytes of the inputs and the gradients, each read or written once."""
    counts = batch.nnz * (8 + 4) + 8 * batch.num_docs
    tables = 2 * 4 * num_topics * (batch.num_docs + batch.num_words)
    return counts + tables


def measure(
    batch: DocumentBatch, num_topics: int, seconds: float, bytes_per_ms: float
) -> dict[str, Any]:
    """Times of one batch and number of topics."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch.num_docs, num_topics, generator=generator)
    weights = torch.softmax(logits, -1).requires_grad_()
    table = torch.softmax(torch.randn(batch.num_words, num_topics, generator=generator), 0)
    words = table.clone().requires_grad_()

    def fast() -> tuple[Tensor, ...]:
        total = mixture_log_likelihood(weights, words.mT, batch).sum()
        return torch.autograd.grad(total, (weights, words))

    def plain() -> tuple[Tensor, ...]:
        return torch.autograd.grad(naive(weights, words, batch).sum(), (weights, words))

    def e_step() -> Tensor:
        with torch.no_grad():
            return expected_topic_counts(weights, words.mT, batch)

    def rows() -> Tensor:
        return F.embedding_bag(
            batch.word_index,
            table,
            batch.row_offsets,
            mode="sum",
            per_sample_weights=batch.counts,
            include_last_offset=True,
        )

    functions: dict[str, Callable[[], object]] = {"fast": fast, "e_step": e_step, "rows": rows}
    # The naive version keeps several tables of stored counts × topics.
    if batch.nnz * num_topics <= MAX_NAIVE_ELEMENTS:
        functions["naive"] = plain
        for a, b in zip(fast(), plain(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    times = in_turn(functions, seconds)
    rows_ms = ROW_PASSES * times["rows"]
    floor_ms = least_bytes(batch, num_topics) / bytes_per_ms
    return {
        "num_topics": num_topics,
        "num_docs": batch.num_docs,
        "nnz": batch.nnz,
        "fast_ms": times["fast"],
        "e_step_ms": times["e_step"],
        "naive_ms": times.get("naive"),
        "rows_ms": rows_ms,
        "floor_ms": floor_ms,
        "naive_over_fast": times["naive"] / times["fast"] if "naive" in times else None,
        "fast_over_rows": times["fast"] / rows_ms,
        "fast_over_floor": times["fast"] / floor_ms,
    }


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Numbers of topics.
        num_docs: Numbers of documents in a batch.
        threads: Threads of torch.
        seconds: Seconds spent on each batch.
    """

    corpus: str = "ap"
    num_topics: tuple[int, ...] = (20, 50, 100, 200)
    num_docs: tuple[int, ...] = (32, 256, 2048)
    threads: int = 2
    seconds: float = 2.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 1, "num_docs": 1, "threads": 1}, ["seconds"])


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Time every batch."""
    torch.set_num_threads(settings.threads)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    speed = cells.one("bytes per millisecond", stream_bytes_per_ms)

    def of_batch(key: tuple[str, int, str, int]) -> dict[str, Any]:
        batch = corpus[: min(key[3], corpus.num_docs)].batch()
        return measure(batch, key[1], settings.seconds, speed)

    sizes = product(["topics"], settings.num_topics, ["documents"], settings.num_docs)
    return cells.each(sizes, of_batch)


def tables(rows: list[dict[str, Any]]) -> str:
    """A row per batch."""
    return table_of(
        [
            {
                "K": str(row["num_topics"]),
                "documents": str(row["num_docs"]),
                "stored counts": str(row["nnz"]),
                "fast ms": f"{row['fast_ms']:.2f}",
                "naive ms": f"{row['naive_ms']:.2f}" if row["naive_ms"] else "",
                "E-step ms": f"{row['e_step_ms']:.2f}",
                "naive/fast": f"{row['naive_over_fast']:.1f}" if row["naive_ms"] else "",
                "fast/rows": f"{row['fast_over_rows']:.1f}",
                "fast/floor": f"{row['fast_over_floor']:.1f}",
            }
            for row in rows
        ]
    )


STUDY = Study(Settings, run, tables, quick={"num_topics": (20, 50), "seconds": 0.5})
