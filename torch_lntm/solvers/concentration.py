"""The best Dirichlet concentration for the topic proportions of a set of documents."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torch_lntm.posteriors.dirichlet import log_multivariate_beta

#: Limits of :func:`fit_concentration`: least component, and largest sum.
SMALLEST_CONCENTRATION = 1e-8
LARGEST_TOTAL_CONCENTRATION = 1e6


def fit_concentration(mean_log_theta: Tensor, start: Tensor, *, symmetric: bool) -> Tensor:
    """The Dirichlet concentration of highest likelihood, given documents' mean log theta.

    Maximises log Γ(Σα) − Σ_k log Γ(α_k) + Σ_k (α_k − 1) m_k over α, with m the mean over documents
    of E log theta. This is *Minka & Lafferty 2002, eq. 30* (with n the number of documents), the
    maximum of the bound at fixed q(theta). Their eq. 28 fixes the responsibilities instead and lets
    q(theta) follow α. Under variational Bayes its maximum over α is a larger step to the same fixed
    point, but it does not apply to expectation propagation.

    The objective is concave, and its Hessian is a diagonal plus a constant, so that a Newton step
    costs O(K) (Minka 2001a, *Estimating a Dirichlet distribution*). The step is taken in log α,
    which keeps α positive, and is shortened until the objective rises.

    Args:
        mean_log_theta: ``(num_topics,)`` m.
        start: ``(num_topics,)`` positive starting α.
        symmetric: Whether all α_k are equal. The mean of m then replaces m.

    Returns:
        ``(num_topics,)`` float64 α. If all documents have equal theta, the maximum is at infinity,
        so the sum is limited to 1e6, with standard deviations of theta below 5e-4. Every component
        is at least 1e-8.

    Example:
        >>> from torch_lntm.solvers.concentration import fit_concentration
        >>> mean_log_theta = torch.full((2,), -1.38629)  # E log theta of Dirichlet(0.5, 0.5)
        >>> alpha = fit_concentration(mean_log_theta, torch.ones(2), symmetric=True)
        >>> alpha.round(decimals=2).tolist()
        [0.5, 0.5]
    """
    target, log_alpha = mean_log_theta.double(), start.double().log()
    if symmetric:
        # For equal targets, the maximum over all α and every step to it are symmetric.
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
        step = (newton / alpha).nan_to_num(0.0)  # a single topic gives 0 / 0
        length = 1.0
        while length > 1e-9:
            trial = _within_limits(alpha.log() + length * step)
            trial_value = _concentration_objective(trial, target)
            if bool(trial_value > value):
                break
            length *= 0.5
        else:
            # Close to the maximum the objective is flat to rounding, and the gradient is not.
            # Newton steps in log alpha below this size are made without a rise of the objective.
            # The rise is about the square of the step.
            if float(step.abs().max()) < 1e-6:
                alpha = _within_limits(alpha.log() + step)
            break
        alpha, value = trial, trial_value
    return alpha


def _within_limits(log_alpha: Tensor) -> Tensor:
    """α within the limits. If the sum is too large, the proportions are kept."""
    excess = torch.logsumexp(log_alpha, -1) - np.log(LARGEST_TOTAL_CONCENTRATION)
    return (log_alpha - excess.clamp_min(0.0)).exp().clamp_min(SMALLEST_CONCENTRATION)


def _concentration_objective(alpha: Tensor, target: Tensor) -> Tensor:
    """Expected log density of theta up to a constant, from E log theta = ``target``."""
    return (alpha * target).sum() - log_multivariate_beta(alpha)
