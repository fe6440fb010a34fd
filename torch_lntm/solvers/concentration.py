"""The Dirichlet concentration that fits the topic proportions of some documents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torch_lntm.posteriors.dirichlet import log_multivariate_beta

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
    """Expected log density of theta up to a constant, from E log theta = ``target``."""
    return (alpha * target).sum() - log_multivariate_beta(alpha)
