"""Quadrature over the one or two contrasts of two or three topics."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lntm.solvers.contrasts import ContrastPrior, log_likelihood_at

#: Nats below the integrand's value at the centre beyond which it counts as nothing.
NEGLIGIBLE = 40.0


def marginal_by_quadrature(
    prior: ContrastPrior,
    loc: Tensor,
    tril: Tensor,
    words: Tensor,
    counts: Tensor,
    num_points: int,
) -> tuple[Tensor, Tensor]:
    """Integrates one document: log ∫ N(w; 0, I) p(document | w) dw, by a trapezoid rule.

    The grid is a product of sinh-spaced points around ``loc``, in units of ``tril``: as fine as
    the posterior where that is, and coarser in proportion with the distance from it. It reaches as
    far as anything can be: with f the log integrand and U the document's log likelihood if every
    token had its best topic, f(w) > f(loc) − 40 implies |w|² < 2(U − f(loc) + 40).

    Args:
        prior: The prior.
        loc: ``(dim,)`` centre of the posterior; a guide's mean will do.
        tril: ``(dim, dim)`` scale of the posterior; it need not be accurate.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        counts: ``(nnz,)`` their counts.
        num_points: Points on each axis, odd.

    Returns:
        The log integral (scalar, nats), and its distance from that of every second point of each
        axis, which in practice is far more than the error.
    """
    likelihood_at_loc = log_likelihood_at(prior.logits(loc[None]), words, counts)[0]
    best = words.amax(1).clamp_min(torch.finfo(words.dtype).tiny).log() @ counts
    at_loc = likelihood_at_loc - 0.5 * loc.square().sum()
    radius = (2.0 * (best - at_loc + NEGLIGIBLE)).sqrt() + torch.linalg.vector_norm(loc)
    reach = radius * torch.linalg.matrix_norm(torch.linalg.inv(tril), 2)
    axis = torch.asinh(reach) * torch.linspace(-1.0, 1.0, num_points).to(loc)
    step = axis[1] - axis[0]
    nodes = torch.cartesian_prod(*[axis] * prior.dim).reshape(-1, prior.dim)
    w = loc + nodes.sinh() @ tril.mT
    log_integrand = (
        log_likelihood_at(prior.logits(w), words, counts)
        - 0.5 * (w.square().sum(-1) + prior.dim * math.log(2.0 * math.pi))
        + nodes.cosh().log().sum(-1)
        + tril.diagonal().log().sum()
    ).reshape([num_points] * prior.dim)
    coarse = log_integrand[(slice(None, None, 2),) * prior.dim]
    fine_value = log_integrand.flatten().logsumexp(0) + prior.dim * step.log()
    coarse_value = coarse.flatten().logsumexp(0) + prior.dim * (2.0 * step).log()
    return fine_value, (fine_value - coarse_value).abs()
