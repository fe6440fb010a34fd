"""Plots of a model's topics: a map, a graph, a tree, and the topics at the ends of sources."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist
from torch import Tensor

from torch_lntm.errors import ConfigError, require, require_whole
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import (
    GRID,
    NAME_LETTERS,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    axes_of,
    rule,
    shorten,
    topic_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

#: Inches of a map of topics: width of a name, height of one of its lines, and the radii of the
#: smallest and the largest circle; and the most letters of a line.
_NAME, _LINE, _RADII, _LETTERS = 1.15, 0.13, (0.09, 0.19), 16
#: Smallest correlation at the end of the scale of line widths, and the largest width in points.
_LIMIT, _WIDEST = 0.3, 4.0


def _columns(width: float) -> int:
    return max(1, int(width / _NAME - 0.5))


def _draw_topics(distance: Array, names: Sequence[str], shares: Array, ax: Axes) -> Array:
    """Draw topics as named circles that do not overlap, with similar topics close together.

    The starting point is the coordinates of classical scaling, whose distances come close to the
    given ones. They are mixed with their ranks, which evens out crowds and gaps. Each topic then
    moves to a cell of a brick pattern, such that the sum of the squared moves is smallest.

    Args:
        distance: ``(num_topics, num_topics)`` distances of the topics.
        names: ``(num_topics,)`` their names.
        shares: ``(num_topics,)`` their shares, shown as areas of circles.
        ax: Axes to draw into; their size in inches becomes their unit.

    Returns:
        ``(num_topics, 2)`` places of the circles.
    """
    figure = ax.figure.canvas.figure
    engine = figure.get_layout_engine()
    if engine is not None:  # otherwise it places the axes only when the figure is drawn
        engine.execute(figure)
    window = ax.get_window_extent()
    width, height = (float(x) / ax.figure.dpi for x in (window.width, window.height))
    plain: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    plain |= {"max_lines": 3, "placeholder": " …"}
    lines = [[shorten(x, _LETTERS) for x in textwrap.wrap(n, _LETTERS, **plain)] for n in names]
    below = _LINE * max(map(len, lines))
    places = _cells(_plane(distance), width, height, 2 * _RADII[1] + below + 0.06)
    places[:, 1] -= below / 2
    least, most = np.square(_RADII)
    sizes = np.square(144) * (least + (most - least) * shares / shares.max())
    look: dict[str, Any] = {"edgecolor": NEUTRAL, "linewidth": 0.8, "clip_on": False}
    ax.scatter(places[:, 0], places[:, 1], sizes, "#e9e9e9", zorder=2, **look)
    middle: dict[str, Any] = {"ha": "center", "parse_math": False}
    below_circle: dict[str, Any] = {"va": "top", "fontsize": 7.5, "linespacing": 1.0, **middle}
    # The white box hides lines behind the name.
    below_circle["bbox"] = {"boxstyle": "round,pad=0.1", "facecolor": "white", "linewidth": 0}
    for k, (x, y) in enumerate(places.tolist()):
        ax.text(x, y, str(k), va="center", fontsize=8, zorder=4, **middle)
        offset = (0, -np.sqrt(sizes[k]) / 2 - 3)
        about: dict[str, Any] = {"textcoords": "offset points", "zorder": 3, **below_circle}
        ax.annotate("\n".join(lines[k]), (x, y), offset, **about)
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    return places


def _plane(distance: Array) -> Array:
    """Coordinates ``(num_topics, 2)`` by classical scaling (*Torgerson 1952*), the widest first."""
    size = len(distance)
    centring = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-centring @ np.square(distance) @ centring / 2)
    # A single topic has no second coordinate.
    both = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1].clip(0))
    return np.pad(both, ((0, 0), (0, 2 - both.shape[1])))


def _cells(points: Array, width: float, height: float, needed: float) -> Array:
    """Places ``(num_topics, 2)`` of topics in cells of a picture, each of a height if possible."""
    size, columns = len(points), _columns(width)
    rows = max(int(height / needed), -(-size // columns))
    row, column = np.divmod(np.arange(rows * columns), columns)
    across, down = width / (columns + 0.5), height / rows
    cells = np.column_stack([(column + 0.5 + row % 2 / 2) * across, (row + 0.5) * down])
    relative = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
    rank = points.argsort(0, kind="stable").argsort(0, kind="stable") / max(size - 1, 1)
    wanted = (relative + rank) / 2 * np.array([width, height])
    return cells[linear_sum_assignment(cdist(wanted, cells, "sqeuclidean"))[1]]


def correlation_graph(
    model: TopicModel,
    *,
    shares: Sequence[float] | Tensor | None = None,
    min_correlation: float = 0.1,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the strongest positive correlations between topics as a graph.

    Topics that tend to occur in the same documents lie close together and are joined by lines.
    There are at most 1.5 lines per topic, because more would hide one another.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions, shown as areas of the circles.
        min_correlation: Smallest correlation to draw.
        labels: Names of the topics. Defaults to those of :func:`topic_labels`.
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
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    names, size = topic_labels(model) if labels is None else labels, model.num_topics
    areas = np.full(size, 1 / size) if shares is None else np.asarray(shares, dtype=float)
    if (len(names), len(areas)) != (size, size):
        raise ConfigError(
            f"{len(names)} labels and {len(areas)} shares for {size} topics; expected one for each"
        )
    require(0, min_correlation=min_correlation)
    correlation = model.topic_correlation().cpu().numpy()
    first, second = np.triu_indices(size, 1)
    strongest = np.argsort(-correlation[first, second], kind="stable")[: int(1.5 * size)]
    pairs = np.stack([first, second], 1)[strongest]
    strengths = correlation[tuple(pairs.T)]
    drawn = strengths >= max(min_correlation, 1e-12)
    pairs, strengths = pairs[drawn], strengths[drawn]
    length = np.zeros((size, size))
    length[tuple(pairs.T)] = 1.2 - strengths
    paths = shortest_path(length, directed=False)
    distance = np.minimum(paths, paths[np.isfinite(paths)].max(initial=1.0))
    width = max(1.75 * float(np.sqrt(size)), 3.5)
    height = np.ceil(1.4 * size / _columns(width)) * (2 * _RADII[1] + 3 * _LINE + 0.1)
    ax = axes_of(ax, width + 0.2, float(height) + 0.8)
    area = "" if shares is None else " (area: share of the topic)"
    ax.set_title(f"Correlated topics{area}", fontsize=10)
    words = [f"{name} ".removeprefix(f"{k} ").strip() for k, name in enumerate(names)]
    places = _draw_topics(distance, words, areas, ax)
    scale = _WIDEST / max(_LIMIT, strengths.max()) if len(pairs) else _WIDEST
    look: dict[str, Any] = {"colors": POSITIVE, "zorder": 1}
    ax.add_collection(LineCollection(places[pairs], linewidths=0.5 + scale * strengths, **look))
    ends = (0.4 * _WIDEST / scale, _WIDEST / scale)
    keys = [Line2D([], [], color=POSITIVE, linewidth=0.5 + scale * r) for r in ends]
    options: dict[str, Any] = {"frameon": False, "fontsize": 8, "ncols": 2}
    options |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0.01)}
    ax.legend(keys, [f"correlation {r:.2f}" for r in ends], **options)
    return ax


def tree_plot(tree: Any, *, ax: Axes | None = None) -> Axes:
    """Plot a tree of topics: topics at the left, merges to the right at their distances.

    A dashed line crosses one branch for each group of a level, and the groups of the smallest level
    are named at the right.

    Args:
        tree: The tree; see :func:`torch_lntm.topic_tree`.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Example:
        >>> ax = lntm.plotting.tree_plot(lntm.topic_tree(model, levels=[3]))
        >>> len(ax.get_yticklabels())
        10
    """
    from scipy.cluster.hierarchy import dendrogram

    ax = axes_of(ax, 6.5, 0.22 * tree.num_topics + 1.0)
    plain: dict[str, Any] = {"no_labels": True, "color_threshold": 0.0, "orientation": "right"}
    drawn = dendrogram(tree.merges, ax=ax, above_threshold_color=NEGATIVE, **plain)
    # The topics lie at the heights 5, 15, 25 and so on.
    rows = {topic: 10 * row + 5 for row, topic in enumerate(drawn["leaves"] or ())}
    look: dict[str, Any] = {"color": POSITIVE, "fontsize": 8, "parse_math": False}
    heights = np.array([0.0, *tree.merges[:, 2], 1.05 * tree.merges[-1, 2]])
    for i, level in enumerate(tree.levels):
        top, done = -8 - 8 * (i % 2), tree.num_topics - level
        cut = heights[done : done + 2].mean()  # between the last merge of the groups and the next
        ax.vlines(cut, top, 10 * len(rows), POSITIVE, "dashed", linewidth=1.0)
        ax.text(cut, top, f"{level} groups", ha="center", va="bottom", **look)
    right = ax.get_yaxis_transform()
    for name, topics in tree.groups(tree.levels[-1]).items() if tree.levels else ():
        own = [rows[k] for k in topics]
        ends = [min(own) - 3, max(own) + 3]
        ax.plot([1.01, 1.01], ends, color=POSITIVE, transform=right, clip_on=False)
        middle, shown = sum(ends) / 2, shorten(name, NAME_LETTERS)
        ax.text(1.03, middle, shown, va="center", transform=right, **look)
    ticks = [shorten(tree.labels[k], NAME_LETTERS) for k in rows]
    ax.set_yticks(list(rows.values()), ticks, fontsize=8, parse_math=False)
    ax.set_ylim(10 * len(rows), -8 - 8 * (len(tree.levels) > 1))
    ax.set_xlim(left=0.8 * tree.merges[0, 2])  # nothing happens before the first merge
    kinds = {"words": "Hellinger distance of words", "correlation": "distance by correlation"}
    ax.set_xlabel(f"{kinds[tree.by]}, Ward's for groups", color=NEUTRAL, fontsize=9)
    rule(ax, "x")
    return ax


def perspective_plot(
    model: TopicModel,
    topic: int | str,
    other: int | str | None = None,
    *,
    groups: tuple[Any, Any] | None = None,
    top_n: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """Plot the words that two topics, or two groups of documents, use differently.

    A row has the probability of a word on either side. The words are those that add most to the
    relative entropy of a side to the mean of both, so frequent words with clear differences; the
    order is that of the ratio.

    Args:
        model: The model. Groups need content covariates, ``models.stm(..., content="party")``.
        topic: The topic, by number or name.
        other: A second topic. Without it, the plot compares groups of documents in one topic.
        groups: Two levels of the content covariate. Defaults to the first two.
        top_n: Words of each side.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: A topic or level does not exist, or there is neither a second topic nor a
            content covariate.

    Example:
        >>> lntm.plotting.perspective_plot(model, 0, 1, top_n=5).get_xscale()
        'log'
    """
    require_whole(1, top_n=top_n)
    numbers = find_topics(model.topic_names, [topic, *([] if other is None else [other])])
    labels = topic_labels(model)
    if other is not None:
        sides, title = [labels[k] for k in numbers], ""
        probs = model.topics.mean_probs[numbers]
    else:
        topics: Any = model.topics
        levels = list(topics.content.levels) if topics.num_levels > 1 else []
        chosen = levels[:2] if groups is None else list(groups)
        if len(chosen) != 2 or not set(chosen) <= set(levels):
            raise ConfigError(
                f"groups is {groups!r:.60}; expected two of the levels {levels!r:.80} of a content "
                "covariate, or give a second topic by other="
            )
        sides, title = [str(level) for level in chosen], f"Topic {labels[numbers[0]]}"
        by_level = topics.probs.unflatten(1, (len(levels), topics.num_words))
        probs = by_level[numbers[0], [levels.index(level) for level in chosen]]
    probs = probs.detach().double().cpu().clamp_min(1e-12)
    parts = probs * (probs / probs.mean(0)).log()
    shown = sorted(
        {v for row in parts.topk(min(top_n, parts.shape[1])).indices.tolist() for v in row}
    )
    ratio = (probs[0] / probs[1])[shown]
    shown = [shown[i] for i in ratio.argsort().tolist()]
    ends, rows = probs[:, shown].numpy(), np.arange(len(shown))
    ax = axes_of(ax, 6.0, 0.22 * len(shown) + 1.2)
    ax.hlines(rows, ends.min(0), ends.max(0), color=GRID, linewidth=3, zorder=1)
    for side, values, colour, marker in zip(sides, ends, (NEGATIVE, POSITIVE), "os", strict=True):
        ax.scatter(
            values, rows, s=36, c=colour, marker=marker, label=shorten(side, NAME_LETTERS), zorder=2
        )
    ax.set_yticks(rows, model.words_at(shown), fontsize=8.5, parse_math=False)
    ax.set(xscale="log", xlabel="probability of the word")
    ax.set_title(title, fontsize="medium", parse_math=False)
    ax.legend(frameon=False, fontsize=8.5, loc="lower left", bbox_to_anchor=(0.0, 1.06), ncols=2)
    rule(ax, "x")
    return ax


def source_plot(
    model: TopicModel, *, num_topics: int = 4, top_n: int = 4, ax: Axes | None = None
) -> Axes:
    """Plot the topics at both ends of each source, after *Putthividhya et al. 2009, Fig. 2*.

    The length of a bar is the change of the topic's logit per unit of the source, minus the mean
    over topics, so that orange topics occur when the source is positive and blue ones when it is
    negative. Order, sign and rotation of the sources are conventions; see
    :class:`~torch_lntm.models.IndependentFactorPrior`.

    Args:
        model: The model.
        num_topics: Most topics at each end. Each end has loadings of one sign.
        top_n: Words of each topic.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The model has no sources, or a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> lntm.plotting.source_plot(factors, num_topics=2).get_xlabel()
        "change of a topic's logit per unit of the source"
    """
    prior = source_prior(model)
    require_whole(1, num_topics=num_topics, top_n=top_n)
    names, loadings = topic_labels(model, top_n), prior.centred_mixing().cpu().numpy()
    return plot_loadings(loadings, names, range(prior.num_sources), num_topics=num_topics, ax=ax)


def plot_loadings(
    loadings: NDArray[np.float64],
    names: Sequence[str],
    sources: Iterable[int],
    *,
    num_topics: int,
    ax: Axes | None = None,
) -> Axes:
    """Plot loadings ``(num_topics, num_sources)`` of named topics as :func:`source_plot` does."""
    rows: list[tuple[str, float]] = []
    for number in sources:
        order = np.argsort(-loadings[:, number], kind="stable")
        ranked = [(shorten(names[k], NAME_LETTERS), float(loadings[k, number])) for k in order]
        rows.append((f"source {number}", np.nan))
        rows += [row for row in ranked if row[1] > 0][:num_topics]
        rows += [row for row in ranked if row[1] < 0][-num_topics:]
    shown, values = [name for name, _ in rows], np.array([value for _, value in rows])
    # The bars have room beside the longest name.
    ax = axes_of(ax, 4.0 + 0.08 * max(map(len, shown)), 0.21 * len(rows) + 0.9)
    ax.barh(range(len(rows)), values, 0.7, color=np.where(values < 0, NEGATIVE, POSITIVE))
    ax.axvline(0, color=NEUTRAL, linewidth=0.8)
    for tick, value in zip(
        ax.set_yticks(range(len(rows)), shown, fontsize=8.5, parse_math=False), values, strict=True
    ):
        tick.label1.set_fontweight("bold" if np.isnan(value) else "normal")
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel="change of a topic's logit per unit of the source")
    rule(ax, "x")
    return ax
