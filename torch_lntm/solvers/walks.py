"""M-step for topics whose words follow random walks over ordered periods, all words at once.

Word v of topic k has in period t the probability

    φ_tkv = exp(λ_tkv) / Z_tk,      Z_tk = Σ_v exp(λ_tkv)

and its logits are a random walk, λ_t − λ_(t−1) ~ Normal(0, s²_kv Δ_t) over gaps Δ_t (*Blei &
Lafferty 2006*, with a variance for each word). The level l_kv = Σ_t ω_t λ_tkv is the mean of the
path by fixed shares ω of the periods, and softmax(l_k) has the prior Dirichlet(1 + β_k). Given
expected counts n the M-step maximises

    Σ_tkv n_tkv log φ_tkv + Σ_kv β_kv log softmax(l_k)_v
    − ½ Σ_tkv (λ_tkv − λ_(t−1)kv)² / (s²_kv Δ_t)

A single period, and the limit s → 0, give φ ∝ n + β. The gaps enter symmetrically, so reversing
time gives the same paths. Only the normalisers connect the words. For them −log Z ≥ 1 − log ξ −
Z/ξ, with equality at ξ = Z. With μ_tk = Σ_v n_tkv / Z_tk and μ0_k = Σ_v β_kv / Σ_v exp(l_kv) held,
each word has a concave Poisson problem in its path:

    Σ_t (n_t λ_t − μ_t exp(λ_t)) + β l − μ0 exp(l) − ½ Σ_t (λ_t − λ_(t−1))² / (s² Δ_t)

Its Hessian is tridiagonal, plus a rank of 1 for the level, so a Newton step takes O(T). Common
shifts of all words in a period change the walks' density alone, and have a maximum in closed form.
Rounds over levels, paths, shifts and normalisers never lower the objective.

The *still* words of a topic share one path, the shift. Only words with enough tokens to move have
paths of their own, and their number bounds the time.

This differs from *Blei & Lafferty 2006* in four points:

1. They approximate the posterior of the paths by variational Kalman filtering, whereas this M-step
   finds their mode, as it does for all other parameters.
2. One variance s² serves all their words. Because most words hardly move, each has a variance of
   its own here, learned from its tokens (:mod:`torch_lntm.solvers.walk_evidence`).
3. Their first period is the only anchor of a path. The level, a mean over the periods, is the
   anchor here, so that the order of time plays no role and the limit s → 0 is the usual M-step.
4. Their paths end with softmax, whose normaliser ties all words together. Holding the normalisers
   separates the words here, at the price of several rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Walks(NamedTuple):
    """Topics with words that move, as factors.

    Attributes:
        level: ``(num_words, num_topics)`` softmax of the paths' levels, with columns of sum 1.
        shift: ``(num_periods, num_topics)`` path of the still words around their levels.
        moving: ``(num_moving,)`` positions of the moving words in the flat ``level``, ascending.
        paths: ``(num_periods, num_moving)`` paths of the moving words around their levels.
    """

    level: Tensor
    shift: Tensor
    moving: Tensor
    paths: Tensor

    def weights(self) -> Tensor:
        """exp(λ) ``(num_periods, num_moving)`` of the moving words."""
        return self.level.flatten()[self.moving] * self.paths.exp()

    def normalisers(self) -> Tensor:
        """Z ``(num_periods, num_topics)``."""
        level = self.level.flatten().index_fill(0, self.moving, 0.0).view_as(self.level)
        still = self.shift.exp() * level.sum(0)
        return still.index_add(1, self.moving % self.level.shape[1], self.weights())

    def probs(self, dtype: torch.dtype) -> Tensor:
        """Word probabilities φ ``(num_periods, num_words, num_topics)``; sums over words are 1."""
        log_z = self.normalisers().log()
        scale = (self.shift - log_z).exp().to(dtype)
        table = scale[:, None, :] * self.level.to(dtype)
        own = self.weights() * (-log_z[:, self.moving % self.level.shape[1]]).exp()
        table.view(len(scale), -1)[:, self.moving] = own.to(dtype)
        return table

    def with_moving(self, moving: Tensor) -> Walks:
        """The factors with other moving words. Words that become still take the shift as path."""
        if torch.equal(moving, self.moving):
            return self
        paths = self.shift[:, moving % self.level.shape[1]]
        place = torch.searchsorted(self.moving, moving).clamp_max(max(len(self.moving) - 1, 0))
        if len(self.moving):
            kept = self.moving[place] == moving
            paths = torch.where(kept, self.paths[:, place], paths)
        return self._replace(moving=moving, paths=paths)


class WalkPrior(NamedTuple):
    """Prior of the paths.

    Attributes:
        smoothing: ``(num_words, num_topics)`` β, pseudo-counts of the words in the levels.
        shares: ``(num_periods,)`` ω, of sum 1.
        gaps: ``(num_periods - 1,)`` Δ.
        variances: ``(num_words, num_topics)`` s², of a step over a gap of 1.
    """

    smoothing: Tensor
    shares: Tensor
    gaps: Tensor
    variances: Tensor

    def precisions(self, words: Tensor) -> Tensor:
        """``(num_periods - 1, num_selected)`` precisions 1/(s² Δ) of the steps of some words."""
        return 1 / (self.gaps[:, None] * self.variances.flatten()[words])


class WalkHessian(NamedTuple):
    """Factors of diag(D) + Q, with Q the precision of random walks, many walks at once.

    Because the recursion only adds positive numbers, precisions of any size keep all digits.

    Attributes:
        pivots: ``(num_periods, num_walks)`` pivots d of the elimination.
        ahead: ``(num_periods - 1, num_walks)`` p / d, p the precisions of the steps.
    """

    pivots: Tensor
    ahead: Tensor

    @classmethod
    def of(cls, diagonal: Tensor, precisions: Tensor) -> WalkHessian:
        """Eliminate the periods in order.

        Args:
            diagonal: ``(num_periods, num_walks)`` D, positive.
            precisions: ``(num_periods - 1, num_walks)`` precisions of the steps.
        """
        own, pivots = diagonal[0], []
        for t, p in enumerate(precisions):
            pivots.append(own + p)
            own = diagonal[t + 1] + p * own / pivots[-1]
        pivots.append(own)
        pivot = torch.stack(pivots)
        return cls(pivot, precisions / pivot[:-1])

    def solve(self, right: Tensor) -> Tensor:
        """Solution x of (diag(D) + Q) x = right, both ``(..., num_periods, num_walks)``."""
        steps = list(right.unbind(-2))
        for t, p in enumerate(self.ahead):
            steps[t + 1] = steps[t + 1] + p * steps[t]
        steps[-1] = steps[-1] / self.pivots[-1]
        for t in range(len(steps) - 2, -1, -1):
            steps[t] = steps[t] / self.pivots[t] + self.ahead[t] * steps[t + 1]
        return torch.stack(steps, -2)

    def variances(self) -> Tensor:
        """Diagonal of the inverse, ``(num_periods, num_walks)``."""
        inverse = 1 / self.pivots
        own = [inverse[-1]]
        for t in range(len(self.ahead) - 1, -1, -1):
            own.append(inverse[t] + self.ahead[t].square() * own[-1])
        return torch.stack(own[::-1])


def walking_words(
    counts: Tensor,
    start: Walks,
    prior: WalkPrior,
    *,
    still: float,
    fewest: float,
    floor: float,
    rounds: int,
    tolerance: float,
) -> Walks:
    """Rounds of the M-step in the module's docstring.

    Args:
        counts: ``(num_periods, num_words, num_topics)`` n, expected tokens.
        start: Starting factors, float64.
        prior: Prior of the paths.
        still: A word is still if its tokens and pseudo-counts could move its path by at most this
            number.
        fewest: A word with fewer tokens is still.
        floor: Least level of a word. A topic without tokens and smoothing keeps its levels.
        rounds: Largest number of rounds.
        tolerance: Rounds end once the objective rises by at most this number of nats per token.

    Returns:
        The factors. Their objective is at least that of the start, up to ``still``.
    """
    totals, by_word = counts.sum(1).double(), counts.sum(0).double()
    widest = float(prior.gaps.max()) if len(prior.gaps) else 0.0
    reach = prior.variances * (by_word + prior.smoothing) * widest
    moving = ((reach > still) & (by_word >= fewest)).flatten().nonzero().squeeze(1)
    problem = _Problem(
        counts.flatten(1)[:, moving].double(),
        by_word,
        totals,
        prior,
        prior.precisions(moving),
        floor,
    )
    walks, last = start.with_moving(moving), None
    for _ in range(rounds):
        walks = problem.round(walks)
        if rounds > 1:
            value = problem.objective(walks)
            if last is not None and value - last <= tolerance * float(totals.sum()):
                break
            last = value
    return walks


class _Problem(NamedTuple):
    """Counts and prior of an M-step.

    Attributes:
        counts: ``(num_periods, num_moving)`` tokens of the moving words.
        by_word: ``(num_words, num_topics)`` tokens of all periods.
        totals: ``(num_periods, num_topics)`` tokens of all words.
        prior: As for :func:`walking_words`.
        precisions: ``(num_periods - 1, num_moving)`` precisions of the steps of moving words.
        floor: As for :func:`walking_words`.
    """

    counts: Tensor
    by_word: Tensor
    totals: Tensor
    prior: WalkPrior
    precisions: Tensor
    floor: float

    def round(self, walks: Walks) -> Walks:
        """One round over levels, paths, shifts and normalisers."""
        smoothing = self.prior.smoothing
        rates = self.totals / walks.normalisers()  # μ
        pseudo = smoothing.sum(0)  # μ0: levels have the sum 1
        # All words, a common factor of each word's path: closed form.
        topic = walks.moving % walks.level.shape[1]
        expected = (rates * walks.shift.exp()).sum(0).expand_as(walks.level).flatten()
        of_moving = (rates[:, topic] * walks.paths.exp()).sum(0)
        expected = expected.index_copy(0, walks.moving, of_moving).view_as(walks.level) + pseudo
        new = (self.by_word + smoothing) / expected.clamp_min(1e-300)
        has_counts = self.by_word.sum(0) + pseudo > 0
        level = torch.where(has_counts, new, walks.level).clamp_min(self.floor)
        if len(walks.moving):
            logits = level.flatten()[walks.moving].log() + walks.paths
            own_pseudo = smoothing[walks.moving // smoothing.shape[1], topic]
            for part in column_parts(*logits.shape):
                own_rates = rates[:, topic[part]]
                logits[:, part] = self._newton(
                    part, logits[:, part], own_rates, own_pseudo[part], pseudo[topic[part]]
                )
            own = self.prior.shares @ logits
            level = level.flatten().index_copy(0, walks.moving, own.exp()).view_as(level)
            level = level.clamp_min(self.floor)
            walks = walks._replace(paths=logits - own)
        return self._shifted(walks._replace(level=level / level.sum(0)))

    def objective(self, walks: Walks) -> float:
        """The objective of the module's docstring, up to a constant."""
        smoothing, topic = self.prior.smoothing, walks.moving % walks.level.shape[1]
        still = self.totals.index_add(1, topic, -self.counts)
        value = ((self.by_word + smoothing) * walks.level.log()).sum()
        value = value + (self.counts * walks.paths).sum() + (still * walks.shift).sum()
        value = value - (self.totals * walks.normalisers().log()).sum()
        energy = (walks.paths.diff(dim=0).square() * self.precisions).sum()
        energy = energy + (walks.shift.diff(dim=0).square() * self._still_precisions(walks)).sum()
        return float(value - 0.5 * energy)

    def _newton(
        self, part: slice, logits: Tensor, rates: Tensor, smoothing: Tensor, pseudo: Tensor
    ) -> Tensor:
        """A damped Newton step of the paths of some moving words.

        Args:
            part: Positions among the moving words.
            logits: ``(num_periods, num_selected)`` λ.
            rates: ``(num_periods, num_selected)`` μ of the words' topics.
            smoothing: ``(num_selected,)`` β.
            pseudo: ``(num_selected,)`` μ0 of the words' topics.
        """
        shares, precisions = self.prior.shares[:, None], self.precisions[:, part]
        weighted = self.counts[:, part] + smoothing * shares

        def density(x: Tensor) -> Tensor:
            level = self.prior.shares @ x
            energy = (precisions * x.diff(dim=0).square()).sum(0)
            return (weighted * x - rates * x.exp()).sum(0) - pseudo * level.exp() - 0.5 * energy

        # Newton's system is (diag(D) + Q + c ωωᵀ) step = gradient, for the expected pseudo-counts c
        # of the level. Two solutions with the tridiagonal part and Sherman and Morrison's formula
        # give the step.
        expected = rates * logits.exp()
        level = pseudo * (self.prior.shares @ logits).exp()
        gradient = weighted - expected - shares * level + pull_of(logits, precisions)
        hessian = WalkHessian.of(expected.clamp_min(1e-12), precisions)
        step, of_level = hessian.solve(torch.stack([gradient, shares.expand_as(gradient)]))
        ratio = level * (self.prior.shares @ step) / (1 + level * (self.prior.shares @ of_level))
        step = (step - ratio * of_level).nan_to_num(0.0)
        step = shortened(step)
        before = density(logits)
        for _ in range(6):
            worse = ~(density(logits + step) >= before - 1e-12 * before.abs())
            if not bool(worse.any()):
                break
            step = torch.where(worse, 0.5 * step, step)
        else:
            step = torch.where(density(logits + step) >= before, step, 0.0)
        return logits + step

    def _shifted(self, walks: Walks) -> Walks:
        """The factors after the best common shift of each topic's words in each period."""
        if not len(self.prior.gaps):
            return walks
        topic = walks.moving % walks.level.shape[1]
        still = self._still_precisions(walks)
        sums = still * walks.shift.diff(dim=0)
        sums = sums.index_add(1, topic, self.precisions * walks.paths.diff(dim=0))
        # A shift x_t of all words adds (Δλ + Δx)² to the energy of every walk. Each Δx has its own
        # minimum, the mean of −Δλ weighted by the precisions of the walks.
        step = -sums / still.index_add(1, topic, self.precisions)
        path = torch.cat([torch.zeros_like(step[:1]), step.cumsum(0)])
        path = path - self.prior.shares @ path
        return walks._replace(shift=walks.shift + path, paths=walks.paths + path[:, topic])

    def _still_precisions(self, walks: Walks) -> Tensor:
        """``(num_periods - 1, num_topics)`` precisions of the steps, summed over still words."""
        inverse = (1 / self.prior.variances).flatten().index_fill(0, walks.moving, 0.0)
        return inverse.view_as(self.prior.variances).sum(0) / self.prior.gaps[:, None]


def column_parts(num_periods: int, num_walks: int) -> list[slice]:
    """Slices of the columns of a table of walks, small enough for the caches of a CPU."""
    # About 2**17 numbers of a table are computed together.
    size = max(256, 2**17 // num_periods)
    return [slice(i, i + size) for i in range(0, num_walks, size)]


def pull_of(logits: Tensor, precisions: Tensor) -> Tensor:
    """Gradient of the walks' log density, ``(num_periods, num_walks)``.

    Args:
        logits: ``(num_periods, num_walks)`` paths.
        precisions: ``(num_periods - 1, num_walks)`` precisions of the steps.
    """
    pull = precisions * logits.diff(dim=0)
    none = torch.zeros_like(logits[:1])
    return torch.cat([pull, none]) - torch.cat([none, pull])


def shortened(step: Tensor) -> Tensor:
    """Newton steps ``(num_periods, num_walks)``, each with entries of at most 2."""
    return step * (2.0 / step.abs().amax(0).clamp_min(2.0))
