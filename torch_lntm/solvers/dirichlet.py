"""Dirichlet posteriors of topic proportions, and the concentration that fits some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def log_multivariate_beta(concentration: Tensor) -> Tensor:
    """The log normaliser of a Dirichlet, log 𝔅(a) = Σ log Γ(a_k) − log Γ(Σ a_k).

    Args:
        concentration: ``(..., num_topics)`` positive a.

    Returns:
        ``(...)``.
    """
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def expected_log_theta(gamma: Tensor) -> Tensor:
    """E log theta under Dirichlet(gamma), Ψ(gamma_k) − Ψ(Σ gamma); shape of ``gamma``."""
    return torch.digamma(gamma) - torch.digamma(gamma.sum(-1, keepdim=True))


def log_gamma_variates(rng: np.random.Generator, shapes: NDArray[np.float64]) -> Tensor:
    """Logs of gamma variates of the given shapes; they themselves underflow where that is small.

    As log G(a) = log G(a + 1) + log(U) / a in distribution.
    """
    larger = np.log(rng.standard_gamma(shapes + 1.0))
    return torch.from_numpy(larger + np.log1p(-rng.random(shapes.shape)) / shapes)


@dataclass(eq=False)
class DirichletPosterior:
    """Dirichlet posteriors of the theta of a batch of documents.

    Attributes:
        concentration: ``(num_topics,)`` float64 α, the prior it was solved under.
        gamma: ``(num_docs, num_topics)`` float64 γ, the parameters.
        converged: ``(num_docs,)`` bool, the solver met its tolerance.
        iterations: ``(num_docs,)`` int64 iterations used.
        objective: ``(num_docs,)`` float64 nats, the solver's own objective at the solution.
        sites: ``(nnz, num_topics)`` β, the terms' own parameters with γ = α + Σ_w n_w β_w; None
            but for expectation propagation.
    """

    concentration: Tensor
    gamma: Tensor
    converged: Tensor
    iterations: Tensor
    objective: Tensor
    sites: Tensor | None = None

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return self.gamma.shape[0]

    @property
    def mean(self) -> Tensor:
        """Posterior mean of theta ``(num_docs, num_topics)``."""
        return self.gamma / self.gamma.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """Marginal variances of theta ``(num_docs, num_topics)``."""
        mean = self.mean
        return mean * (1.0 - mean) / (self.gamma.sum(-1, keepdim=True) + 1.0)

    @property
    def covariance(self) -> Tensor:
        """Covariance of theta ``(num_docs, num_topics, num_topics)``."""
        mean = self.mean
        outer = torch.diag_embed(mean) - mean[..., None] * mean[..., None, :]
        return outer / (self.gamma.sum(-1) + 1.0)[:, None, None]

    def sums(self) -> dict[str, Tensor]:
        """What the prior's M-step takes: ``log_theta_sum`` ``(num_topics,)`` Σ_d E log theta."""
        return {"log_theta_sum": expected_log_theta(self.gamma).sum(0)}

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) of each document ``(num_docs,)`` float64 nats."""
        prior = log_multivariate_beta(self.concentration)
        inner = ((self.gamma - self.concentration) * expected_log_theta(self.gamma)).sum(-1)
        return inner + prior - log_multivariate_beta(self.gamma)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density ``(..., num_docs)`` at theta ``(..., num_docs, num_topics)``, nats."""
        return torch.xlogy(self.gamma - 1.0, theta).sum(-1) - log_multivariate_beta(self.gamma)

    def theta_mode(self) -> Tensor:
        """The mode on the softmax scale (of log theta), which is the mean."""
        return self.mean

    def theta_mean(self, num_samples: int = 0, seed: int = 0) -> Tensor:
        """Posterior mean of theta ``(num_docs, num_topics)``, exact; the arguments go unused."""
        return self.mean

    def theta_samples(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draws of theta ``(num_samples, num_docs, num_topics)``.

        Each document has the same stream of random numbers, so that its draws do not depend on its
        batch; draws of different documents are not independent of each other.
        """
        rows = [self.draw_theta(d, num_samples, (seed,)) for d in range(self.num_docs)]
        stacked = torch.stack(rows, 1) if rows else self.gamma.new_zeros(num_samples, 0, 0)
        return stacked.reshape(num_samples, *self.gamma.shape)

    def theta_interval(
        self, level: float = 0.9, num_samples: int = 1000, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Equal-tailed intervals of theta by sampling, ``(lower, upper)`` as for a mean."""
        tail = (1.0 - level) / 2.0
        draws = self.theta_samples(num_samples, seed)
        lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).to(draws), dim=0)
        return lower, upper

    def draw_theta(self, document: int, num_samples: int, key: Sequence[int]) -> Tensor:
        """``(num_samples, num_topics)`` float64 draws of one document's theta.

        Drawn on the CPU as a function of ``key`` alone, the same whatever the batch and device.
        """
        rng = np.random.default_rng(list(key))
        shapes = self.gamma[document].double().cpu().expand(num_samples, -1).numpy()
        return torch.softmax(log_gamma_variates(rng, shapes).to(self.gamma.device), -1)


