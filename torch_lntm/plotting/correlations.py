"""Pictures of the correlations between topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.models import TopicModel
from torch_lntm.plotting.placement import place_topics, route, rows_height
from torch_lntm.plotting.style import (
    DIVERGING,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    checked_labels,
    library,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The smallest correlation that the darkest colour and the widest line may stand for.
LEAST_LIMIT = 0.3


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
    names = checked_labels(model, labels)
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
    seed: int = 0,
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
        seed: Seed of the placement's start.
        ax: Axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib or networkx is missing, there is another number of labels or shares
            than of topics, or a number is negative.
    """
    plt = library("matplotlib.pyplot")
    library("networkx")
    correlation = model.topic_correlation().detach().cpu().numpy()
    names = checked_labels(model, labels)
    size = len(names)
    if shares is not None and len(shares) != size:
        raise ConfigError(f"{len(shares)} shares for {size} topics; expected as many")
    require_whole(0, num_edges=num_edges)
    require(0, min_correlation=min_correlation)
    wanted = int(1.5 * size) if num_edges is None else num_edges
    edges = _strongest(correlation, wanted, min_correlation, negative)
    linked = sorted({k for edge in edges for k in edge})
    single = [k for k in range(size) if k not in linked]

    if ax is None:
        upper = float(np.clip(1.45 * np.sqrt(len(linked)), 2.5, 14))
        width = float(np.clip(1.4 * np.sqrt(len(single)), 1.4 * upper, 14))
        figsize = (width, upper + rows_height(len(single), width))
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    window = ax.get_window_extent()
    box = np.array([window.width, window.height]) / ax.figure.dpi
    points = place_topics(correlation, linked, single, box, seed)

    weights = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
    areas = 130 + 600 * weights / max(float(weights.max()), 1e-12)
    limit = max([LEAST_LIMIT, *(abs(correlation[edge]) for edge in edges)])
    lines = [route(points, i, j) for i, j in edges]
    for (i, j), line in zip(edges, lines, strict=True):
        r = correlation[i, j]
        ax.plot(
            *line.T,
            color=POSITIVE if r > 0 else NEGATIVE,
            linestyle="-" if r > 0 else (0, (3, 2)),
            linewidth=_width(abs(r) / limit),
            alpha=0.8,
            zorder=1,
        )
    ax.scatter(
        points[:, 0],
        points[:, 1],
        s=areas,
        color="#e9e9e9",
        edgecolor=NEUTRAL,
        linewidth=0.8,
        zorder=2,
    )
    for k, name in enumerate(names):
        number, _, words = name.partition(" ")
        x, y = points[k].tolist()
        ax.text(x, y, number, ha="center", va="center", fontsize=8, zorder=4)
        ax.annotate(
            shortened(words, 16),
            (x, y),
            xytext=(0, -np.sqrt(areas[k]) / 2 - 2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7.5,
            zorder=3,
            # Lines end behind it: none goes through a name.
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0},
        )
    _explain_lines(ax, limit, negative, bool(edges), min_correlation)
    least, most = points - np.array([0.6, 0.45]), points + np.array([0.6, 0.3])
    ax.set_xlim(*_limits(0, least, most, *lines))
    ax.set_ylim(*_limits(1, least, most, *lines))
    ax.set_axis_off()
    ax.set_title(
        "Correlated topics" + ("" if shares is None else " (area: share of the topic)"),
        fontsize=10,
    )
    return ax


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
