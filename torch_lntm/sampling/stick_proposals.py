"""Draws of one document's theta from a Dirichlet posterior, for importance sampling.

Draws are of log theta: proportions of a topic without words are often too small to be represented.
Each comes with log p(theta) − log q(theta), p the prior Dirichlet(α) and q the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_lntm.solvers.dirichlet import log_gamma_variates, log_multivariate_beta

#: Of the draws, about as large a share goes at least to what the posterior all but excludes.
DEFENSIVE_SHARE = 0.05
#: Power that the odds of a topic's absence are raised to: what is rare is drawn more often than it
#: should be, so that it has small weights, not large ones (*measured: Pareto k̂ above 0.7 in fewer
#: than half of the documents that had it with the odds themselves, at the same effective size*).
ODDS_POWER = 0.7


def dirichlet_draws(
    concentration: Tensor, gamma: Tensor, num_samples: int, key: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Draws of Dirichlet(γ) itself.

    The ratio is unbounded: it grows as theta_k^(α_k − γ_k), and where the document could do without
    topic k its weights have the Pareto shape 1 − α_k/γ_k. :func:`stick_draws` mends that.

    Args:
        concentration: ``(num_topics,)`` float64 α.
        gamma: ``(num_topics,)`` float64 γ.
        num_samples: Draws.
        key: Nonnegative integers that seed them, as (seed, position in the corpus). They are drawn
            on the CPU, the same whatever the batch and device.

    Returns:
        Log theta ``(num_samples, num_topics)`` and the log ratio ``(num_samples,)``.
    """
    rng = np.random.default_rng(list(key))
    shapes = np.broadcast_to(gamma.cpu().numpy(), (num_samples, len(gamma)))
    log_theta = torch.log_softmax(log_gamma_variates(rng, shapes), -1).to(gamma.device)
    constant = log_multivariate_beta(gamma) - log_multivariate_beta(concentration)
    return log_theta, log_theta @ (concentration - gamma) + constant


def stick_draws(
    concentration: Tensor, gamma: Tensor, num_samples: int, key: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Draws of a mixture around Dirichlet(γ) in which every topic may be absent.

    The posterior of theta_k is a mixture over the number of the document's tokens that have topic
    k. Given none it is as wide as the prior, which no Dirichlet is that also allows for some. So,
    with μ = γ − α the expected number, a topic has none with probability about e^−μ, and
    μ/(1 − e^−μ) otherwise. Topics are drawn as sticks, theta_k = v_k ∏_{j<k} (1 − v_j), in the
    order of γ; under a Dirichlet v_k ~ Beta(γ_k, Σ_{j>k} γ_j) independently. Both parameters get
    the two values of the mixture. The ratio is bounded, since with at least a small probability
    both are the prior's.

    Args and returns are those of :func:`dirichlet_draws`.
    """
    rng = np.random.default_rng(list(key))
    order = gamma.argsort(stable=True)
    alpha = concentration[order]
    expected = (gamma[order] - alpha).clamp_min(1e-6)
    # Rows: a stick's own parameter, and that of the sticks after it.
    prior = torch.stack([alpha[:-1], _sums_after(alpha)])
    tokens = torch.stack([expected[:-1], _sums_after(expected)])
    share = DEFENSIVE_SHARE / prior.numel()
    some = -torch.expm1(-tokens)
    absent = torch.sigmoid(-ODDS_POWER * (tokens + some.log())).clamp(share, 1.0 - share)
    present = prior + tokens / some
    use_prior = torch.from_numpy(rng.random((num_samples, *prior.shape))).to(gamma) < absent
    shapes = torch.where(use_prior, prior, present)
    variates = log_gamma_variates(rng, shapes.cpu().numpy()).to(gamma.device)
    log_v = torch.log_softmax(variates, 1)
    # Densities of logit v, v^a (1 − v)^b / B(a, b), which no small v makes large.
    log_prior = _log_beta_density(log_v, prior)
    terms = [
        _log_beta_density(log_v, torch.stack([own, after])) + own_share.log() + after_share.log()
        for own, own_share in ((prior[0], absent[0]), (present[0], 1.0 - absent[0]))
        for after, after_share in ((prior[1], absent[1]), (present[1], 1.0 - absent[1]))
    ]
    log_ratio = (log_prior - torch.stack(terms).logsumexp(0)).sum(-1)
    rest = log_v[:, 1].cumsum(-1)
    sticks = torch.cat([log_v[:, :1, 0], log_v[:, 0, 1:] + rest[:, :-1], rest[:, -1:]], -1)
    log_theta = torch.empty_like(sticks)
    log_theta[:, order] = sticks
    return log_theta, log_ratio


def _sums_after(values: Tensor) -> Tensor:
    """Σ_{j>k} of each k but the last."""
    return values[1:].flip(0).cumsum(0).flip(0)


def _log_beta_density(log_v: Tensor, shapes: Tensor) -> Tensor:
    """Log density of logit v where v ~ Beta(shapes), from ``log_v`` = (log v, log(1 − v))."""
    return (log_v * shapes).sum(-2) - log_multivariate_beta(shapes.mT)