#: What :func:`fit_concentration` returns lies in these: every component, and their sum.
SMALLEST_CONCENTRATION = 1e-8
LARGEST_TOTAL_CONCENTRATION = 1e6


def fit_concentration(mean_log_theta: Tensor, start: Tensor, *, symmetric: bool) -> Tensor:
    """The Dirichlet of highest likelihood given documents' mean log theta.

    Maximises log Γ(Σα) − Σ_k log Γ(α_k) + Σ_k (α_k − 1) m_k over α, m the mean over documents of
    E log theta. This is *Minka & Lafferty 2002, eq. 30* (there n is the number of documents), the
    maximum of the bound with every q(theta) held. Their eq. 28 instead holds the responsibilities:
    there q(theta) follows α, and its maximum over α is a larger step to the same fixed point under
    variational Bayes; it does not apply to expectation propagation. The objective is concave. Its
    Hessian is a diagonal plus a constant, so a Newton step costs O(K) (Minka 2001a, *Estimating a
    Dirichlet distribution*); it is taken in log α, which stays positive, and shortened until the
    objective rises.

    Args:
        mean_log_theta: ``(num_topics,)`` m.
        start: ``(num_topics,)`` positive α to start from.
        symmetric: All α_k are equal; m's mean then decides.

    Returns:
        ``(num_topics,)`` float64 α. Where all documents have the same theta the maximum is at
        infinity; its sum is held to 1e6, at which theta's standard deviations are below 5e-4. No
        component is below 1e-8.
    """
    target, log_alpha = mean_log_theta.double(), start.double().log()
    if symmetric:
        # The maximum over all α of equal targets is symmetric, and so is every step to it.
        target = target.mean().expand_as(target)
        log_alpha = start.double().mean().log().expand_as(target)
    alpha = _within_limits(log_alpha)
    value = _concentration_objective(alpha, target)
    for _ in range(200):
        gradient = torch.digamma(alpha.sum()) - torch.digamma(alpha) + target
        inverse = 1.0 / torch.polygamma(1, alpha)
        pull = torch.polygamma(1, alpha.sum())
        newton = inverse * gradient
        newton += inverse * (pull * newton.sum() / (1.0 - pull * inverse.sum()))
        step = (newton / alpha).nan_to_num(0.0)  # 0 / 0 where there is one topic
        length = 1.0
        while length > 1e-9:
            trial = _within_limits(alpha.log() + length * step)
            trial_value = _concentration_objective(trial, target)
            if bool(trial_value > value):
                break
            length *= 0.5
        else:
            break
        alpha, value = trial, trial_value
    return alpha


def _within_limits(log_alpha: Tensor) -> Tensor:
    """α within the limits, its proportions kept where the sum is too large."""
    excess = torch.logsumexp(log_alpha, -1) - np.log(LARGEST_TOTAL_CONCENTRATION)
    return (log_alpha - excess.clamp_min(0.0)).exp().clamp_min(SMALLEST_CONCENTRATION)


def _concentration_objective(alpha: Tensor, target: Tensor) -> Tensor:
    """Expected log density of theta but for a constant, from E log theta = ``target``."""
    return (alpha * target).sum() - log_multivariate_beta(alpha)
