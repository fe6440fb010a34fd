"""Normal priors, posteriors and bounds of a document's eta, written as in the papers, in NumPy.

With explicit inverses and determinants, in float64, for one document at a time. Anchored priors are
handled by the matrix ``lift`` ``(num_topics, latent_dim)`` from eta to the logits of theta.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal


def lift_matrix(num_topics: int, anchored: bool) -> np.ndarray:
    """From eta to logits: the identity, less its last column if anchored."""
    return np.eye(num_topics)[:, : num_topics - anchored]


def log_likelihood(logits: np.ndarray, topics: np.ndarray, counts: np.ndarray) -> float:
    """Σ_v c_v log Σ_k theta_k φ_kv."""
    used = counts > 0
    return float(counts[used] @ np.log(softmax(logits) @ topics[:, used]))


def log_joint(
    eta: np.ndarray, counts: np.ndarray, topics: np.ndarray, loc: np.ndarray, covariance: np.ndarray
) -> float:
    """log p(w, eta)."""
    lift = lift_matrix(len(topics), len(loc) < len(topics))
    prior = multivariate_normal(loc, covariance).logpdf(eta)
    return float(prior) + log_likelihood(lift @ eta, topics, counts)


def expected_topic_counts(
    weights: np.ndarray, topics: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Expected tokens of each topic under responsibilities ∝ t_k φ_kv ``(num_topics,)``."""
    used = counts > 0
    joint = weights[:, None] * topics[:, used]
    return (joint / joint.sum(0)) @ counts[used]


def tangent(logits: np.ndarray, covariance: np.ndarray) -> float:
    """log Σ_k exp(m_k + V_kk / 2)."""
    return float(logsumexp(logits + np.diag(covariance) / 2))


def tilted(logits: np.ndarray, covariance: np.ndarray, a: np.ndarray) -> float:
    """a·m + log Σ_k exp(m_k − a·m + ½ (e_k − a)ᵀ V (e_k − a))."""
    gap = np.eye(len(a)) - a
    return float(
        a @ logits + logsumexp(gap @ logits + np.einsum("kj,ji,ki->k", gap, covariance, gap) / 2)
    )


def tangent_elbo(
    mean: np.ndarray,
    covariance: np.ndarray,
    counts: np.ndarray,
    topics: np.ndarray,
    loc: np.ndarray,
    prior_covariance: np.ndarray,
) -> float:
    """E_q log p(eta) + H(q) + Σ_v c_v log Σ_k e^{m_k} φ_kv − N log Σ_k exp(m_k + V_kk / 2)."""
    lift = lift_matrix(len(topics), len(loc) < len(topics))
    precision = np.linalg.inv(prior_covariance)
    _, prior_log_det = np.linalg.slogdet(2 * np.pi * prior_covariance)
    _, log_det = np.linalg.slogdet(2 * np.pi * np.e * covariance)
    gap = mean - loc
    expected = -0.5 * (prior_log_det + gap @ precision @ gap + np.trace(precision @ covariance))
    logits = lift @ mean
    words = log_likelihood(logits, topics, counts) + counts.sum() * logsumexp(logits)
    normaliser = tangent(logits, lift @ covariance @ lift.T)
    return float(expected + 0.5 * log_det + words - counts.sum() * normaliser)


def undamped_taylor_converges(
    counts: np.ndarray,
    topics: np.ndarray,
    loc: np.ndarray,
    covariance: np.ndarray,
    max_iterations: int = 500,
) -> bool:
    """Whether Ahmed & Xing's eqs 10 and 12, iterated as printed from the prior mean, converge."""
    mean, precision = loc.copy(), np.linalg.inv(covariance)
    for _ in range(max_iterations):
        g = softmax(mean)
        curvature = counts.sum() * (np.diag(g) - np.outer(g, g))
        right = expected_topic_counts(g, topics, counts) - counts.sum() * g
        right += precision @ loc + curvature @ mean
        new = np.linalg.solve(precision + curvature, right)
        if np.abs(new - mean).max() < 1e-6:
            return True
        mean = new
    return False
