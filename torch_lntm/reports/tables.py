"""Formats of tables: text, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Literal, get_args

from torch_lntm.errors import ConfigError

TableFormat = Literal["text", "json", "csv"]


def to_csv(rows: Sequence[Sequence[str]]) -> str:
    """Rows as comma-separated values, without a newline at the end."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue().rstrip("\n")


def check_text(format: str) -> None:
    """Check that the remaining format, after JSON and CSV, is text.

    Raises:
        ConfigError: The format is unknown.
    """
    if format != "text":
        raise ConfigError(f"format {format!r}; expected one of {', '.join(get_args(TableFormat))}")
