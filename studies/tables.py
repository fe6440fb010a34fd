"""Tables as Markdown, and means with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the rest to the right.

    Args:
        header: Names of the columns.
        rows: Cells of each row.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * max(widths[0], 3), *("-" * max(width - 1, 3) + ":" for width in widths[1:])]
    text = []
    for line in (lines[0], rule, *lines[1:]):
        first, *rest = (cell.ljust(len(dashes)) for cell, dashes in zip(line, rule, strict=True))
        rest = [cell.strip().rjust(len(cell)) for cell in rest]
        text.append(f"| {' | '.join((first, *rest))} |")
    return "\n".join(text)


def table_of(rows: Sequence[dict[str, str]]) -> str:
    """A table of dictionaries with equal keys; the keys are the names of the columns."""
    return table(list(rows[0]), [list(row.values()) for row in rows])


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (NaN for a single value)."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return fmean(values), error


def entry(mean: float, error: float, digits: int) -> str:
    """Mean and standard error of some values, as by :func:`with_error`; a dash for no values."""
    if math.isnan(mean):
        return "–"
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f" ({error:.{digits}f})")


def with_error(values: Sequence[float], digits: int) -> str:
    """A mean and, in parentheses, its standard error. A mean of NaN becomes a dash."""
    return entry(*mean_and_error(values), digits) if values else "–"


def entry_of_fits(mean: float, error: float, between: float, digits: int) -> str:
    """A mean over several fits and, in parentheses, its standard errors: over cases, and over fits.

    An error of NaN, such as the error over a single fit, becomes a dash.
    """
    errors = ("–" if math.isnan(value) else f"{value:.{digits}f}" for value in (error, between))
    return f"{mean:.{digits}f} ({'; '.join(errors)})"
