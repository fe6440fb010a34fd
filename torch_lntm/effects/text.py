"""Text tables of effects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_lntm.effects.numbers import Effect, IntervalEstimate, Prediction

#: Fewest and most decimals in a table. Tables with smaller numbers use powers of ten.
MIN_DECIMALS, MAX_DECIMALS = 4, 7
#: Standard errors below this share of the estimate are rounding errors.
ROUNDING = 1e-10


def format_coefficients(rows: Sequence[Effect], labels: Mapping[int | str, str]) -> str:
    """Text tables of coefficients by topic.

    Args:
        rows: The coefficients.
        labels: Labels of the topics by number, and of groups of topics by name.
    """
    return _tables(rows, [row.term for row in rows], labels, "", "estimate")


def format_predictions(rows: Sequence[Prediction], labels: Mapping[int | str, str]) -> str:
    """Text tables of predictions, or of differences with p values, by topic.

    Args:
        rows: The predictions.
        labels: Labels of the topics by number, and of groups of topics by name.

    Returns:
        The tables. A note follows if an interval of a proportion is partly outside 0 to 1.
    """
    names = [", ".join(map(format_value, row.values.values())) for row in rows]
    heading = ", ".join(rows[0].values)
    if any(isinstance(value, tuple) for value in rows[0].values.values()):
        return _tables(rows, names, labels, heading, "difference").lstrip("\n")
    text = _tables(rows, names, labels, heading, "proportion", effects=False).lstrip("\n")
    num_outside = sum(row.lower < 0 or row.upper > 1 for row in rows)
    if not num_outside:
        return text
    return (
        f"{text}\n\nNote: of {len(rows)} intervals, {num_outside} reach below 0 or above 1. "
        "Proportions lie between 0 and 1,\nbut the linear regression ignores these bounds: read "
        "a value outside of the bounds as a value close to the bound."
    )


def format_spread(
    rows: Sequence[Sequence[float]],
    names: Sequence[str],
    topics: Sequence[int | str],
    labels: Mapping[int | str, str],
) -> str:
    """Text table of the standard deviations of random terms.

    Args:
        rows: ``(num_topics, num_terms)`` standard deviations.
        names: Names of the terms.
        topics: The topics.
        labels: Names of the topics.
    """
    width = max(8, *map(len, names))
    lines = ["Standard deviations of effects", "  " + "  ".join(f"{n:>{width}}" for n in names)]
    for topic, row in zip(topics, rows, strict=True):
        numbers = "  ".join(f"{value:{width}.4f}" for value in row)
        lines.append(f"  {numbers}  {labels[topic]}")
    return "\n".join(lines)


def _tables(
    rows: Sequence[Effect | Prediction],
    names: Sequence[str],
    labels: Mapping[int | str, str],
    heading: str,
    kind: str,
    effects: bool = True,
) -> str:
    """Text tables by topic, all with the same number format.

    Args:
        rows: The numbers, topic by topic.
        names: Names of the rows.
        labels: Labels of the topics by number, and of groups of topics by name.
        heading: Head of the column of names.
        kind: Head of the column of estimates.
        effects: Whether the numbers are effects, with a sign, degrees of freedom and a p value.
    """
    number, sign = _number_format(rows), "+" if effects else ""
    cells = [
        [format(e.estimate, sign + number), format(e.standard_error, number)]
        + [format(end, sign + number) for end in (e.lower, e.upper)]
        for e in rows
    ]
    width = max(len(cell) for row in cells for cell in row)
    first = max(len(heading), *map(len, names))
    estimates = max(len(kind), width)
    interval = f"{rows[0].level:.0%} interval"
    head = f"  {heading:{first}}  {kind:>{estimates}}  {'s.e.':>{width}}"
    head += f"  {interval:>{2 * width + 1}}" + ("      df       p" if effects else "")
    lines = []
    lines_of_cells = zip(names, rows, cells, strict=True)
    for topic, group in itertools.groupby(lines_of_cells, lambda row: row[1].topic):
        kind = "Group" if isinstance(topic, str) else "Topic"
        lines += [f"\n{kind} {labels[topic]}", head]
        for name, row, (estimate, error, lower, upper) in group:
            line = f"  {name:{first}}  {estimate:>{estimates}}  {error:>{width}}"
            line += f"  {lower:>{width}} {upper:>{width}}"
            if effects:
                line += f"  {_freedom(row.freedom):>6}  {_p_value(row.p_value):>6}"
            lines.append(line)
    return "\n".join(lines)


def _number_format(rows: Sequence[IntervalEstimate]) -> str:
    """Number format with two significant digits for the smallest standard error."""
    errors = [e.standard_error for e in rows if e.standard_error > ROUNDING * abs(e.estimate)]
    decimals = 1 - math.floor(math.log10(min(errors, default=1.0)))
    return ".1e" if decimals > MAX_DECIMALS else f".{max(decimals, MIN_DECIMALS)}f"


def _freedom(freedom: float) -> str:
    """Degrees of freedom with a decimal below 100."""
    return f"{freedom:.1f}" if freedom < 100 else f"{freedom:.0f}"


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def format_value(value: Any) -> str:
    """Text of a column's value, or of the pair of a difference."""
    if isinstance(value, tuple):
        return " − ".join(map(format_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
