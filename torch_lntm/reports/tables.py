"""What the tables of a report share: formats, signs and words."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Literal, get_args

from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel

TableFormat = Literal["text", "json", "csv"]


def words_of(model: TopicModel, positions: Sequence[int]) -> tuple[str, ...]:
    """The words at some positions of a model's vocabulary; ``#17`` where it has none."""
    words = model.vocabulary
    return tuple(f"#{v}" if words is None else words[v] for v in positions)


def to_csv(rows: Sequence[Sequence[str]]) -> str:
    """Rows as comma-separated values, without a newline at the end."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue().rstrip("\n")


def check_text(format: str) -> None:
    """Check that a format which is neither JSON nor CSV is text.

    Raises:
        ConfigError: It is another.
    """
    if format != "text":
        raise ConfigError(f"format {format!r}; expected one of {', '.join(get_args(TableFormat))}")


def signed(number: float) -> str:
    """A number with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")
