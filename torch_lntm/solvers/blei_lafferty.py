"""The diagonal posterior of Blei & Lafferty (Ahmed & Xing 2007, §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior
from torch_lntm.solvers.mean import Objective, maximise_mean
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate

MEAN_STEPS = 3


def blei_lafferty(
    batch: DocumentBatch,
    topics: Tensor,
    prior: GaussianPrior,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    temperature: float = 1.0,
    start_std: Tensor | None = None,
) -> GaussianPosterior:
    """Solve q(eta) = N(λ, diag ν²) by coordinate ascent on the tangent bound.

    *Ahmed & Xing 2007, eqs 13–15; Khan & Bouchard 2009, eqs 33–38 with V diagonal.* Rounds of a few
    ascent steps in λ, then ν² for the present ζ = Σ_k exp(λ_k + ν_k²/2), each coordinate exactly;
    responsibilities and ζ are always at their optimum. No update lowers the bound.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``temperature`` is not 1.
        prior: Prior of eta.
        start: ``(num_docs, dim)`` starting means.
        tolerance: Gain of the bound per round, nats, at which a document has converged.
        max_iterations: Bound on the rounds.
        temperature: Inverse temperature T. The variance returned is T·ν², the untempered one,
            for ν at its tempered optimum.
        start_std: ``(num_docs, dim)`` standard deviations to start from.

    Returns:
        The posterior; its objective is the tangent bound on log p(w) (tempered if T is not 1).
    """
    diagonal = prior.precision.diagonal()
    if start_std is None:
        # As if every topic were equally likely. The prior's own variance is a bad start where it is
        # wide: with ζ held fixed it takes hundreds of rounds to come down from.
        variance = 1.0 / (diagonal + batch.lengths[:, None] / topics.shape[0])
    else:
        variance = start_std.square()
    z = prior.whiten(start)
    bound = torch.full((batch.num_docs,), -torch.inf, dtype=torch.float64, device=z.device)
    iterations = torch.zeros_like(batch.index)
    converged = torch.zeros_like(bound, dtype=torch.bool)
    rows, current = torch.arange(batch.num_docs, device=z.device), batch
    noise_scale = 4.0 * torch.finfo(z.dtype).eps
    for iteration in range(max_iterations):
        # z is the mean's whitened position; ν enters the mean's objective as half its variance.
        half = prior.lift(variance[rows] / (2.0 * temperature))
        objective = Objective(current, topics, prior, half, temperature)
        position, value, _, _ = maximise_mean(
            objective, z[rows], tolerance=0.1 * tolerance, max_iterations=MEAN_STEPS
        )
        z[rows] = position
        new_bound = value + 0.5 * _variance_terms(variance[rows], diagonal, prior, temperature)
        gain = new_bound - bound[rows]
        bound[rows] = new_bound
        iterations[rows] += 1
        allowed = (noise_scale * new_bound.abs()).clamp_min(tolerance)
        done = gain <= allowed
        # A bound that fell by more than that is a failure, not convergence.
        converged[rows] = done & (gain >= -allowed)
        # The last round ends with the mean, so that the bound is the posterior's.
        if bool(done.all()) or iteration + 1 == max_iterations:
            break
        keep = (~done).nonzero().squeeze(-1)
        if len(keep) < len(rows):
            rows, current, position, half = (
                rows[keep],
                current.select(keep),
                position[keep],
                half[keep],
            )
        logits = prior.lift(prior.unwhiten(position))
        log_rate = log_mean_rate(logits, half, current.lengths)[:, : prior.dim]
        precision = diagonal.expand_as(log_rate)
        variance[rows] = inverse_mean_root(precision, log_rate, 0.5 / temperature)
    return GaussianPosterior(
        prior, prior.unwhiten(z), converged, iterations, bound, std=variance.sqrt()
    )


def _variance_terms(
    variance: Tensor, diagonal: Tensor, prior: GaussianPrior, temperature: float
) -> Tensor:
    """Twice the bound's terms in ν² that the mean's objective lacks ``(num_docs,)`` float64.

    Σ_k [(1 + log ν_k²)/T − P_kk ν_k²] − log|Σ| with ν² = variance / T, up to a constant in T that
    is 0 at T = 1.
    """
    variance = variance.double()
    nu = variance / temperature
    log_det = 2.0 * prior.tril.diagonal().log().sum()
    entropy = (nu.log() + 1.0).sum(-1) / temperature
    return entropy - (nu * diagonal.double()).sum(-1) - log_det
