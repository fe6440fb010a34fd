"""Plots of the topics of a model: their correlations, their tree, and the sources behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel
from torch_lntm.plotting.layout import correlation_diagram
from torch_lntm.plotting.style import (
    NAME_LETTERS,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    rule,
    shorten,
    topic_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Smallest correlation at the end of the scale of line widths, the largest width in points, and
#: pixels of the graph in an inch.
_LIMIT, _WIDEST, _DPI = 0.3, 4.0, 96.0


def correlation_graph(
    model: TopicModel,
    *,
    shares: Sequence[float] | Tensor | None = None,
    min_correlation: float = 0.1,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the strongest positive correlations between topics as a graph.

    Correlated topics lie close together. The graph has at most 1.5 lines for each topic.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions, shown as areas of the circles.
        min_correlation: Smallest correlation to draw.
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
    from matplotlib.lines import Line2D

    names, size = topic_labels(model) if labels is None else labels, model.num_topics
    areas = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
    if (len(names), len(areas)) != (size, size):
        raise ConfigError(
            f"{len(names)} labels and {len(areas)} shares for {size} topics; expected one for each"
        )
    require(0, min_correlation=min_correlation)
    edges = _strongest(model.topic_correlation().cpu().numpy(), int(1.5 * size), min_correlation)
    words = ["" if name == str(k) else name.removeprefix(f"{k} ") for k, name in enumerate(names)]
    room = (_DPI * max(1.75 * float(np.sqrt(size)), 3.5), 0.0)
    if ax is not None:
        # A layout engine sets the position of axes only when it draws the figure.
        ax.figure.canvas.figure.draw_without_rendering()
        window = ax.get_window_extent()
        room = (window.width * _DPI / ax.figure.dpi, window.height * _DPI / ax.figure.dpi)
    picture = correlation_diagram(edges, range(size), words, areas, areas, room, 18.0)
    width, height, nodes = room[0], picture["height"], picture["nodes"]
    if ax is None:
        figsize = (width / _DPI + 0.2, height / _DPI + 0.8)
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    limit = max([_LIMIT, *(r for *_, r in edges)])
    for a, b, r in edges:
        ends = [nodes[a]["x"], nodes[b]["x"]], [nodes[a]["y"], nodes[b]["y"]]
        ax.plot(*ends, color=POSITIVE, linewidth=_WIDEST * r / limit, alpha=0.8, zorder=1)
    _draw_topics(ax, nodes)
    widths = {f"correlation {r:.2f}": _WIDEST * r / limit for r in (0.4 * limit, limit)}
    keys = [Line2D([], [], color=POSITIVE, linewidth=width) for width in widths.values()]
    options: dict[str, Any] = {"frameon": False, "fontsize": 8, "ncols": 2}
    ax.legend(keys, list(widths), loc="upper center", bbox_to_anchor=(0.5, 0.01), **options)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    title = "Correlated topics" + ("" if shares is None else " (area: share of the topic)")
    ax.set_title(title, fontsize=10)
    return ax


def _strongest(
    correlation: NDArray[np.float64], number: int, least: float
) -> list[tuple[int, int, float]]:
    """Pairs of topics with the strongest positive correlations, from a smallest one on."""
    pairs = [(a, b, float(correlation[a, b])) for b in range(len(correlation)) for a in range(b)]
    strong = [pair for pair in pairs if pair[2] >= max(least, 1e-12)]
    return sorted(strong, key=lambda pair: -pair[2])[:number]


def _draw_topics(ax: Axes, nodes: dict[int, dict[str, Any]]) -> None:
    """Draw circles with the topics' numbers, and names below."""
    diameters = [2 * node["radius"] * 72 / _DPI for node in nodes.values()]
    xs, ys = ([node[axis] for node in nodes.values()] for axis in "xy")
    look: dict[str, Any] = {"color": "#e9e9e9", "edgecolor": NEUTRAL, "linewidth": 0.8, "zorder": 2}
    ax.scatter(xs, ys, s=np.square(diameters), **look)
    middle: dict[str, Any] = {"ha": "center", "parse_math": False}
    # The white box hides lines behind the name.
    box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0}
    for k, node in nodes.items():
        at, below = (node["x"], node["y"]), (0, -node["radius"] * 72 / _DPI - 3)
        ax.text(*at, str(k), va="center", fontsize=8, zorder=4, **middle)
        look = {"textcoords": "offset points", "va": "top", "fontsize": 7.5, "linespacing": 1.0}
        ax.annotate("\n".join(node["name"]), at, below, zorder=3, bbox=box, **look, **middle)


