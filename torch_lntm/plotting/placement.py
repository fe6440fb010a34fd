"""Where the topics of a graph lie, and which way the lines between them take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_lntm.plotting.style import library

#: Inches that a topic's circle with its name takes, across and down.
TOPIC_ROOM = np.array([1.15, 0.5])
#: Inches from one row of topics without a line to the next.
_ROW = 0.6
#: What a line's bend counts for against one topic in its way, as a multiple of the bend.
_BEND_COST = 3.0
#: How far lines may bend sideways, as shares of their length; the straight one first.
_BENDS = (0.0, 0.12, -0.12, 0.25, -0.25, 0.4, -0.4)
#: Inches from a topic's place to the edges of its circle and name: left, right, down, up.
_LEFT, _RIGHT, _DOWN, _UP = 0.35, 0.35, 0.3, 0.15


def place_topics(
    correlation: np.ndarray,
    linked: Sequence[int],
    single: Sequence[int],
    box: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Places of topics in a picture, correlated ones close to each other.

    Args:
        correlation: ``(num_topics, num_topics)`` correlations.
        linked: Topics with a line to another.
        single: Those without, which are placed in rows below.
        box: ``(2,)`` inches of the picture.
        seed: Seed of the placement's start.

    Returns:
        ``(num_topics, 2)`` inches.
    """
    points = np.zeros((len(correlation), 2))
    columns = _columns(box[0])
    rows = -(-len(single) // columns)
    if linked:
        upper = box - np.array([0.0, rows_height(len(single), box[0])])
        points[linked] = _spread(_by_springs(correlation[np.ix_(linked, linked)], seed), upper)
    middle = points[linked, 0].mean() if linked else 0.0
    floor = points[linked, 1].min() if linked else 0.0
    for row in range(rows):
        topics = list(single[row * columns : (row + 1) * columns])
        places = np.arange(len(topics)) - (min(columns, len(single)) - 1) / 2
        points[topics, 0] = middle + places * TOPIC_ROOM[0]
        points[topics, 1] = floor - (row + 1.2) * _ROW
    return points


def rows_height(number: int, width: float) -> float:
    """Inches down that rows of topics without a line take in a picture of some inches across."""
    return _ROW * -(-number // _columns(width))


def _columns(width: float) -> int:
    return max(1, int(width / TOPIC_ROOM[0]))


def _by_springs(correlation: np.ndarray, seed: int) -> np.ndarray:
    """Places by springs of length 1 - r between all pairs, not only those with a line."""
    networkx = library("networkx")
    size = len(correlation)
    rest = np.clip(1 - correlation, 0.3, 1.7)
    graph = networkx.complete_graph(size)
    start = networkx.random_layout(graph, seed=seed)
    distance = {i: dict(enumerate(row)) for i, row in enumerate(rest.tolist())}
    place = networkx.kamada_kawai_layout(graph, dist=distance, pos=start)
    return np.array([place[k] for k in range(size)])


def route(points: np.ndarray, start: int, end: int) -> np.ndarray:
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


def _spread(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Points moved, where they are too close, so that names of some 16 letters do not overlap.

    Args:
        points: ``(num_points, 2)`` places, in any unit.
        box: ``(2,)`` inches of the picture they fill.
    """
    room = TOPIC_ROOM
    span = np.maximum(np.ptp(points, axis=0), 1e-9)
    points = (points - points.min(0)) / span * np.maximum(box - room, room)
    for _ in range(200):
        gap = points[:, None] - points
        overlap = room - np.abs(gap)
        close = (overlap > 1e-3).all(-1)
        np.fill_diagonal(close, False)
        if not close.any():
            break
        # Along the axis that needs the shorter way, half by each.
        axis = overlap.argmin(-1)
        step = np.take_along_axis(np.sign(gap) * overlap, axis[..., None], -1)[..., 0]
        push = np.where(close, step, 0.0) / 2
        points = points + np.stack(
            [np.where(axis == 0, push, 0.0).sum(1), np.where(axis == 1, push, 0.0).sum(1)], -1
        )
    return points
