"""Log likelihood of a single document at many draws or grid points."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.kernels.likelihood import INDEPENDENT, Cells, CountLikelihood


def log_likelihood_at(
    logits: Tensor,
    words: Tensor,
    cells: Cells,
    likelihood: CountLikelihood = INDEPENDENT,
    *,
    max_elements: int = 2**22,
) -> Tensor:
    """Log likelihood of a single document at many topic proportions.

    :func:`~torch_lntm.kernels.mixture.mixture_log_likelihood` takes a vector of weights for each
    document. For many vectors and a single document, a dense product is 5 times faster.

    Args:
        logits: ``(num_points, num_topics)`` logits of θ.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        cells: Counts of these words.
        likelihood: Distribution of the counts. Defaults to independent draws.
        max_elements: Bound on the size of a table in memory.

    Returns:
        ``(num_points,)`` nats, in the dtype of ``logits``.
    """
    chunks = logits.split(max(1, max_elements // max(1, *words.shape)))
    return torch.cat(
        [log_likelihood_of(torch.softmax(x, -1) @ words.mT, cells, likelihood) for x in chunks]
    )


def log_likelihood_of(
    probability: Tensor, cells: Cells, likelihood: CountLikelihood = INDEPENDENT
) -> Tensor:
    """Log likelihood of a single document ``(num_points,)`` at probabilities of its words.

    Args:
        probability: ``(num_points, nnz)``, overwritten.
        cells: The counts.
        likelihood: Distribution of the counts. Defaults to independent draws.
    """
    probability.clamp_min_(torch.finfo(probability.dtype).tiny)
    if likelihood.independent:
        return probability.log_() @ cells.counts
    terms = likelihood.log_terms(probability, cells).double().sum(-1)
    length_term = likelihood.length_term(cells.counts.double().sum())
    return (terms + length_term).to(probability.dtype)
