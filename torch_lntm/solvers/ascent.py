"""Batched ascent in the mean of eta, the step that all 4 logistic-normal posteriors share.

For every document the ascent maximises, in whitened coordinates z with m = μ + Lz,

    f(z) = loglik(e^m) − N·lse(m + h) − ½|z|²

where ``loglik(e^m) = Σ_v c_v log Σ_k e^{m_k} φ_kv``. With h = 0, f is the log joint with the topic
assignments summed out. Its maxima are Taylor's fixed points and Laplace's modes. With h half the
posterior variance, f is the tangent bound of Blei–Lafferty and Khan–Bouchard as a function of the
mean (*Khan & Bouchard 2009, eq. 34, with the responsibilities at their optimum*).

At inverse temperature T (*Ahmed & Xing 2007, §3.2*, for the objective E_q log p + H(q)/T) the
likelihood term becomes (1/T)·Σ_v c_v log Σ_k e^{T m_k} φ_kv. The caller passes tempered topics.

Each step solves (I + N·Fᵀ(diag p − ppᵀ)F) δ = ∇f, with F the lifted L and p = softmax(m + h). This
is Newton's step with the complete-data information (*Ahmed & Xing 2007, eqs 9–10*). Because the
matrix is positive definite everywhere, the step always goes uphill, and a backtracking line search
makes sure that every accepted step raises f.

The complete-data information treats the topic assignments as known, so it exceeds the true
curvature and steps are too short where topics overlap. From the second step on, a BFGS update
corrects it by the change of the gradient along the last step, which keeps it positive definite.
With a tight tolerance this cuts the number of steps to two thirds, and for the slowest documents to
a quarter.

Conjugate gradients solve for a step by a few products with the shared factor, whereas a Cholesky
factorisation of each document's information would cost num_topics³. Converged documents leave the
batch.

F may have more columns than rows, as with the sources and noise of a factor model. Each m then has
a shortest z, and these z form a subspace that contains all gradients, so an ascent that starts
there stays there.

This differs from *Ahmed & Xing 2007* in four points:

1. Their eqs 10 and 12 are iterated without damping, so that some documents never converge. Here a
   line search makes the same direction safe.
2. Their direction is Newton's with the complete-data information. Since it is too large where
   topics overlap, a secant corrects it here from the second step on.
3. They solve their system exactly. An inexact solution is enough, because any solution of conjugate
   gradients goes uphill and the line search does not need the length of the step to be right.
4. They work in eta, whereas in z the information is at least I for every prior covariance. Float32
   is therefore enough for most documents (:mod:`torch_lntm.solvers.precision` finds the others).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.mixture import expected_counts
from torch_lntm.solvers.active import ActiveSet, replace_rows, select_rows

#: Share of a step's predicted gain required for its acceptance.
SUFFICIENT_INCREASE = 1e-4
#: Largest number of coordinates z for a direct factorisation of each document's information. On a
#: GPU the many small kernels of conjugate gradients dominate the time.
DENSE_DIM = {"cpu": 10, "cuda": 128}
#: Relative residual of a direction by conjugate gradients, and bound on their steps.
CG_TOLERANCE, CG_STEPS = 0.05, 30
#: Largest gain of a round, in nats, after which the next round starts with its secant. Longer steps
#: far from the optimum save rounds as well, but lead to worse optima.
MAX_GAIN_FOR_SECANT = 3.0


class Coordinates(Protocol):
    """The part of a latent space for the ascent: coordinates z with affine logits."""

    def lift(self, eta: Tensor) -> Tensor:
        """Logits ``(..., num_topics)`` of eta ``(..., eta_dim)``."""

    def unwhiten(self, z: Tensor) -> Tensor:
        """Eta ``(..., num_docs, eta_dim)`` of z ``(..., num_docs, dim)``."""

    def push(self, z: Tensor) -> Tensor:
        """Change of the logits ``(..., num_topics)`` with z ``(..., dim)``."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Gradients in z ``(..., dim)`` from gradients in the logits ``(..., num_topics)``."""

    def select(self, rows: Tensor) -> Coordinates:
        """The coordinates of some of the documents."""


class Words(NamedTuple):
    """Results of a pass over the words at logits m, independent of h.

    Attributes:
        logits: ``(num_docs, num_topics)`` m.
        log_likelihood: ``(num_docs,)`` float64, loglik(e^m).
        topic_counts: ``(num_docs, num_topics)`` expected tokens of each topic, the gradient of
            loglik in m.
    """

    logits: Tensor
    log_likelihood: Tensor
    topic_counts: Tensor


class Point(NamedTuple):
    """The objective at a point of each document.

    Attributes:
        z: ``(num_docs, dim)`` the points.
        value: ``(num_docs,)`` float64 f.
        gradient: ``(num_docs, dim)`` ∇f.
        p: ``(num_docs, num_topics)`` softmax(m + h), the weights of the curvature.
        words: Results of the pass over the words.
    """

    z: Tensor
    value: Tensor
    gradient: Tensor
    p: Tensor
    words: Words


