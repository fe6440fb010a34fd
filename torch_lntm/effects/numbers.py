"""Estimates with intervals: effects, predictions and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.errors import ConfigError

#: Scale on which an interval is symmetric.
Scale = Literal["identity", "logit", "atanh"]


@dataclass(frozen=True)
class Estimate:
    """An estimate for a topic, with a standard error and an interval.

    Attributes:
        topic: Number of the topic, or name of the group of topics.
        name: Name of the topic or group; the number as text for a topic without a name.
        term: Name of the term of an effect; empty for predictions and differences.
        values: Values by column of a prediction. A difference has a pair ``(first, second)``.
        level: Probability of the interval.
        estimate: The estimate.
        standard_error: Standard error of the estimate, infinite if the documents do not tell it.
        freedom: Degrees of freedom of the interval's t distribution, at least 1.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
    """

    topic: int | str
    name: str
    term: str
    values: Mapping[str, Any]
    level: float
    estimate: float
    standard_error: float
    freedom: float
    lower: float
    upper: float

    @property
    def is_effect(self) -> bool:
        """Whether 0 means no effect; not so for predictions."""
        return bool(self.term) or any(isinstance(value, tuple) for value in self.values.values())

    @property
    def statistic(self) -> float:
        """Estimate over standard error; NaN if the standard error is infinite or 0."""
        known = 0 < self.standard_error < math.inf
        return self.estimate / self.standard_error if known else math.nan

    @property
    def p_value(self) -> float:
        """Two-sided p value for the hypothesis of no effect; NaN without a statistic."""
        return float(2 * scipy.stats.t.sf(abs(self.statistic), self.freedom))


class Estimates(list[Estimate]):
    """A list of estimates, topic by topic.

    Example:
        >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
        >>> list(effects.predict("party").frame().columns)
        ['topic', 'party', 'estimate', 'std_error', 'lower', 'upper']
    """

    def frame(self) -> pd.DataFrame:
        """A data frame with a row for each estimate.

        The columns are ``topic``, ``name`` if topics have names, ``term`` or the columns of the
        values, ``estimate``, ``std_error``, for effects and differences ``statistic`` and
        ``p_value``, and the ends of the interval, ``lower`` and ``upper``.
        """
        records = []
        for row in self:
            what = {"term": row.term} if row.term else dict(row.values)
            what = {n: format_value(v) if isinstance(v, tuple) else v for n, v in what.items()}
            test = {"statistic": row.statistic, "p_value": row.p_value} if row.is_effect else {}
            numbers = {"estimate": row.estimate, "std_error": row.standard_error, **test}
            ends = {"lower": row.lower, "upper": row.upper}
            records.append({"topic": row.topic, "name": row.name, **what, **numbers, **ends})
        named = any(row.name != str(row.topic) for row in self)
        return pd.DataFrame(records).drop(columns=[] if named else "name", errors="ignore")


def format_value(value: Any) -> str:
    """Text of a column's value, or of the pair of a difference."""
    if isinstance(value, tuple):
        return " − ".join(map(format_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def intervals(
    estimates: NDArray[np.float64],
    within: NDArray[np.float64],
    between: NDArray[np.float64],
    num_draws: int,
    freedom: Any,
    level: float,
    scale: Scale = "identity",
) -> tuple[NDArray[np.float64], ...]:
    """Intervals by Rubin's rules.

    Args:
        estimates: Estimates of any shape.
        within: Variances of a single regression, in the same shape.
        between: Variances between draws, in the same shape.
        num_draws: Number of draws.
        freedom: Degrees of freedom of a single regression.
        level: Probability of the intervals.
        scale: Scale on which the intervals are symmetric.

    Returns:
        Standard errors, degrees of freedom, lower and upper ends.

    Raises:
        ConfigError: The probability is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
    between = (1 + 1 / num_draws) * between
    total = within + between
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    # A smooth minimum of the draws' and the documents' degrees of freedom. Barnard and Rubin
    # (1999) have the further factor (n + 1) / (n + 3), which makes 4 degrees 2.9 even for known
    # proportions, where a t distribution with n degrees is exact.
    draw_freedom = (num_draws - 1) / np.maximum(share, 1e-12) ** 2
    document_freedom = freedom * np.maximum(1 - share, 1e-12)
    # Each variance has at least 1 degree, and a sum of two variances has no fewer degrees than
    # the lesser of them (Welch 1947). The smooth minimum would fall to 0 for uncertain draws.
    freedom = np.maximum(1 / (1 / draw_freedom + 1 / document_freedom), 1.0)
    errors = np.sqrt(total)
    half = scipy.stats.t.ppf(0.5 + level / 2, freedom) * errors
    tiny = np.finfo(np.float64).tiny
    back: Any = np.asarray
    centre, slope = estimates, np.ones_like(estimates)
    if scale == "logit":
        slope, back = estimates * (1 - estimates), scipy.special.expit
        centre = scipy.special.logit(estimates.clip(tiny, 1 - 1e-16))
    elif scale == "atanh":
        slope, back = 1 - estimates**2, np.tanh
        centre = np.arctanh(estimates.clip(-1 + 1e-16, 1 - 1e-16))
    half = half / np.maximum(slope, tiny)
    return errors, freedom, back(centre - half), back(centre + half)
