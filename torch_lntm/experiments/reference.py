"""Exact posterior means of θ by sampling, to hold approximations against."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.models import LogisticNormalPrior, TopicModel
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior
from torch_lntm.solvers.mean import Objective

# Step and number of leapfrogs of the reference sampler, in units of the Taylor posterior: accepts
# nine proposals in ten, and crosses the posterior in one.
_LEAPFROG_STEP, _LEAPFROGS = 0.3, 10


def gaussian_prior(model: TopicModel) -> GaussianPrior:
    """The model's prior as the solvers take it."""
    assert isinstance(model.prior, LogisticNormalPrior)
    return model.prior.solver_prior()


@torch.no_grad()
def sample_theta(
    model: TopicModel, batch: DocumentBatch, start: GaussianPosterior, *, draws: int, seed: int
) -> Tensor:
    """The exact posterior mean of θ, up to Monte Carlo error: one chain per document.

    Hamiltonian Monte Carlo on the log joint with the topic assignments summed out, started at and
    scaled by an approximate posterior. Every document accepts or rejects for itself.

    Args:
        model: The model.
        batch: The documents, in the model's dtype.
        start: Their approximate posterior.
        draws: Transitions; the first fifth is dropped.
        seed: Seed of a generator of its own.

    Returns:
        ``(num_docs, num_topics)``.
    """
    prior = gaussian_prior(model)
    target = Objective(batch, model.topics.probs.detach(), prior)
    generator = torch.Generator().manual_seed(seed)
    # In whitened coordinates the approximate covariance is RRᵀ; R is the sampler's unit.
    unit = torch.linalg.solve_triangular(prior.tril, start.scale_tril, upper=False)
    z = prior.whiten(start.mean)
    value, gradient, _ = target.evaluate(z)
    total, kept = torch.zeros(batch.num_docs, model.num_topics, dtype=z.dtype), 0
    for draw in range(draws):
        momentum = torch.randn(z.shape, generator=generator, dtype=z.dtype)
        # A random step keeps trajectories from closing on themselves.
        jitter = 0.5 + torch.rand(len(z), 1, generator=generator, dtype=z.dtype)
        step = _LEAPFROG_STEP * jitter
        x, p, x_value, x_gradient = z, momentum, value, gradient
        for _ in range(_LEAPFROGS):
            p = p + 0.5 * step * (x_gradient[:, None, :] @ unit).squeeze(1)
            x = x + step * (unit @ p[..., None]).squeeze(-1)
            x_value, x_gradient, _ = target.evaluate(x)
            p = p + 0.5 * step * (x_gradient[:, None, :] @ unit).squeeze(1)
        log_ratio = x_value - value + 0.5 * (momentum.square() - p.square()).sum(-1)
        uniform = torch.rand(len(z), generator=generator, dtype=z.dtype)
        accept = uniform.log() < log_ratio
        z = torch.where(accept[:, None], x, z)
        value = torch.where(accept, x_value, value)
        gradient = torch.where(accept[:, None], x_gradient, gradient)
        if draw >= draws // 5:
            total += model.theta(prior.unwhiten(z))
            kept += 1
    return total / kept
