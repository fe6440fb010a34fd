"""Plot of a tree of topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_lntm.plotting.style import NAME_LETTERS, NEGATIVE, NEUTRAL, POSITIVE, rule, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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

    order, branches = tree.branches()
    names = tree.labels if labels is None else labels
    if ax is None:
        height = 0.22 * len(order) + 1.0
        _, ax = plt.subplots(figsize=(6.5, height), layout="constrained")
    for row_a, x_a, row_b, x_b, x in branches.tolist():
        ax.plot([x_a, x, x, x_b], [row_a, row_a, row_b, row_b], color=NEGATIVE, linewidth=1.2)
    for i, level in enumerate(tree.levels):
        top = -0.8 - 0.8 * (i % 2)
        cut = tree.cut(level)
        ax.vlines(cut, top, len(order) - 0.4, color=POSITIVE, linewidth=1.0, linestyle="--")
        ax.text(cut, top, f"{level} groups", color=POSITIVE, fontsize=8, ha="center", va="bottom")
    if tree.levels:
        _name_groups(ax, tree, order)
    shown = [shorten(names[k], NAME_LETTERS) for k in order]
    ax.set_yticks(np.arange(len(order)), shown, fontsize=8, parse_math=False)
    ax.set_ylim(len(order) - 0.4, -0.9 - 0.8 * (len(tree.levels) > 1))
    ax.set_xlim(left=tree.first)
    kinds = {"words": "Hellinger distance of words", "correlation": "distance by correlation"}
    ax.set_xlabel(f"{kinds[tree.by]}, Ward's for groups", color=NEUTRAL, fontsize=9)
    rule(ax, "x")
    return ax


def _name_groups(ax: Axes, tree: Any, order: Sequence[int]) -> None:
    """Write the names of the groups of the smallest level at the right, beside brackets."""
    right = ax.get_yaxis_transform()
    rows = {topic: row for row, topic in enumerate(order)}
    for name, topics in tree.groups(tree.levels[-1]).items():
        own = [rows[k] for k in topics]
        first, last = min(own) - 0.3, max(own) + 0.3
        ax.plot([1.01, 1.01], [first, last], color=POSITIVE, transform=right, clip_on=False)
        shown = shorten(name, NAME_LETTERS)
        middle = (first + last) / 2
        ax.text(
            *(1.03, middle, shown),
            transform=right,
            color=POSITIVE,
            fontsize=8,
            va="center",
            parse_math=False,
        )
