"""Plots of the correlations between topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.models import TopicModel
from torch_lntm.plotting.layout import correlation_diagram
from torch_lntm.plotting.style import (
    DIVERGING,
    NAME_LETTERS,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    labels_or_default,
    number_and_words,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Smallest correlation at the end of the colour scale and of the scale of line widths.
LEAST_LIMIT = 0.3
#: Most letters of a topic's name below the heat map, and pixels of the graph in an inch.
_LETTERS, _DPI = 16, 96.0


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
        ConfigError: The numbers of labels and topics differ.

    Example:
        >>> ax = lntm.plotting.correlation_heatmap(model)
        >>> ax.get_title(), len(ax.get_yticklabels())
        ('Topic correlations', 10)
    """
    import matplotlib.pyplot as plt
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
    ax.spines[:].set_visible(False)
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

    Correlated topics lie close together.

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
        ConfigError: The numbers of labels, shares and topics differ, or a number is negative.

    Example:
        >>> ax = lntm.plotting.correlation_graph(model, min_correlation=0.0)
        >>> ax.get_title()
        'Correlated topics'
    """
    import matplotlib.pyplot as plt

    correlation = model.topic_correlation().detach().cpu().numpy()
    names = labels_or_default(model, labels)
    size = len(names)
    if shares is not None and len(shares) != size:
        raise ConfigError(f"{len(shares)} shares for {size} topics; expected one for each topic")
    require_whole(0, num_edges=num_edges)
    require(0, min_correlation=min_correlation)
    max_edges = int(1.5 * size) if num_edges is None else num_edges
    edges = _strongest(correlation, max_edges, min_correlation, negative)
    numbers, words = zip(*(number_and_words(name, k) for k, name in enumerate(names)), strict=True)
    areas = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
    room = (_DPI * max(1.75 * float(np.sqrt(size)), 3.5), 0.0)
    if ax is not None:
        # A layout engine sets the position of axes only when it draws the figure.
        ax.figure.canvas.figure.draw_without_rendering()
        window = ax.get_window_extent()
        room = (window.width * _DPI / ax.figure.dpi, window.height * _DPI / ax.figure.dpi)
    picture = correlation_diagram(edges, words, areas, areas, room, 18.0, single=True)
    width, height = room[0], picture["height"]
    if ax is None:
        figsize = (width / _DPI + 0.2, height / _DPI + 0.8)
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    limit = max([LEAST_LIMIT, *(abs(r) for *_, r in edges)])
    for first, second, r in edges:
        ends = [picture["nodes"][k] for k in (first, second)]
        points = [end["x"] for end in ends], [end["y"] for end in ends]
        look: dict[str, Any] = {
            "color": POSITIVE if r > 0 else NEGATIVE,
            "linestyle": "-" if r > 0 else "--",
        }
        ax.plot(*points, linewidth=_width(abs(r) / limit), alpha=0.8, zorder=1, **look)
    _draw_topics(ax, list(picture["nodes"].values()), numbers)
    _explain_lines(ax, limit, negative, bool(edges), min_correlation)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    title = "Correlated topics" + ("" if shares is None else " (area: share of the topic)")
    ax.set_title(title, fontsize=10)
    return ax


def _draw_topics(ax: Axes, nodes: Sequence[dict[str, Any]], numbers: Sequence[str]) -> None:
    """Draw circles with the topics' numbers, and names below."""
    diameters = np.array([2 * node["radius"] * 72 / _DPI for node in nodes])
    centres = [node["x"] for node in nodes], [node["y"] for node in nodes]
    look: dict[str, Any] = {"color": "#e9e9e9", "edgecolor": NEUTRAL, "linewidth": 0.8, "zorder": 2}
    ax.scatter(*centres, s=diameters**2, **look)
    middle: dict[str, Any] = {"ha": "center", "parse_math": False}
    # The white box hides lines behind the name.
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0}
    for node, diameter, number in zip(nodes, diameters, numbers, strict=True):
        at, name = (node["x"], node["y"]), "\n".join(node["name"])
        ax.text(*at, number, va="center", fontsize=8, zorder=4, **middle)
        low = at[0], at[1] + (diameter / 2 + 2) * _DPI / 72
        ax.text(*low, name, va="top", fontsize=7.5, linespacing=1.0, zorder=3, bbox=box, **middle)


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
    lines = {
        f"correlation {part * limit:.2f}": Line2D([], [], color=POSITIVE, linewidth=_width(part))
        for part in (0.4, 1.0)
    }
    if negative:
        lines["negative"] = Line2D([], [], color=NEGATIVE, linestyle="--", linewidth=_width(0.4))
    legend = ax.legend(list(lines.values()), list(lines), frameon=False, fontsize=8, ncols=3)
    legend.set_loc("upper center")
    legend.set_bbox_to_anchor((0.5, 0.01), ax.transAxes)


def _strongest(
    correlation: np.ndarray, number: int, least: float, negative: bool
) -> list[tuple[int, int, float]]:
    """Pairs of topics with the strongest correlations."""
    rows, columns = np.triu_indices(len(correlation), 1)
    strength = correlation[rows, columns]
    strength = np.abs(strength) if negative else strength
    order = np.argsort(-strength, kind="stable")[:number]
    order = order[(strength[order] > 0) & (strength[order] >= least)]
    chosen = (rows[order], columns[order], correlation[rows[order], columns[order]])
    return list(zip(*(x.tolist() for x in chosen), strict=True))


def _seriation(correlation: np.ndarray) -> np.ndarray:
    """An order of the topics with correlated topics side by side."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(correlation) < 3:
        return np.arange(len(correlation))
    distance = squareform(np.clip(1 - correlation, 0, 2), checks=False)
    return leaves_list(linkage(distance, "average", optimal_ordering=True))
