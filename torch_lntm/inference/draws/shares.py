"""Shares of topics: means of draws of the documents' proportions."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.inference.draws.sources import DrawSource, theta_draws

#: Target number of draws of all documents together, and largest number of draws of one document.
SHARE_DRAWS, MOST_DRAWS = 10_000, 50


@torch.no_grad()
def topic_shares(
    source: DrawSource,
    corpus: Corpus,
    *,
    rows: NDArray[np.int64] | None = None,
    means: Tensor | None = None,
) -> Tensor:
    """Shares of the topics: posterior means of their proportions, averaged over documents.

    Every document has the same weight. The Monte-Carlo standard error of a share is at most about
    0.1 percentage points. Reports estimate the same shares from more draws, and add intervals.

    Args:
        source: Source of draws of the documents' proportions; see :func:`theta_draws`.
        corpus: The documents.
        rows: ``(num_rows,)`` positions of the documents to average over. Defaults to the documents
            with words.
        means: ``(num_docs, latent_dim)`` start of a guide's solver, such as ``result.means``.

    Returns:
        ``(num_topics,)`` float64, summing to 1.

    Example:
        >>> lntm.inference.topic_shares(guide, test).shape
        torch.Size([10])
    """
    if rows is None:
        rows = np.flatnonzero(corpus.lengths)
    num_draws = min(math.ceil(SHARE_DRAWS / len(rows)), MOST_DRAWS)
    total = torch.zeros((), dtype=torch.float64)
    for part in theta_draws(source, corpus, num_draws, rows=rows, means=means, keep=False):
        total = total + part.theta.double().mean(0).sum(0)
    return total / len(rows)
