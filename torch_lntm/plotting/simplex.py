"""Pictures of the proportions of three topics, which are points of a triangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.plotting.style import DIVERGING, NEUTRAL, POSITIVE, library

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Where the three topics are: left, right and top, in an equilateral triangle of side 1.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def simplex_plot(
    draws: Tensor,
    *,
    point: Tensor | None = None,
    labels: Sequence[str] = ("0", "1", "2"),
    grid_size: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """Draws of the proportions of three topics as a density on the triangle.

    A corner is a document of one topic, the centre one with equal shares of the three. Darker cells
    have more draws.

    Args:
        draws: ``(..., 3)`` proportions, as ``posterior.theta_samples(5000)[:, 0]`` gives.
        point: ``(3,)`` proportions to mark with a cross, as the true ones or a mean.
        labels: Names of the topics at the corners: left, right, top.
        grid_size: Cells along a side.
        ax: Axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, there are other than three topics, or no draws.
    """
    plt = library("matplotlib.pyplot")
    from matplotlib.colors import LinearSegmentedColormap

    sizes = [draws.shape[-1], len(labels), 3 if point is None else len(point)]
    if sizes != [3, 3, 3] or draws.numel() == 0:
        raise ConfigError(
            f"draws of shape {tuple(draws.shape)}, {sizes[1]} labels, a point of {sizes[2]}; "
            "expected draws (..., 3), at least one, and three of the others"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(3.0, 2.8), layout="constrained")
    places = draws.reshape(-1, 3).double().cpu().numpy() @ CORNERS
    colours = LinearSegmentedColormap.from_list("white_blue", ["#ffffff", *DIVERGING[2::-1]])
    ax.hexbin(
        places[:, 0],
        places[:, 1],
        gridsize=(grid_size, int(grid_size / 2)),
        extent=(0, 1, 0, CORNERS[2, 1]),
        cmap=colours,
        mincnt=1,
        linewidths=0.1,
    )
    ax.fill(*CORNERS.T, facecolor="none", edgecolor=NEUTRAL, linewidth=1.0)
    if point is not None:
        x, y = point.double().cpu().numpy() @ CORNERS
        ax.plot(x, y, "x", color=POSITIVE, markersize=8, markeredgewidth=2.0)
    for (x, y), name, above in zip(CORNERS, labels, (False, False, True), strict=True):
        ax.annotate(
            name,
            (x, y),
            xytext=(0, 3 if above else -3),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=8,
            parse_math=False,
        )
    ax.set_aspect("equal")
    ax.set_xlim(-0.08, 1.08)
    ax.set_ylim(-0.1, 0.98)
    ax.set_axis_off()
    return ax
