"""Batched ascent in the mean of eta: the step that all four logistic-normal posteriors share.

For every document it maximises, in whitened coordinates z with m = μ + Lz,

    f(z) = loglik(e^m) − N·lse(m + h) − ½|z|²

where ``loglik(e^m) = Σ_v c_v log Σ_k e^{m_k} φ_kv``. With h = 0 this is the log joint with the
topic assignments summed out; its maxima are Taylor's fixed points and Laplace's modes. With h half
the posterior variance it is the tangent bound of Blei–Lafferty and Khan–Bouchard as a function of
the mean (*Khan & Bouchard 2009, eq. 34, with the responsibilities at their optimum*).

At inverse temperature T (*Ahmed & Xing 2007, §3.2*, for the objective E_q log p + H(q)/T) the
likelihood term becomes (1/T)·Σ_v c_v log Σ_k e^{T m_k} φ_kv; topics arrive already tempered.

Each step solves (I + N·Fᵀ(diag p − ppᵀ)F) δ = ∇f, F the lifted L and p = softmax(m + h). That is
Newton's step with the complete-data information (*Ahmed & Xing 2007, eqs 9–10*), positive definite
everywhere, so always uphill; a backtracking line search makes every accepted step raise f. That
information is too large by what the assignments leave open, so where topics overlap such steps are
too short. Every step after the first therefore corrects it by a BFGS update for what the gradient
did along the last step, which keeps it positive definite. To a tight tolerance that takes two
thirds of the steps, and a quarter in the slowest documents. Conjugate gradients solve for a step by
a few products with the shared factor, where a Cholesky factorisation of each document's information
would cost num_topics³. A document that has converged leaves the batch.

F may have more columns than rows (the sources and noise of a factor model); the ascent then stays
among the shortest z of each m if it starts there, because its gradients do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels import expected_counts
from torch_lntm.solvers.active import ActiveSet, replace_rows, select_rows

#: Share of the gain that a step promises which it has to make.
SUFFICIENT_INCREASE = 1e-4
#: Coordinates of z up to which each document's information is factored. On a GPU it is the many
#: small kernels of conjugate gradients that take time.
DENSE_DIM = {"cpu": 10, "cuda": 128}
#: Share of the curvature expected along the last step that is found at least: by less, steps
#: become so long that they have to be halved again.
LEAST_CURVATURE = 0.5
#: Nats that a round may gain for the next one to start with its secant. Longer steps from afar save
#: rounds as well, and lead to worse optima.
MAX_GAIN_FOR_SECANT = 3.0
#: Largest share of the documents held by conjugate gradients that may be solved already.
IDLE_SHARE = 0.35
#: Bound on the halvings of a step.
MAX_HALVINGS = 15


class Coordinates(Protocol):
    """What the ascent asks of a latent space: coordinates z in which logits are affine."""

    def lift(self, eta: Tensor) -> Tensor:
        """Logits ``(..., num_topics)`` of eta ``(..., eta_dim)``."""

    def unwhiten(self, z: Tensor) -> Tensor:
        """Eta ``(..., num_docs, eta_dim)`` of z ``(..., num_docs, dim)``."""

    def push(self, z: Tensor) -> Tensor:
        """Change of the logits ``(..., num_topics)`` with z ``(..., dim)``."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Gradients in z ``(..., dim)`` from those in the logits ``(..., num_topics)``."""

    def select(self, rows: Tensor) -> Coordinates:
        """The coordinates of some of the documents."""


class Words(NamedTuple):
    """What a pass over the words finds at some logits m, whatever h is.

    Attributes:
        logits: ``(num_docs, num_topics)`` m.
        log_likelihood: ``(num_docs,)`` float64, loglik(e^m).
        topic_counts: ``(num_docs, num_topics)`` expected tokens of each topic, its gradient in m.
    """

    logits: Tensor
    log_likelihood: Tensor
    topic_counts: Tensor


class Point(NamedTuple):
    """The objective at one point of each document.

    Attributes:
        z: ``(num_docs, dim)`` the points.
        value: ``(num_docs,)`` float64 f.
        gradient: ``(num_docs, dim)`` ∇f.
        p: ``(num_docs, num_topics)`` softmax(m + h), the weights of the curvature.
        words: What the pass over the words found.
    """

    z: Tensor
    value: Tensor
    gradient: Tensor
    p: Tensor
    words: Words


class Secant(NamedTuple):
    """What the last step of each document tells of the curvature.

    Attributes:
        step: ``(num_docs, dim)`` the step s.
        fall: ``(num_docs, dim)`` y, by how much the gradient fell along it.
        rho: ``(num_docs, 1)`` 1/(s·y), but no larger than by the least curvature; 0 where there
            was no step, or f is not concave along it.
    """

    step: Tensor
    fall: Tensor
    rho: Tensor

    @classmethod
    def between(cls, before: Point, after: Point) -> Secant:
        """The secant of two points."""
        step, fall = after.z - before.z, before.gradient - after.gradient
        curvature = (step * fall).sum(-1, keepdim=True)
        # Of the complete-data information, which step is Newton's with or a part of it.
        expected = (step * before.gradient).sum(-1, keepdim=True)
        least = (LEAST_CURVATURE * expected).clamp_min(torch.finfo(step.dtype).tiny)
        rho = torch.where(curvature > 0.0, 1.0 / torch.maximum(curvature, least), 0.0)
        return cls(step, fall, rho)

    def after_small_gains(self, gain: Tensor) -> Secant:
        """Without those of the documents whose last round gained much.

        Args:
            gain: ``(num_docs,)`` nats.
        """
        return self._replace(rho=torch.where((gain <= MAX_GAIN_FOR_SECANT)[:, None], self.rho, 0.0))


