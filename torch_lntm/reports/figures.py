"""The figures of the report page, as numbers for its templates to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.csgraph import shortest_path
from scipy.special import ndtri

from torch_lntm.reports.groups import axis_note, axis_positions, format_number
from torch_lntm.reports.layout import avoid_overlaps, name_lines, plane_coordinates, shorten
from torch_lntm.reports.prevalence import Array, Prevalence, differences

#: Pixels: width of a picture of topics, radius of its smallest and its largest circle, height of
#: a line of the name below a circle, width of its letters, and the most of these.
WIDTH, _LEAST, _MOST, LINE_HEIGHT, _LETTER, _LETTERS = 960.0, 9.0, 26.0, 14.0, 7.0, 16
#: Pixels of a small chart: its width, the room for names, the height of a group, and of a course.
CHART, _NAMES, _ROW, COURSE = 300.0, 112.0, 17.0, 110.0
#: Lines of the correlation graph for each topic, at most.
_LINES_PER_TOPIC = 1.0


@dataclass(frozen=True)
class Node:
    """A topic of a picture: its place, the circles of its share and of the upper end, its name.

    ``name`` has the lines of the name.
    """

    topic: int
    x: float
    y: float
    radius: float
    reach: float
    name: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A correlation between two topics, its interval, and the widths that show its ends."""

    first: int
    second: int
    correlation: float
    lower: float
    upper: float
    sure: float
    possible: float


@dataclass(frozen=True)
class Picture:
    """Topics in a plane, with lines between them."""

    nodes: tuple[Node, ...]
    height: float
    lines: tuple[Line, ...] = ()

    @property
    def by_topic(self) -> dict[int, Node]:
        """The nodes by topic."""
        return {node.topic: node for node in self.nodes}


@dataclass(frozen=True)
class Mark:
    """A group in a chart of one topic: its place, and its mean with its interval, in pixels."""

    name: str
    short: str
    x: float
    y: float
    low: float
    high: float
    description: str


