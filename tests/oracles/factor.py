"""Independent factor models written as in Putthividhya et al. 2009, in NumPy, a document at a time.

With explicit inverses and determinants, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import logsumexp

from torch_lntm.latents.factor import FactorSpace, GaussianFactorSpace, LaplaceFactorSpace


@dataclass
class FactorProblem:
    """A model's parameters and some documents."""

    counts: np.ndarray
    topics: np.ndarray
    loc: np.ndarray
    mixing: np.ndarray
    noise_precision: np.ndarray
    source: str

    @property
    def covariance(self) -> np.ndarray:
        """AAᵀ + Λ⁻¹, of Gaussian sources."""
        return self.mixing @ self.mixing.T + np.diag(1 / self.noise_precision)

    def space(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> FactorSpace:
        """The package's coordinates of the prior."""
        kind = GaussianFactorSpace if self.source == "gaussian" else LaplaceFactorSpace
        parts = (self.loc, self.mixing, self.noise_precision)
        return kind(*(torch.from_numpy(part).to(device, dtype) for part in parts))


def random_factor_problem(
    num_topics: int = 5,
    num_sources: int = 2,
    num_words: int = 15,
    lengths: tuple[int, ...] = (30, 1, 0, 60, 3),
    source: str = "gaussian",
    scale: float = 1.0,
    seed: int = 0,
) -> FactorProblem:
    """Documents drawn from a random factor model."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(num_words, 0.4), num_topics) * 0.98 + 0.02 / num_words
    loc = rng.normal(size=num_topics)
    mixing = scale * rng.normal(size=(num_topics, num_sources))
    noise_precision = rng.uniform(0.3, 5, num_topics)
    draw = rng.normal if source == "gaussian" else rng.laplace
    sources = draw(size=(len(lengths), num_sources))
    eta = (
        loc
        + sources @ mixing.T
        + rng.normal(size=(len(lengths), num_topics)) / np.sqrt(noise_precision)
    )
    theta = np.exp(eta - logsumexp(eta, axis=1, keepdims=True))
    counts = np.stack([rng.multinomial(n, p @ topics) for n, p in zip(lengths, theta, strict=True)])
    return FactorProblem(counts.astype(float), topics, loc, mixing, noise_precision, source)


def divergence(
    mean: np.ndarray,
    variance: np.ndarray,
    source_mean: np.ndarray,
    source_covariance: np.ndarray,
    problem: FactorProblem,
) -> float:
    """E_q log q(eta) q(s) − E_q log p(eta | s) p(s); E|s| of Laplace sources is sqrt(E s²)."""
    total = -0.5 * np.log(2 * np.pi * np.e * variance).sum()
    total -= 0.5 * np.linalg.slogdet(2 * np.pi * np.e * source_covariance)[1]
    for k, row in enumerate(problem.mixing):
        precision = problem.noise_precision[k]
        square = (mean[k] - problem.loc[k] - row @ source_mean) ** 2
        square += variance[k] + row @ source_covariance @ row
        total += 0.5 * precision * square - 0.5 * np.log(precision / (2 * np.pi))
    second = source_mean**2 + np.diag(source_covariance)
    if problem.source == "gaussian":
        total += 0.5 * (second + np.log(2 * np.pi)).sum()
    else:
        total += (np.sqrt(second) + np.log(2)).sum()
    return float(total)


def bound(
    mean: np.ndarray,
    variance: np.ndarray,
    source_mean: np.ndarray,
    source_covariance: np.ndarray,
    counts: np.ndarray,
    problem: FactorProblem,
) -> float:
    """Eq. 2 with eqs 3 and 11, ξ, the responsibilities and |η| at their optimum."""
    used = counts > 0
    words = logsumexp(mean[:, None] + np.log(problem.topics[:, used]), axis=0)
    value = counts[used] @ words - counts.sum() * logsumexp(mean + variance / 2)
    return float(value - divergence(mean, variance, source_mean, source_covariance, problem))
