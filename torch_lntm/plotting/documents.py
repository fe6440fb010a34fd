"""Plots of the topics of a document, and of three topics as points of a triangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.plotting.style import DIVERGING, NEGATIVE, NEUTRAL, POSITIVE, rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Corners of the three topics: left, right and top of an equilateral triangle of side 1.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def document_proportions(
    posterior: Any,
    document: int = 0,
    *,
    level: float = 0.9,
    num_samples: int = 1000,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    num_topics: int | None = 12,
    ax: Axes | None = None,
) -> Axes:
    """Plot a document's topic proportions: posterior means with equal-tailed intervals.

    Args:
        posterior: The posterior of a batch, ``guide.posterior(batch)``; or draws for a corpus,
            ``inference.theta_draws(result.posterior, corpus)``.
        document: Position of the document in the batch, or in the corpus for draws.
        level: Posterior probability of each interval.
        num_samples: Number of draws for the means and intervals.
        seed: Seed of the draws from a posterior.
        labels: Names of the topics, such as :func:`topic_labels`. Defaults to numbers.
        num_topics: Number of topics to show, the largest first; None for all.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The document does not exist, the level is outside
            (0, 1), or the numbers of labels and topics differ.

    Example:
        >>> ax = lntm.plotting.document_proportions(guide.posterior(batch), num_topics=3)
        >>> len(ax.get_yticklabels())
        3
    """
    import matplotlib.pyplot as plt

    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
    position, draws = posterior.document_draws(document, num_samples, seed)
    draws, tail = draws.numpy(), (1 - level) / 2
    mean, (lower, upper) = draws.mean(0), np.quantile(draws, [tail, 1 - tail], axis=0)
    names = range(len(mean)) if labels is None else labels
    if len(names) != len(mean):
        raise ConfigError(
            f"{len(names)} labels for {len(mean)} topics; expected one for each topic"
        )
    shown = np.argsort(-mean, kind="stable")[:num_topics][::-1]
    rows = np.arange(len(shown))
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 0.3 * len(shown) + 1.1), layout="constrained")
    ax.hlines(rows, lower[shown], upper[shown], color=NEGATIVE, linewidth=2.2, alpha=0.55)
    ax.plot(mean[shown], rows, "o", color=NEGATIVE, markersize=6, clip_on=False)
    ax.set_yticks(rows, [str(names[k]) for k in shown], fontsize=9, parse_math=False)
    ax.set(xlim=(0, min(1.0, 1.05 * float(upper.max()))), ylim=(-0.6, len(shown) - 0.4))
    ax.set_title(f"Document {position}", fontsize=10)
    ax.set_xlabel(f"topic proportion: posterior mean and {level:.0%} interval")
    rule(ax, "x")
    return ax


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

    if draws.shape[-1] != 3 or len(labels) != 3 or draws.numel() == 0:
        raise ConfigError(
            f"draws of shape {tuple(draws.shape)} and {len(labels)} labels; expected draws "
            "(..., 3), at least one, and 3 labels"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(3.0, 2.8), layout="constrained")
    colours = LinearSegmentedColormap.from_list("white_blue", ["#ffffff", *DIVERGING[2::-1]])
    cells: dict[str, Any] = {"gridsize": (grid_size, grid_size // 2), "mincnt": 1}
    cells |= {"extent": (0, 1, 0, CORNERS[2, 1]), "cmap": colours, "linewidths": 0.1}
    ax.hexbin(*(draws.reshape(-1, 3).double().cpu().numpy() @ CORNERS).T, **cells)
    ax.fill(*CORNERS.T, facecolor="none", edgecolor=NEUTRAL, linewidth=1.0)
    if point is not None:
        x, y = point.double().cpu().numpy() @ CORNERS
        ax.plot(x, y, "x", color=POSITIVE, markersize=8, markeredgewidth=2.0)
    for (x, y), name in zip(CORNERS, labels, strict=True):
        below: dict[str, Any] = {"va": "bottom" if y > 0 else "top", "parse_math": False}
        ax.text(x, y + (0.02 if y > 0 else -0.02), name, ha="center", fontsize=8, **below)
    ax.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.1, 0.98))
    ax.set_axis_off()
    return ax
