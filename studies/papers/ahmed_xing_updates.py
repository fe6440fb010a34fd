"""The two algorithms compared by Ahmed & Xing (2007), update by update as printed.

The package's guides reach the same fixed points by different routes: they ascend, with a line
search, on objectives with topic responsibilities always at the optimum. The number of iterations is
a property of the updates. The paper's counts are therefore compared with counts of these updates.
The code is plain and dense; use the guides to fit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.mixture import expected_counts
from torch_lntm.latents import NormalSpace
from torch_lntm.posteriors import NormalPosterior

#: Newton decrement at the end of the numerical maximisation in λ, nats.
_NEWTON_TOLERANCE = 1e-6
_NEWTON_STEPS = 50
_HALVINGS = 30
#: Relative change of ν² at the end of its Newton iteration.
_ROOT_TOLERANCE = 1e-14
#: Largest change of a coordinate of λ in a Newton step: the objective has an exponential in it.
_LARGEST_STEP = 3.0


def taylor_as_printed(
    batch: DocumentBatch,
    topics: Tensor,
    space: NormalSpace,
    *,
    relative_tolerance: float,
    max_iterations: int,
) -> NormalPosterior:
    """The fixed-point iteration of *Ahmed & Xing 2007, eqs 9, 10 and 12*, undamped.

    One iteration is eq. 12 (the responsibilities, through the topic counts) and then eqs 9 and 10.
    The iteration is no ascent, and on some documents it never settles.

    Args:
        batch: Documents, in the dtype of ``space.loc``; float64 to see a relative change of 1e-6.
        topics: ``(num_topics, num_words)``.
        space: The prior of eta in whitened coordinates. All documents share one mean and start
            there.
        relative_tolerance: Relative change of the objective between iterations at convergence.
        max_iterations: Bound on the iterations.

    Returns:
        The posterior; its objective is that of :class:`torch_lntm.guides.TaylorGuide`.
    """
    precision, dim = space.precision, space.dim

    def step(current: DocumentBatch, mean: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
        g = torch.softmax(space.lift(mean), -1)
        counts = expected_counts(g, topics, current).topic_counts[:, :dim]
        g, lengths = g[:, :dim], current.lengths[:, None]
        hessian = lengths[:, None] * (g.diag_embed() - g[:, :, None] * g[:, None, :])
        linear = space.loc @ precision + counts - lengths * g
        linear = linear + (hessian @ mean[..., None]).squeeze(-1)
        return torch.linalg.solve(precision + hessian, linear), unused

    def objective(current: DocumentBatch, mean: Tensor, unused: Tensor) -> Tensor:
        theta = torch.softmax(space.lift(mean), -1)
        likelihood = expected_counts(theta, topics, current).log_likelihood
        information = _information(space, theta, current.lengths)
        log_det = 2.0 * torch.linalg.cholesky(information).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return likelihood - 0.5 * (space.whiten(mean).square().sum(-1) + log_det)

    start = space.loc.expand(batch.num_docs, dim)
    mean, _, value, iterations, converged = _iterate(
        batch, start, start, step, objective, relative_tolerance, max_iterations
    )
    theta = torch.softmax(space.lift(mean), -1)
    chol = torch.linalg.cholesky(_information(space, theta, batch.lengths))
    identity = torch.eye(dim, dtype=chol.dtype).expand_as(chol)
    whitened = torch.linalg.solve_triangular(chol, identity, upper=False)
    return NormalPosterior(
        space=space,
        mean=mean,
        index=batch.index,
        converged=converged,
        iterations=iterations,
        objective=value,
        whitened=whitened,
    )


def blei_lafferty_as_printed(
    batch: DocumentBatch,
    topics: Tensor,
    space: NormalSpace,
    *,
    relative_tolerance: float,
    max_iterations: int,
) -> NormalPosterior:
    """Coordinate ascent on the bound of *Ahmed & Xing 2007, eqs 13–15*, one parameter at a time.

    One iteration maximises the bound in the responsibilities, ζ, λ, ζ, ν² and ζ in turn, each with
    the rest fixed, the order of the authors' published program. λ is maximised numerically to
    convergence: here by Newton's method, in the program by conjugate gradients.

    Arguments as for :func:`taylor_as_printed`.

    Returns:
        The posterior; its objective is the tangent bound on log p(w).
    """
    precision = space.precision
    diagonal = precision.diagonal()
    log_det = 2.0 * space.tril.diagonal().log().sum()

    def log_zeta(mean: Tensor, variance: Tensor) -> Tensor:
        return torch.logsumexp(space.lift(mean + 0.5 * variance), -1)

    def step(current: DocumentBatch, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        theta = torch.softmax(space.lift(mean), -1)
        counts = expected_counts(theta, topics, current).topic_counts[:, : space.dim]
        log_lengths = current.lengths.log()
        log_rate = (log_lengths - log_zeta(mean, variance))[:, None] + 0.5 * variance
        mean = _maximise_lambda(mean, counts, log_rate, space.loc, precision)
        log_rate = (log_lengths - log_zeta(mean, variance))[:, None] + mean
        return mean, _maximise_variance(diagonal.expand_as(mean), log_rate)

    def objective(current: DocumentBatch, mean: Tensor, variance: Tensor) -> Tensor:
        logits = space.lift(mean)
        counts = expected_counts(torch.softmax(logits, -1), topics, current)
        # loglik is taken at softmax weights; lse gives back the rest.
        normaliser = torch.logsumexp(logits, -1) - log_zeta(mean, variance)
        entropy = (variance.log() + 1.0).sum(-1) - variance @ diagonal - log_det
        penalty = space.whiten(mean).square().sum(-1)
        return counts.log_likelihood + current.lengths * normaliser + 0.5 * (entropy - penalty)

    start = space.loc.expand(batch.num_docs, space.dim)
    mean, variance, value, iterations, converged = _iterate(
        batch,
        start,
        (1.0 / diagonal).expand_as(start),
        step,
        objective,
        relative_tolerance,
        max_iterations,
    )
    return NormalPosterior(
        space=space,
        mean=mean,
        index=batch.index,
        converged=converged,
        iterations=iterations,
        objective=value,
        std=variance.sqrt(),
    )


_Step = Callable[[DocumentBatch, Tensor, Tensor], tuple[Tensor, Tensor]]
_Value = Callable[[DocumentBatch, Tensor, Tensor], Tensor]


def _iterate(
    batch: DocumentBatch,
    mean: Tensor,
    variance: Tensor,
    step: _Step,
    objective: _Value,
    relative_tolerance: float,
    max_iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Repeat a step on each document until its objective settles.

    Returns:
        mean, variance, objective, iterations and converged, a row for each document.
    """
    mean, variance = mean.clone(), variance.clone()
    value = objective(batch, mean, variance)
    iterations = torch.zeros_like(batch.index)
    converged = torch.zeros_like(value, dtype=torch.bool)
    rows, current = torch.arange(batch.num_docs, device=mean.device), batch
    for _ in range(max_iterations):
        mean[rows], variance[rows] = step(current, mean[rows], variance[rows])
        new_value = objective(current, mean[rows], variance[rows])
        done = (new_value - value[rows]).abs() <= relative_tolerance * value[rows].abs()
        value[rows] = new_value
        iterations[rows] += 1
        converged[rows] = done
        keep = (~done).nonzero().squeeze(-1)
        if keep.numel() == 0:
            break
        rows, current = rows[keep], current.select(keep)
    return mean, variance, value, iterations, converged


