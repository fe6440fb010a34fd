"""Plot of a tree of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_lntm.plotting.style import NAME_LETTERS, NEGATIVE, NEUTRAL, POSITIVE, library, rule
from torch_lntm.reports.layout import shorten
from torch_lntm.reports.tree import TopicTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tree_plot(
    tree: TopicTree, *, labels: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Plot a tree of topics: topics at the left, merges to the right at their distances.

    A dashed line crosses the branches of the groups of each level.

    Args:
        tree: The tree; see :func:`torch_lntm.topic_tree`.
        labels: Labels of the topics. Defaults to names, or numbers and first words.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing.

    Example:
        >>> ax = lntm.plotting.tree_plot(lntm.topic_tree(model, levels=[3]))
        >>> len(ax.get_yticklabels())
        10
    """
    plt = library("matplotlib.pyplot")
    order, branches = tree.branches()
    names = tree.labels if labels is None else labels
    if ax is None:
        height = 0.22 * len(order) + 1.0
        _, ax = plt.subplots(figsize=(6.5, height), layout="constrained")
    for row_a, x_a, row_b, x_b, x in branches.tolist():
        ax.plot([x_a, x, x, x_b], [row_a, row_a, row_b, row_b], color=NEGATIVE, linewidth=1.2)
    for i, level in enumerate(tree.levels):
        ax.axvline(tree.cut(level), color=POSITIVE, linewidth=1.0, linestyle="--")
        ax.annotate(
            f"{level} groups",
            (tree.cut(level), -0.8 - 0.7 * (i % 2)),
            color=POSITIVE,
            fontsize=8,
            ha="center",
            va="bottom",
        )
    shown = [shorten(names[k], NAME_LETTERS) for k in order]
    ax.set_yticks(np.arange(len(order)), shown, fontsize=8, parse_math=False)
    ax.set_ylim(len(order) - 0.4, -0.9 - 0.7 * (len(tree.levels) > 1))
    ax.set_xlim(left=0.8 * float(tree.merges[0, 2]))  # nothing happens before the first merge
    kinds = {"words": "Hellinger distance of words", "correlation": "distance by correlation"}
    ax.set_xlabel(f"{kinds[tree.by]}, Ward's for groups", color=NEUTRAL, fontsize=9)
    rule(ax, "x")
    return ax
