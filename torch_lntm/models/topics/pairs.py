"""Pairs of the topics of two models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def pair_topics(reference: Tensor, other: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Pair topics so that the total of their Bhattacharyya coefficients Σ_v √(φ_v ψ_v) is largest.

    Args:
        reference: ``(num_topics, num_words)`` probabilities, float64.
        other: The probabilities of other topics, of which there may be more or fewer.

    Returns:
        ``(num_topics,)`` partner of each topic of the reference, −1 if there are too few; and the
        coefficient of each pair, 0 without a partner.
    """
    similarity = (reference.sqrt() @ other.sqrt().mT).cpu().numpy()
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    partner = np.full(len(reference), -1, np.int64)
    partner[rows] = columns
    similarities = np.zeros(len(reference))
    similarities[rows] = np.minimum(similarity[rows, columns], 1.0)
    return partner, similarities