class Secant(NamedTuple):
    """Curvature along the last step of each document.

    Attributes:
        step: ``(num_docs, dim)`` the step s.
        fall: ``(num_docs, dim)`` y, the decrease of the gradient along s.
        rho: ``(num_docs, 1)`` 1/(s·y), limited by the least curvature. Zero if there was no step,
            or f was convex along the step.
    """

    step: Tensor
    fall: Tensor
    rho: Tensor

    @classmethod
    def between(cls, before: Point, after: Point) -> Secant:
        """The secant of two points."""
        step, fall = after.z - before.z, before.gradient - after.gradient
        curvature = (step * fall).sum(-1, keepdim=True)
        # Curvature of the complete-data information along the step: the step is Newton's or a part
        # of it.
        expected = (step * before.gradient).sum(-1, keepdim=True)
        # The measured curvature counts as at least half of the expected one. With less, steps
        # become so long that they must be halved again.
        least = (0.5 * expected).clamp_min(torch.finfo(step.dtype).tiny)
        rho = torch.where(curvature > 0.0, 1.0 / torch.maximum(curvature, least), 0.0)
        return cls(step, fall, rho)

    def after_small_gains(self, gain: Tensor) -> Secant:
        """The secants; 0 for documents whose last round gained more than ``MAX_GAIN_FOR_SECANT``.

        Args:
            gain: ``(num_docs,)`` nats.
        """
        return self._replace(rho=torch.where((gain <= MAX_GAIN_FOR_SECANT)[:, None], self.rho, 0.0))


class MeanAscent(NamedTuple):
    """Result of the ascent of each document.

    Attributes:
        point: The last point of each document.
        secant: Secant of each document's last step.
        converged: ``(num_docs,)`` bool.
        iterations: ``(num_docs,)`` int64.
    """

    point: Point
    secant: Secant
    converged: Tensor
    iterations: Tensor


@dataclass(frozen=True, eq=False)
class Objective:
    """The function f of the module's docstring for a batch.

    Attributes:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``inverse_temperature`` is not 1.
        space: Coordinates with prior ½|z|².
        half_variance: ``(num_docs, num_topics)`` h; None means 0.
        inverse_temperature: Inverse temperature T. Defaults to 1.
    """

    batch: DocumentBatch
    topics: Tensor
    space: Coordinates
    half_variance: Tensor | None = None
    inverse_temperature: float = 1.0

    def select(self, rows: Tensor) -> Objective:
        """The objective of some of the documents."""
        h = None if self.half_variance is None else self.half_variance[rows]
        batch, space = self.batch.select(rows), self.space.select(rows)
        return replace(self, batch=batch, space=space, half_variance=h)

    def evaluate(self, z: Tensor, words: Words | None = None) -> Point:
        """The objective at z ``(num_docs, dim)``.

        Args:
            z: The points.
            words: Results of a pass over the words at the logits of z. Computed if None.
        """
        lengths = self.batch.lengths
        if words is None:
            logits = self.space.lift(self.space.unwhiten(z))
            tempered = self.inverse_temperature * logits
            counts = expected_counts(torch.softmax(tempered, -1), self.topics, self.batch)
            # loglik is computed at softmax weights, which cannot overflow. lse restores their
            # scale.
            scale = lengths * torch.logsumexp(tempered, -1).double()
            log_likelihood = (counts.log_likelihood + scale) / self.inverse_temperature
            words = Words(logits, log_likelihood, counts.topic_counts)
        shifted = words.logits
        if self.half_variance is not None:
            shifted = shifted + self.half_variance
        # f, and its gradient Fᵀ(n − Np) − z: n are the expected counts, the gradient of loglik.
        p = torch.softmax(shifted, -1)
        value = words.log_likelihood - lengths * torch.logsumexp(shifted, -1).double()
        value = value - 0.5 * z.double().square().sum(-1)
        slope = torch.addcmul(words.topic_counts, lengths[:, None], p, value=-1.0)
        gradient = self.space.pull(slope) - z
        return Point(z, value, gradient, p, words)


def _conjugate_gradients(space: Coordinates, p: Tensor, lengths: Tensor, rhs: Tensor) -> Tensor:
    """Solve (I + N·Fᵀ(diag p − ppᵀ)F) x = rhs for each document, to a relative residual."""
    x = torch.zeros_like(rhs)
    residual, direction = rhs, rhs
    weight = lengths[:, None] * p
    norm = residual.square().sum(-1)
    target = CG_TOLERANCE**2 * norm
    tiny = torch.finfo(rhs.dtype).tiny
    for _ in range(CG_STEPS):
        unsolved = norm > target
        if not bool(unsolved.any()):
            break
        lifted = space.push(direction)
        # (diag p − ppᵀ)x as p(x − pᵀx): a common shift of x cancels before it is scaled.
        lifted = weight * (lifted - (p * lifted).sum(-1, keepdim=True))
        product = space.pull(lifted) + direction
        step = norm / (direction * product).sum(-1).clamp_min(tiny)
        step = torch.where(unsolved, step, 0.0)[:, None]
        x = torch.addcmul(x, step, direction)
        residual = torch.addcmul(residual, step, product, value=-1.0)
        new_norm = residual.square().sum(-1)
        direction = torch.addcmul(residual, (new_norm / norm.clamp_min(tiny))[:, None], direction)
        norm = new_norm
    return x


