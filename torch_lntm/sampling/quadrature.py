"""Quadrature over the one or two contrasts of two or three topics."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lntm.solvers.contrasts import ContrastPrior, log_likelihood_at

#: Nats below the integrand's value at the centre beyond which it counts as nothing.
NEGLIGIBLE = 40.0
#: Distance of the points at the centre, in standard deviations of the posterior as given. A third
#: would do for a normal integrand; the ridges and second modes of real ones can be ten times finer.
CENTRAL_STEP = 0.03


def marginal_by_quadrature(
    prior: ContrastPrior,
    loc: Tensor,
    tril: Tensor,
    words: Tensor,
    counts: Tensor,
    num_points: int,
) -> tuple[Tensor, Tensor]:
    """Integrates one document: log ∫ N(w; 0, I) p(document | w) dw, by a trapezoid rule.

    The grid is a product of sinh-spaced points around ``loc``, in units of ``tril``: evenly spaced
    if that covers all, else coarser in proportion with the distance. It reaches as far as anything
    can be: with f the log integrand and U the document's log likelihood if every
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
    spread = _spread(float(reach), CENTRAL_STEP * (num_points - 1) / 2)
    end = math.asinh(float(reach) / spread)
    axis = torch.linspace(-end, end, num_points, dtype=loc.dtype, device=loc.device)
    step = axis[1] - axis[0]
    nodes = torch.cartesian_prod(*[axis] * prior.dim).reshape(-1, prior.dim)
    w = loc + spread * nodes.sinh() @ tril.mT
    log_integrand = (
        log_likelihood_at(prior.logits(w), words, counts)
        - 0.5 * (w.square().sum(-1) + prior.dim * math.log(2.0 * math.pi))
        + nodes.cosh().log().sum(-1)
        + (spread * tril.diagonal()).log().sum()
    ).reshape([num_points] * prior.dim)
    coarse = log_integrand[(slice(None, None, 2),) * prior.dim]
    fine_value = log_integrand.flatten().logsumexp(0) + prior.dim * step.log()
    coarse_value = coarse.flatten().logsumexp(0) + prior.dim * (2.0 * step).log()
    return fine_value, (fine_value - coarse_value).abs()


def _spread(reach: float, target: float) -> float:
    """The s at which points s·sinh(t), t evenly spaced up to asinh(reach/s), have the right step.

    Args:
        reach: Distance of the last point from the centre.
        target: Distance it would have if all steps were as long as that at the centre.

    Returns:
        s with s·asinh(reach/s) = target, or so large that the points are evenly spaced in effect.
    """
    low, high = 0.0, 1e4 * reach
    for _ in range(100):
        middle = (low + high) / 2.0
        if middle == 0.0 or middle * math.asinh(reach / middle) < target:
            low = middle
        else:
            high = middle
    return high