class MeanAscent(NamedTuple):
    """Where the ascent of each document ended.

    Attributes:
        point: The last point of each document.
        secant: That of each document's last step.
        converged: ``(num_docs,)`` bool.
        iterations: ``(num_docs,)`` int64.
    """

    point: Point
    secant: Secant
    converged: Tensor
    iterations: Tensor


@dataclass(frozen=True, eq=False)
class Objective:
    """The function of the module's docstring for one batch.

    Attributes:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``temperature`` is not 1.
        space: Coordinates in which the prior is ½|z|².
        half_variance: ``(num_docs, num_topics)`` h, or None for 0.
        temperature: Inverse temperature T.
    """

    batch: DocumentBatch
    topics: Tensor
    space: Coordinates
    half_variance: Tensor | None = None
    temperature: float = 1.0

    def select(self, rows: Tensor) -> Objective:
        """The objective of some of the documents."""
        h = None if self.half_variance is None else self.half_variance[rows]
        return Objective(
            self.batch.select(rows), self.topics, self.space.select(rows), h, self.temperature
        )

    def evaluate(self, z: Tensor, words: Words | None = None) -> Point:
        """The objective at z ``(num_docs, dim)``.

        Args:
            z: The points.
            words: What a pass over the words found at the logits of z, if there has been one.
        """
        lengths = self.batch.lengths
        words = words or self._read(self.space.lift(self.space.unwhiten(z)))
        shifted = words.logits
        if self.half_variance is not None:
            shifted = shifted + self.half_variance
        p = torch.softmax(shifted, -1)
        value = words.log_likelihood - lengths * torch.logsumexp(shifted, -1).double()
        value = value - 0.5 * z.double().square().sum(-1)
        slope = torch.addcmul(words.topic_counts, lengths[:, None], p, value=-1.0)
        gradient = self.space.pull(slope) - z
        return Point(z, value, gradient, p, words)

    def _read(self, logits: Tensor) -> Words:
        tempered = self.temperature * logits
        counts = expected_counts(torch.softmax(tempered, -1), self.topics, self.batch)
        # loglik is taken at softmax weights, which cannot overflow; lse gives back the rest.
        scale = self.batch.lengths * torch.logsumexp(tempered, -1).double()
        log_likelihood = (counts.log_likelihood + scale) / self.temperature
        return Words(logits, log_likelihood, counts.topic_counts)


def _conjugate_gradients(
    space: Coordinates,
    p: Tensor,
    lengths: Tensor,
    rhs: Tensor,
    tolerance: float,
    max_steps: int,
) -> Tensor:
    """Solve (I + N·Fᵀ(diag p − ppᵀ)F) x = rhs for each document, to a relative residual.

    Some documents take many more steps than others. The solved ones are taken out from time to
    time, since what takes them out copies all that stay.
    """
    solution = x = torch.zeros_like(rhs)
    rows: Tensor | None = None
    residual, direction = rhs.clone(), rhs
    weight = lengths[:, None] * p
    norm = residual.square().sum(-1)
    target = tolerance**2 * norm
    tiny = torch.finfo(rhs.dtype).tiny
    for _ in range(max_steps):
        unsolved = norm > target
        left = int(unsolved.sum())
        if left == 0:
            break
        if left < (1.0 - IDLE_SHARE) * len(x):
            keep = unsolved.nonzero().squeeze(-1)
            if rows is not None:
                solution[rows] = x
            rows = keep if rows is None else rows[keep]
            space = space.select(keep)
            parts = (x, residual, direction, p, weight, norm, target, unsolved)
            x, residual, direction, p, weight, norm, target, unsolved = (
                part[keep] for part in parts
            )
        lifted = space.push(direction)
        lifted = (lifted - (p * lifted).sum(-1, keepdim=True)).mul_(weight)
        product = space.pull(lifted).add_(direction)
        step = norm / (direction * product).sum(-1).clamp_min(tiny)
        step = torch.where(unsolved, step, 0.0)[:, None]
        x.addcmul_(step, direction)
        residual.addcmul_(step, product, value=-1.0)
        new_norm = residual.square().sum(-1)
        direction = torch.addcmul(residual, (new_norm / norm.clamp_min(tiny))[:, None], direction)
        norm = new_norm
    if rows is not None:
        solution[rows] = x
    return solution


