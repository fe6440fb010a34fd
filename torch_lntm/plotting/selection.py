"""Plots that compare fits by their number of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torch_lntm.plotting.style import NEGATIVE, POSITIVE, rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Panels in a row, and width and height of a panel in inches.
COLUMNS, PANEL = 3, (3.2, 2.5)


def plot_selection(
    num_topics: Sequence[int], criteria: Mapping[str, NDArray[np.float64]], chosen: int
) -> Figure:
    """Plot criteria over the number of topics, with standard errors, in a panel for each.

    Args:
        num_topics: Numbers of topics of the fits.
        criteria: ``(num_fits, 2)`` values and standard errors, by name of the criterion.
        chosen: The number of topics to mark.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt

    columns = min(COLUMNS, len(criteria))
    rows = -(-len(criteria) // columns)
    figure = plt.figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    for place, (name, values) in enumerate(criteria.items(), 1):
        ax = figure.add_subplot(rows, columns, place)
        ax.errorbar(num_topics, values[:, 0], yerr=values[:, 1], fmt="o-", color=NEGATIVE)
        ax.axvline(chosen, color=POSITIVE, linestyle="--", linewidth=1)
        ax.set_title(name, fontsize=10)
        ax.set(xlabel="topics", xticks=num_topics)
        rule(ax, "y")
    return figure
