"""Layout of a graph of topics: positions, and lines that bend around topics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_lntm.reports.layout import avoid_overlaps, plane_coordinates

#: Width of a topic's circle and name in inches.
TOPIC_WIDTH = 1.15
#: Distance between rows of topics without a line, inches.
_ROW = 0.7
#: Cost of a line's bend, relative to the cost of crossing a topic.
_BEND_COST = 3.0
#: Candidate bends of lines, as shares of their length; the straight line first.
_BENDS = (0.0, 0.12, -0.12, 0.25, -0.25, 0.4, -0.4)
#: Inches from a topic's position to the edges of its circle and name: left, right, down, up.
_LEFT, _RIGHT, _DOWN, _UP = 0.35, 0.35, 0.3, 0.15


def lay_out_topics(
    correlation: np.ndarray,
    linked: Sequence[int],
    single: Sequence[int],
    room: np.ndarray,
    width: float,
    height: float | None = None,
) -> np.ndarray:
    """Positions of topics in a graph, correlated topics close together.

    Args:
        correlation: ``(num_topics, num_topics)`` correlations.
        linked: Topics with a line.
        single: Topics without a line, for the rows at the bottom.
        room: ``(num_topics, 2)`` half the width and height of each topic, inches.
        width: Width of the graph, inches.
        height: Height of the graph, inches. Defaults to the height that the topics need.

    Returns:
        ``(num_topics, 2)`` positions in inches, the second coordinate upwards.
    """
    points = np.zeros((len(correlation), 2))
    if linked:
        distance = np.clip(1 - correlation[np.ix_(linked, linked)], 0.3, 1.7)
        np.fill_diagonal(distance, 0.0)
        if height is not None:
            height -= rows_height(len(single), width)
        points[linked] = avoid_overlaps(plane_coordinates(distance), room[linked], width, height)[0]
    columns = _columns(width)
    for row in range(-(-len(single) // columns)):
        topics = list(single[row * columns : (row + 1) * columns])
        offsets = np.arange(len(topics)) - (min(columns, len(single)) - 1) / 2
        points[topics, 0] = width / 2 + offsets * TOPIC_WIDTH
        points[topics, 1] = -(row + 0.5) * _ROW
    return points


def rows_height(number: int, width: float) -> float:
    """Height in inches of the rows of ``number`` topics without a line, for a graph's width."""
    return _ROW * -(-number // _columns(width))


def _columns(width: float) -> int:
    return max(1, int(width / TOPIC_WIDTH))


def route_line(points: np.ndarray, start: int, end: int) -> np.ndarray:
    """A line between two topics with the smallest bend around other topics.

    Args:
        points: ``(num_topics, 2)`` positions of the topics in inches.
        start: Topic at the start of the line.
        end: Topic at the end of the line.

    Returns:
        ``(num_points, 2)`` points along the line.
    """
    a, b = points[start], points[end]
    others = np.delete(points, [start, end], axis=0)
    sideways = np.array([a[1] - b[1], b[0] - a[0]])
    share = np.linspace(0, 1, 41)[:, None]
    best, least = None, np.inf
    for bend in _BENDS:
        # A quadratic Bézier curve. Its midpoint is half as far from the chord as its control point.
        control = (a + b) / 2 + 2 * bend * sideways
        line = (1 - share) ** 2 * a + 2 * share * (1 - share) * control + share**2 * b
        gap = line[:, None] - others
        inside = (gap[..., 0] > -_LEFT) & (gap[..., 0] < _RIGHT)
        inside &= (gap[..., 1] > -_DOWN) & (gap[..., 1] < _UP)
        cost = inside.any(0).sum() + _BEND_COST * abs(bend)
        if cost < least:
            best, least = line, cost
    assert best is not None
    return best