def _direction(
    objective: Objective, point: Point, secant: Secant | None, cg_tolerance: float, cg_steps: int
) -> Tensor:
    """BFGS's direction from the complete-data information and one secant, if there is one.

    Uphill for any ρ ≥ 0, and however roughly conjugate gradients solve: ∇f·δ is the product of the
    corrected gradient and their solution, which is positive, plus ρ(s·∇f)².
    """
    rhs = point.gradient
    if secant is not None:
        along = secant.rho * (secant.step * rhs).sum(-1, keepdim=True)
        rhs = torch.addcmul(rhs, along, secant.fall, value=-1.0)
    system = (objective.space, point.p, objective.batch.lengths, rhs)
    if rhs.shape[-1] <= DENSE_DIM.get(rhs.device.type, 0):
        delta = _dense_solution(*system)
    else:
        delta = _conjugate_gradients(*system, cg_tolerance, cg_steps)
    if secant is None:
        return delta
    across = secant.rho * (secant.fall * delta).sum(-1, keepdim=True)
    return delta.addcmul_(along - across, secant.step)


def _dense_solution(space: Coordinates, p: Tensor, lengths: Tensor, rhs: Tensor) -> Tensor:
    """As :func:`_conjugate_gradients`, but exactly, in few kernels and without a wait."""
    eye = torch.eye(rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
    # Fᵀ ``(num_docs or 1, dim, num_topics)``: scales may be a document's own.
    rows = space.push(eye[:, None]).transpose(0, 1)
    mean = rows @ p[..., None]
    information = (rows * (lengths[:, None] * p)[:, None]) @ rows.mT
    information.baddbmm_(mean * -lengths[:, None, None], mean.mT)
    information.diagonal(dim1=-2, dim2=-1).add_(1.0)
    chol = torch.linalg.cholesky_ex(information).L
    return torch.cholesky_solve(rhs[..., None], chol).squeeze(-1)


def maximise_mean(
    objective: Objective,
    start: Tensor,
    *,
    tolerance: float,
    max_iterations: int,
    words: Words | None = None,
    secant: Secant | None = None,
    cg_tolerance: float = 0.05,
    cg_steps: int = 30,
) -> MeanAscent:
    """Raise f from ``start`` until each document converges or the iterations are used up.

    Args:
        objective: What to maximise.
        start: ``(num_docs, dim)`` whitened starting points.
        tolerance: A document has converged when its Newton decrement ∇f·δ, about twice the gain
            left, is below this many nats, or below what rounding lets the line search see.
        max_iterations: Bound on the steps of each document, at least 1.
        words: What a pass over the words found at ``start``, if there has been one.
        secant: Of the last steps to ``start``, on a similar function, if there have been any. The
            ascent is one for any secants; good ones make it fast.
        cg_tolerance: Relative residual at which a direction is good enough.
        cg_steps: Bound on the conjugate-gradient steps of one direction.
    """
    epsilon = torch.finfo(start.dtype).eps
    active = ActiveSet(len(start), start.device)
    ends = point = objective.evaluate(start, words)
    for iteration in range(max_iterations):
        before = point
        delta = _direction(objective, point, secant, cg_tolerance, cg_steps)
        decrement = (point.gradient * delta).sum(-1).double()
        rounding = 4.0 * epsilon * point.value.abs()
        point, moved = _line_search(objective, point, delta, decrement, rounding)
        # A converged document takes its last step as well: it is already paid for. One that cannot
        # move has converged only if rounding hides what a step would gain. It has failed only if
        # the secant had no part in the direction, which the next one will be without.
        stuck = ~moved if secant is None else ~moved & (secant.rho[:, 0] == 0.0)
        active.step((decrement <= tolerance) | (~moved & (decrement <= rounding)), stuck)
        secant = Secant.between(before, point)
        if len(active.rows) == len(start):
            ends, last = point, secant
        else:
            replace_rows(ends, active.rows, point)
            replace_rows(last, active.rows, secant)
        if iteration + 1 < max_iterations:
            objective, point, secant = active.drop_stopped(objective, point, secant)
        if active.finished:
            break
    return MeanAscent(ends, last, active.converged, active.iterations)


def _line_search(
    objective: Objective, start: Point, delta: Tensor, decrement: Tensor, rounding: Tensor
) -> tuple[Point, Tensor]:
    """Halve the steps of the documents that do not gain enough; those that never do stay put."""
    point = objective.evaluate(start.z + delta)
    moved = point.value >= start.value + SUFFICIENT_INCREASE * decrement - rounding
    step = 1.0
    for _ in range(MAX_HALVINGS):
        bad = (~moved).nonzero().squeeze(-1)
        if bad.numel() == 0:
            return point, moved
        step /= 2.0
        trial = objective.select(bad).evaluate(start.z[bad] + step * delta[bad])
        replace_rows(point, bad, trial)
        gain = SUFFICIENT_INCREASE * step * decrement[bad] - rounding[bad]
        moved[bad] = trial.value >= start.value[bad] + gain
    bad = (~moved).nonzero().squeeze(-1)
    replace_rows(point, bad, select_rows(start, bad))
    return point, moved
