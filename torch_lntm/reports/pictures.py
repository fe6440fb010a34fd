"""Pictures for the report page: SVG that links to the topics and shows tips under the mouse."""

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
from torch_lntm.reports.prevalence import Array, Axis, Prevalence, axis_of, differences
from torch_lntm.reports.sections import PageData
from torch_lntm.reports.tree import TopicTree, hellinger_distances

#: Most panels of a column.
_PANELS = 24


class ByColumn(NamedTuple):
    """Proportions of topics by the levels or values of a column.

    Attributes:
        column: The column.
        names: Name of each level or value.
        axis: Their positions on an axis, None for names; and a note on the axis for readers.
        topics: Number of each topic, or name of each group of topics.
        values: ``(num_topics, num_names, 3)`` proportions, and ends of their intervals; NaN without
            documents or without an interval.
        errors: ``(num_topics, num_names)`` standard errors.
        counts: Documents of each level.
    """

    column: str
    names: Sequence[str]
    axis: Axis
    topics: Sequence[int | str]
    values: Array
    errors: Array
    counts: Sequence[int] | None = None

    def told(self, topic: int) -> list[str]:
        """The proportions of the topic in a row, in words."""
        words = []
        for i, (name, (value, lower, upper)) in enumerate(
            zip(self.names, self.values[topic].tolist(), strict=True)
        ):
            interval = "" if np.isnan(lower) else f", {lower:.2%} to {upper:.2%}"
            docs = "" if self.counts is None else f" ({self.counts[i]} documents)"
            words.append(f"{name}: {value:.2%}{interval}{docs}")
        return words[:: max(1, len(words) // 12)]  # some of many values tell of a line


def draw_map(page: PageData, heads: Sequence[str]) -> Markup:
    """Draws a map of the topics, in which those with many words in common lie close together.

    Args:
        page: The page's data.
        heads: Label of each topic.
    """
    overall, size = page.summary.overall, page.model.num_topics
    distance = hellinger_distances(page.model.topics.mean_probs.detach().double().cpu().numpy())
    shares, upper = overall.mean[0, :size], overall.upper[0, :size]
    ax = _new_map(size)
    topic_map(distance, page.names, shares, upper, topics=range(size), ax=ax)
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
    topic_graph(
        pairs, names, overall.mean[0, topics], overall.upper[0, topics], topics=topics, ax=ax
    )
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
    told = (
        "Topics that merge further to the left are more similar. The lists below have the groups."
    )
    return Markup(to_svg(figure, "tree", "Tree of the topics", told, {}))


def prevalence_by_column(prevalence: Prevalence) -> ByColumn:
    """Prevalence by the levels of a column."""
    levels, counts = prevalence.levels, prevalence.num_docs
    # A single document has an infinite interval, which would flatten all the others.
    finite = np.isfinite(prevalence.standard_error)
    ends = [np.where(finite, x, np.nan) for x in (prevalence.lower, prevalence.upper)]
    values = np.where(counts[:, None] > 0, [prevalence.mean, *ends], np.nan).transpose(2, 1, 0)
    about = (levels.column, levels.names, levels.axis, prevalence.columns)
    return ByColumn(*about, values, prevalence.standard_error.T, counts.tolist())


def effects_by_column(predictions: Any, column: str) -> ByColumn:
    """Expected proportions, :meth:`torch_lntm.effects.Effects.predict`, by a column's values."""
    topics = predictions["topic"].unique().tolist()
    # The column of the values comes before the estimates.
    values = predictions.iloc[:, list(predictions).index("estimate") - 1].tolist()
    values = values[: len(values) // len(topics)]
    names = [value if isinstance(value, str) else format_number(value) for value in values]
    numbers = predictions[["estimate", "lower", "upper", "std_error"]].to_numpy()
    table = numbers.reshape(len(topics), len(values), 4)
    axis = axis_of(values) if len(values) > 2 else (None, "")
    return ByColumn(column, names, axis, topics, table[..., :3].clip(0), table[..., 3])


def draw_panels(
    shown: ByColumn, name: str, what: str, heads: Sequence[str]
) -> tuple[Markup, list[str]]:
    """Charts groups of topics and then topics, those with the clearest differences first.

    Args:
        shown: The proportions.
        name: Name of the picture.
        what: What the proportions are.
        heads: Label of each topic.

    Returns:
        The picture, and notes for readers; nothing for fewer than two names.
    """
    if len(shown.names) < 2:
        return Markup(), []
    clear = differences(shown.values[..., 0].T, shown.errors.T)
    single = np.array([isinstance(topic, int) for topic in shown.topics])
    order = np.lexsort((-clear, single)).tolist()
    panels, links, tips = [], [], {}
    for place, i in enumerate(order[:_PANELS]):
        topic = shown.topics[i]
        is_group = isinstance(topic, str)
        panels.append(Series(topic if is_group else heads[topic], shown.names, shown.values[i]))
        links.append("#groups" if is_group else f"#topic-{topic}")
        tips[f"panel-{place}"] = "\n".join([panels[-1].label, *shown.told(i)])
    positions, note = shown.axis
    notes = [note] if note else []
    if len(order) > len(panels):
        notes.append(f"Shown are the {len(panels)} clearest differences of {len(order)}.")
    figure = plot_panels(panels, shown.names, links, positions)
    told = "Each chart has its own scale from 0. The title of a chart links to its topic."
    return Markup(to_svg(figure, name, f"{what} by {shown.column}", told, tips)), notes
