"""Intervals by Rubin's rules."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.errors import ConfigError

#: Scale on which an interval is symmetric.
Scale = Literal["identity", "logit", "atanh"]


def format_value(value: Any) -> str:
    """Text of a column's value."""
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
    # A smooth minimum of the draws' and the documents' degrees of freedom. Barnard and Rubin (1999)
    # multiply by (n + 1) / (n + 3) as well, which we leave out: it would turn 4 degrees into 2.9
    # even for known proportions, for which a t distribution with n degrees is exact.
    draw_freedom = (num_draws - 1) / np.maximum(share, 1e-12) ** 2
    document_freedom = freedom * np.maximum(1 - share, 1e-12)
    # For uncertain draws, the smooth minimum would fall to 0. But each variance has at least 1
    # degree, and a sum of two has no fewer degrees than the lesser of them (Welch 1947).
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
