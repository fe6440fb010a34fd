"""Exclusivity of topics: whether other topics share their top words."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.evaluation.checks import as_matrix


def exclusivity(topics: Any, top_n: int = 10, weight: float = 0.7) -> Tensor:
    """Mean exclusivity (FREX) of each topic's most probable words.

    The score of a word is 1/(w/E + (1 − w)/F). E is the rank of its exclusivity φ_kv/Σ_j φ_jv
    within the topic, divided by the number of words; F is the rank of its probability φ_kv, divided
    likewise (*Bischof & Airoldi 2012*). R's stm sums the scores of the ``top_n`` words instead of
    averaging them.

    Args:
        topics: A model; or ``(num_topics, num_words)`` probabilities.
        top_n: Top words per topic.
        weight: Weight w of exclusivity, between 0 and 1.

    Returns:
        ``(num_topics,)`` float64, from 0 to 1.

    Raises:
        ConfigError: A number is out of range, or the topics have another shape.

    Example:
        >>> lntm.evaluation.exclusivity(torch.eye(4) + 0.01, top_n=1)
        tensor([1., 1., 1., 1.], dtype=torch.float64)
    """
    require_whole(1, top_n=top_n)
    if not 0 <= weight <= 1:
        raise ConfigError(f"weight is {weight}; expected from 0 to 1")
    probs = as_matrix(topics, "topics").numpy()
    num_words = probs.shape[1]
    shares = probs / np.maximum(probs.sum(0), np.finfo(np.float64).tiny)
    exclusiveness, frequency = (
        scipy.stats.rankdata(x, axis=1) / num_words for x in (shares, probs)
    )
    scores = 1 / (weight / exclusiveness + (1 - weight) / frequency)
    top = np.argsort(-probs, axis=1, kind="stable")[:, :top_n]
    return torch.from_numpy(np.take_along_axis(scores, top, 1).mean(1))
