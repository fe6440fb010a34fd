"""Figures of the report page: coordinates and texts for the page's template."""

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
from torch_lntm.reports.tree import TopicTree, hellinger_distances

#: Pixels of a diagram of topics: its width, radius of the smallest and the largest circle, height
#: of a line of a name, width of a letter; and the most letters in a line.
WIDTH, _LEAST, _MOST, LINE_HEIGHT, _LETTER, _LETTERS = 960.0, 9.0, 26.0, 14.0, 7.0, 16
#: Pixels of a small chart: its width, width of names, height of a row, height of a line chart.
CHART, _NAMES, _ROW, LINE_CHART = 300.0, 112.0, 17.0, 110.0
#: Pixels of the names beside a tree.
_TREE_NAMES = 260.0
#: Most lines of the correlation graph, divided by the number of topics.
_LINES_PER_TOPIC = 1.0


@dataclass(frozen=True)
class Node:
    """A topic of a diagram.

    Attributes:
        topic: The topic's number.
        x: Pixels from the left.
        y: Pixels from the top.
        radius: Radius of the circle of the share.
        reach: Radius of the circle of the upper end of the share's interval.
        name: Lines of the topic's name.
    """

    topic: int
    x: float
    y: float
    radius: float
    reach: float
    name: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A correlation between two topics, its interval, and line widths for the interval's ends."""

    first: int
    second: int
    correlation: float
    lower: float
    upper: float
    sure: float
    possible: float


@dataclass(frozen=True)
class Diagram:
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
    """A group in a chart of a topic: its mean and interval in pixels, and a description."""

    name: str
    short: str
    x: float
    y: float
    low: float
    high: float
    description: str


