"""Coordinate ascent on the tangent bound, shared by Blei–Lafferty and Khan–Bouchard.

The bound of a normal q(eta) = N(m, V), with its responsibilities and its ζ or ξ at their optimum,
is

    loglik(e^m) − N·lse(m + diag V / 2) − KL(q ‖ prior)

(*Ahmed & Xing 2007, eqs 14–15; Khan & Bouchard 2009, eqs 20 and 33–34*). A round takes a few ascent
steps in m and then updates the variances, neither of which lowers the bound. The next round starts
with the last one's secant, since the curvature in m hardly changes with the variances. The caller
chooses diagonal or full variances, and their update.

At inverse temperature T the entropy counts 1/T. Variances are held as T·V, the untempered variances
of annealing's M-step, whereas V itself enters the bound.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.normal import NormalSpace
from torch_lntm.posteriors.normal import ModePosterior
from torch_lntm.solvers.active import ActiveSet, bound_rounding, converged_or_failed
from torch_lntm.solvers.ascent import Objective, maximise_mean
from torch_lntm.solvers.options import SolveOptions


class Variances(Protocol):
    """Variances of the posteriors of all documents, updated for some documents in each round."""

    def marginal(self, rows: Tensor) -> Tensor:
        """T·diag V of the documents ``rows``, ``(len(rows), dim)``."""

    def bound_terms(self, rows: Tensor) -> Tensor:
        """Terms of the bound in V beyond the mean's objective, ``(len(rows),)`` float64."""

    def update(self, rows: Tensor, batch: DocumentBatch, logits: Tensor) -> None:
        """Raise the bound in V.

        Args:
            rows: Documents.
            batch: The documents ``rows`` as a batch.
            logits: ``(len(rows), num_topics)`` their mean logits.
        """


def maximise_tangent_bound(
    batch: DocumentBatch,
    topics: Tensor,
    space: NormalSpace,
    variances: Variances,
    options: SolveOptions,
) -> ModePosterior:
    """Alternate mean and variances until each document's bound converges.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``inverse_temperature`` is not 1.
        space: Whitened prior of eta.
        variances: Starting variances, updated in place.
        options: As for :func:`~torch_lntm.solvers.blei_lafferty.blei_lafferty`.

    Returns:
        The means. Their objective is the bound.
    """
    start, tolerance, max_iterations, inverse_temperature, _ = options
    z = space.whiten(start)
    active = ActiveSet(batch.num_docs, z.device)
    current, current_space = batch, space

    def objective() -> Objective:
        half = current_space.lift(variances.marginal(active.rows) / (2.0 * inverse_temperature))
        return Objective(current, topics, current_space, half, inverse_temperature)

    # Variances are first fitted to the starting means, without a pass over the words. The second
    # fit counts as part of the first round. Documents with a start as good as their posterior are
    # then done after a single round.
    logits = space.lift(start)
    variances.update(active.rows, batch, logits)
    point = objective().evaluate(z)
    bound = point.value + variances.bound_terms(active.rows)
    variances.update(active.rows, batch, logits)
    words, secant = point.words, None
    for iteration in range(max_iterations):
        point, secant, *_ = maximise_mean(
            objective(),
            z[active.rows],
            tolerance=0.1 * tolerance,
            # Far from the optimum, a few steps before the variances change lead to better optima.
            max_iterations=2 if iteration else 4,
            words=words,
            secant=secant,
        )
        z[active.rows] = point.z
        new_bound = point.value + variances.bound_terms(active.rows)
        gain = new_bound - bound[active.rows]
        bound[active.rows] = new_bound
        rounding = bound_rounding(new_bound, current.lengths, point.words.logits)
        active.step(*converged_or_failed(gain, tolerance, rounding))
        # The next round starts at these means, with other variances.
        current, current_space, words, secant = active.drop_stopped(
            current, current_space, point.words, secant.after_small_gains(gain)
        )
        # The last round ends with the mean, so the bound is the bound of the returned posterior.
        if active.finished or iteration + 1 == max_iterations:
            break
        variances.update(active.rows, current, words.logits)
    return ModePosterior(
        space=space,
        mean=space.unwhiten(z),
        index=batch.index,
        converged=active.converged,
        iterations=active.iterations,
        objective=bound,
    )
