"""Topics of two fits matched with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """Which topic of another fit belongs to which of the reference.

    Attributes:
        partner: ``(num_topics,)`` int64, for each topic of the reference its topic of the other
            fit; −1 where the other has too few.
        similarity: ``(num_topics,)`` float64 of the two, from 0, no word in common, to 1, the same
            distribution; 0 where there is none.
    """

    partner: NDArray[np.int64]
    similarity: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean similarity of the reference's topics."""
        return float(self.similarity.mean())

    def __repr__(self) -> str:
        return (
            f"Alignment({len(self.partner)} topics, similarity {self.mean:.3f}, from "
            f"{self.similarity.min():.3f} to {self.similarity.max():.3f})"
        )


def align_topics(reference: TopicModel | Tensor, other: TopicModel | Tensor) -> Alignment:
    """Match the topics of two fits one to one, so that they are as similar as can be.

    The similarity of two topics is their Bhattacharyya coefficient Σ_v √(φ_v ψ_v), which weighs
    rare words more than a cosine does. The sum over pairs is maximal (*Kuhn 1955*).

    Args:
        reference: A model, or ``(num_topics, num_words)`` probabilities.
        other: Another over the same words, or its probabilities. It may have more or fewer topics.

    Returns:
        The partner of each topic of the reference, and how alike they are.

    Raises:
        ConfigError: The two are not over the same words.
    """
    first, second = _probabilities(reference), _probabilities(other)
    if first.shape[1] != second.shape[1] or _words(reference, other):
        raise ConfigError(
            f"topics over {first.shape[1]} and {second.shape[1]} words; expected the same words in "
            "the same order"
        )
    similarity = (first.sqrt() @ second.sqrt().mT).numpy()
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    partner = np.full(len(first), -1, np.int64)
    partner[rows] = columns
    found = np.zeros(len(first))
    found[rows] = np.minimum(similarity[rows, columns], 1.0)
    return Alignment(partner, found)


def _probabilities(topics: Any) -> Tensor:
    probs = topics.topics.mean_probs if isinstance(topics, TopicModel) else torch.as_tensor(topics)
    probs = probs.detach().double().cpu()
    if probs.dim() != 2 or not bool(torch.isfinite(probs).all()) or bool((probs < 0).any()):
        raise ConfigError(
            f"topics of shape {tuple(probs.shape)}; expected (num_topics, num_words) probabilities"
        )
    return probs / probs.sum(1, keepdim=True)


def _words(reference: Any, other: Any) -> bool:
    """Whether two models have vocabularies that differ."""
    both = [getattr(one, "vocabulary", None) for one in (reference, other)]
    return None not in both and both[0] != both[1]
