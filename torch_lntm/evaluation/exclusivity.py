"""Exclusivity of topics: whether their top words are theirs alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import TopicModel


def exclusivity(topics: Any, top_n: int = 10, weight: float = 0.7) -> Tensor:
    """How exclusive each topic's most probable words are, on average.

    The mean over a topic's ``top_n`` words of 1/(w/E + (1 − w)/F): E and F are the ranks within the
    topic, divided by the number of words, of a word's exclusivity φ_kv/Σ_j φ_jv and of its
    probability φ_kv (*Bischof & Airoldi 2012*; R's stm, whose sum over words this divides by
    ``top_n``).

    Args:
        topics: A model; or ``(num_topics, num_words)`` probabilities.
        top_n: Top words per topic.
        weight: Weight w of exclusivity, between 0 and 1.

    Returns:
        ``(num_topics,)`` float64, from 0 to 1.

    Raises:
        ConfigError: A number or shape that cannot be used.
    """
    require_whole(1, top_n=top_n)
    if not 0 <= weight <= 1:
        raise ConfigError(f"weight is {weight}; expected from 0 to 1")
    if isinstance(topics, TopicModel):
        topics = topics.topics.mean_probs
    probs = torch.as_tensor(topics).detach().double().cpu().numpy()
    if probs.ndim != 2 or not np.isfinite(probs).all():
        raise ConfigError(f"topics of shape {probs.shape}; expected (num_topics, num_words)")
    num_words = probs.shape[1]
    share = probs / np.maximum(probs.sum(0), np.finfo(np.float64).tiny)
    exclusive, frequent = (scipy.stats.rankdata(x, axis=1) / num_words for x in (share, probs))
    scores = 1 / (weight / exclusive + (1 - weight) / frequent)
    top = np.argsort(-probs, axis=1, kind="stable")[:, :top_n]
    return torch.from_numpy(np.take_along_axis(scores, top, 1).mean(1))
