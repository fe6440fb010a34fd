"""Effects as text to read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch_lntm.effects.numbers import Effect, IntervalEstimate, Prediction

#: Fewest and most decimals of the numbers of a table. Tables that need more are in powers of ten.
MIN_DECIMALS, MAX_DECIMALS = 4, 7
#: Standard errors below this share of their estimate are rounding.
ROUNDING = 1e-10


def format_coefficients(rows: Sequence[Effect], labels: Sequence[str]) -> str:
    """The coefficients, topic by topic.

    Args:
        rows: The coefficients.
        labels: ``num_topics`` names of the topics.
    """
    return _tables(rows, [row.term for row in rows], labels, "", "estimate")


def format_predictions(rows: Sequence[Prediction], labels: Sequence[str]) -> str:
    """Predictions, or differences with their p values, topic by topic.

    Args:
        rows: The predictions.
        labels: ``num_topics`` names of the topics.

    Returns:
        The tables. A note follows them if the interval of a proportion leaves 0 to 1.
    """
    names = [", ".join(map(_value, row.values.values())) for row in rows]
    heading = ", ".join(rows[0].values)
    if any(isinstance(value, tuple) for value in rows[0].values.values()):
        return _tables(rows, names, labels, heading, "difference").lstrip("\n")
    text = _tables(rows, names, labels, heading, "proportion", effects=False).lstrip("\n")
    beyond = sum(row.lower < 0 or row.upper > 1 for row in rows)
    if not beyond:
        return text
    return (
        f"{text}\n\nNote: {beyond} of {len(rows)} intervals reach below 0 or above 1, where no "
        "proportion lies. The regression\nis linear and does not know these bounds: read such "
        "values as close to the bound."
    )


def _tables(
    rows: Sequence[Effect | Prediction],
    names: Sequence[str],
    labels: Sequence[str],
    heading: str,
    kind: str,
    effects: bool = True,
) -> str:
    """A table for each topic; the numbers of all tables have the same form.

    Args:
        rows: The numbers, topic by topic.
        names: A name for each row.
        labels: ``num_topics`` names of the topics.
        heading: The head of the names.
        kind: The head of the estimates.
        effects: The numbers are effects: they have p values, and positive ones a sign.
    """
    form, sign = _form(rows), "+" if effects else ""
    cells = [
        [format(e.estimate, sign + form), format(e.standard_error, form)]
        + [format(end, sign + form) for end in (e.lower, e.upper)]
        for e in rows
    ]
    width = max(len(cell) for row in cells for cell in row)
    first = max(len(heading), *map(len, names))
    estimates = max(len(kind), width)
    interval = f"{rows[0].level:.0%} interval"
    head = f"  {heading:{first}}  {kind:>{estimates}}  {'s.e.':>{width}}"
    head += f"  {interval:>{2 * width + 1}}" + ("       p" if effects else "")
    lines = []
    together = zip(names, rows, cells, strict=True)
    for topic, of_topic in itertools.groupby(together, lambda row: row[1].topic):
        lines += [f"\nTopic {labels[topic]}", head]
        for name, row, (estimate, error, lower, upper) in of_topic:
            line = f"  {name:{first}}  {estimate:>{estimates}}  {error:>{width}}"
            line += f"  {lower:>{width}} {upper:>{width}}"
            lines.append(line + (f"  {row.p_value:6.3f}" if effects else ""))
    return "\n".join(lines)


def _form(rows: Sequence[IntervalEstimate]) -> str:
    """The format in which the smallest standard error has two significant digits."""
    errors = [e.standard_error for e in rows if e.standard_error > ROUNDING * abs(e.estimate)]
    decimals = 1 - math.floor(math.log10(min(errors, default=1.0)))
    return ".1e" if decimals > MAX_DECIMALS else f".{max(decimals, MIN_DECIMALS)}f"


def _value(value: Any) -> str:
    """A column's value, or the two of a difference."""
    if isinstance(value, tuple):
        return " − ".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
