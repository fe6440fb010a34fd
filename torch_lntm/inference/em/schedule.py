"""Schedules of a fit: mini-batch sizes, weights of running statistics, phases and annealing.

The running statistics of Monte-Carlo EM measure age in documents, so that old ones lose weight at
the same rate whatever the mini-batch size. That size can therefore be chosen for speed, as long as
the average remembers more documents than a mini-batch has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError

#: Exponent with which the memory of the running statistics grows. It is short at first, because
#: early chains and topics still depend on where they started.
MEMORY_EXPONENT = 0.3
#: Blocks of :func:`running_weight`: their number in a corpus, bounds on the documents of a block,
#: and its smallest number of tokens, for which a block of short documents may exceed the bounds.
NUM_BLOCKS, BLOCK_DOCS, BLOCK_TOKENS = 100, (40, 400), 1200
#: Number of blocks in a mini-batch of Monte-Carlo EM, and smallest number of mini-batches of an
#: epoch.
BATCH_BLOCKS, MIN_EPOCH_BATCHES = 8, 4
#: Stochastic step of variational EM: tokens for every topic, and smallest number of documents.
STEP_TOKENS, MIN_STEP_DOCS = 240, 64
#: Stochastic step of variational EM: largest number of documents, and smallest number of steps of
#: an epoch.
MAX_STEP_DOCS, MIN_BATCHES = 1024, 8
#: Stopping rule of Monte-Carlo EM: epochs in the mean gain, and share of all epochs that averaging
#: takes at the end.
GAIN_WINDOW, AVERAGED_SHARE = 5, 0.25


def running_weight(seen: float, size: float, block_docs: float, averaging_start: float) -> float:
    """Weight of a mini-batch in a running average (*Cappé & Moulines 2009*).

    After n blocks of documents, the average remembers m = n^0.3 blocks, which means that dn new
    blocks replace the share dn/m of it. After ``averaging_start`` documents it becomes a plain
    average, whose m grows by one with each block. The weight is 1 − exp(−∫ dn/m).

    Args:
        seen: Number of documents before the mini-batch.
        size: Number of documents in the mini-batch.
        block_docs: Number of documents in a block.
        averaging_start: Number of documents before the plain average begins.
    """

    def age(docs: float) -> float:
        """Integral ∫ dn/m over the first ``docs`` documents."""
        blocks, start = docs / block_docs, averaging_start / block_docs
        age = min(blocks, start) ** (1.0 - MEMORY_EXPONENT) / (1.0 - MEMORY_EXPONENT)
        if blocks > start:
            age += math.log1p((blocks - start) / start**MEMORY_EXPONENT)
        return age

    return -math.expm1(age(seen) - age(seen + size))


@dataclass(frozen=True)
class PhaseSchedule:
    """Phases of Monte-Carlo EM: ``"warm-up"``, ``"sampling"``, ``"averaging"``.

    The first two make up the search. Every method takes the current phase and the records of all
    epochs so far.

    Attributes:
        max_epochs: Maximum number of epochs.
        warmup_epochs: Number of warm-up epochs.
        min_gain: Gain of the objective, in nats per token and epoch, below which the search ends.
        small_corpus: Whether the corpus is too small for a long search, which then ends at its
            first check whatever the gain.
    """

    max_epochs: int
    warmup_epochs: int
    min_gain: float
    small_corpus: bool

    def next_phase(self, phase: str, history: Sequence[dict[str, Any]]) -> str:
        """Phase of the next epoch."""
        epochs = len(history)
        min_gain = math.inf if self.small_corpus else self.min_gain
        if (
            phase == "averaging"
            or epochs >= self._max_search_epochs
            or self._gain(epochs, history) < min_gain
        ):
            return "averaging"
        return "warm-up" if epochs < self.warmup_epochs else "sampling"

    def averaging_start(self, phase: str, history: Sequence[dict[str, Any]]) -> float:
        """Number of epochs before averaging. Infinite during the search."""
        if phase != "averaging":
            return math.inf
        return sum(record["phase"] != "averaging" for record in history)

    def last_epoch(self, phase: str, history: Sequence[dict[str, Any]]) -> int:
        """Number of the last epoch, as expected now."""
        start = self.averaging_start(phase, history)
        return math.ceil(min(self.max_epochs, start / (1.0 - AVERAGED_SHARE)))

    def stop_reason(
        self, phase: str, history: Sequence[dict[str, Any]]
    ) -> Literal["converged", "stopped_early", "max_iterations"]:
        """Reason for the end of the search."""
        start = self.averaging_start(phase, history)
        if phase == "averaging" and self._gain(int(start), history) < self.min_gain:
            return "converged"
        return "stopped_early" if start < self._max_search_epochs else "max_iterations"

    @property
    def _max_search_epochs(self) -> float:
        return max((1.0 - AVERAGED_SHARE) * self.max_epochs, self.warmup_epochs)

    def _gain(self, epochs: int, history: Sequence[dict[str, Any]]) -> float:
        """Mean gain per epoch, in nats per token, over the last 5 of the first ``epochs`` epochs.

        It is infinite if ``min_gain`` is 0, or if fewer than 5 epochs have followed the warm-up.
        """
        first = epochs - GAIN_WINDOW
        if not self.min_gain or first < self.warmup_epochs:
            return math.inf
        gain = history[epochs - 1]["objective"] - history[first - 1]["objective"]
        return float(gain) / GAIN_WINDOW


def num_epochs(updates: int, num_batches: int, bounds: tuple[int, int]) -> int:
    """Number of epochs for at least ``updates`` updates, one for each batch, within bounds."""
    return min(max(math.ceil(updates / num_batches), bounds[0]), bounds[1])


def documents_per_block(num_docs: int, mean_length: float) -> float:
    """Number of documents in a block of :func:`running_weight`, for Monte-Carlo EM.

    Args:
        num_docs: Number of documents of the corpus.
        mean_length: Mean number of tokens of a document.
    """
    fewest, most = BLOCK_DOCS
    block_docs = max(min(max(num_docs / NUM_BLOCKS, fewest), most), BLOCK_TOKENS / mean_length)
    return min(block_docs, num_docs / MIN_EPOCH_BATCHES)


def default_batch_docs(num_docs: int, mean_length: float) -> int:
    """Default number of documents in a mini-batch of Monte-Carlo EM.

    Large mini-batches take less time per document, whereas small ones give more M-steps.

    Args:
        num_docs: Number of documents of the corpus.
        mean_length: Mean number of tokens of a document.
    """
    docs = BATCH_BLOCKS * documents_per_block(num_docs, mean_length)
    return math.ceil(min(docs, num_docs / MIN_EPOCH_BATCHES))


def default_step_docs(num_docs: int, mean_length: float, num_topics: int) -> int:
    """Default number of documents in a stochastic step of variational EM.

    The noise of small steps helps to find good topics, but with too few tokens they lose the rare
    ones.

    Args:
        num_docs: Number of documents of the corpus.
        mean_length: Mean number of tokens of a document.
        num_topics: Number of topics.
    """
    docs = max(MIN_STEP_DOCS, math.ceil(STEP_TOKENS * num_topics / mean_length))
    return min(docs, MAX_STEP_DOCS, math.ceil(num_docs / MIN_BATCHES))


@dataclass(frozen=True)
class Annealing:
    """Schedule of inverse temperatures, rising to 1 (*Ahmed & Xing 2007, §3.2*).

    The objective is E_q log p + H(q)/T, where T is the inverse temperature; the paper prints
    E_q[p^T] by mistake. Four points that it leaves open are settled here as follows:

    1. The topics' inverse temperature T′ enters the responsibilities as φ^T′.
    2. The M-step uses the untempered covariance V, because with V/T every step would multiply the
       prior's variance by 1/T.
    3. EM makes ``iterations`` full steps at every temperature.
    4. A change of temperature multiplies the topics by noise. At low inverse temperatures all
       topics become equal, and EM alone would stay at this saddle point: on the corpus *ap*, the
       schedule of the paper without noise ends at the unigram model.

    Args:
        inverse_temperatures: Inverse temperatures of the documents' posteriors.
        inverse_topic_temperatures: Inverse temperatures of the topics, as many as of the documents.
        iterations: Number of EM iterations at each temperature.
        noise: Standard deviation of the log of the noise at a change of temperature. 0 means no
            noise.

    Raises:
        ConfigError: The lengths differ, an inverse temperature is outside (0, 1], the last is
            below 1, ``iterations`` is below 1, or ``noise`` is negative.
    """

    inverse_temperatures: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    inverse_topic_temperatures: tuple[float, ...] = (0.25, 0.75, 1.0, 1.0)
    iterations: int = 10
    noise: float = 0.5

    def __post_init__(self) -> None:
        both = (self.inverse_temperatures, self.inverse_topic_temperatures)
        rise = all(row and row[-1] == 1 and all(0 < t <= 1 for t in row) for row in both)
        if not (rise and len(both[0]) == len(both[1]) and self.iterations > 0 and self.noise >= 0):
            raise ConfigError(
                f"{self}; expected as many inverse temperatures of documents as of topics, in "
                "(0, 1] and 1 at the end, at least 1 iteration, and noise of at least 0"
            )

    @property
    def steps(self) -> list[tuple[float, float]]:
        """Inverse temperatures of documents and of topics, a pair for each EM iteration."""
        pairs = zip(self.inverse_temperatures, self.inverse_topic_temperatures, strict=True)
        return [pair for pair in pairs for _ in range(self.iterations)]

    def perturbed(self, topics: Tensor, key: Sequence[int]) -> Tensor:
        """Topics multiplied by the noise of a key, without normalisation."""
        noise = torch.from_numpy(np.random.default_rng(key).standard_normal(tuple(topics.shape)))
        return topics * (self.noise * noise).exp().to(topics)
