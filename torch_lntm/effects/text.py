"""Effects as text to read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch_lntm.effects.numbers import Effect, Prediction


def format_coefficients(rows: Sequence[Effect], labels: Sequence[str]) -> str:
    """The coefficients, topic by topic.

    Args:
        rows: The coefficients.
        labels: ``num_topics`` names of the topics.
    """
    width = max((len(row.term) for row in rows), default=0)
    lines = []
    for topic, of_topic in itertools.groupby(rows, lambda row: row.topic):
        lines.append(f"\nTopic {labels[topic]}")
        lines.append(f"  {'':{width}}  estimate     s.e.     {rows[0].level:.0%} interval      p")
        lines += [
            f"  {e.term:{width}}  {_short(e.estimate)}  {_short(e.standard_error, '')}  "
            f"{_short(e.lower)} {_short(e.upper)}  {e.p_value:6.3f}"
            for e in of_topic
        ]
    return "\n".join(lines)


def format_predictions(rows: Sequence[Prediction], labels: Sequence[str]) -> str:
    """Predictions, or differences with their p values, topic by topic.

    Args:
        rows: The predictions.
        labels: ``num_topics`` names of the topics.
    """
    names = [", ".join(map(_value, row.values.values())) for row in rows]
    heading = ", ".join(rows[0].values)
    width = max(len(heading), *map(len, names))
    is_difference = any(isinstance(value, tuple) for value in rows[0].values.values())
    kind, p = ("difference", "      p") if is_difference else ("proportion", "")
    sign = "+" if is_difference else ""
    lines = []
    for topic, of_topic in itertools.groupby(zip(names, rows, strict=True), lambda r: r[1].topic):
        lines.append(f"\nTopic {labels[topic]}")
        lines.append(f"  {heading:{width}}  {kind}     s.e.     {rows[0].level:.0%} interval{p}")
        lines += [
            f"  {name:{width}}    {_short(e.estimate, sign)}  {_short(e.standard_error, '')}  "
            f"{_short(e.lower, sign)} {_short(e.upper, sign)}"
            + (f"  {e.p_value:6.3f}" if is_difference else "")
            for name, e in of_topic
        ]
    return "\n".join(lines).lstrip("\n")


def _value(value: Any) -> str:
    """A column's value, or the two of a difference."""
    if isinstance(value, tuple):
        return " − ".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(value: float, sign: str = "+") -> str:
    """A number in eight characters; those of columns in small units, such as days, are tiny."""
    form = "8.1e" if 0 < abs(value) < 1e-3 else "8.4f"
    return format(value, sign + form)
