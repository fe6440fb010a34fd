"""The Dirichlet aspect model of one document in NumPy, by quadrature and by the printed equations.

Counts are dense ``(num_words,)``, everything is float64. Quadrature is for 2 or 3 topics.
"""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln, log_expit, logsumexp

#: Cut-off of the integrand, in nats below the start of its tails, for 2 and 3 topics.
_REACH = {2: 45.0, 3: 25.0}
#: Longest spacing, and spacing in units of 1 over the square root of the number of tokens.
_SPACING = {2: (0.1, 0.5), 3: (0.3, 1.0)}


def log_multivariate_beta(alpha: np.ndarray) -> float:
    return float(gammaln(alpha).sum() - gammaln(alpha.sum()))


def quadrature(alpha: np.ndarray, num_tokens: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for expectations under Dirichlet(alpha).

    Sticks are broken off in turn, each a logistic function of a coordinate that runs over the real
    line. There the integrand is analytic in a strip and falls exponentially, so the trapezoidal
    rule's error is exponentially small in its spacing.

    Args:
        alpha: 2 or 3 parameters.
        num_tokens: Tokens in the likelihood that the expectation will be of: the more, the finer.

    Returns:
        Logs of theta ``(points, num_topics)`` and of the weights ``(points,)``, whose sum is 1.
    """
    num_topics = len(alpha)
    reach, (longest, relative) = _REACH[num_topics], _SPACING[num_topics]
    h = min(longest, relative / np.sqrt(num_tokens + alpha.sum()))
    rest = alpha.sum() - np.cumsum(alpha)
    axes = [
        np.arange(-reach / alpha[k] - 5, reach / rest[k] + 5 + h, h) for k in range(num_topics - 1)
    ]
    sticks = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], 1)
    taken, left = log_expit(sticks), log_expit(-sticks)
    before = np.hstack([np.zeros((len(sticks), 1)), np.cumsum(left, 1)])
    log_theta = before + np.hstack([taken, np.zeros((len(sticks), 1))])
    log_weights = taken @ alpha[:-1] + left @ rest[:-1] - log_multivariate_beta(alpha)
    return log_theta, log_weights + (num_topics - 1) * np.log(h)


def _log_posterior(
    counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Theta and log p(w, theta) at the points."""
    log_theta, log_weights = quadrature(alpha, counts.sum())
    theta = np.exp(log_theta)
    with np.errstate(divide="ignore"):  # theta underflows only where its share is negligible
        for v in np.nonzero(counts)[0]:
            log_weights += counts[v] * np.log(theta @ topics[:, v])
    return theta, log_weights


def log_evidence(counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray) -> float:
    """log p(w), eq. 3, to 1e-8 for 2 topics and 1e-6 for 3."""
    return float(logsumexp(_log_posterior(counts, topics, alpha)[1]))


def posterior_mean(counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """E[theta | w] ``(num_topics,)``."""
    theta, log_joint = _log_posterior(counts, topics, alpha)
    return np.exp(log_joint - logsumexp(log_joint)) @ theta


def expected_responsibilities(gamma: np.ndarray, word: np.ndarray) -> np.ndarray:
    """The integral of eq. 31 for one token of a word, ``word`` ``(num_topics,)`` its p(w|a)."""
    log_theta, log_weights = quadrature(gamma)
    joint = np.exp(log_theta) * word
    return np.exp(log_weights) @ (joint / joint.sum(1, keepdims=True))


def vb_updates(
    counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray, gamma: np.ndarray, updates: int
) -> tuple[np.ndarray, np.ndarray]:
    """γ after some rounds of eqs 11 and 10, and the last responsibilities q(a|w)."""
    q = np.empty_like(topics)
    for _ in range(updates):
        for v in range(len(counts)):
            joint = topics[:, v] * np.exp(digamma(gamma) - digamma(gamma).max())
            q[:, v] = joint / joint.sum()
        gamma = alpha + q @ counts
    return gamma, q


def vb_bound(counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray, q: np.ndarray) -> float:
    """Log of eqs 8–9, with the exponent n_w q(a|w) that eq. 8 lacks."""
    total = log_multivariate_beta(alpha + q @ counts) - log_multivariate_beta(alpha)
    for a, v in np.argwhere(q > 0):
        total += counts[v] * q[a, v] * np.log(topics[a, v] / q[a, v])
    return total


def second_order_counts(counts: np.ndarray, topics: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Eqs 32–34 as printed, with the missing word index of S, before normalisation."""
    num_topics, num_words = topics.shape
    result = np.zeros(topics.shape)
    for w in range(num_words):
        for a in range(num_topics):
            m = [(gamma[b] + (a == b)) / (gamma.sum() + 1) for b in range(num_topics)]
            first = sum(topics[b, w] * m[b] for b in range(num_topics))
            second = sum(topics[b, w] ** 2 * m[b] for b in range(num_topics))
            spread = second / first**2 - 1
            result[a, w] = counts[w] * topics[a, w] * gamma[a] / gamma.sum() / first
            result[a, w] *= 1 + spread / (gamma.sum() + 2)
    return result


def enumerated_moments(alpha: np.ndarray, bag: np.ndarray, topics: np.ndarray) -> np.ndarray:
    """E theta and E theta² given a bag, by every assignment of its tokens to topics."""
    tokens = np.repeat(np.arange(len(bag)), bag)
    total, mean = 0.0, np.zeros((2, len(alpha)))
    for z in np.ndindex(*[len(alpha)] * len(tokens)):
        of_tokens = np.array(z, dtype=int)
        gamma = alpha + np.bincount(of_tokens, minlength=len(alpha))
        p = np.prod(topics[of_tokens, tokens]) * np.exp(gammaln(gamma).sum())
        size = gamma.sum()
        total += p
        mean += p * np.stack([gamma / size, gamma * (gamma + 1) / (size * (size + 1))])
    return mean / total
