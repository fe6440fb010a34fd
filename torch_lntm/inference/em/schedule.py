"""Schedules: sizes of mini-batches, weights of running statistics, phases, annealing.

The running statistics of Monte-Carlo EM forget by documents, not by mini-batches. The share that is
left after some number of documents does not depend on the size of the mini-batches, so mini-batches
can be as large as computing wants them, within the memory of the average.
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

#: Documents of a block of :class:`StepSizes`: a hundredth of the corpus, within bounds, and more if
#: documents are so short that the block has fewer tokens than the last number.
NUM_BLOCKS, BLOCK_DOCS, BLOCK_TOKENS = 100, (40, 400), 1200
#: Blocks of a mini-batch of Monte-Carlo EM, and least number of mini-batches of an epoch.
BATCH_BLOCKS, MIN_EPOCH_BATCHES = 8, 4
#: Tokens for every topic, and least number of documents, of a stochastic step of variational EM.
STEP_TOKENS, MIN_STEP_DOCS = 240, 64
#: Most documents of such a step, and least number of steps of an epoch.
MAX_STEP_DOCS, MIN_BATCHES = 1024, 8
#: Monte-Carlo EM stops searching once the objective has gained little over so many epochs. A last
#: share of all epochs averages.
GAIN_WINDOW, AVERAGED_SHARE = 5, 0.25


@dataclass(frozen=True)
class StepSizes:
    """The weights of mini-batches in a running average (*Cappé & Moulines 2009*).

    The average remembers n^exponent blocks of documents after n blocks. With this memory of m
    blocks, dn new blocks replace the share dn/m of the average. After ``averaging_start`` documents
    it is a plain average, and m grows by one block for each block.

    Attributes:
        block_docs: Documents of a block.
        exponent: In [0, 1).
        averaging_start: Documents after which it is a plain average.
    """

    block_docs: float
    exponent: float
    averaging_start: float = math.inf

    def weight(self, seen: float, size: float) -> float:
        """The weight of a mini-batch: 1 − exp(−∫ dn/m) over its documents.

        Args:
            seen: Documents that the average saw before.
            size: Documents of the mini-batch.
        """
        return -math.expm1(self._age(seen) - self._age(seen + size))

    def _age(self, docs: float) -> float:
        """∫ dn/m over the documents so far."""
        blocks, start = docs / self.block_docs, self.averaging_start / self.block_docs
        age = min(blocks, start) ** (1.0 - self.exponent) / (1.0 - self.exponent)
        if blocks > start:
            age += math.log1p((blocks - start) / start**self.exponent)
        return age


@dataclass(frozen=True)
class PhaseSchedule:
    """The phases of Monte-Carlo EM: ``"warm-up"``, ``"sampling"``, ``"averaging"``.

    All methods take the present phase and the records of all epochs so far.

    Attributes:
        max_epochs: Most epochs.
        warmup_epochs: Epochs of the warm-up.
        min_gain: Gain of the objective, nats per token and epoch, below which the search ends.
        small_corpus: Whether the search ends, whatever it gains, because the corpus is too small.
    """

    max_epochs: int
    warmup_epochs: int
    min_gain: float
    small_corpus: bool

    def next_phase(self, phase: str, history: Sequence[dict[str, Any]]) -> str:
        """The phase of the next epoch."""
        epochs = len(history)
        least = math.inf if self.small_corpus else self.min_gain
        if (
            phase == "averaging"
            or epochs >= self._max_search_epochs
            or self._gain(epochs, history) < least
        ):
            return "averaging"
        return "warm-up" if epochs < self.warmup_epochs else "sampling"

    def averaging_start(self, phase: str, history: Sequence[dict[str, Any]]) -> int | None:
        """Epochs after which averaging began; None before."""
        if phase != "averaging":
            return None
        return sum(record["phase"] != "averaging" for record in history)

    def last_epoch(self, phase: str, history: Sequence[dict[str, Any]]) -> int:
        """Number of the last epoch, as far as it is known."""
        start = self.averaging_start(phase, history)
        if start is None:
            return self.max_epochs
        return min(self.max_epochs, math.ceil(start / (1.0 - AVERAGED_SHARE)))

    def stop_reason(
        self, phase: str, history: Sequence[dict[str, Any]]
    ) -> Literal["converged", "stopped_early", "max_iterations"]:
        """Why the search, before the averages, ended."""
        start = self.averaging_start(phase, history)
        if start is None:
            return "max_iterations"
        if self._gain(start, history) < self.min_gain:
            return "converged"
        return "stopped_early" if start < self._max_search_epochs else "max_iterations"

    @property
    def _max_search_epochs(self) -> float:
        """Epochs after which averaging begins at the latest."""
        return max((1.0 - AVERAGED_SHARE) * self.max_epochs, self.warmup_epochs)

    def _gain(self, epochs: int, history: Sequence[dict[str, Any]]) -> float:
        """Mean gain of the last of some first epochs, nats per token.

        Infinite if ``min_gain`` is 0, or too few of the epochs came after the warm-up.
        """
        first = epochs - GAIN_WINDOW
        if not self.min_gain or first < self.warmup_epochs:
            return math.inf
        gained = history[epochs - 1]["objective"] - history[first - 1]["objective"]
        return float(gained) / GAIN_WINDOW


def num_epochs(updates: int, num_batches: int, bounds: tuple[int, int]) -> int:
    """Epochs of so many batches that make so many updates, within bounds."""
    return min(max(math.ceil(updates / num_batches), bounds[0]), bounds[1])


def documents_per_block(num_docs: int, mean_length: float) -> float:
    """Documents of a block of :class:`StepSizes` in Monte-Carlo EM.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
    """
    fewest, most = BLOCK_DOCS
    block_docs = max(min(max(num_docs / NUM_BLOCKS, fewest), most), BLOCK_TOKENS / mean_length)
    return min(block_docs, num_docs / MIN_EPOCH_BATCHES)


def default_batch_docs(num_docs: int, mean_length: float) -> int:
    """Documents of a mini-batch of Monte-Carlo EM: many cost less a document, few leave M-steps.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
    """
    aim = BATCH_BLOCKS * documents_per_block(num_docs, mean_length)
    return math.ceil(min(aim, num_docs / MIN_EPOCH_BATCHES))


def default_step_docs(num_docs: int, mean_length: float, num_topics: int) -> int:
    """Documents of a stochastic step of variational EM: few, but enough to tell of every topic.

    The noise of small steps finds good topics. Steps of too few tokens lose the rare topics.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
        num_topics: Number of topics.
    """
    enough = max(MIN_STEP_DOCS, math.ceil(STEP_TOKENS * num_topics / mean_length))
    return min(enough, MAX_STEP_DOCS, math.ceil(num_docs / MIN_BATCHES))


@dataclass(frozen=True)
class Annealing:
    """A schedule of inverse temperatures, rising to 1 (*Ahmed & Xing 2007, §3.2*).

    The objective is E_q log p + H(q)/T with T the inverse temperature (the paper prints E_q[p^T],
    which is not it). The paper leaves four things open; here: the topics' temperature T′ enters
    the responsibilities as φ^T′; the M-step uses the untempered covariance (V/T would multiply the
    shared variance by 1/T at every step); every temperature runs ``iterations`` full EM steps; and
    the topics are multiplied by noise whenever the temperature changes. At low temperatures all
    topics become the same, a saddle point that EM by itself does not leave: without noise the
    paper's schedule ends at the unigram model on *ap*.

    Args:
        temperatures: Inverse temperatures of the documents' posteriors.
        topic_temperatures: Inverse temperatures of the topics, as many.
        iterations: EM iterations at each.
        noise: Standard deviation of the log of the noise at a change of temperature; 0 for none.

    Raises:
        ConfigError: Different lengths, a temperature outside (0, 1], or a last one that is not 1.
    """

    temperatures: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    topic_temperatures: tuple[float, ...] = (0.25, 0.75, 1.0, 1.0)
    iterations: int = 10
    noise: float = 0.5

    def __post_init__(self) -> None:
        both = (self.temperatures, self.topic_temperatures)
        if len(both[0]) != len(both[1]) or not both[0]:
            raise ConfigError(
                f"annealing has {len(both[0])} temperatures and {len(both[1])} topic temperatures; "
                "expected as many of each, and at least 1"
            )
        if self.iterations < 1 or not self.noise >= 0:
            raise ConfigError(
                f"annealing has iterations={self.iterations} and noise={self.noise}; expected at "
                "least 1, and a number >= 0"
            )
        if any(not 0 < t <= 1 for row in both for t in row) or any(row[-1] != 1 for row in both):
            raise ConfigError(
                f"annealing temperatures {both[0]} and {both[1]}; expected numbers in (0, 1], the "
                "last of each 1"
            )

    @property
    def steps(self) -> list[tuple[float, float]]:
        """One ``(temperature, topic_temperature)`` per EM iteration."""
        pairs = zip(self.temperatures, self.topic_temperatures, strict=True)
        return [pair for pair in pairs for _ in range(self.iterations)]

    def perturbed(self, topics: Tensor, key: Sequence[int]) -> Tensor:
        """Topics multiplied by the noise that a key gives, not normalised."""
        noise = torch.from_numpy(np.random.default_rng(key).standard_normal(tuple(topics.shape)))
        return topics * (self.noise * noise).exp().to(topics)


#: The presets that :class:`~torch_lntm.inference.VariationalEM` knows by name.
ANNEALING = {"ahmed-xing": Annealing()}


def annealing_named(name: str) -> Annealing:
    """The schedule of a name.

    Raises:
        ConfigError: There is none.
    """
    if name not in ANNEALING:
        raise ConfigError(
            f"annealing {name!r}; expected one of {', '.join(ANNEALING)} or a schedule"
        )
    return ANNEALING[name]
