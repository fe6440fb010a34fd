"""Plots of the topics of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.plotting.style import NEGATIVE, rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class DocumentDraws(Protocol):
    """A source of draws of documents' topic proportions, such as a posterior or ``ThetaDraws``."""

    def document_draws(self, document: int, num_samples: int, seed: int) -> tuple[int, Tensor]:
        """Position of a document in its corpus, and draws ``(num_samples, num_topics)``."""


def document_proportions(
    posterior: DocumentDraws,
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
    tail = (1 - level) / 2
    lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).double(), dim=0).numpy()
    mean = draws.mean(0).numpy()
    names = [str(k) for k in range(len(mean))] if labels is None else list(labels)
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
    ax.set_yticks(rows, [names[k] for k in shown], fontsize=9)
    ax.set_xlim(0, min(1.0, 1.05 * float(upper.max())))
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_title(f"Document {position}", fontsize=10)
    ax.set_xlabel(f"topic proportion: posterior mean and {level:.0%} interval")
    rule(ax, "x")
    return ax
