"""Layout of topics in a plane: similar topics close together, without overlaps."""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Updates of the coordinates, and of overlapping topics at one size of the picture.
_ROUNDS, _PUSHES = 300, 200
#: Growth of a picture that is too small, and the most steps of growth.
_GROWTH, _GROWTHS = 1.15, 5
#: Maximum number of lines of a name.
_LINES = 4


def plane_coordinates(distance: Array) -> Array:
    """Coordinates in the plane whose distances approximate given distances.

    The coordinates minimise the stress Σ (|x_i − x_j| − d_ij)²/d_ij² by majorisation (*Gansner,
    Koren & North 2004*). Classical scaling gives the start, so the result depends on the distances
    alone. The first axis is the direction of the largest spread.

    Args:
        distance: ``(num_topics, num_topics)`` distances, symmetric.

    Returns:
        ``(num_topics, 2)`` coordinates, centred.
    """
    size = len(distance)
    if size < 3:
        return np.column_stack([np.arange(size) - (size - 1) / 2, np.zeros(size)])
    distance = np.maximum(distance, 1e-3 * distance.max())
    np.fill_diagonal(distance, 0.0)
    centring = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centring @ np.square(distance) @ centring)
    points = vectors[:, -2:] * np.sqrt(values[-2:].clip(0))
    points *= np.where(vectors[np.abs(vectors).argmax(0), np.arange(size)][-2:] < 0, -1.0, 1.0)
    # Majorisation cannot separate topics at equal coordinates.
    angle = 2.4 * np.arange(size)
    points = points + 1e-3 * distance.max() * np.column_stack([np.cos(angle), np.sin(angle)])
    weight = np.zeros_like(distance)
    np.divide(1.0, np.square(distance), out=weight, where=distance > 0)
    inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(_ROUNDS):
        gap = points[:, None] - points
        length = np.maximum(np.linalg.norm(gap, axis=-1), 1e-9)
        pull = weight * distance / length
        points = inverse @ (pull.sum(1)[:, None] * points - pull @ points)
    points = points - points.mean(0)
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


def shorten(text: str, letters: int) -> str:
    """A text cut to a number of letters, wide letters counted twice."""
    room, kept = letters, ""
    for letter in text:
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return kept[:-1].rstrip() + "…"
        kept += letter
    return kept


def avoid_overlaps(
    points: Array, room: Array, width: float, height: float | None = None
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
    area = 4 * float(room.prod(1).sum())
    if height is None:
        height = max(min(0.45, 0.09 * size) * width, 2 * area / width)
    height = max(height, 2 * float(room[:, 1].max(initial=0.0)))
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
    columns = max(1, int(width / across))
    positions = np.zeros_like(points)
    order = points[:, 1].argsort(kind="stable")
    rows = [order[first : first + columns] for first in range(0, len(points), columns)]
    for row, topics in enumerate(rows):
        topics = topics[points[topics, 0].argsort(kind="stable")]
        positions[topics, 0] = width * (np.arange(len(topics)) + 0.5) / len(topics)
        positions[topics, 1] = down * (row + 0.5)
    return positions, down * len(rows)
