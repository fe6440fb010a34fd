"""What effects are told by: numbers with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import scipy.stats


@dataclass(frozen=True)
class IntervalEstimate:
    """A number with its interval.

    Attributes:
        estimate: The number.
        standard_error: Its standard error.
        freedom: Degrees of freedom of the t distribution of its interval (*Barnard & Rubin 1999*).
        lower: Lower end of the interval.
        upper: Upper end.
        level: Probability of the interval.
    """

    estimate: float
    standard_error: float
    freedom: float
    lower: float
    upper: float
    level: float

    @property
    def p_value(self) -> float:
        """Two-sided, of no effect."""
        if self.standard_error == 0:
            return float(self.estimate == 0)
        ratio = abs(self.estimate) / self.standard_error
        return float(2 * scipy.stats.t.sf(ratio, self.freedom))


@dataclass(frozen=True)
class Effect(IntervalEstimate):
    """One coefficient: the change of a topic's proportion with a term.

    Attributes:
        topic: The topic.
        term: The term's name.
    """

    topic: int
    term: str


@dataclass(frozen=True)
class Prediction(IntervalEstimate):
    """The expected proportion of a topic at some values, or a difference of two.

    Attributes:
        topic: The topic.
        values: The values by the names of their columns; of a difference, ``(first, second)``.
    """

    topic: int
    values: Mapping[str, Any]
