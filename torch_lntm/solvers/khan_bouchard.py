"""The full-covariance posterior of Khan & Bouchard (2009) on the tangent bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.linalg import inverse_cholesky
from torch_lntm.latents.normal import NormalSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.special import inverse_mean_root
from torch_lntm.solvers.tangent import maximise_tangent_bound


@in_sufficient_precision
def khan_bouchard(
    batch: DocumentBatch,
    topics: Tensor,
    space: NormalSpace,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    temperature: float = 1.0,
) -> NormalPosterior:
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
    # As if every topic were equally likely; without data d = 0 and V = Σ. V = Σ is a bad start
    # where it is wide: with ξ held fixed it takes very many rounds to come down from.
    data = (batch.lengths[:, None] / topics.shape[0]).expand_as(start).clone()
    whitened = _inverse_root(space, data, batch.index)
    variances = _Full(space, data, whitened, temperature)
    found = maximise_tangent_bound(
        batch,
        topics,
        space,
        variances,
        start=start,
        tolerance=tolerance,
        max_iterations=max_iterations,
        temperature=temperature,
    )
    return NormalPosterior(
        space=space,
        mean=space.unwhiten(found.z),
        index=batch.index,
        converged=found.converged,
        iterations=found.iterations,
        objective=found.bound,
        whitened=variances.whitened,
    )


@dataclass
class _Full:
    """T·V = (Σ⁻¹ + diag d)⁻¹; ``data`` ``(num_docs, dim)`` is d, ``whitened`` the posterior's."""

    space: NormalSpace
    data: Tensor
    whitened: Tensor
    temperature: float

    def covariance(self, rows: Tensor) -> Tensor:
        root = self.space.scale.flip(1) @ self.whitened[rows].mT
        return root @ root.mT

    def marginal(self, rows: Tensor) -> Tensor:
        return (self.space.scale.flip(1) @ self.whitened[rows].mT).square().sum(-1)

    def bound_terms(self, rows: Tensor) -> Tensor:
        """½ [(dim + log|V| − log|Σ|)/T − tr Σ⁻¹V], up to a constant in T and Σ, 0 at T = 1."""
        x = self.whitened[rows].double()
        dim = x.shape[-1]
        log_det = 2.0 * x.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        entropy = (log_det + dim * (1.0 - math.log(self.temperature))) / self.temperature
        return 0.5 * (entropy - x.square().sum((-2, -1)) / self.temperature)

    def update(self, rows: Tensor, log_rate: Tensor, index: Tensor) -> None:
        data = self.data[rows]
        _sweep(self.covariance(rows), data, log_rate, 0.5 / self.temperature)
        self.data[rows] = data
        # V is computed afresh after every sweep, so that rounding does not add up.
        self.whitened[rows] = _inverse_root(self.space, data, index)


def _inverse_root(space: NormalSpace, data: Tensor, index: Tensor) -> Tensor:
    """R⁻¹ for the Cholesky factors R of the whitened precisions ``(num_docs, dim, dim)``."""
    return inverse_cholesky(
        _whitened_precision(space, data),
        index,
        lambda rows: _whitened_precision(space.to(torch.float64), data[rows].double()),
    )


def _whitened_precision(space: NormalSpace, data: Tensor) -> Tensor:
    """I + Lᵀ diag(d) L with its coordinates reversed ``(num_docs, dim, dim)``."""
    scale = space.scale.flip(1)
    precision = scale.mT @ (data[..., None] * scale)
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


def _sweep(covariance: Tensor, data: Tensor, log_rate: Tensor, exponent: float) -> None:
    """One pass over the coordinates at fixed ξ; overwrites ``covariance`` and ``data``."""
    epsilon = torch.finfo(data.dtype).eps
    for k in range(covariance.shape[-1]):
        column = covariance[:, :, k].clone()
        present = column[:, k]
        # 1/V_kk > d_k exactly; rounding can put the difference at or below 0.
        rest = torch.maximum(1.0 / present - data[:, k], epsilon / present)
        x = inverse_mean_root(rest, log_rate[:, k], exponent)
        change = 1.0 / x - rest - data[:, k]
        data[:, k] += change
        scale = change / (1.0 + change * present)
        covariance.baddbmm_(column[:, :, None] * -scale[:, None, None], column[:, None, :])
    data.clamp_min_(0.0)