def tree_plot(tree: Any, *, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Plot a tree of topics: topics at the left, merges to the right at their distances.

    A dashed line crosses one branch for each group of a level. The names of the groups of the
    smallest level stand at the right.

    Args:
        tree: The tree; see :func:`torch_lntm.topic_tree`.
        labels: Labels of the topics. Defaults to names, or numbers and first words.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Example:
        >>> ax = lntm.plotting.tree_plot(lntm.topic_tree(model, levels=[3]))
        >>> len(ax.get_yticklabels())
        10
    """
    import matplotlib.pyplot as plt
    from scipy.cluster.hierarchy import dendrogram

    if ax is None:
        figsize = (6.5, 0.22 * tree.num_topics + 1.0)
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    plain: dict[str, Any] = {"no_labels": True, "color_threshold": 0.0, "orientation": "right"}
    drawn = dendrogram(tree.merges, ax=ax, above_threshold_color=NEGATIVE, **plain)
    # The topics lie at the heights 5, 15, 25 and so on.
    rows = {topic: 10 * row + 5 for row, topic in enumerate(drawn["leaves"] or ())}
    look: dict[str, Any] = {"color": POSITIVE, "fontsize": 8, "parse_math": False}
    for i, level in enumerate(tree.levels):
        top = -8 - 8 * (i % 2)
        ax.vlines(tree.cut(level), top, 10 * len(rows), POSITIVE, "dashed", linewidth=1.0)
        ax.text(tree.cut(level), top, f"{level} groups", ha="center", va="bottom", **look)
    right = ax.get_yaxis_transform()
    for name, topics in tree.groups(tree.levels[-1]).items() if tree.levels else ():
        own = [rows[k] for k in topics]
        ends = [min(own) - 3, max(own) + 3]
        ax.plot([1.01, 1.01], ends, color=POSITIVE, transform=right, clip_on=False)
        middle, shown = sum(ends) / 2, shorten(name, NAME_LETTERS)
        ax.text(1.03, middle, shown, va="center", transform=right, **look)
    names = tree.labels if labels is None else labels
    ticks = [shorten(names[k], NAME_LETTERS) for k in rows]
    ax.set_yticks(list(rows.values()), ticks, fontsize=8, parse_math=False)
    ax.set_ylim(10 * len(rows), -8 - 8 * (len(tree.levels) > 1))
    ax.set_xlim(left=0.8 * tree.merges[0, 2])  # nothing happens before the first merge
    kinds = {"words": "Hellinger distance of words", "correlation": "distance by correlation"}
    ax.set_xlabel(f"{kinds[tree.by]}, Ward's for groups", color=NEUTRAL, fontsize=9)
    rule(ax, "x")
    return ax


def source_plot(
    model: TopicModel,
    source: int | None = None,
    *,
    num_topics: int = 4,
    top_n: int = 4,
    ax: Axes | None = None,
) -> Axes:
    """Plot the topics at both ends of each source, after *Putthividhya et al. 2009, Fig. 2*.

    The length of a bar is the change of the topic's logit per unit of the source, minus the mean
    over topics. Orange topics occur with a positive source, blue topics with a negative source.
    Order, sign and rotation of the sources are conventions; see
    :class:`~torch_lntm.models.IndependentFactorPrior`.

    Args:
        model: The model.
        source: Number of the source. Defaults to all sources.
        num_topics: Most topics at each end. Each end has loadings of one sign.
        top_n: Words of each topic.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The model has no sources, the source does not exist, or
            a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> lntm.plotting.source_plot(factors, num_topics=2).get_xlabel()
        "change of a topic's logit per unit of the source"
    """
    prior = source_prior(model)
    if source is not None and not 0 <= source < prior.num_sources:
        raise ConfigError(f"source {source} of a model with {prior.num_sources} sources")
    require_whole(1, num_topics=num_topics, top_n=top_n)
    sources = range(prior.num_sources) if source is None else [source]
    names, loadings = topic_labels(model, top_n), prior.centred_mixing().cpu().numpy()
    return plot_loadings(loadings, names, sources, num_topics=num_topics, ax=ax)


def plot_loadings(
    loadings: NDArray[np.float64],
    names: Sequence[str],
    sources: Iterable[int],
    *,
    num_topics: int,
    ax: Axes | None = None,
) -> Axes:
    """Plot loadings ``(num_topics, num_sources)`` of named topics as :func:`source_plot` does."""
    import matplotlib.pyplot as plt

    rows: list[tuple[str, float]] = []  # (source, NaN), followed by (topic, loading) pairs
    for number in sources:
        order = np.argsort(-loadings[:, number], kind="stable")
        ranked = [(shorten(names[k], NAME_LETTERS), float(loadings[k, number])) for k in order]
        rows.append((f"source {number}", np.nan))
        rows += [row for row in ranked if row[1] > 0][:num_topics]
        rows += [row for row in ranked if row[1] < 0][-num_topics:]
    shown, values = [name for name, _ in rows], np.array([value for _, value in rows])
    if ax is None:  # the bars have room beside the longest name
        figsize = (4.0 + 0.08 * max(map(len, shown)), 0.21 * len(rows) + 0.9)
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    positions = np.arange(len(rows))
    ax.barh(positions, values, 0.7, color=np.where(values < 0, NEGATIVE, POSITIVE))
    ax.axvline(0, color=NEUTRAL, linewidth=0.8)
    # parse_math would read words between dollar signs as formulas.
    ticks = ax.set_yticks(positions, shown, fontsize=8.5, parse_math=False)
    for tick, value in zip(ticks, values, strict=True):
        tick.label1.set_fontweight("bold" if np.isnan(value) else "normal")
    limit = 1.06 * np.nanmax(np.abs(values), initial=1e-12)
    ax.set(xlim=(-limit, limit), ylim=(len(rows) - 0.4, -0.6))
    ax.set_xlabel("change of a topic's logit per unit of the source", fontsize=9)
    rule(ax, "x")
    ax.tick_params(axis="x", labelsize=8.5)
    ax.locator_params(axis="x", nbins=7)
    return ax