def _direction(objective: Objective, point: Point, secant: Secant | None) -> Tensor:
    """BFGS direction from the complete-data information and, if present, a secant.

    It goes uphill for any ρ ≥ 0, and for any accuracy of conjugate gradients. ∇f·δ is a sum of two
    terms. The product of the corrected gradient and the solution of conjugate gradients is
    positive, and ρ(s·∇f)² is at least 0.
    """
    # BFGS with one pair (s, y): H = (I − ρsyᵀ) B⁻¹ (I − ρysᵀ) + ρssᵀ, applied from the right. First
    # comes I − ρysᵀ, then B⁻¹, then I − ρsyᵀ and the last term together.
    rhs = point.gradient
    if secant is not None:
        along = secant.rho * (secant.step * rhs).sum(-1, keepdim=True)
        rhs = torch.addcmul(rhs, along, secant.fall, value=-1.0)
    small = rhs.shape[-1] <= DENSE_DIM.get(rhs.device.type, 0)
    solve = _dense_solution if small else _conjugate_gradients
    delta = solve(objective.space, point.p, objective.batch.lengths, rhs)
    if secant is None:
        return delta
    across = secant.rho * (secant.fall * delta).sum(-1, keepdim=True)
    return delta.addcmul_(along - across, secant.step)


def _dense_solution(space: Coordinates, p: Tensor, lengths: Tensor, rhs: Tensor) -> Tensor:
    """Exact solution of :func:`_conjugate_gradients`' system, in few kernels and without a wait."""
    eye = torch.eye(rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
    # Fᵀ ``(num_docs or 1, dim, num_topics)``; scales may differ between documents.
    rows = space.push(eye[:, None]).transpose(0, 1)
    mean = rows @ p[..., None]
    information = (rows * (lengths[:, None] * p)[:, None]) @ rows.mT
    information.baddbmm_(mean * -lengths[:, None, None], mean.mT)
    information.diagonal(dim1=-2, dim2=-1).add_(1.0)
    # The information is at least I, so its factor exists and its status need not be read, which
    # would make the host wait for a GPU.
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
) -> MeanAscent:
    """Raise f from ``start`` until each document converges or the iterations are used up.

    Args:
        objective: Function to maximise.
        start: ``(num_docs, dim)`` whitened starting points.
        tolerance: Nats. A document has converged if its Newton decrement ∇f·δ, about twice the
            remaining gain, is below the tolerance or below rounding in the line search.
        max_iterations: Bound on the steps of each document, at least 1.
        words: Results of a pass over the words at ``start``. Computed if None.
        secant: Secants of the last steps to ``start``, on a similar function. Any will work, but
            good ones make the ascent fast. Defaults to none.
    """
    epsilon = torch.finfo(start.dtype).eps
    active = ActiveSet(len(start), start.device)
    ends = point = objective.evaluate(start, words)
    for iteration in range(max_iterations):
        before = point
        delta = _direction(objective, point, secant)
        decrement = (point.gradient * delta).sum(-1).double()
        rounding = 4.0 * epsilon * point.value.abs()
        point, moved = _line_search(objective, point, delta, decrement, rounding)
        # A converged document takes its last step as well, since the step has been computed. A
        # document without a possible step has converged only if rounding hides the gain of a step.
        # It has failed only if its direction contained no secant, because the next direction will
        # contain none.
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
    """Halve the steps of documents with too little gain; documents without a good step stay put."""
    # Most documents take the full step. The others are tried again at half the step as a smaller
    # batch, so that the search costs no more than the documents that need it.
    point = objective.evaluate(start.z + delta)
    moved = point.value >= start.value + SUFFICIENT_INCREASE * decrement - rounding
    step = 1.0
    for _ in range(15):
        failed = (~moved).nonzero().squeeze(-1)
        if failed.numel() == 0:
            return point, moved
        step /= 2.0
        trial = objective.select(failed).evaluate(start.z[failed] + step * delta[failed])
        replace_rows(point, failed, trial)
        gain = SUFFICIENT_INCREASE * step * decrement[failed] - rounding[failed]
        moved[failed] = trial.value >= start.value[failed] + gain
    failed = (~moved).nonzero().squeeze(-1)
    replace_rows(point, failed, select_rows(start, failed))
    return point, moved
