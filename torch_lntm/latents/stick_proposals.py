"""Logits of broken sticks: their beta distributions, and draws for importance sampling.

Under Dirichlet(a) the sticks v_k in theta_k = v_k ∏_{j<k} (1 − v_j) are independent, and v_k ~
Beta(a_k, Σ_{j>k} a_j). All densities here are of x = logit v, v^a (1 − v)^b / B(a, b). They are
bounded as v goes to 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_lntm.latents.proposals import log_gamma_variates

#: Least probability of drawing from the prior rather than the posterior, summed over sticks and
#: their two ends. It bounds the importance weights.
DEFENSIVE_SHARE = 0.05
#: Power of the odds of a topic's absence. A power below 1 draws rare cases more often than they
#: occur, with small weights rather than large weights.
ODDS_POWER = 0.7


def stick_parameters(concentration: Tensor) -> Tensor:
    """Beta parameters of the sticks of Dirichlet(α): α_k and Σ_{j>k} α_j.

    Args:
        concentration: ``(..., num_topics)`` α in the order of the sticks.

    Returns:
        ``(2, ..., num_topics - 1)``.
    """
    after = concentration[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return torch.stack([concentration[..., :-1], after])


def log_beta(parameters: Tensor) -> Tensor:
    """Log beta function log B(a, b) ``(...)`` of parameters ``(2, ...)``."""
    own, after = parameters
    return torch.lgamma(own) + torch.lgamma(after) - torch.lgamma(own + after)


def mixture_draws(
    concentration: Tensor, gamma: Tensor, num_samples: int, key: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Draws of a mixture around Dirichlet(γ) in which every topic may be absent.

    The posterior of theta_k is a mixture over the number of the document's tokens of topic k. Given
    no token, it is as wide as the prior. A single Dirichlet also covers the case of some tokens and
    is narrower. Let μ = γ − α be the expected number of tokens. The mixture gives a topic no token
    with probability about e^−μ, and μ/(1 − e^−μ) tokens otherwise. Both parameters of every stick's
    beta distribution take the two values of the mixture. With at least a small probability both are
    the parameters of the prior, so the ratio of the prior to the mixture is bounded.

    Args:
        concentration: ``(num_topics,)`` float64 α, in the order of the sticks.
        gamma: ``(num_topics,)`` float64 γ in the order of the sticks. Ascending γ gives the best
            fit.
        num_samples: Number of draws.
        key: Seed of the generator, as for :class:`~torch_lntm.latents.proposals.Proposal`.

    Returns:
        Logits of the sticks ``(num_samples, num_topics - 1)`` and their log densities
        ``(num_samples,)``.
    """
    rng = np.random.default_rng(list(key))
    prior = stick_parameters(concentration)
    tokens = stick_parameters((gamma - concentration).clamp_min(1e-6))
    share = DEFENSIVE_SHARE / max(1, prior.numel())
    # P(some token) = 1 − e^−μ. The log odds of absence are −log(e^μ − 1) = −(μ + log(1 − e^−μ)).
    prob_some = -torch.expm1(-tokens)
    absent = torch.sigmoid(-ODDS_POWER * (tokens + prob_some.log())).clamp(share, 1.0 - share)
    present = prior + tokens / prob_some
    use_prior = torch.from_numpy(rng.random((num_samples, *prior.shape))).to(gamma) < absent
    shapes = torch.where(use_prior, prior, present)
    variates = log_gamma_variates(rng, shapes.cpu().numpy()).to(gamma.device)
    log_v = torch.log_softmax(variates, 1)
    terms = [
        _log_density(log_v, torch.stack([own, after])) + own_share.log() + after_share.log()
        for own, own_share in ((prior[0], absent[0]), (present[0], 1.0 - absent[0]))
        for after, after_share in ((prior[1], absent[1]), (present[1], 1.0 - absent[1]))
    ]
    return variates[:, 0] - variates[:, 1], torch.stack(terms).logsumexp(0).sum(-1)


def _log_density(log_v: Tensor, parameters: Tensor) -> Tensor:
    """Log density of each logit ``(num_samples, n)``, from log v and log(1 − v) on axis 1."""
    return (log_v * parameters).sum(1) - log_beta(parameters)