def _information(space: NormalSpace, theta: Tensor, lengths: Tensor) -> Tensor:
    """I + N·Lᵀ(diag θ − θθᵀ)L ``(num_docs, dim, dim)``, coordinates reversed, Σ = LLᵀ.

    The posterior precision in coordinates with a standard normal prior, in the order of
    :class:`torch_lntm.posteriors.NormalPosterior`.
    """
    factor = space.factor.flip(1)
    centred = factor - (theta @ factor)[:, None, :]
    information = centred.mT @ (centred * (lengths[:, None] * theta)[..., None])
    information.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return information


def _maximise_variance(precision: Tensor, log_rate: Tensor) -> Tensor:
    """The solution ν² of 1/ν² = precision + exp(log_rate + ν²/2), elementwise.

    Newton's method in log ν² descends from every value above the root. The root without the
    exponential's growth is above it.
    """
    y = -torch.logaddexp(precision.log(), log_rate)
    for _ in range(_NEWTON_STEPS):
        x = y.exp()
        linear, exponential = precision * x, (log_rate + y + 0.5 * x).exp()
        change = (1.0 - linear - exponential) / (linear + exponential * (1.0 + 0.5 * x))
        y = y + change
        if float(change.abs().max()) <= _ROOT_TOLERANCE:
            break
    return y.exp()


def _maximise_lambda(
    mean: Tensor, counts: Tensor, log_rate: Tensor, loc: Tensor, precision: Tensor
) -> Tensor:
    """The λ that maximises n·λ − ½(λ−μ)ᵀΣ⁻¹(λ−μ) − Σ_k exp(log_rate_k + λ_k) ``(num_docs, dim)``.

    The problem is concave. Newton steps are damped, and the exponential limits their length.
    """

    def evaluate(x: Tensor) -> Tensor:
        centred = x - loc
        quadratic = (centred @ precision * centred).sum(-1)
        return (counts * x).sum(-1) - 0.5 * quadratic - (log_rate + x).exp().sum(-1)

    value = evaluate(mean)
    for _ in range(_NEWTON_STEPS):
        weight = (log_rate + mean).exp()
        gradient = counts - (mean - loc) @ precision - weight
        delta = torch.linalg.solve(precision + weight.diag_embed(), gradient)
        decrement = (gradient * delta).sum(-1)
        if bool((decrement <= _NEWTON_TOLERANCE).all()):
            break
        size = delta.abs().amax(-1, keepdim=True)
        scale = _LARGEST_STEP / size.clamp_min(_LARGEST_STEP)
        for _ in range(_HALVINGS):
            trial = evaluate(mean + scale * delta)
            # Rounding of the objective is far below the relevant decrement.
            worse = trial < value - _NEWTON_TOLERANCE
            if not bool(worse.any()):
                break
            scale = torch.where(worse[:, None], 0.5 * scale, scale)
        mean = mean + scale * delta
        value = evaluate(mean)
    return mean
