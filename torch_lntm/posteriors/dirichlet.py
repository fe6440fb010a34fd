"""Dirichlet posteriors of topic proportions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.posteriors.posterior import Posterior, Rows


def log_multivariate_beta(concentration: Tensor) -> Tensor:
    """Log normaliser of a Dirichlet, log 𝔅(a) = Σ log Γ(a_k) − log Γ(Σ a_k).

    Args:
        concentration: ``(..., num_topics)`` positive a.

    Returns:
        ``(...)``.
    """
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def expected_log_theta(gamma: Tensor) -> Tensor:
    """E log theta under Dirichlet(gamma), Ψ(gamma_k) − Ψ(Σ gamma), in the shape of ``gamma``."""
    return torch.digamma(gamma) - torch.digamma(gamma.sum(-1, keepdim=True))


@dataclass(eq=False, kw_only=True, repr=False)
class DirichletPosterior(Posterior):
    """Dirichlet posteriors of the theta of a batch of documents.

    Attributes:
        concentration: ``(num_topics,)`` float64 α of the prior.
        gamma: ``(num_docs, num_topics)`` float64 γ, the parameters.
        sites: ``(nnz, num_topics)`` β, parameters of the words' factors in expectation propagation:
            γ = α + Σ_w n_w β_w. ``None`` from other solvers.

    Example:
        >>> lda = lntm.models.lda(10, corpus)
        >>> posterior = lntm.guides.make_guide("vb", lda).posterior(batch)
        >>> bool((posterior.gamma.sum(-1) > batch.lengths).all())
        True
    """

    has_exact_theta_mean = True

    concentration: Tensor
    gamma: Tensor
    sites: Tensor | None = None

    @property
    def num_topics(self) -> int:
        """See :attr:`Posterior.num_topics`."""
        return self.gamma.shape[-1]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Posterior mean of theta ``(num_docs, num_topics)``, float64."""
        return self.gamma / self.gamma.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """See :attr:`Posterior.variance`."""
        mean = self.mean
        return mean * (1.0 - mean) / (self.gamma.sum(-1, keepdim=True) + 1.0)

    @property
    def covariance(self) -> Tensor:
        """See :attr:`Posterior.covariance`."""
        mean = self.mean
        outer = torch.diag_embed(mean) - mean[..., None] * mean[..., None, :]
        return outer / (self.gamma.sum(-1) + 1.0)[:, None, None]

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`."""
        return self.covariance.sum(0)

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`."""
        return expected_log_theta(self.gamma)

    def theta(self, latent: Tensor) -> Tensor:
        """See :meth:`Posterior.theta`. The latent variable is theta."""
        return latent

    def topic_weights(self, inverse_temperature: float = 1.0) -> Tensor:
        """See :meth:`Posterior.topic_weights`. ∝ exp(T·E log theta_k)."""
        return torch.softmax(inverse_temperature * expected_log_theta(self.gamma), -1)

    @property
    def warm_start(self) -> Tensor:
        """The sites ``(nnz, num_topics)`` of expectation propagation, or else the means."""
        return self.mean if self.sites is None else self.sites

    def kl(self) -> Tensor:
        """KL(posterior ‖ prior) of each document ``(num_docs,)`` float64 nats."""
        prior = log_multivariate_beta(self.concentration)
        inner = ((self.gamma - self.concentration) * expected_log_theta(self.gamma)).sum(-1)
        return inner + prior - log_multivariate_beta(self.gamma)

    def theta_mean(self, num_draws: int = 0, *, seed: int = 0) -> Tensor:
        """See :meth:`Posterior.theta_mean`. The mean is exact, and the arguments are ignored."""
        return self.mean

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`."""
        gamma = self.gamma[rows].double()
        return torch.softmax(noise.log_gamma(key, gamma.expand(*key.shape, -1)), -1)
