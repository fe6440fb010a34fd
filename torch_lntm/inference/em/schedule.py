"""Documents of a mini-batch, and how running statistics over mini-batches forget.

Those of Monte-Carlo EM forget by documents, not by mini-batches: what is left of them after so many
documents does not depend on how many of these came at once. So its mini-batches can be as large as
computing wants them, within what is remembered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Documents of a unit of :class:`Forgetting` in Monte-Carlo EM: a hundredth of the corpus, within
#: bounds, and of short documents so many as have so many tokens.
UNITS, UNIT_DOCS, UNIT_TOKENS = 100, (40, 400), 1200
#: Units of its mini-batches, and how many mini-batches an epoch has at least.
BATCH_UNITS, MIN_EPOCH_BATCHES = 8, 4
#: Tokens for every topic, and documents at least, that a stochastic step of variational EM aims at.
STEP_TOKENS, MIN_STEP_DOCS = 240, 64
#: Documents of such a step at most, and steps of an epoch at least.
MAX_STEP_DOCS, MIN_BATCHES = 1024, 8


@dataclass(frozen=True)
class Forgetting:
    """The weights of mini-batches in a running average (*Cappé & Moulines 2009*).

    After n units of documents the average remembers n^exponent units: that is its memory m, of
    which dn new units replace dn/m. From a turn on it is a plain average, whose memory grows by
    one unit a unit.

    Attributes:
        unit: Documents of a unit.
        exponent: In [0, 1).
        turn: Documents after which it is an average.
    """

    unit: float
    exponent: float
    turn: float = math.inf

    def weight(self, seen: float, size: float) -> float:
        """The weight of a mini-batch: 1 − exp(−∫ dn/m) over its documents.

        Args:
            seen: Documents that the average saw before.
            size: Documents of the mini-batch.
        """
        return -math.expm1(self._age(seen) - self._age(seen + size))

    def _age(self, docs: float) -> float:
        """∫ dn/m from the first document to the last of so many."""
        units, turn = docs / self.unit, self.turn / self.unit
        age = min(units, turn) ** (1.0 - self.exponent) / (1.0 - self.exponent)
        if units > turn:
            age += math.log1p((units - turn) / turn**self.exponent)
        return age


def unit_documents(num_docs: int, mean_length: float) -> float:
    """Documents of a unit of :class:`Forgetting` in Monte-Carlo EM.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
    """
    fewest, most = UNIT_DOCS
    unit = max(min(max(num_docs / UNITS, fewest), most), UNIT_TOKENS / mean_length)
    return min(unit, num_docs / MIN_EPOCH_BATCHES)


def batch_documents(num_docs: int, mean_length: float) -> int:
    """Documents of a mini-batch of Monte-Carlo EM: many cost less a document, few leave M-steps.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
    """
    aim = BATCH_UNITS * unit_documents(num_docs, mean_length)
    return math.ceil(min(aim, num_docs / MIN_EPOCH_BATCHES))


def step_documents(num_docs: int, mean_length: float, num_topics: int) -> int:
    """Documents of a stochastic step of variational EM: as few as tell enough of every topic.

    The noise of small steps is what finds good topics; steps of too few tokens lose the topics
    that are rare.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
        num_topics: Number of topics.
    """
    enough = max(MIN_STEP_DOCS, math.ceil(STEP_TOKENS * num_topics / mean_length))
    return min(enough, MAX_STEP_DOCS, math.ceil(num_docs / MIN_BATCHES))