@dataclass(frozen=True)
class Chart:
    """Proportions of a topic by group: rows of dots, or a line over an axis.

    Attributes:
        topic: The topic's number, or the name of a group of topics.
        marks: The groups.
        height: Height in pixels.
        most: Largest proportion of the scale, which begins at 0.
        ordered: Whether the groups have positions on an axis.
        is_smooth: Whether the line is a formula's, with a band of intervals.
        axis_note: Note on the axis for readers.
    """

    topic: int | str
    marks: tuple[Mark, ...]
    height: float
    most: float
    ordered: bool
    is_smooth: bool = False
    axis_note: str = ""

    @property
    def description(self) -> str:
        """The chart in words. A smooth line has a selection of its values."""
        marks = self.marks[:: max(1, len(self.marks) // 6)] if self.is_smooth else self.marks
        return "; ".join(mark.description for mark in marks)


@dataclass(frozen=True)
class TreePicture:
    """A tree of topics in pixels.

    Attributes:
        rows: Numbers of the topics, from the first row to the last, and pixels from the top.
        branches: Corners of each merge.
        cuts: Number of groups and pixels from the left, for each level.
        height: Height of the picture.
    """

    rows: tuple[tuple[int, float], ...]
    branches: tuple[tuple[tuple[float, float], ...], ...]
    cuts: tuple[tuple[int, float], ...]
    height: float


def tree_picture(tree: TopicTree) -> TreePicture:
    """The picture of a tree: topics at the left, merges to the right at their distances."""
    order, branches = tree.branches()
    first = 0.8 * float(tree.merges[0, 2])  # nothing happens before the first merge
    along = (WIDTH - _TREE_NAMES - 24) / max(1.05 * float(tree.merges[-1, 2]) - first, 1e-9)
    top = 2.5 * LINE_HEIGHT

    def point(row: float, distance: float) -> tuple[float, float]:
        return _TREE_NAMES + along * max(distance - first, 0.0), top + _ROW * (row + 0.5)

    corners = [
        (point(a, x_a), point(a, x), point(b, x), point(b, x_b))
        for a, x_a, b, x_b, x in branches.tolist()
    ]
    return TreePicture(
        tuple((k, point(row, 0.0)[1]) for row, k in enumerate(order)),
        tuple(corners),
        tuple((level, point(0, tree.cut(level))[0]) for level in tree.levels),
        top + _ROW * len(order),
    )


def lay_out_topics(
    distance: Array, topics: Sequence[int], names: Sequence[str], shares: Array, reach: Array
) -> Diagram:
    """A diagram with similar topics close together.

    Args:
        distance: ``(num_shown, num_shown)`` distances between the topics of the diagram.
        topics: ``(num_shown,)`` numbers of the topics.
        names: Names of all topics of the model.
        shares: ``(num_topics,)`` shares, shown as areas of circles.
        reach: ``(num_topics,)`` upper ends of the shares' intervals.
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
    return Diagram(
        tuple(
            Node(k, x, y - below[k] / 2, radius[k], outer[k], lines[k])
            for k, (x, y) in zip(topics, points.tolist(), strict=True)
        ),
        height,
    )


def topic_map(topics: Array, names: Sequence[str], shares: Array, reach: Array) -> Diagram:
    """A map of all topics by the Hellinger distances between their word distributions.

    Args:
        topics: ``(num_topics, num_words)`` probabilities.
        names: See :func:`lay_out_topics`.
        shares: See :func:`lay_out_topics`.
        reach: See :func:`lay_out_topics`.
    """
    distance = hellinger_distances(topics)
    return lay_out_topics(distance, range(len(topics)), names, shares, reach)


def correlation_lines(correlation: Array, error: Array, level: float) -> list[Line]:
    """Correlations that differ from 0 when all pairs are tested together, the strongest first.

    The level of each test is (1 − level) divided by the number of pairs (*Bonferroni*). The
    intervals are for single correlations.

    Args:
        correlation: ``(num_topics, num_topics)`` correlations.
        error: ``(num_topics, num_topics)`` standard errors of Fisher's z.
        level: Coverage probability of each interval.
    """
    rows, columns = np.triu_indices(len(correlation), 1)
    z = np.arctanh(correlation[rows, columns].clip(-1 + 1e-12, 1 - 1e-12))
    errors = error[rows, columns]
    critical = -ndtri((1 - level) / 2 / max(len(z), 1))
    reach = ndtri((1 + level) / 2) * errors
    pairs = np.flatnonzero(np.abs(z) > critical * errors)
    pairs = pairs[np.argsort(-np.abs(z[pairs]), kind="stable")]
    lines = []
    for pair in pairs.tolist():
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
) -> Diagram:
    """A graph of the strongest positive correlations and their topics.

    Args:
        lines: The result of :func:`correlation_lines`.
        names: See :func:`lay_out_topics`.
        shares: See :func:`lay_out_topics`.
        reach: See :func:`lay_out_topics`.
    """
    positive = [line for line in lines if line.correlation > 0]
    positive = positive[: int(_LINES_PER_TOPIC * len(shares))]
    topics = sorted({k for line in positive for k in (line.first, line.second)})
    if not topics:
        return Diagram((), 0.0)
    position = {k: i for i, k in enumerate(topics)}
    length = np.zeros((len(topics), len(topics)))
    for line in positive:
        i, j = position[line.first], position[line.second]
        length[i, j] = length[j, i] = 1.2 - line.correlation
    paths = shortest_path(length, directed=False)
    longest = paths[np.isfinite(paths)].max()
    distance = np.where(np.isfinite(paths), paths, longest)
    diagram = lay_out_topics(distance, topics, names, shares, reach)
    return Diagram(diagram.nodes, diagram.height, tuple(positive))


def charts(
    prevalence: Prevalence, most: int, topics: Sequence[int | str] | None = None
) -> list[Chart]:
    """Charts of the topics whose prevalence differs most clearly between groups.

    Args:
        prevalence: Prevalence by the groups of a column.
        most: Most charts.
        topics: Names of the columns of the prevalence. Defaults to the numbers of the topics.
    """
    if len(prevalence.grouping.names) < 2:
        return []
    order = np.argsort(-prevalence.differences(), kind="stable")[:most]
    grouping = prevalence.grouping
    # The infinite interval of a single document would flatten all others.
    finite = np.isfinite(prevalence.standard_error)
    ends = np.stack(
        [
            prevalence.mean,
            np.where(finite, prevalence.lower, np.nan),
            np.where(finite, prevalence.upper, np.nan),
        ]
    )
    counts = prevalence.num_docs.tolist()
    columns = range(prevalence.mean.shape[1]) if topics is None else topics
    return [
        _chart(
            columns[k],
            grouping.names,
            grouping.positions,
            ends[:, :, k],
            grouping.axis_note,
            counts,
        )
        for k in order.tolist()
    ]


def effect_charts(predictions: Sequence[Any], column: str, most: int) -> list[Chart]:
    """Charts of the topics whose expected proportion differs most clearly between values.

    Args:
        predictions: The result of :meth:`torch_lntm.effects.Effects.predict` for the column.
        column: The column.
        most: Most charts.
    """
    topics = list(dict.fromkeys(point.topic for point in predictions))
    values = [point.values[column] for point in predictions if point.topic == topics[0]]
    if len(values) < 2:
        return []
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    positions = axis_positions(values)
    numbers = [(p.estimate, p.lower, p.upper, p.standard_error) for p in predictions]
    by_topic = np.array(numbers).reshape(len(topics), len(values), 4)
    evidence = differences(by_topic[..., 0].T, by_topic[..., 3].T)
    order = np.argsort(-evidence, kind="stable")[:most]
    axis = axis_note(values)
    return [_chart(topics[i], names, positions, by_topic[i, :, :3].T, axis) for i in order.tolist()]


def _chart(
    topic: int | str,
    names: Sequence[str],
    positions: Array | None,
    ends: Array,
    axis: str = "",
    counts: Sequence[int] | None = None,
) -> Chart:
    """A chart of means and ends of intervals, ``(3, num_groups)``; NaN without an interval."""
    mean, lower, upper = ends
    finite = np.isfinite(upper)
    most = max(float(np.where(finite, upper, mean).max()), 1e-9)
    shown = np.where(finite, ends, mean).clip(0, most)
    if positions is None:
        along = (CHART - _NAMES - 8) / most
        ys = _ROW * (np.arange(len(mean), dtype=np.float64) + 0.5)
        pixels = _NAMES + shown * along
        height = _ROW * len(mean)
        xs = pixels[0]
    else:
        height = LINE_CHART
        span = max(float(np.ptp(positions)), 1e-9)
        xs = 8 + (positions - positions.min()) / span * (CHART - 16)
        pixels = height - 4 - shown / most * (height - 10)
        ys = pixels[0]
    marks = []
    for g, name in enumerate(names):
        description = f"{name}: {mean[g]:.2%}"
        if finite[g]:
            description += f", {lower[g]:.2%} to {upper[g]:.2%}"
        if counts is not None:
            description += f" ({counts[g]} document{'s' * (counts[g] != 1)})"
            if not counts[g]:
                continue
        x, y, low, high = (float(v) for v in (xs[g], ys[g], pixels[1, g], pixels[2, g]))
        marks.append(Mark(name, shorten(name, _LETTERS), x, y, low, high, description))
    is_smooth = counts is None and positions is not None
    return Chart(topic, tuple(marks), height, most, positions is not None, is_smooth, axis)
