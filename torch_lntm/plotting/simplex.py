"""Plots of the proportions of three topics as points of a triangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.plotting.style import DIVERGING, NEUTRAL, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Corners of the three topics: left, right and top of an equilateral triangle of side 1.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def simplex_plot(
    draws: Tensor,
    *,
    point: Tensor | None = None,
    labels: Sequence[str] = ("0", "1", "2"),
    grid_size: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """Plot draws of the proportions of three topics as a density on a triangle.

    A corner is a document with a single topic. The centre is a document with equal shares. Darker
    cells have more draws.

    Args:
        draws: ``(..., 3)`` proportions, such as ``posterior.theta_samples(5000)[:, 0]``.
        point: ``(3,)`` proportions to mark with a cross, such as the mean.
        labels: Names of the topics at the corners: left, right, top.
        grid_size: Cells along a side.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The number of topics is not 3, or there are no draws.

    Example:
        >>> draws = torch.distributions.Dirichlet(torch.ones(3)).sample((1000,))
        >>> len(lntm.plotting.simplex_plot(draws).texts)
        3
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    sizes = [draws.shape[-1], len(labels), 3 if point is None else len(point)]
    if sizes != [3, 3, 3] or draws.numel() == 0:
        raise ConfigError(
            f"draws of shape {tuple(draws.shape)}, {sizes[1]} labels, a point of {sizes[2]}; "
            "expected draws (..., 3), at least one, 3 labels and a point of 3 numbers"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(3.0, 2.8), layout="constrained")
    points = draws.reshape(-1, 3).double().cpu().numpy() @ CORNERS
    colours = LinearSegmentedColormap.from_list("white_blue", ["#ffffff", *DIVERGING[2::-1]])
    ax.hexbin(
        points[:, 0],
        points[:, 1],
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
    for (x, y), name, at_top in zip(CORNERS, labels, (False, False, True), strict=True):
        ax.annotate(
            name,
            (x, y),
            xytext=(0, 3 if at_top else -3),
            textcoords="offset points",
            ha="center",
            va="bottom" if at_top else "top",
            fontsize=8,
            parse_math=False,
        )
    ax.set_aspect("equal")
    ax.set_xlim(-0.08, 1.08)
    ax.set_ylim(-0.1, 0.98)
    ax.set_axis_off()
    return ax
