"""Layout of topics in a plane: similar topics close together, without overlaps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist

from torch_lntm.plotting.style import shorten

Array = NDArray[np.float64]

#: Pixels of a diagram of topics: its width, radius of the smallest circle, height of a line of a
#: name, width of a letter; and the most letters in a line.
WIDTH, _LEAST, LINE_HEIGHT, _LETTER, LETTERS = 960.0, 9.0, 14.0, 7.0, 16


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


def name_lines(name: str) -> tuple[str, ...]:
    """Lines of a topic's name, each as long as possible, and at most 4. Longer words are cut."""
    plain: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(name, LETTERS, max_lines=4, placeholder=" …", **plain)
    return tuple(shorten(line, LETTERS) for line in lines or [""])


def avoid_overlaps(
    points: Array, room: Array, width: float, height: float = 0.0
) -> tuple[Array, float]:
    """Positions of topics in a picture without overlaps.

    The topics move to the cells of a brick pattern, each with room for every topic, so that the sum
    of the squared moves is smallest. The coordinates are first mixed with their ranks, which evens
    out crowds and gaps. The picture grows in height if it has too few cells.

    Args:
        points: ``(num_topics, 2)`` coordinates in any unit.
        room: ``(num_topics, 2)`` half the width and height of each topic.
        width: Width of the picture.
        height: Smallest height of the picture. Defaults to a height for the number of topics.

    Returns:
        Positions ``(num_topics, 2)`` and the height of the picture.
    """
    size, (across, down) = len(points), 2 * room.max(0)
    columns = max(1, int(width / across - 0.5))
    height = max(height or min(0.45, 0.09 * size) * width, down * -(-1.4 * size // columns))
    rows = int(height / down)
    row, column = np.divmod(np.arange(rows * columns), columns)
    across, down = width / (columns + 0.5), height / rows
    cells = np.column_stack([(column + 0.5 + row % 2 / 2) * across, (row + 0.5) * down])
    relative = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
    rank = points.argsort(0, kind="stable").argsort(0, kind="stable") / max(size - 1, 1)
    wanted = (relative + rank) / 2 * np.array([width, height])
    chosen = linear_sum_assignment(cdist(wanted, cells, "sqeuclidean"))[1]
    return cells[chosen], height


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
    lines = {k: name_lines(names[k]) for k in topics}
    below = {k: LINE_HEIGHT * len(lines[k]) + 3 for k in topics}
    sides = [(max(outer[k], LETTERS * _LETTER / 2 - 2), outer[k] + below[k] / 2) for k in topics]
    points, height = avoid_overlaps(plane_coordinates(distance), np.array(sides) + 2, *size)
    nodes: dict[int, dict[str, Any]] = {}
    for k, (x, y) in zip(topics, points.tolist(), strict=True):
        nodes[k] = {"topic": k, "x": x, "y": y - below[k] / 2, "name": lines[k]}
        nodes[k] |= {"radius": float(radius[k]), "reach": float(outer[k])}
    return {"nodes": nodes, "height": height}


def correlation_diagram(
    pairs: Sequence[tuple[int, int, float]], topics: Sequence[int], *options: Any
) -> dict[str, Any]:
    """A diagram of topics, the strongly correlated close together.

    Args:
        pairs: Two topics and their correlation.
        topics: Numbers of the topics to show.
        *options: Further arguments of :func:`lay_out_topics`.
    """
    rows = {k: row for row, k in enumerate(topics)}
    length = np.zeros((len(rows), len(rows)))
    for first, second, correlation in pairs:
        length[rows[first], rows[second]] = 1.2 - correlation
    paths = shortest_path(length, directed=False) if rows else length
    distance = np.minimum(paths, paths[np.isfinite(paths)].max(initial=1.0))
    return lay_out_topics(distance, topics, *options)
