"""The weight of the topics in a cache language model of documents, fitted after the model."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.evaluation.completion.cache import counts_at
from torch_lntm.evaluation.completion.theta import theta_modes
from torch_lntm.kernels.contraction import sampled_product
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models import TopicModel

#: Range of the search for the best weight.
_SMALLEST, _LARGEST = 1e-2, 1e7


@torch.no_grad()
def fit_cache_weight(
    model: TopicModel, hold_out: WordHoldOut[Corpus], *, max_docs: int = 256
) -> float:
    """Fits the weight of the topics in a cache language model of the documents, in tokens.

    Words repeat within documents more often than topics alone predict, and the weight a says by how
    much. It maximises the probability of the held-out tokens under ``document_completion`` with
    ``cache_weight`` = a, at the mode of theta on the softmax scale. The largest value, 1e7, means
    that words repeat no more than the topics predict.

    Args:
        model: The model.
        hold_out: Hold-out on which to estimate a, of other documents than those to score. If they
            are documents of the fit, a is slightly too large.
        max_docs: Documents solved at once.

    Returns:
        a, between 0.01 and 1e7.
    """
    hold_out = hold_out.of(model.encode(hold_out.corpus))
    words = model.topics.double_probs.mT.contiguous()
    entries = []
    for seen, unseen in zip(
        hold_out.observed.batches(max_docs, device=model.device, dtype=model.dtype),
        hold_out.held_out.batches(max_docs, device=model.device, dtype=torch.float64),
        strict=True,
    ):
        topics = sampled_product(
            theta_modes(model, seen), words, model.topics.assign_levels(unseen)
        )
        lengths = seen.lengths.double()[unseen.row_index]
        observed = counts_at(seen, unseen).double()
        entries.append(torch.stack([unseen.counts, topics, observed, lengths]).cpu())
    return best_cache_weight(torch.cat(entries, 1))


def best_cache_weight(held_out: torch.Tensor) -> float:
    """The weight a that maximises the sum of log probabilities of held-out tokens.

    Args:
        held_out: ``(4, num_entries)`` float64. The rows are held-out counts, the topics'
            probabilities q of the words, their observed counts c, and the observed tokens N of the
            documents.
    """
    counts, topics, observed, lengths = held_out.numpy()
    topics = topics.clip(probability_floor(torch.float64))

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        return -float(counts @ np.log((observed + a * topics) / (lengths + a)))

    # A coarse search first, since the loss can have several minima.
    grid = np.linspace(math.log(_SMALLEST), math.log(_LARGEST), 43)
    best = int(np.argmin([loss(log_a) for log_a in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp(minimize_scalar(loss, bounds=around, method="bounded").x)
