"""The report's section on an outcome that depends on topics."""

from __future__ import annotations

from typing import Any

from torch_lntm.reports.sections import PageData

#: Rise of a topic's share in the section.
RISE = 0.1


def outcome_section(outcomes: Any, page: PageData) -> list[Any]:
    """What the regression assumes, the largest effect in words, a figure and a table.

    Args:
        outcomes: The result of ``lntm.outcomes.estimate``.
        page: The page's data.
    """
    rows = outcomes.frame(page.level, per=RISE)
    topics = rows[~rows["term"].isin(outcomes.names)]
    largest = topics.loc[topics["estimate"].abs().idxmax()]
    name = " ".join(filter(None, (str(largest["term"]), str(largest.get("name", "")))))
    change = "higher" if largest["estimate"] > 0 else "lower"
    reading = (
        f"A document with ten percentage points more of {name}, and less of all other topics in "
        f"proportion, has {outcomes.measure} {change} by {abs(largest['estimate']):.3g} in "
        f"expectation; the {page.level:.0%} interval of this difference goes from "
        f"{largest['lower']:.3g} to {largest['upper']:.3g}. The figure and the table show the same "
        "difference for every topic, and for a column that of a rise by 1."
    )
    figure = outcomes.plot(page.level, per=RISE).figure
    figure.set_label("Effects of the topics on the outcome, with intervals")
    return [" ".join(outcomes.notes), reading, figure, rows]
