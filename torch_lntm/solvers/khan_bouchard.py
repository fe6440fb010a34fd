"""The full-covariance posterior of Khan & Bouchard (2009) on the tangent bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.linalg import inverse_cholesky
from torch_lntm.latents.normal import NormalSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.tangent import maximise_tangent_bound


@in_sufficient_precision
def khan_bouchard(
    batch: DocumentBatch, topics: Tensor, space: NormalSpace, options: SolveOptions
) -> NormalPosterior:
    """Solve q(eta) = N(m, V), V full, by coordinate ascent on the tangent bound.

    *Khan & Bouchard 2009, eqs 33–38* (34 prints μ_d for m_d; in 35 and 37 the exponential is a
    vector; step 3 of Algorithm 1 prints s_vt log β_vt for the shares s_vt of the topics in a word).
    At the optimum V⁻¹ = Σ⁻¹ + N diag p with p = softmax(m + diag V / 2), so V has only
    num_topics unknowns. For given m they minimise the convex dual of the bound,

        −½ log|Σ⁻¹ + N diag p| + N Σ_k p_k (log p_k − m_k)   over Σ_k p_k = 1.

    Newton's method finds the minimum, including ξ, in a few steps from anywhere. The plain fixed
    point in p would diverge for wide priors, and the paper's updates of single coordinates cost
    num_topics updates of V.

    Arguments as for :func:`~torch_lntm.solvers.blei_lafferty.blei_lafferty`. The returned
    covariance is T·V, the untempered covariance, for V at its tempered optimum.

    Returns:
        The posterior. Its objective is the tangent bound on log p(w), tempered if T is not 1.
    """
    # Start with equally likely topics.
    share = torch.full_like(space.lift(options.start), -math.log(topics.shape[0]))
    whitened = _inverse_root(space, batch.lengths, batch.index, share)
    # An update of V ends within a tenth of a round's tolerance from the maximum of its bound.
    tolerance = 0.1 * options.tolerance
    variances = _Full(space, share, whitened, options.inverse_temperature, tolerance)
    means = maximise_tangent_bound(batch, topics, space, variances, options)
    return NormalPosterior.around(means, whitened=variances.whitened)


@dataclass
class _Full:
    """Full covariances T·V = (Σ⁻¹ + N diag p)⁻¹.

    Attributes:
        space: The prior.
        log_p: ``(num_docs, num_topics)`` log p, normalised.
        whitened: Whitened factors, as in :class:`~torch_lntm.posteriors.NormalPosterior`.
        inverse_temperature: T.
        tolerance: Largest distance of the bound from its maximum over V after an update, nats.
    """

    space: NormalSpace
    log_p: Tensor
    whitened: Tensor
    inverse_temperature: float
    tolerance: float

    def marginal(self, rows: Tensor) -> Tensor:
        return _root(self.space, self.whitened[rows]).square().sum(-1)

    def bound_terms(self, rows: Tensor) -> Tensor:
        """½ [(dim + log|V| − log|Σ|)/T − tr Σ⁻¹V], up to a constant in T and Σ, 0 at T = 1."""
        x = self.whitened[rows].double()
        dim, t = x.shape[-1], self.inverse_temperature
        entropy = (_log_det(x) + dim * (1.0 - math.log(t))) / t
        return 0.5 * (entropy - x.square().sum((-2, -1)) / t)

    def update(self, rows: Tensor, batch: DocumentBatch, logits: Tensor) -> None:
        dual = _Dual(self.space, batch.lengths, batch.index, logits, 0.5 / self.inverse_temperature)
        point = dual.at(self.log_p[rows], self.whitened[rows])
        dual.minimise_(point, self.tolerance)
        self.log_p[rows], self.whitened[rows] = point.log_p, point.whitened


class _Point(NamedTuple):
    """The dual at some p: its ``value`` (float64) and the quantities of each document there."""

    log_p: Tensor
    whitened: Tensor
    covariance: Tensor
    target: Tensor
    gap: Tensor
    value: Tensor


@dataclass
class _Dual:
    """The dual of the bound in V of some documents, for given means; ``half`` is ½/T.

    Its minimum is at p = softmax(m + half · diag T·V), the target. The gap is an upper bound on the
    distance of the bound at V from its maximum: N times the Kullback–Leibler divergence of p from
    the target.
    """

    space: NormalSpace
    lengths: Tensor
    index: Tensor
    logits: Tensor
    half: float

    def select(self, rows: Tensor) -> _Dual:
        """The dual of some of the documents."""
        parts = (self.lengths[rows], self.index[rows], self.logits[rows])
        return _Dual(self.space, *parts, self.half)

    def at(self, log_p: Tensor, whitened: Tensor | None = None) -> _Point:
        """The dual at p, with the posterior's whitened factor computed if None."""
        if whitened is None:
            whitened = _inverse_root(self.space, self.lengths, self.index, log_p)
        root = _root(self.space, whitened)
        covariance = root @ root.mT
        variance = self.space.lift(covariance.diagonal(dim1=-2, dim2=-1))
        target = torch.log_softmax(self.logits + self.half * variance, -1)
        p, log_ratio = log_p.exp(), target - log_p
        # No term is negative, so rounding does not hide a small sum. e^80 is finite in float32.
        surplus = torch.expm1(log_ratio.clamp_max(80.0)) - log_ratio
        gap = self.lengths * (p * surplus).sum(-1)
        value = self.lengths.double() * (p * (log_p - self.logits)).sum(-1, dtype=torch.float64)
        value += self.half * _log_det(whitened.double())
        return _Point(log_p, whitened, covariance, target, gap, value)

    def minimise_(self, point: _Point, tolerance: float) -> None:
        """Move ``point`` by Newton steps until no gap exceeds ``tolerance`` nats."""
        # The gap that log p has from rounding alone, if it is off by 100 units.
        rounding = (100.0 * torch.finfo(point.gap.dtype).eps) ** 2 * self.lengths
        largest_gap = rounding.clamp_min(tolerance)
        step = torch.ones_like(self.logits[:, :1])
        # From a distant start an update of V takes about 10 Newton steps.
        for _ in range(30):
            rows = (point.gap > largest_gap).nonzero().squeeze(-1)
            if not len(rows):
                break
            current, dual = _Point(*(part[rows] for part in point)), self.select(rows)
            change = step[rows] * dual._newton(current)
            log_p = current.log_p + change.clamp(-10.0, 10.0)
            trial = dual.at(torch.log_softmax(log_p, -1))
            better = (trial.value <= current.value) | (trial.gap <= largest_gap[rows])
            step[rows] *= torch.where(better, 2.0, 0.5)[:, None]
            step.clamp_max_(1.0)
            for values, old, new in zip(point, current, trial, strict=True):
                values[rows] = torch.where(better.view(-1, *(1,) * (new.dim() - 1)), new, old)

    def _newton(self, point: _Point) -> Tensor:
        """Newton's step over p ``(num_docs, num_topics)``, to be applied to log p.

        The step solves the Lagrangian's equations

            (half N (T·V)∘(T·V) + diag 1/p) δ = target − log p + λ,    Σ δ_k = 0.

        For small variances p becomes the target. Only a step in log p gets there at once.
        """
        p = point.log_p.exp()
        root = p.sqrt()
        dim = self.space.dim
        curvature = point.covariance.square() * (self.half * self.lengths)[:, None, None]
        scaled = root[:, :dim, None] * curvature * root[:, None, :dim]
        scaled.diagonal(dim1=-2, dim2=-1).add_(1.0)
        chol = torch.linalg.cholesky_ex(scaled).L
        right_hand_side = torch.stack([point.target - point.log_p, torch.ones_like(p)], -1)
        # The products avoid 1/p, which may be infinite.
        solved = torch.cholesky_solve(root[:, :dim, None] * right_hand_side[:, :dim], chol)
        solution = right_hand_side.clone()
        solution[:, :dim] -= curvature @ (root[:, :dim, None] * solved)
        gain, slack = (p[..., None] * solution).sum(-2, keepdim=True).unbind(-1)
        return solution[..., 0] - gain / slack * solution[..., 1]


def _root(space: NormalSpace, whitened: Tensor) -> Tensor:
    """Roots C of T·V = CCᵀ ``(num_docs, dim, dim)``, from the posterior's whitened factors."""
    return space.scale.flip(1) @ whitened.mT


def _log_det(whitened: Tensor) -> Tensor:
    """Log |T·V| − log |Σ|."""
    return 2.0 * whitened.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _inverse_root(space: NormalSpace, lengths: Tensor, index: Tensor, log_p: Tensor) -> Tensor:
    """R⁻¹ for the Cholesky factors R of the whitened precisions ``(num_docs, dim, dim)``."""
    data = lengths[:, None] * log_p[:, : space.dim].exp()
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
