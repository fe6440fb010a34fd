"""Plots of the correlations between topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.models import TopicModel
from torch_lntm.plotting.graph_layout import TOPIC_WIDTH, lay_out_topics, route_line
from torch_lntm.plotting.style import (
    DIVERGING,
    NAME_LETTERS,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    labels_or_default,
    library,
    number_and_words,
)
from torch_lntm.reports.layout import name_lines, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Smallest correlation at the end of the colour scale and of the scale of line widths.
LEAST_LIMIT = 0.3
#: Most letters in a line of a topic's name in the graph, and the height of a line in inches.
_LETTERS, _LINE = 16, 0.13


def correlation_heatmap(
    model: TopicModel,
    *,
    labels: Sequence[str] | None = None,
    cluster: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Plot correlations between topics as a heat map: blue is negative, orange positive.

    The colour scale covers at least -0.3 to 0.3, so that weak correlations stay pale.

    Args:
        model: The model.
        labels: Names of the topics. Defaults to the model's names, or numbers and first words.
        cluster: Place correlated topics side by side. If False, sort topics by number.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, or the numbers of labels and topics differ.

    Example:
        >>> ax = lntm.plotting.correlation_heatmap(model)
        >>> ax.get_title(), len(ax.get_yticklabels())
        ('Topic correlations', 10)
    """
    plt = library("matplotlib.pyplot")
    from matplotlib.colors import LinearSegmentedColormap

    correlation = model.topic_correlation().detach().cpu().numpy()
    names = labels_or_default(model, labels)
    order = _seriation(correlation) if cluster else np.arange(len(names))
    shown = correlation[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)  # The diagonal, always 1, would make all other colours pale.
    size = len(names)
    if ax is None:
        side = min(max(3.5, 0.28 * size + 1.0), 18.0)
        _, ax = plt.subplots(figsize=(side + 2.4, side), layout="compressed")
    limit = max(LEAST_LIMIT, float(np.nanmax(np.abs(shown))))
    colours = LinearSegmentedColormap.from_list("blue_orange", DIVERGING)
    image = ax.imshow(shown, cmap=colours.with_extremes(bad="#d9d9d9"), vmin=-limit, vmax=limit)
    row = ax.get_window_extent().height / ax.figure.dpi * 72 / size  # points
    fontsize = float(np.clip(0.7 * row, 3, 9))
    # Names of topics stand upright below the columns; numbers do if they would overlap.
    columns = [shorten(_column_name(names[k], k), _LETTERS) for k in order.tolist()]
    rotation = 90 if size > 20 or any(not name.isdigit() for name in columns) else 0
    ax.set_xticks(range(size), columns, fontsize=fontsize, rotation=rotation, parse_math=False)
    rows = [shorten(names[k], NAME_LETTERS) for k in order]
    ax.set_yticks(range(size), rows, fontsize=fontsize, parse_math=False)
    ax.set_xticks(np.arange(size) - 0.5, minor=True)
    ax.set_yticks(np.arange(size) - 0.5, minor=True)
    ax.grid(False)
    ax.grid(which="minor", color="white", linewidth=0.6)
    ax.tick_params(which="both", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
    bar.set_label("correlation")
    bar.outline.set_visible(False)
    ax.set_title("Topic correlations")
    return ax


def _column_name(label: str, topic: int) -> str:
    """The number of a label that begins with it, else the label."""
    number, words = number_and_words(label, topic)
    return label if words == label else number


def correlation_graph(
    model: TopicModel,
    *,
    shares: Sequence[float] | Tensor | None = None,
    num_edges: int | None = None,
    min_correlation: float = 0.1,
    negative: bool = False,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the strongest correlations between topics as a graph.

    Correlated topics lie close together. Topics without a line are in rows at the bottom. Lines
    bend around other topics.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions, shown as areas of the circles.
        num_edges: Most correlations to draw, the strongest first. Defaults to 1.5 for each topic.
        min_correlation: Smallest absolute correlation to draw.
        negative: Also draw negative correlations, as dashed blue lines.
        labels: Names of the topics. Defaults to the model's names, or numbers and first words.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, the numbers of labels, shares and topics differ, or a
            number is negative.

    Example:
        >>> ax = lntm.plotting.correlation_graph(model, min_correlation=0.0)
        >>> ax.get_title()
        'Correlated topics'
    """
    plt = library("matplotlib.pyplot")
    correlation = model.topic_correlation().detach().cpu().numpy()
    names = labels_or_default(model, labels)
    size = len(names)
    if shares is not None and len(shares) != size:
        raise ConfigError(f"{len(shares)} shares for {size} topics; expected one for each topic")
    require_whole(0, num_edges=num_edges)
    require(0, min_correlation=min_correlation)
    max_edges = int(1.5 * size) if num_edges is None else num_edges
    edges = _strongest(correlation, max_edges, min_correlation, negative)
    linked = sorted({k for edge in edges for k in edge})
    single = [k for k in range(size) if k not in linked]

    topics = _Topics.from_names(names, shares)
    width = max(1.75 * np.sqrt(len(linked)), 1.4 * np.sqrt(len(single)), 3.5)
    height = None
    if ax is not None:
        # A layout engine sets the position of axes only when it draws the figure.
        ax.figure.canvas.figure.draw_without_rendering()
        window = ax.get_window_extent()
        width, height = window.width / ax.figure.dpi, window.height / ax.figure.dpi
    points = lay_out_topics(correlation, linked, single, topics.room, float(width), height)
    extents = [points - topics.room, points + topics.room]
    points[:, 1] += topics.below
    curves = [route_line(points, i, j) for i, j in edges]
    left, right = _limits(0, *extents, *curves)
    low, high = _limits(1, *extents, *curves)
    if ax is None:
        _, ax = plt.subplots(figsize=(right - left + 0.2, high - low + 0.8), layout="constrained")
    limit = max([LEAST_LIMIT, *(abs(correlation[edge]) for edge in edges)])
    for edge, curve in zip(edges, curves, strict=True):
        _draw_line(ax, curve, correlation[edge], limit)
    _draw_topics(ax, points, topics)
    _explain_lines(ax, limit, negative, bool(edges), min_correlation)
    ax.set_xlim(left, right)
    ax.set_ylim(low, high)
    ax.set_axis_off()
    ax.set_title(
        "Correlated topics" + ("" if shares is None else " (area: share of the topic)"),
        fontsize=10,
    )
    return ax


class _Topics(NamedTuple):
    """The topics of the graph.

    Attributes:
        numbers: Numbers of the topics.
        names: Lines of the topics' names.
        areas: ``(num_topics,)`` areas of the circles, square points.
        below: ``(num_topics,)`` inches from the middle of circle and name to the circle's centre.
        room: ``(num_topics, 2)`` half the width and height of circle and name, inches.
    """

    numbers: tuple[str, ...]
    names: list[tuple[str, ...]]
    areas: np.ndarray
    below: np.ndarray
    room: np.ndarray

    @classmethod
    def from_names(cls, names: Sequence[str], shares: Sequence[float] | Tensor | None) -> _Topics:
        """Topics with sizes from names and shares."""
        size = len(names)
        weights = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
        areas = 130 + 600 * weights / max(float(weights.max()), 1e-12)
        pairs = [number_and_words(name, k) for k, name in enumerate(names)]
        numbers, words = zip(*pairs, strict=True)
        lines = [name_lines(text, _LETTERS) for text in words]
        below = np.array([_LINE * len(name) for name in lines]) / 2
        radii = np.sqrt(areas) / 2 / 72
        room = np.stack([np.full(size, TOPIC_WIDTH / 2), radii + below + 0.03], -1)
        return cls(numbers, lines, areas, below, room)


def _draw_topics(ax: Axes, points: np.ndarray, topics: _Topics) -> None:
    """Draw circles with the topics' numbers, and names below."""
    ax.scatter(
        points[:, 0],
        points[:, 1],
        s=topics.areas,
        color="#e9e9e9",
        edgecolor=NEUTRAL,
        linewidth=0.8,
        zorder=2,
    )
    for k, (x, y) in enumerate(points.tolist()):
        ax.text(x, y, topics.numbers[k], ha="center", va="center", fontsize=8, zorder=4)
        ax.annotate(
            "\n".join(topics.names[k]),
            (x, y),
            xytext=(0, -np.sqrt(topics.areas[k]) / 2 - 2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7.5,
            linespacing=1.0,
            zorder=3,
            # The white box hides lines behind the name.
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0},
        )


def _draw_line(ax: Axes, curve: np.ndarray, correlation: float, limit: float) -> None:
    """Draw the line of a correlation, with a width for its strength."""
    ax.plot(
        *curve.T,
        color=POSITIVE if correlation > 0 else NEGATIVE,
        linestyle="-" if correlation > 0 else (0, (3, 2)),
        linewidth=_width(abs(correlation) / limit),
        alpha=0.8,
        zorder=1,
    )


def _limits(axis: int, *points: np.ndarray) -> tuple[float, float]:
    """Smallest and largest coordinate of arrays of points."""
    values = np.concatenate([array[:, axis] for array in points])
    return float(values.min()), float(values.max())


def _width(strength: float) -> float:
    """Width of a line in points, for a correlation divided by the end of the scale."""
    return 0.5 + 3.5 * strength


def _explain_lines(
    ax: Axes, limit: float, negative: bool, any_edges: bool, min_correlation: float
) -> None:
    """Draw a legend of the lines."""
    from matplotlib.lines import Line2D

    if not any_edges:
        text = f"no correlation of {min_correlation:g} or more"
        ax.text(0.5, 0.01, text, transform=ax.transAxes, ha="center", va="bottom", fontsize=8)
        return
    handles, meanings = [], []
    for part in (0.4, 1.0):
        handles.append(Line2D([], [], color=POSITIVE, linewidth=_width(part)))
        meanings.append(f"correlation {part * limit:.2f}")
    if negative:
        handles.append(Line2D([], [], color=NEGATIVE, linestyle="--", linewidth=_width(0.4)))
        meanings.append("negative")
    ax.legend(
        handles,
        meanings,
        frameon=False,
        fontsize=8,
        ncols=len(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.01),
    )


def _strongest(
    correlation: np.ndarray, number: int, least: float, negative: bool
) -> list[tuple[int, int]]:
    """Pairs of topics with the strongest correlations."""
    rows, columns = np.triu_indices(len(correlation), 1)
    strength = correlation[rows, columns]
    strength = np.abs(strength) if negative else strength
    order = np.argsort(-strength, kind="stable")[:number]
    order = order[(strength[order] > 0) & (strength[order] >= least)]
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def _seriation(correlation: np.ndarray) -> np.ndarray:
    """An order of the topics with correlated topics side by side."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    distance = squareform(np.clip(1 - correlation, 0, 2), checks=False)
    return leaves_list(linkage(distance, "average", optimal_ordering=True))
