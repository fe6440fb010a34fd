"""Plot of the topics of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_lntm.errors import ConfigError
from torch_lntm.plotting.style import NEGATIVE, rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def document_proportions(
    posterior: Any,
    document: int = 0,
    *,
    level: float = 0.9,
    num_draws: int = 1000,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    num_topics: int | None = 12,
    ax: Axes | None = None,
) -> Axes:
    """Plot a document's topic proportions: posterior means with equal-tailed intervals.

    Args:
        posterior: The posterior of a batch, ``guide.posterior(batch)``; or draws for a corpus,
            ``inference.theta_draws(result.source, corpus)``.
        document: Position of the document in the batch, or in the corpus for draws.
        level: Posterior probability of each interval.
        num_draws: Number of draws for the means and intervals.
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
    position, draws = posterior.document_draws(document, num_draws, seed)
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
