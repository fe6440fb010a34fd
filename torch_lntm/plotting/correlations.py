"""Pictures of the correlations between topics."""

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
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    labels_or_default,
    library,
)
from torch_lntm.reports.layout import name_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The smallest correlation that the darkest colour and the widest line may stand for.
LEAST_LIMIT = 0.3
#: Most letters in a line of a topic's name in the graph, and the inches that a line takes down.
_LETTERS, _LINE = 16, 0.13


def correlation_heatmap(
    model: TopicModel,
    *,
    labels: Sequence[str] | None = None,
    cluster: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Correlations between topics as a heat map, blue for negative and orange for positive.

    The colours reach at least from -0.3 to 0.3, so that correlations which hardly differ from 0
    stay pale.

    Args:
        model: The model.
        labels: A name for each topic; by default its number and first words.
        cluster: Put correlated topics next to each other instead of going by number.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, or there is another number of labels than of topics.
    """
    plt = library("matplotlib.pyplot")
    from matplotlib.colors import LinearSegmentedColormap

    correlation = model.topic_correlation().detach().cpu().numpy()
    names = labels_or_default(model, labels)
    order = _seriation(correlation) if cluster else np.arange(len(names))
    shown = correlation[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)  # always 1: it would only dull the colours of the others
    size = len(names)
    if ax is None:
        side = min(max(3.5, 0.28 * size + 1.0), 18.0)
        _, ax = plt.subplots(figsize=(side + 2.4, side), layout="compressed")
    limit = max(LEAST_LIMIT, float(np.nanmax(np.abs(shown))))
    colours = LinearSegmentedColormap.from_list("blue_orange", DIVERGING)
    image = ax.imshow(shown, cmap=colours.with_extremes(bad="#d9d9d9"), vmin=-limit, vmax=limit)
    row = ax.get_window_extent().height / ax.figure.dpi * 72 / size  # points
    fontsize = float(np.clip(0.7 * row, 3, 9))
    upright = 90 if size > 20 else 0  # numbers side by side would run into each other
    numbers = [names[k].split(" ")[0] for k in order]
    ax.set_xticks(range(size), numbers, fontsize=fontsize, rotation=upright)
    ax.set_yticks(range(size), [names[k] for k in order], fontsize=fontsize)
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
    """The strongest correlations between topics as a graph: correlated topics lie together.

    Topics without a line stand in rows below the others. A line bends around the topics that are in
    its way.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions, shown as the areas of the topics.
        num_edges: Correlations to draw, the strongest first; by default 1.5 for each topic.
        min_correlation: Absolute value of the weakest correlation to draw.
        negative: Draw negative correlations too, dashed in blue, not only the positive ones.
        labels: A name for each topic; by default its number and first words.
        ax: Axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, there is another number of labels or shares than of
            topics, or a number is negative.
    """
    plt = library("matplotlib.pyplot")
    correlation = model.topic_correlation().detach().cpu().numpy()
    names = labels_or_default(model, labels)
    size = len(names)
    if shares is not None and len(shares) != size:
        raise ConfigError(f"{len(shares)} shares for {size} topics; expected as many")
    require_whole(0, num_edges=num_edges)
    require(0, min_correlation=min_correlation)
    wanted = int(1.5 * size) if num_edges is None else num_edges
    edges = _strongest(correlation, wanted, min_correlation, negative)
    linked = sorted({k for edge in edges for k in edge})
    single = [k for k in range(size) if k not in linked]

    topics = _Topics.of(names, shares)
    width = max(1.75 * np.sqrt(len(linked)), 1.4 * np.sqrt(len(single)), 3.5)
    height = None
    if ax is not None:
        # A layout gives axes their places when the figure is drawn.
        ax.figure.canvas.figure.draw_without_rendering()
        window = ax.get_window_extent()
        width, height = window.width / ax.figure.dpi, window.height / ax.figure.dpi
    points = lay_out_topics(correlation, linked, single, topics.room, float(width), height)
    edge_of = [points - topics.room, points + topics.room]
    points[:, 1] += topics.below
    curves = [route_line(points, i, j) for i, j in edges]
    left, right = _limits(0, *edge_of, *curves)
    low, high = _limits(1, *edge_of, *curves)
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
        numbers: Their numbers.
        names: The lines of their names.
        areas: ``(num_topics,)`` square points of their circles.
        below: ``(num_topics,)`` inches from the middle of circle and name up to the circle's.
        room: ``(num_topics, 2)`` half the inches that circle and name take, across and down.
    """

    numbers: tuple[str, ...]
    names: list[tuple[str, ...]]
    areas: np.ndarray
    below: np.ndarray
    room: np.ndarray

    @classmethod
    def of(cls, names: Sequence[str], shares: Sequence[float] | Tensor | None) -> _Topics:
        """Topics of some names and shares."""
        size = len(names)
        weights = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
        areas = 130 + 600 * weights / max(float(weights.max()), 1e-12)
        numbers, words = zip(*(name.partition(" ")[::2] for name in names), strict=True)
        lines = [name_lines(text, _LETTERS) for text in words]
        below = np.array([_LINE * len(one) for one in lines]) / 2
        radii = np.sqrt(areas) / 2 / 72
        room = np.stack([np.full(size, TOPIC_WIDTH / 2), radii + below + 0.03], -1)
        return cls(numbers, lines, areas, below, room)


def _draw_topics(ax: Axes, points: np.ndarray, topics: _Topics) -> None:
    """Circles with the topics' numbers, and their names below."""
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
            # Lines end behind it: none goes through a name.
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0},
        )


def _draw_line(ax: Axes, curve: np.ndarray, correlation: float, limit: float) -> None:
    """The line of a correlation, as wide as the correlation is strong."""
    ax.plot(
        *curve.T,
        color=POSITIVE if correlation > 0 else NEGATIVE,
        linestyle="-" if correlation > 0 else (0, (3, 2)),
        linewidth=_width(abs(correlation) / limit),
        alpha=0.8,
        zorder=1,
    )


def _limits(axis: int, *places: np.ndarray) -> tuple[float, float]:
    """The least and the greatest coordinate of some places."""
    values = np.concatenate([place[:, axis] for place in places])
    return float(values.min()), float(values.max())


def _width(strength: float) -> float:
    """Points of a line, by the correlation's share of the largest on the scale."""
    return 0.5 + 3.5 * strength


def _explain_lines(
    ax: Axes, limit: float, negative: bool, any_edges: bool, min_correlation: float
) -> None:
    """A legend of what the lines mean."""
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
    """The pairs of topics with the strongest correlations."""
    rows, columns = np.triu_indices(len(correlation), 1)
    strength = correlation[rows, columns]
    strength = np.abs(strength) if negative else strength
    order = np.argsort(-strength, kind="stable")[:number]
    order = order[(strength[order] > 0) & (strength[order] >= least)]
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def _seriation(correlation: np.ndarray) -> np.ndarray:
    """An order of the topics that puts correlated ones next to each other."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    distance = squareform(np.clip(1 - correlation, 0, 2), checks=False)
    return leaves_list(linkage(distance, "average", optimal_ordering=True))
