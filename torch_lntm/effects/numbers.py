"""Numbers with intervals: coefficients, predictions and differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import scipy.stats


@dataclass(frozen=True)
class IntervalEstimate:
    """An estimate with a standard error and an interval.

    Attributes:
        estimate: The estimate.
        standard_error: Standard error of the estimate.
        freedom: Degrees of freedom of the interval's t distribution, at least 1.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
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
        """Two-sided p value for the hypothesis of no effect."""
        if self.standard_error == 0:
            return float(self.estimate == 0)
        ratio = abs(self.estimate) / self.standard_error
        return float(2 * scipy.stats.t.sf(ratio, self.freedom))


@dataclass(frozen=True)
class Effect(IntervalEstimate):
    """A coefficient: the change of a topic's proportion with a term.

    Attributes:
        topic: Number of the topic, or name of the group of topics.
        term: Name of the term.
        name: Name of the topic or group; the number as text for a topic without a name.
    """

    topic: int | str
    term: str
    name: str = ""


@dataclass(frozen=True)
class Prediction(IntervalEstimate):
    """Expected proportion of a topic at values of some columns, or a difference of proportions.

    Attributes:
        topic: Number of the topic, or name of the group of topics.
        values: Values by column. A difference has a pair ``(first, second)``.
        name: Name of the topic or group; the number as text for a topic without a name.
    """

    topic: int | str
    values: Mapping[str, Any]
    name: str = ""