@dataclass(frozen=True)
class Chart:
    """The proportions of one topic by group: a row for each, or a course over an axis.

    ``is_smooth`` tells a course of a formula, whose intervals are a band, from one of groups;
    ``axis_note`` is what a reader must know of the axis.
    """

    topic: int
    marks: tuple[Mark, ...]
    height: float
    most: float
    ordered: bool
    is_smooth: bool = False
    axis_note: str = ""

    @property
    def description(self) -> str:
        """The chart in words; of a smooth course some of its values."""
        marks = self.marks[:: max(1, len(self.marks) // 6)] if self.is_smooth else self.marks
        return "; ".join(mark.description for mark in marks)


def lay_out_topics(
    distance: Array, topics: Sequence[int], names: Sequence[str], shares: Array, reach: Array
) -> Picture:
    """A picture of some topics, in which those of little distance are close.

    Args:
        distance: ``(num_shown, num_shown)`` distances of the topics shown.
        topics: ``(num_shown,)`` which topics these are.
        names: A name of each topic of the model.
        shares: ``(num_topics,)`` what the areas of circles stand for.
        reach: ``(num_topics,)`` upper ends of their intervals.
    """
    largest = max(float(reach.max()), 1e-12)
    radius = np.sqrt(_LEAST**2 + (_MOST**2 - _LEAST**2) * shares / largest)
    outer = np.sqrt(_LEAST**2 + (_MOST**2 - _LEAST**2) * reach / largest)
    lines = {k: name_lines(names[k], _LETTERS) for k in topics}
    below = {k: LINE_HEIGHT * len(lines[k]) + 3 for k in topics}
    room = np.array(
        [[max(outer[k] + 2, _LETTERS * _LETTER / 2), outer[k] + below[k] / 2 + 2] for k in topics]
    )
    points, height = avoid_overlaps(plane_coordinates(distance), room, WIDTH)
    return Picture(
        tuple(
            Node(k, x, y - below[k] / 2, radius[k], outer[k], lines[k])
            for k, (x, y) in zip(topics, points.tolist(), strict=True)
        ),
        height,
    )


def topic_map(topics: Array, names: Sequence[str], shares: Array, reach: Array) -> Picture:
    """All topics by the words they share: Hellinger distances of their distributions.

    Args:
        topics: ``(num_topics, num_words)`` probabilities.
        names: As for :func:`lay_out_topics`.
        shares: As for :func:`lay_out_topics`.
        reach: As for :func:`lay_out_topics`.
    """
    roots = np.sqrt(topics)
    distance = np.sqrt((1 - roots @ roots.T).clip(0))
    return lay_out_topics(distance, range(len(topics)), names, shares, reach)


def correlation_lines(correlation: Array, error: Array, level: float) -> list[Line]:
    """The correlations that differ from 0 when all pairs are taken together, the strongest first.

    Each is tested at (1 − level) divided by the number of pairs (*Bonferroni*); its interval is
    that of itself alone.

    Args:
        correlation: ``(num_topics, num_topics)``.
        error: Standard errors of Fisher's z.
        level: Probability that each interval is to cover.
    """
    rows, columns = np.triu_indices(len(correlation), 1)
    z = np.arctanh(correlation[rows, columns].clip(-1 + 1e-12, 1 - 1e-12))
    spreads = error[rows, columns]
    together = -ndtri((1 - level) / 2 / max(len(z), 1))
    reach = ndtri((1 + level) / 2) * spreads
    chosen = np.flatnonzero(np.abs(z) > together * spreads)
    chosen = chosen[np.argsort(-np.abs(z[chosen]), kind="stable")]
    lines = []
    for pair in chosen.tolist():
        lower, upper = float(np.tanh(z[pair] - reach[pair])), float(np.tanh(z[pair] + reach[pair]))
        ends = sorted((abs(lower), abs(upper)))
        lines.append(
            Line(
                int(rows[pair]),
                int(columns[pair]),
                float(np.tanh(z[pair])),
                lower,
                upper,
                *(0.5 + 6 * end for end in ends),
            )
        )
    return lines


def correlation_graph(
    lines: Sequence[Line], names: Sequence[str], shares: Array, reach: Array
) -> Picture:
    """The strongest positive correlations as lines, and the topics that these join.

    Args:
        lines: What :func:`correlation_lines` gave.
        names: As for :func:`lay_out_topics`.
        shares: As for :func:`lay_out_topics`.
        reach: As for :func:`lay_out_topics`.
    """
    drawn = [line for line in lines if line.correlation > 0]
    drawn = drawn[: int(_LINES_PER_TOPIC * len(shares))]
    topics = sorted({k for line in drawn for k in (line.first, line.second)})
    if not topics:
        return Picture((), 0.0)
    position = {k: i for i, k in enumerate(topics)}
    length = np.zeros((len(topics), len(topics)))
    for line in drawn:
        i, j = position[line.first], position[line.second]
        length[i, j] = length[j, i] = 1.2 - line.correlation
    paths = shortest_path(length, directed=False)
    apart = paths[np.isfinite(paths)].max()
    shown = lay_out_topics(np.where(np.isfinite(paths), paths, apart), topics, names, shares, reach)
    return Picture(shown.nodes, shown.height, tuple(drawn))


def charts(prevalence: Prevalence, most: int) -> list[Chart]:
    """A chart for each of the topics whose prevalence differs most clearly between the groups.

    Args:
        prevalence: By the groups of a column.
        most: The most charts.
    """
    if len(prevalence.grouping.names) < 2:
        return []
    order = np.argsort(-prevalence.differences(), kind="stable")[:most]
    grouping = prevalence.grouping
    # A group of one document has no interval to speak of, and would flatten the others.
    known = np.isfinite(prevalence.standard_error)
    ends = np.stack(
        [
            prevalence.mean,
            np.where(known, prevalence.lower, np.nan),
            np.where(known, prevalence.upper, np.nan),
        ]
    )
    counts = prevalence.num_docs.tolist()
    return [
        _chart(k, grouping.names, grouping.positions, ends[:, :, k], grouping.axis_note, counts)
        for k in order.tolist()
    ]


def effect_charts(predictions: Sequence[Any], column: str, most: int) -> list[Chart]:
    """A chart for each of the topics whose expected proportion differs most clearly by a column.

    Args:
        predictions: Those of :meth:`torch_lntm.effects.Effects.predict` at values of the column.
        column: The column.
        most: The most charts.
    """
    topics = sorted({point.topic for point in predictions})
    values = [point.values[column] for point in predictions if point.topic == topics[0]]
    if len(values) < 2:
        return []
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    places = axis_positions(values)
    found = [(p.estimate, p.lower, p.upper, p.standard_error) for p in predictions]
    by_topic = np.array(found).reshape(len(topics), len(values), 4)
    clearness = differences(by_topic[..., 0].T, by_topic[..., 3].T)
    order = np.argsort(-clearness, kind="stable")[:most]
    axis = axis_note(values)
    return [_chart(topics[i], names, places, by_topic[i, :, :3].T, axis) for i in order.tolist()]


def _chart(
    topic: int,
    names: Sequence[str],
    places: Array | None,
    ends: Array,
    axis: str = "",
    counts: Sequence[int] | None = None,
) -> Chart:
    """A chart of means and the ends of their intervals, ``(3, num_groups)``; NaN of no interval."""
    mean, lower, upper = ends
    known = np.isfinite(upper)
    most = max(float(np.where(known, upper, mean).max()), 1e-9)
    shown = np.where(known, ends, mean).clip(0, most)
    if places is None:
        along = (CHART - _NAMES - 8) / most
        ys = _ROW * (np.arange(len(mean), dtype=np.float64) + 0.5)
        drawn = _NAMES + shown * along
        height = _ROW * len(mean)
        xs = drawn[0]
    else:
        height = COURSE
        span = max(float(np.ptp(places)), 1e-9)
        xs = 8 + (places - places.min()) / span * (CHART - 16)
        drawn = height - 4 - shown / most * (height - 10)
        ys = drawn[0]
    marks = []
    for g, name in enumerate(names):
        description = f"{name}: {mean[g]:.2%}"
        if known[g]:
            description += f", {lower[g]:.2%} to {upper[g]:.2%}"
        if counts is not None:
            description += f" ({counts[g]} document{'s' * (counts[g] != 1)})"
            if not counts[g]:
                continue
        x, y, low, high = (float(v) for v in (xs[g], ys[g], drawn[1, g], drawn[2, g]))
        marks.append(Mark(name, shorten(name, _LETTERS), x, y, low, high, description))
    is_smooth = counts is None and places is not None
    return Chart(topic, tuple(marks), height, most, places is not None, is_smooth, axis)
