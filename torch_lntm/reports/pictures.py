"""Pictures of the report page, as SVG with links to the topics and tips where the mouse points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from torch_lntm.plotting import tree_plot
from torch_lntm.plotting.embed import to_svg
from torch_lntm.plotting.lines import Series, plot_panels
from torch_lntm.plotting.style import format_number
from torch_lntm.plotting.topics import map_size, topic_graph, topic_map
from torch_lntm.reports.levels import Axis, axis_of
from torch_lntm.reports.prevalence import Array, Prevalence, differences
from torch_lntm.reports.sections import PageData
from torch_lntm.reports.tree import TopicTree, hellinger_distances

#: Most panels of a column.
_PANELS = 24


class Panels(NamedTuple):
    """Small charts of topics by the levels or values of a column.

    Attributes:
        column: The column.
        picture: The charts, of the topics with the clearest differences; empty without two levels.
        note: A note on the axis for readers.
        num_shown: Number of charts.
    """

    column: str
    picture: Markup
    note: str
    num_shown: int


def draw_map(page: PageData, heads: Sequence[str]) -> Markup:
    """Map of the topics: those with many words in common lie close together.

    Args:
        page: The page's data.
        heads: Label of each topic.
    """
    overall, size = page.summary.overall, page.model.num_topics
    distance = hellinger_distances(page.model.topics.mean_probs.detach().double().cpu().numpy())
    shares, upper = overall.mean[0, :size], overall.upper[0, :size]
    ax = _new_map(size)
    topic_map(distance, page.names, shares, upper, ax=ax)
    told = "Topics with many words in common lie close together. Every circle links to its topic."
    return Markup(to_svg(ax.figure, "map", "Map of the topics", told, _tips(page, heads)))


def draw_graph(page: PageData, heads: Sequence[str], pairs: pd.DataFrame) -> Markup:
    """Graph of correlated topics.

    Args:
        page: The page's data.
        heads: Label of each topic.
        pairs: The lines; see :func:`torch_lntm.plotting.topics.topic_graph`.
    """
    topics, overall = sorted({*pairs["first"], *pairs["second"]}), page.summary.overall
    names = [page.names[k] for k in topics]
    ax = _new_map(len(topics))
    topic_graph(pairs, names, overall.mean[0, topics], overall.upper[0, topics], topics=topics, ax=ax)
    tips = _tips(page, heads)
    for pair in pairs.itertuples():
        tips[f"pair-{pair.first}-{pair.second}"] = (
            f"{page.names[pair.first]} and {page.names[pair.second]}: {pair.correlation:.2f}, "
            f"interval {pair.lower:.2f} to {pair.upper:.2f}"
        )
    told = f"The {len(pairs)} strongest positive correlations, which the table below lists."
    return Markup(to_svg(ax.figure, "graph", "Graph of correlated topics", told, tips))


def _new_map(num_topics: int) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=map_size(num_topics)).add_axes((0.0, 0.0, 1.0, 1.0))


def _tips(page: PageData, heads: Sequence[str]) -> dict[str, str]:
    """Text about each topic's circle."""
    overall = page.summary.overall
    return {
        f"topic-{s.topic}": f"Topic {heads[s.topic]}: {' '.join(s.words)}. {s.share:.1%}, interval "
        f"{overall.lower[0, s.topic]:.1%} to {overall.upper[0, s.topic]:.1%}"
        for s in page.topics
    }


def draw_tree(tree: TopicTree) -> Markup:
    """The tree of the topics."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.22 * tree.num_topics + 1.0), layout="constrained")
    tree_plot(tree, ax=figure.add_subplot())
    told = "Topics that merge further to the left are more similar. The lists below have the groups."
    return Markup(to_svg(figure, "tree", "Tree of the topics", told, {}))


def draw_prevalence(prevalence: Prevalence, name: str, heads: Sequence[str]) -> Panels:
    """Prevalence by the levels of a column.

    Args:
        prevalence: The prevalence.
        name: Name of the picture.
        heads: Label of each topic.
    """
    levels, counts = prevalence.levels, prevalence.num_docs.tolist()
    # The infinite interval of a single document would flatten all others.
    finite = np.isfinite(prevalence.standard_error)
    lower, upper = (np.where(finite, x, np.nan) for x in (prevalence.lower, prevalence.upper))
    values = np.where(prevalence.num_docs[:, None] > 0, [prevalence.mean, lower, upper], np.nan)
    clear = differences(prevalence.mean, prevalence.standard_error)
    names = [f"{x} ({n} document{'s' * (n != 1)})" for x, n in zip(levels.names, counts, strict=True)]
    about = (name, f"Prevalence by {levels.column}", levels.column, levels.names, names, levels.axis)
    return _panels(*about, prevalence.columns, values.transpose(2, 1, 0), clear, heads)


def draw_effects(predictions: Sequence[Any], column: str, name: str, heads: Sequence[str]) -> Panels:
    """Expected proportions by the values of a column.

    Args:
        predictions: The result of :meth:`torch_lntm.effects.Effects.predict` for the column.
        column: The column.
        name: Name of the picture.
        heads: Label of each topic.
    """
    topics = list(dict.fromkeys(point.topic for point in predictions))
    values = [point.values[column] for point in predictions if point.topic == topics[0]]
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    numbers = [(p.estimate, p.lower, p.upper, p.standard_error) for p in predictions]
    table = np.array(numbers).reshape(len(topics), len(values), 4)
    clear = differences(table[..., 0].T, table[..., 3].T)
    axis = axis_of(values) if len(values) > 2 else (None, "")
    about = (name, f"Expected proportion by {column}", column, names, names, axis)
    return _panels(*about, topics, table[..., :3].clip(0), clear, heads)


def _panels(
    name: str,
    title: str,
    column: str,
    names: Sequence[str],
    long_names: Sequence[str],
    axis: Axis,
    topics: Sequence[int | str],
    values: Array,
    clear: Array,
    heads: Sequence[str],
) -> Panels:
    """Panels of the topics with the clearest differences, groups of topics before single topics.

    ``values`` ``(num_topics, num_names, 3)`` are means and ends of intervals, NaN without an
    interval; ``clear`` ``(num_topics,)`` tells how clearly the values of a topic differ.
    """
    if len(names) < 2:
        return Panels(column, Markup(), "", 0)
    positions, note = axis
    order = sorted(range(len(topics)), key=lambda i: (isinstance(topics[i], int), -clear[i]))
    panels, links, tips = [], [], {}
    for place, i in enumerate(order[:_PANELS]):
        topic = topics[i]
        head, link = (topic, "#groups") if isinstance(topic, str) else (heads[topic], f"#topic-{topic}")
        panels.append(Series(head, names, values[i]))
        links.append(link)
        told = [
            f"{long_name}: {value:.2%}" + (f", {low:.2%} to {up:.2%}" if low == low else "")
            for long_name, (value, low, up) in zip(long_names, values[i], strict=True)
            if value == value
        ]
        step = max(1, len(told) // 12)  # a line over many values is told by some of them
        tips[f"panel-{place}"] = "\n".join([head, *told[::step]])
    figure = plot_panels(panels, names, links, positions)
    told = "Each chart has its own scale from 0. The title of a chart links to its topic."
    return Panels(column, Markup(to_svg(figure, name, title, told, tips)), note, len(panels))
