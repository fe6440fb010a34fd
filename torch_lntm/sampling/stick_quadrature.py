"""Quadrature over the proportions of two or three topics with a Dirichlet prior."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.solvers.contrasts import log_likelihood_at
from torch_lntm.solvers.dirichlet import log_multivariate_beta
from torch_lntm.solvers.quadrature import NEGLIGIBLE


def dirichlet_marginal_by_quadrature(
    concentration: Tensor, gamma: Tensor, words: Tensor, counts: Tensor, num_points: int
) -> tuple[Tensor, Tensor]:
    """Integrates one document: log ∫ Dir(theta; α) p(document | theta) dtheta, by a trapezoid rule.

    In the logits x of sticks, theta_1 = v_1 and theta_2 = v_2 (1 − v_1): there the prior is a
    product of densities v^α (1 − v)^b, the Jacobian included, smooth for every α > 0, and as one
    topic or two vanish the likelihood tends to a function of one coordinate, so that all ridges
    that reach far lie along the axes. The grid is a product of sinh-spaced points around the
    posterior's mean. It reaches as far as anything can be: with f the log integrand, c the centre
    and U the document's log likelihood if every token had its best topic, the prior's density is at
    most e^(−min(α, b) |x|), and f(x) > f(c) − 40 bounds x.

    Args:
        concentration: ``(num_topics,)`` float64 α.
        gamma: ``(num_topics,)`` float64 γ of a Dirichlet posterior; it need not be accurate.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        counts: ``(nnz,)`` their counts.
        num_points: Points on each of the num_topics − 1 axes, odd.

    Returns:
        The log integral (scalar, nats), and its distance from that of every second point of each
        axis, which in practice is far more than the error.
    """
    after = concentration.flip(0).cumsum(0).flip(0)[1:]
    exponents = torch.stack([concentration[:-1], after], -1)
    gamma_after = gamma.flip(0).cumsum(0).flip(0)[1:]
    centre = gamma[:-1].log() - gamma_after.log()
    spread = _posterior_scale(gamma[:-1], gamma_after)

    def log_integrand(x: Tensor) -> tuple[Tensor, Tensor]:
        log_v, log_rest = F.logsigmoid(x), F.logsigmoid(-x)
        rest = log_rest.cumsum(-1)
        log_theta = torch.cat([log_v[:, :1], log_v[:, 1:] + rest[:, :-1], rest[:, -1:]], -1)
        log_prior = log_v @ exponents[:, 0] + log_rest @ exponents[:, 1]
        return log_likelihood_at(log_theta, words, counts), log_prior

    likelihood, log_prior = log_integrand(centre[None])
    best = words.amax(1).clamp_min(torch.finfo(words.dtype).tiny).log() @ counts
    depth = best - likelihood[0] - log_prior[0] + NEGLIGIBLE
    reach = depth / exponents.amin(-1) + centre.abs()
    ends = torch.asinh(reach / spread)
    unit = torch.linspace(-1.0, 1.0, num_points, dtype=centre.dtype, device=centre.device)
    axes = unit[:, None] * ends
    nodes = torch.cartesian_prod(*axes.unbind(-1)).reshape(-1, len(centre))
    likelihood, log_prior = log_integrand(centre + spread * nodes.sinh())
    values = (likelihood + log_prior + nodes.cosh().log().sum(-1)).reshape(
        [num_points] * len(centre)
    )
    coarse = values[(slice(None, None, 2),) * len(centre)]
    log_step = (spread * (axes[1] - axes[0])).log().sum() - log_multivariate_beta(concentration)
    fine_value = values.flatten().logsumexp(0) + log_step
    coarse_value = coarse.flatten().logsumexp(0) + log_step + len(centre) * math.log(2.0)
    return fine_value, (fine_value - coarse_value).abs()


def _posterior_scale(own: Tensor, after: Tensor) -> Tensor:
    """Standard deviation of the logit of Beta(own, after), at most the logistic function's own."""
    return (torch.polygamma(1, own) + torch.polygamma(1, after)).sqrt().clamp_max(1.0)
