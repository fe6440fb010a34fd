"""Where the topics of a picture lie: close to similar ones, and none over another."""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Rounds of the placement, and of moving apart on one size of the picture.
_ROUNDS, _PUSHES = 300, 200
#: How much the picture grows where its topics do not find room, and how often.
_GROWTH, _GROWTHS = 1.15, 5


def plane_coordinates(distance: Array) -> Array:
    """Places in the plane whose distances are close to those given, in proportion.

    They minimise the stress Σ (|x_i − x_j| − d_ij)²/d_ij² by majorisation (*Gansner, Koren & North
    2004*), from classical scaling, which makes them a function of the distances alone. The longest
    way across them is the first axis.

    Args:
        distance: ``(num_topics, num_topics)``, symmetric.

    Returns:
        ``(num_topics, 2)``, centred.
    """
    size = len(distance)
    if size < 3:
        return np.column_stack([np.arange(size) - (size - 1) / 2, np.zeros(size)])
    distance = np.maximum(distance, 1e-3 * distance.max())
    np.fill_diagonal(distance, 0.0)
    middle = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * middle @ np.square(distance) @ middle)
    points = vectors[:, -2:] * np.sqrt(values[-2:].clip(0))
    points *= np.where(vectors[np.abs(vectors).argmax(0), np.arange(size)][-2:] < 0, -1.0, 1.0)
    # Topics at one place would never come apart.
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
    """A topic's name in one line, or in a line for each word where one line is too short.

    Args:
        name: The name.
        letters: Most letters of a line, wide ones counting twice; longer words are cut.
    """
    lines = [name] if shorten(name, letters) == name else name.split(" ")
    return tuple(shorten(line, letters) for line in lines)


def shorten(text: str, letters: int) -> str:
    """A text of at most so many letters, wide ones counting twice."""
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
    """Places in a picture where every topic has room.

    Each coordinate is the mean of the one given and of its rank, so that neither crowds nor a few
    far topics take the room. Topics that would still cover each other are moved apart, along the
    axis on which they overlap less, and the picture grows downwards if they find no room. Where
    that fails they stand in rows.

    Args:
        points: ``(num_topics, 2)`` places in any unit.
        room: ``(num_topics, 2)`` half the width and height that each topic takes.
        width: Width of the picture.
        height: Height of the picture, if they find room in it. By default it depends on their
            number and room.

    Returns:
        Places ``(num_topics, 2)`` and the height of the picture.
    """
    size = len(points)
    unit = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
    rank = points.argsort(0, kind="stable").argsort(0, kind="stable") / max(size - 1, 1)
    unit = (unit + rank) / 2
    filled = 4 * float(room.prod(1).sum())
    if height is None:
        height = max(min(0.45, 0.09 * size) * width, 2 * filled / width)
    height = max(height, 2 * float(room[:, 1].max(initial=0.0)))
    need = room[:, None] + room
    # Of two at one place, the first goes first.
    order = np.sign(np.arange(size)[:, None] - np.arange(size))[..., None]
    for _ in range(_GROWTHS):
        least, most = room, np.array([width, height]) - room
        places = least + unit * (most - least)
        for _ in range(_PUSHES):
            gap = places[:, None] - places
            overlap = need - np.abs(gap)
            close = (overlap > 1e-6).all(-1)
            np.fill_diagonal(close, False)
            if not close.any():
                return places, height
            axis = (overlap / need).argmin(-1)[..., None]
            side = np.where(gap == 0, order, np.sign(gap))
            step = np.take_along_axis(side * overlap, axis, -1)[..., 0] * close
            push = np.stack([(step * (axis[..., 0] == a)).sum(1) for a in (0, 1)], axis=-1)
            places = np.clip(places + 0.45 * push + 0.01 * np.sign(push), least, most)
        height *= _GROWTH
    return _in_rows(unit, room, width)


def _in_rows(unit: Array, room: Array, width: float) -> tuple[Array, float]:
    """Places in rows, from above by the second coordinate, in each by the first."""
    across, down = 2 * room.max(0)
    columns = max(1, int(width / across))
    places = np.zeros_like(unit)
    order = unit[:, 1].argsort(kind="stable")
    rows = [order[first : first + columns] for first in range(0, len(unit), columns)]
    for row, topics in enumerate(rows):
        topics = topics[unit[topics, 0].argsort(kind="stable")]
        places[topics, 0] = width * (np.arange(len(topics)) + 0.5) / len(topics)
        places[topics, 1] = down * (row + 0.5)
    return places, down * len(rows)
