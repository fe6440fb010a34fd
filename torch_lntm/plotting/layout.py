"""Layout of topics in a plane: similar topics close together, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from torch_lntm.plotting.style import shorten

Array = NDArray[np.float64]

#: Pixels of a diagram of topics: its width, radius of the smallest circle, height of a line of a
#: name, width of a letter; and the most letters in a line.
WIDTH, _LEAST, LINE_HEIGHT, _LETTER, LETTERS = 960.0, 9.0, 14.0, 7.0, 16

#: Pushes of overlapping topics at one size of the picture; growth of a picture that is too small,
#: and the most steps of growth; maximum number of lines of a name.
_PUSHES, _GROWTH, _GROWTHS, _LINES = 200, 1.15, 5, 4


def plane_coordinates(distance: Array) -> Array:
    """Coordinates in the plane whose distances approximate given distances.

    They minimise the stress, the squared differences of the distances, by majorisation. The first
    axis is the direction of the largest spread.

    Args:
        distance: ``(num_topics, num_topics)`` distances, symmetric.

    Returns:
        ``(num_topics, 2)`` coordinates, centred.
    """
    from sklearn.manifold import smacof

    size = len(distance)
    if size < 3:
        return np.column_stack([np.arange(size) - (size - 1) / 2, np.zeros(size)])
    # Majorisation cannot separate topics at equal coordinates.
    distance = np.maximum(distance, 1e-3 * max(float(distance.max()), 1.0)) * (1 - np.eye(size))
    points = smacof(distance, n_components=2, n_init=4, eps=1e-6, random_state=0)[0]
    points -= points.mean(0)
    return np.asarray(points @ np.linalg.svd(points, full_matrices=False)[2].T)


def name_lines(name: str, letters: int) -> tuple[str, ...]:
    """Lines of a topic's name, each as long as possible, and at most 4.

    Args:
        name: The name.
        letters: Most letters in a line. Wide letters count twice. Longer words are cut.
    """
    lines: list[str] = []
    for word in name.split(" "):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and shorten(joined, letters) == joined:
            lines[-1] = joined
        else:
            lines.append(word)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"{lines[_LINES - 1]} …"]
    return tuple(shorten(line, letters) for line in lines)


def avoid_overlaps(
    points: Array, room: Array, width: float, height: float = 0.0
) -> tuple[Array, float]:
    """Positions of topics in a picture without overlaps.

    Each new coordinate is the mean of the coordinate and its rank, which evens out crowds and gaps.
    Overlapping topics then move apart along the axis of the smaller overlap. The picture grows in
    height if the topics need more room. If growth fails, the topics are arranged in rows.

    Args:
        points: ``(num_topics, 2)`` coordinates in any unit.
        room: ``(num_topics, 2)`` half the width and height of each topic.
        width: Width of the picture.
        height: Smallest height of the picture. Defaults to a height for the number and the size of
            the topics.

    Returns:
        Positions ``(num_topics, 2)`` and the height of the picture.
    """
    size = len(points)
    relative = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
    rank = points.argsort(0, kind="stable").argsort(0, kind="stable") / max(size - 1, 1)
    relative = (relative + rank) / 2
    height = height or max(min(0.45, 0.09 * size) * width, 8 * float(room.prod(1).sum()) / width)
    height = max(height, 2 * float(room[:, 1].max()))
    need = room[:, None] + room
    # The order decides the direction for two topics at one position.
    order = np.sign(np.arange(size)[:, None] - np.arange(size))[..., None]
    for _ in range(_GROWTHS):
        least, most = room, np.array([width, height]) - room
        positions = least + relative * (most - least)
        for _ in range(_PUSHES):
            gap = positions[:, None] - positions
            overlap = need - np.abs(gap)
            close = (overlap > 1e-6).all(-1)
            np.fill_diagonal(close, False)
            if not close.any():
                return positions, height
            axis = (overlap / need).argmin(-1)[..., None]
            side = np.where(gap == 0, order, np.sign(gap))
            step = np.take_along_axis(side * overlap, axis, -1)[..., 0] * close
            push = np.stack([(step * (axis[..., 0] == a)).sum(1) for a in (0, 1)], axis=-1)
            positions = np.clip(positions + 0.45 * push + 0.01 * np.sign(push), least, most)
        height *= _GROWTH
    return _in_rows(relative, room, width)


def _in_rows(points: Array, room: Array, width: float) -> tuple[Array, float]:
    """Positions in rows, sorted by the second coordinate, and within rows by the first."""
    across, down = 2 * room.max(0)
    columns, positions = max(1, int(width / across)), np.zeros_like(points)
    order = points[:, 1].argsort(kind="stable")
    for row, first in enumerate(range(0, len(points), columns)):
        topics = order[first : first + columns]
        topics = topics[points[topics, 0].argsort(kind="stable")]
        positions[topics, 0] = width * (np.arange(len(topics)) + 0.5) / len(topics)
        positions[topics, 1] = down * (row + 0.5)
    return positions, down * -(-len(points) // columns)


def lay_out_topics(
    distance: Array,
    topics: Sequence[int],
    names: Sequence[str],
    shares: Array,
    reach: Array,
    size: tuple[float, float] = (WIDTH, 0.0),
    most: float = 26.0,
) -> dict[str, Any]:
    """A diagram with similar topics close together.

    Args:
        distance: ``(num_shown, num_shown)`` distances between the topics of the diagram.
        topics: ``(num_shown,)`` numbers of the topics.
        names: Names of all topics of the model.
        shares: ``(num_topics,)`` shares, shown as areas of circles.
        reach: ``(num_topics,)`` upper ends of the shares' intervals.
        size: Width and smallest height of the diagram.
        most: Radius of the largest circle.

    Returns:
        ``nodes`` by topic, with centre ``x`` and ``y`` from the top left, ``radius`` of the share,
        radius ``reach`` of the interval's end, and lines of the ``name``; and the ``height``.
    """
    if not topics:
        return {"nodes": {}, "height": 0.0}
    largest = max(float(reach.max()), 1e-12)
    radius, outer = (
        np.sqrt(_LEAST**2 + (most**2 - _LEAST**2) * sizes / largest) for sizes in (shares, reach)
    )
    lines = {k: name_lines(names[k], LETTERS) for k in topics}
    below = {k: LINE_HEIGHT * len(lines[k]) + 3 for k in topics}
    sides = [(max(outer[k], LETTERS * _LETTER / 2 - 2), outer[k] + below[k] / 2) for k in topics]
    points, height = avoid_overlaps(plane_coordinates(distance), np.array(sides) + 2, *size)
    nodes: dict[int, dict[str, Any]] = {}
    for k, (x, y) in zip(topics, points.tolist(), strict=True):
        nodes[k] = {"topic": k, "x": x, "y": y - below[k] / 2, "name": lines[k]}
        nodes[k] |= {"radius": float(radius[k]), "reach": float(outer[k])}
    return {"nodes": nodes, "height": height}


def correlation_diagram(
    pairs: Sequence[tuple[int, int, float]],
    names: Sequence[str],
    shares: Array,
    reach: Array,
    size: tuple[float, float] = (WIDTH, 0.0),
    most: float = 26.0,
    *,
    single: bool = False,
) -> dict[str, Any]:
    """A diagram of the topics of some pairs, the strongly correlated close together.

    Args:
        pairs: Two topics and their correlation.
        names: See :func:`lay_out_topics`.
        shares: See :func:`lay_out_topics`.
        reach: See :func:`lay_out_topics`.
        size: See :func:`lay_out_topics`.
        most: See :func:`lay_out_topics`.
        single: Whether to show the topics without a pair too.
    """
    paired = {k for first, second, _ in pairs for k in (first, second)}
    topics = [k for k in range(len(names)) if single or k in paired]
    length = np.zeros((len(topics), len(topics)))
    for first, second, correlation in pairs:
        i, j = topics.index(first), topics.index(second)
        length[i, j] = length[j, i] = 1.2 - correlation
    paths = shortest_path(length, directed=False) if topics else length
    longest = paths[np.isfinite(paths)].max(initial=1.0)
    distance = np.where(np.isfinite(paths), paths, longest)
    return lay_out_topics(distance, topics, names, shares, reach, size, most)
