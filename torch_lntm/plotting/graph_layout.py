"""Where the topics of a graph lie, and which way the lines between them take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_lntm.reports.layout import avoid_overlaps, plane_coordinates

#: Inches that a topic's circle with its name takes across.
TOPIC_WIDTH = 1.15
#: Inches from one row of topics without a line to the next.
_ROW = 0.7
#: What a line's bend counts for against one topic in its way, as a multiple of the bend.
_BEND_COST = 3.0
#: How far lines may bend sideways, as shares of their length; the straight one first.
_BENDS = (0.0, 0.12, -0.12, 0.25, -0.25, 0.4, -0.4)
#: Inches from a topic's place to the edges of its circle and name: left, right, down, up.
_LEFT, _RIGHT, _DOWN, _UP = 0.35, 0.35, 0.3, 0.15


def lay_out_topics(
    correlation: np.ndarray,
    linked: Sequence[int],
    single: Sequence[int],
    room: np.ndarray,
    width: float,
    height: float | None = None,
) -> np.ndarray:
    """Places of topics in a picture, correlated topics close to each other.

    Args:
        correlation: ``(num_topics, num_topics)`` correlations.
        linked: Topics with a line to another.
        single: Topics without a line, which are placed in rows below.
        room: ``(num_topics, 2)`` half the inches that each topic takes, across and down.
        width: Inches of the picture across.
        height: Inches of the picture down. By default as many as the topics need.

    Returns:
        ``(num_topics, 2)`` inches; the second coordinate grows upwards.
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
        places = np.arange(len(topics)) - (min(columns, len(single)) - 1) / 2
        points[topics, 0] = width / 2 + places * TOPIC_WIDTH
        points[topics, 1] = -(row + 0.5) * _ROW
    return points


def rows_height(number: int, width: float) -> float:
    """Inches down that rows of topics without a line take in a picture of some inches across."""
    return _ROW * -(-number // _columns(width))


def _columns(width: float) -> int:
    return max(1, int(width / TOPIC_WIDTH))


def route_line(points: np.ndarray, start: int, end: int) -> np.ndarray:
    """A line between two topics that bends around the others, as little as it can.

    Args:
        points: ``(num_topics, 2)`` places in inches.
        start: One topic.
        end: The other.

    Returns:
        ``(num_points, 2)`` places along the line.
    """
    a, b = points[start], points[end]
    others = np.delete(points, [start, end], axis=0)
    sideways = np.array([a[1] - b[1], b[0] - a[0]])
    share = np.linspace(0, 1, 41)[:, None]
    best, least = None, np.inf
    for bend in _BENDS:
        # A quadratic Bézier curve; its middle is half as far off as its control point.
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
