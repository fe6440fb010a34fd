"""Small charts of the report page, in pixels for its template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_lntm.plotting.layout import LETTERS
from torch_lntm.plotting.style import format_number, shorten
from torch_lntm.reports.groups import Axis, axis_of
from torch_lntm.reports.prevalence import Array, Prevalence, differences

#: Pixels of a chart: its width, width of names, height of a row, height of a line chart.
CHART, _NAMES, _ROW, _LINE_CHART = 300.0, 112.0, 17.0, 110.0


def prevalence_charts(prevalence: Prevalence, most: int) -> list[dict[str, Any]]:
    """Charts of the topics whose prevalence differs most clearly between groups.

    Args:
        prevalence: Prevalence by the groups of a column.
        most: Most charts.
    """
    grouping = prevalence.grouping
    if len(grouping.names) < 2:
        return []
    # The infinite interval of a single document would flatten all others.
    finite = np.isfinite(prevalence.standard_error)
    lower, upper = (np.where(finite, x, np.nan) for x in (prevalence.lower, prevalence.upper))
    ends, counts = np.stack([prevalence.mean, lower, upper]), prevalence.num_docs.tolist()
    order = np.argsort(-differences(prevalence.mean, prevalence.standard_error), kind="stable")
    return [
        _chart(prevalence.columns[k], grouping.names, grouping.axis, ends[:, :, k], counts)
        for k in order[:most].tolist()
    ]


def effect_charts(predictions: Any, column: str, most: int) -> list[dict[str, Any]]:
    """Charts of the topics whose expected proportion differs most clearly between values.

    Args:
        predictions: The result of :meth:`torch_lntm.effects.Effects.predict` for the column.
        column: The column.
        most: Most charts.
    """
    topics = predictions["topic"].unique().tolist()
    values = predictions[column].tolist()[: len(predictions) // len(topics)]
    if len(values) < 2:
        return []
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    numbers = predictions[["estimate", "lower", "upper", "std_error"]].to_numpy()
    by_topic = numbers.reshape(len(topics), len(values), 4)
    order = np.argsort(-differences(by_topic[..., 0].T, by_topic[..., 3].T), kind="stable")[:most]
    axis = axis_of(values) if len(values) > 2 else (None, "")
    return [_chart(topics[i], names, axis, by_topic[i, :, :3].T) for i in order.tolist()]


def _chart(
    topic: int | str,
    names: Sequence[str],
    axis: Axis,
    ends: Array,
    counts: Sequence[int] | None = None,
) -> dict[str, Any]:
    """A chart of means and ends of intervals, ``(3, num_groups)``; NaN without an interval.

    Rows of dots, or a line over an axis for groups with positions. Predictions, which have no
    counts, are a smooth line with a band.
    """
    (positions, note), mean = axis, ends[0]
    most = max(float(np.nanmax(ends)), 1e-9)
    shown = np.where(np.isfinite(ends), ends, mean).clip(0, most)
    if positions is None:
        height = _ROW * len(mean)
        pixels = _NAMES + shown * (CHART - _NAMES - 8) / most
        xs, ys = pixels[0], _ROW * (np.arange(len(mean)) + 0.5)
    else:
        height = _LINE_CHART
        pixels = height - 4 - shown / most * (height - 10)
        along = (positions - positions.min()) / max(float(np.ptp(positions)), 1e-9)
        xs, ys = 8 + along * (CHART - 16), pixels[0]
    marks: list[dict[str, Any]] = []
    for g, (name, (value, lower, upper)) in enumerate(zip(names, ends.T.tolist(), strict=True)):
        said = f"{name}: {value:.2%}"
        said += f", {lower:.2%} to {upper:.2%}" if np.isfinite(upper) else ""
        if counts is not None:
            said += f" ({counts[g]} document{'s' * (counts[g] != 1)})"
        if counts is None or counts[g]:
            mark = {"name": name, "short": shorten(name, LETTERS), "description": said}
            place = {"x": xs[g], "y": ys[g], "low": pixels[1, g], "high": pixels[2, g]}
            marks.append(mark | place)
    is_smooth = counts is None and positions is not None
    # A smooth line is described by a selection of its values.
    told = marks[:: max(1, len(marks) // 6)] if is_smooth else marks
    said = "; ".join(mark["description"] for mark in told)
    chart = {"topic": topic, "marks": marks, "description": said, "axis_note": note, "most": most}
    return chart | {"height": height, "ordered": positions is not None, "is_smooth": is_smooth}
