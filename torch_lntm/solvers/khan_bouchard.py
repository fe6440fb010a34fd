"""The full-covariance posterior of Khan & Bouchard (2009) on the tangent bound."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior, inverse_cholesky
from torch_lntm.solvers.mean import Objective, maximise_mean
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate

MEAN_STEPS = 3


def khan_bouchard(
    batch: DocumentBatch,
    topics: Tensor,
    prior: GaussianPrior,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    temperature: float = 1.0,
) -> GaussianPosterior:
    """Solve q(eta) = N(m, V), V full, by coordinate ascent on the tangent bound.

    *Khan & Bouchard 2009, eqs 33–38* (34 prints μ_d for m_d; in 35 and 37 the exponential is a
    vector). At the optimum V⁻¹ = Σ⁻¹ + diag d with d_k = (N/ξ) exp(m_k + V_kk/2): num_topics
    unknowns, updated one at a time. For each, with the others fixed, V_kk = x solves
    1/x = p + (N/ξ) exp(m_k + x/2), p = 1/V_kk − d_k, and V changes by a rank-one term. The plain
    fixed point in d diverges on wide priors; this never lowers the bound.

    Arguments as for :func:`~torch_lntm.solvers.blei_lafferty.blei_lafferty`; the covariance
    returned is T·V, the untempered one, for V at its tempered optimum.

    Returns:
        The posterior; its objective is the tangent bound on log p(w) (tempered if T is not 1).
    """
    z = prior.whiten(start)
    num_docs = batch.num_docs
    # As if every topic were equally likely; without data d = 0 and V = Σ. V = Σ is a bad start
    # where it is wide: with ξ held fixed it takes hundreds of rounds to come down from.
    data = (batch.lengths[:, None] / topics.shape[0]).expand_as(z).clone()
    whitened = inverse_cholesky(_whitened_precision(prior, data), batch.index)
    bound = torch.full((num_docs,), -torch.inf, dtype=torch.float64, device=z.device)
    iterations = torch.zeros_like(batch.index)
    converged = torch.zeros_like(bound, dtype=torch.bool)
    rows, current = torch.arange(num_docs, device=z.device), batch
    noise_scale = 4.0 * torch.finfo(z.dtype).eps
    for iteration in range(max_iterations):
        covariance = _covariance(prior, whitened[rows])
        half = prior.lift(covariance.diagonal(dim1=-2, dim2=-1) / (2.0 * temperature))
        objective = Objective(current, topics, prior, half, temperature)
        position, value, _, _ = maximise_mean(
            objective, z[rows], tolerance=0.1 * tolerance, max_iterations=MEAN_STEPS
        )
        z[rows] = position
        new_bound = value + 0.5 * _covariance_terms(whitened[rows], temperature)
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
            rows, current = rows[keep], current.select(keep)
            position, half, covariance = position[keep], half[keep], covariance[keep]
        logits = prior.lift(prior.unwhiten(position))
        log_rate = log_mean_rate(logits, half, current.lengths)[:, : prior.dim]
        updated = _sweep(covariance, data[rows], log_rate, 0.5 / temperature)
        data[rows] = updated
        whitened[rows] = inverse_cholesky(_whitened_precision(prior, updated), current.index)
    return GaussianPosterior(
        prior, prior.unwhiten(z), converged, iterations, bound, whitened=whitened
    )


def _whitened_precision(prior: GaussianPrior, data: Tensor) -> Tensor:
    """I + Lᵀ diag(d) L with its coordinates reversed ``(num_docs, dim, dim)``."""
    scale = prior.scale.flip(1)
    precision = scale.mT @ (data[..., None] * scale)
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


def _covariance(prior: GaussianPrior, whitened: Tensor) -> Tensor:
    """V from the inverse Cholesky factor of its whitened precision ``(num_docs, dim, dim)``."""
    root = prior.scale.flip(1) @ whitened.mT
    return root @ root.mT


def _sweep(covariance: Tensor, data: Tensor, log_rate: Tensor, exponent: float) -> Tensor:
    """One pass over the coordinates at fixed ξ; overwrites ``covariance``, returns the new d."""
    data = data.clone()
    for k in range(covariance.shape[-1]):
        column = covariance[:, :, k].clone()
        present = column[:, k]
        # 1/V_kk > d_k exactly; rounding can put the difference at or below 0.
        epsilon = torch.finfo(present.dtype).eps
        rest = torch.maximum(1.0 / present - data[:, k], epsilon / present)
        x = inverse_mean_root(rest, log_rate[:, k], exponent)
        change = 1.0 / x - rest - data[:, k]
        data[:, k] += change
        scale = change / (1.0 + change * present)
        covariance.baddbmm_(column[:, :, None] * -scale[:, None, None], column[:, None, :])
    return data.clamp_min_(0.0)


def _covariance_terms(whitened: Tensor, temperature: float) -> Tensor:
    """Twice the bound's terms in V that the mean's objective lacks ``(num_docs,)`` float64.

    (dim + log|V|)/T − log|Σ|/T − tr Σ⁻¹V with V = LWLᵀ/T, W the whitened covariance, up to a
    constant in T and Σ that is 0 at T = 1.
    """
    x = whitened.double()
    log_det = 2.0 * x.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    trace = x.square().sum((-2, -1)) / temperature
    dim = x.shape[-1]
    entropy = (log_det - dim * torch.log(x.new_tensor(temperature)) + dim) / temperature
    return entropy - trace
