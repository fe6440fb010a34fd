"""Effects as text: aligned columns, equal number formats, and a note on impossible proportions."""

from __future__ import annotations

from typing import Any

import pytest

from torch_lntm.effects.numbers import Effect, Prediction
from torch_lntm.effects.text import format_coefficients, format_predictions

LABELS = ("0 tax budget", "1 film actor")


def numbers(estimate: float, error: float) -> dict[str, float]:
    return {
        "estimate": estimate,
        "standard_error": error,
        "freedom": 50.0,
        "lower": estimate - 2 * error,
        "upper": estimate + 2 * error,
        "level": 0.95,
    }


def predictions(*pairs: tuple[float, float], **values: Any) -> list[Prediction]:
    return [
        Prediction(**numbers(*pair), topic=topic, values=values or {"section": f"s{j}"})
        for topic in range(2)
        for j, pair in enumerate(pairs)
    ]


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if "interval" not in line]
    return [line.split() for line in lines if line.startswith("  s")]


def test_numbers_of_a_table_have_equal_decimals_and_are_aligned() -> None:
    text = format_predictions(
        predictions((0.21, 0.02), (0.0013, 0.00072), (0.00095, 0.0011)), LABELS
    )
    assert "e-" not in text
    rows = rows_of(text)[:3]
    assert [row[1:3] for row in rows] == [
        ["0.21000", "0.02000"],
        ["0.00130", "0.00072"],
        ["0.00095", "0.00110"],
    ]
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len({len(line) for line in lines}) == 1


def test_small_coefficients_get_more_decimals_and_tiny_ones_powers_of_ten() -> None:
    def coefficients(error: float) -> str:
        rows = [
            Effect(**numbers(0.3, 0.05), topic=0, term="sIntercept"),
            Effect(**numbers(2 * error, error), topic=0, term="sdate"),
        ]
        return format_coefficients(rows, LABELS)

    assert [row[1] for row in rows_of(coefficients(3e-5))] == ["+0.300000", "+0.000060"]
    assert [row[1] for row in rows_of(coefficients(3e-11))] == ["+3.0e-01", "+6.0e-11"]
    # Rounding instead of an error, as with a single topic, does not count.
    for error in (0.0, 1e-18):
        text = format_predictions(predictions((1.0, error), section="s"), LABELS)
        assert rows_of(text)[0][1:3] == ["1.0000", "0.0000"]


def test_a_note_explains_intervals_outside_0_to_1() -> None:
    inside = format_predictions(predictions((0.3, 0.1), (0.5, 0.1)), LABELS)
    assert "Note" not in inside
    below = format_predictions(predictions((-0.003, 0.001), (0.5, 0.1)), LABELS)
    assert below.startswith(f"Topic {LABELS[0]}\n")
    assert "of 4 intervals, 2 reach below 0 or above 1" in below
    ends = format_predictions(predictions((0.003, 0.002), (0.5, 0.1)), LABELS)
    assert "of 4 intervals, 2 reach" in ends
    above = format_predictions(predictions((0.95, 0.1), (0.5, 0.1)), LABELS)
    assert "of 4 intervals, 2 reach" in above


def test_differences_may_be_negative_and_have_p_values() -> None:
    text = format_predictions(predictions((-0.2, 0.1), section=("sports", "politics")), LABELS)
    assert "Note" not in text
    first = rows_of(text)[0]
    assert first[:5] == ["sports", "−", "politics", "-0.2000", "0.1000"]
    assert float(first[-1]) == pytest.approx(0.051, abs=0.001)
    assert first[-2] == "50.0"
    clear = format_predictions(predictions((-0.2, 0.001), section=("sports", "politics")), LABELS)
    assert rows_of(clear)[0][-1] == "<0.001"
