"""Alignment of the topics of two fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.checks import as_probabilities
from torch_lntm.models import TopicModel
from torch_lntm.models.topics.pairs import pair_topics


class Alignment(NamedTuple):
    """Pairs of topics from a reference and from another fit.

    Attributes:
        partner: ``(num_topics,)`` int64, the other fit's topic for each topic of the reference; −1
            if the other fit has too few topics.
        similarity: ``(num_topics,)`` float64, from 0 (no word in common) to 1 (equal
            distributions); 0 without a partner.
    """

    partner: NDArray[np.int64]
    similarity: NDArray[np.float64]


def align_topics(reference: TopicModel | Tensor, other: TopicModel | Tensor) -> Alignment:
    """Match the topics of two fits in pairs with the largest total similarity.

    The similarity of two topics is their Bhattacharyya coefficient Σ_v √(φ_v ψ_v), which gives rare
    words more weight than a cosine. The Hungarian method maximises the total (*Kuhn 1955*).

    Args:
        reference: A model, or ``(num_topics, num_words)`` probabilities.
        other: Another model over the same words, or its probabilities. The number of topics may
            differ.

    Returns:
        The partner of each topic of the reference, and the similarity of each pair.

    Raises:
        ConfigError: The words differ.

    Example:
        >>> reordered = model.topics.probs[torch.arange(9, -1, -1)]
        >>> alignment = lntm.evaluation.align_topics(model, reordered)
        >>> alignment.partner.tolist()
        [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    """
    first, second = (as_probabilities(topics, "topics") for topics in (reference, other))
    words = [getattr(topics, "vocabulary", None) for topics in (reference, other)]
    if first.shape[1] != second.shape[1] or (None not in words and words[0] != words[1]):
        raise ConfigError(
            f"topics over {first.shape[1]} and {second.shape[1]} words; expected the same words in "
            "the same order"
        )
    return Alignment(*pair_topics(first, second))
