"""Pictures of documents' topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from torch_lntm import noise
from torch_lntm.errors import ConfigError
from torch_lntm.inference import ThetaDraws
from torch_lntm.plotting.style import NEGATIVE, library, rule
from torch_lntm.posteriors import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def document_proportions(
    posterior: Posterior | ThetaDraws,
    document: int = 0,
    *,
    level: float = 0.9,
    num_samples: int = 1000,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    num_topics: int | None = 12,
    ax: Axes | None = None,
) -> Axes:
    """One document's topic proportions: posterior means with equal-tailed intervals.

    Args:
        posterior: The posterior of a batch, ``guide.posterior(batch)``; or draws of a corpus, such
            as ``inference.theta_draws(result.posterior, corpus)``.
        document: Position of the document in the batch, or in the corpus.
        level: Probability that each interval covers.
        num_samples: Draws behind the means and intervals.
        seed: Seed of the draws from a posterior.
        labels: A name for each topic, such as :func:`topic_labels` gives; by default its number.
        num_topics: How many of the largest to show; None for all.
        ax: Axes to draw into; by default those of a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ConfigError: matplotlib is missing, there is no such document, a level outside (0, 1), or
            another number of labels than of topics.
    """
    plt = library("matplotlib.pyplot")
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
    if isinstance(posterior, ThetaDraws):
        if document not in posterior.rows:
            raise ConfigError(f"document {document} is not in {posterior!r}")
        position = document
        draws = posterior.take(np.array([document]), num_samples).theta[:, 0].double()
    else:
        num_docs = posterior.num_docs
        if not -num_docs <= document < num_docs:
            raise ConfigError(f"document {document} of a posterior of {num_docs} documents")
        row = slice(document % num_docs, document % num_docs + 1)
        position = int(posterior.index[row])
        key = noise.document_keys(seed, posterior.index[row], num_samples)
        draws = posterior.theta(posterior.draw(key, row))[:, 0].cpu()
    tail = (1 - level) / 2
    lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).double(), dim=0).numpy()
    mean = draws.mean(0).numpy()
    names = [str(k) for k in range(len(mean))] if labels is None else list(labels)
    if len(names) != len(mean):
        raise ConfigError(f"{len(names)} labels for {len(mean)} topics; expected as many")
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
