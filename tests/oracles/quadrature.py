"""log p(document) of a topic model with 2 or 3 topics on a dense uniform grid, in plain NumPy.

The coordinates are x_k = eta_k − eta_K. The package's contrasts, whitening and spacing of points
are different.
"""

from __future__ import annotations

import itertools

import numpy as np


def log_marginals(
    counts: np.ndarray,
    topics: np.ndarray,
    loc: np.ndarray,
    covariance: np.ndarray,
    num_points: int = 801,
    reach: float = 9.0,
) -> np.ndarray:
    """log p(w_d) of dense counts ``(num_docs, num_words)``.

    loc and covariance are of eta with K components. The grid spans ``reach`` prior standard
    deviations. A document's posterior must be far wider than the spacing.
    """
    num_topics = len(loc)
    difference = np.hstack([np.eye(num_topics - 1), -np.ones((num_topics - 1, 1))])
    mean, cov = difference @ loc, difference @ covariance @ difference.T
    sd = np.sqrt(np.diag(cov))
    axes = list(np.linspace(mean - reach * sd, mean + reach * sd, num_points).T)
    x = np.array(list(itertools.product(*axes)))
    centred = x - mean
    log_prior = -0.5 * np.sum(centred * (centred @ np.linalg.inv(cov)), 1)
    log_prior -= 0.5 * np.log(np.linalg.det(2 * np.pi * cov))
    log_prior += sum(np.log(axis[1] - axis[0]) for axis in axes)
    weights = np.exp(np.hstack([x, np.zeros((len(x), 1))]))
    log_words = np.log(weights / weights.sum(1, keepdims=True) @ topics)
    result = []
    for document in counts:
        used = document > 0
        f = log_prior + log_words[:, used] @ document[used]
        result.append(f.max() + np.log(np.exp(f - f.max()).sum()))
    return np.array(result)
