"""M-step for topics whose words follow random walks over ordered periods, all words at once.

Word v of topic k has in period t the probability

    φ_tkv = exp(λ_tkv) / Z_tk,      Z_tk = Σ_v exp(λ_tkv)

and its logits are a random walk, λ_t − λ_(t−1) ~ Normal(0, s²_kv Δ_t) over gaps Δ_t (*Blei &
Lafferty 2006*, with a variance for each word). The level l_kv = Σ_t ω_t λ_tkv is the mean of the
path by fixed shares ω of the periods, and softmax(l_k) has the prior Dirichlet(1 + β_k). Given
expected counts n the M-step maximises

    Σ_tkv n_tkv log φ_tkv + Σ_kv β_kv log softmax(l_k)_v
    − ½ Σ_tkv (λ_tkv − λ_(t−1)kv)² / (s²_kv Δ_t)

A single period, and the limit s → 0, give φ ∝ n + β. The gaps enter symmetrically, so the reversed
time gives the same paths. The normalisers are the only connection between words. For them −log Z ≥
1 − log ξ − Z/ξ, with equality at ξ = Z. With μ_tk = Σ_v n_tkv / Z_tk and μ0_k = Σ_v β_kv /
Σ_v exp(l_kv) held, each word has a concave Poisson problem in its path:

    Σ_t (n_t λ_t − μ_t exp(λ_t)) + β l − μ0 exp(l) − ½ Σ_t (λ_t − λ_(t−1))² / (s² Δ_t)

Its Hessian is tridiagonal, plus a rank of 1 for the level, so a Newton step takes O(T). Common
shifts of all words in a period change the walks' density alone, and have a maximum in closed form.
Rounds over levels, paths, shifts and normalisers never lower the objective.

The *still* words of a topic share one path, the shift. Only words with tokens enough to move have
paths of their own. Their number bounds the time.

Documents repeat their words, so the tokens of a word vary more than Poisson's, by a factor d_kv,
the *dispersion*. A token then counts 1/d. With d s² as the variance of a step, the path stays the
same for every d. Laplace's method gives the evidence of a word's tokens for s and d, with the
variances of extended quasi-likelihood (*Nelder & Pregibon 1987*):

    − (D + E) / 2d − ½ (T − 1) log d − ½ log det(diag(μ exp(λ)) + Q) − ½ Σ_t log(s² Δ_t)

D is Poisson's deviance from the path λ of this s, E the sum of the squared steps over s² Δ, and Q
the precision of the walk. All words share the weights of a few values of s and of d, and EM learns
the weights. Dispersions are at least those that the documents show (:func:`least_dispersions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Newton steps of a round, halvings of a step, and the longest step of a logit.
NEWTON_STEPS, HALVINGS, LONGEST_STEP = 1, 6, 2.0
#: Words with fewer tokens in a topic say nothing about scales.
LEARNING_TOKENS = 20.0
#: Values of the scales s and of the dispersions d.
SCALES = tuple(2.0**k for k in range(-8, 2))
DISPERSIONS = tuple(2.0**k for k in range(7))
#: Newton steps of a path for each scale, from the path of the next smaller scale.
PATH_STEPS = 2
#: Rounds of EM for the weights in an M-step.
WEIGHT_STEPS = 5
#: Number of pseudo-words behind the weights, their typical scale, and the spread of its logarithm.
PSEUDO_WORDS, PSEUDO_SCALE, PSEUDO_SPREAD = 5.0, 0.1, 1.0
#: Numbers of a table that are computed together.
CACHED_NUMBERS = 2**17


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

    The recursion adds positive numbers alone, so precisions of any size keep all digits.

    Attributes:
        pivots: ``(num_periods, num_walks)`` pivots d of the elimination.
        ahead: ``(num_periods - 1, num_walks)`` p / d, p the precisions of the steps.
        kept: ``(num_periods - 1, num_walks)`` 1 − p / d.
    """

    pivots: Tensor
    ahead: Tensor
    kept: Tensor

    @classmethod
    def of(cls, diagonal: Tensor, precisions: Tensor) -> WalkHessian:
        """Eliminate the periods in order.

        Args:
            diagonal: ``(num_periods, num_walks)`` D, positive.
            precisions: ``(num_periods - 1, num_walks)`` precisions of the steps.
        """
        own, pivots, kept = diagonal[0], [], []
        for t, p in enumerate(precisions):
            pivots.append(own + p)
            kept.append(own / pivots[-1])
            own = diagonal[t + 1] + p * kept[-1]
        pivots.append(own)
        pivot = torch.stack(pivots)
        keep = torch.stack(kept) if kept else precisions
        return cls(pivot, precisions / pivot[:-1], keep)

    def solve(self, right: Tensor) -> Tensor:
        """Solution x of (diag(D) + Q) x = right, both ``(..., num_periods, num_walks)``."""
        steps = list(right.unbind(-2))
        for t, p in enumerate(self.ahead):
            steps[t + 1] = steps[t + 1] + p * steps[t]
        steps[-1] = steps[-1] / self.pivots[-1]
        for t in range(len(steps) - 2, -1, -1):
            steps[t] = steps[t] / self.pivots[t] + self.ahead[t] * steps[t + 1]
        return torch.stack(steps, -2)

    def variances(self) -> tuple[Tensor, Tensor]:
        """Diagonal of the inverse, and the variances of the steps between neighbours.

        Returns:
            ``(num_periods, num_walks)`` and ``(num_periods - 1, num_walks)``.
        """
        inverse = 1 / self.pivots
        own, steps = [inverse[-1]], []
        for t in range(len(self.ahead) - 1, -1, -1):
            steps.append(inverse[t] + self.kept[t].square() * own[-1])
            own.append(inverse[t] + self.ahead[t].square() * own[-1])
        step = torch.stack(steps[::-1]) if steps else self.ahead
        return torch.stack(own[::-1]), step


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
            for part in _parts(*logits.shape):
                own_rates = rates[:, topic[part]]
                for _ in range(NEWTON_STEPS):
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

        expected = rates * logits.exp()
        level = pseudo * (self.prior.shares @ logits).exp()
        pull = precisions * logits.diff(dim=0)
        gradient = weighted - expected - shares * level
        gradient[:-1] += pull
        gradient[1:] -= pull
        hessian = WalkHessian.of(expected.clamp_min(1e-12), precisions)
        step, of_level = hessian.solve(torch.stack([gradient, shares.expand_as(gradient)]))
        ratio = level * (self.prior.shares @ step) / (1 + level * (self.prior.shares @ of_level))
        step = (step - ratio * of_level).nan_to_num(0.0)
        step = step * (LONGEST_STEP / step.abs().amax(0).clamp_min(LONGEST_STEP))
        before = density(logits)
        for _ in range(HALVINGS):
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
        step = -sums / still.index_add(1, topic, self.precisions)
        path = torch.cat([torch.zeros_like(step[:1]), step.cumsum(0)])
        path = path - self.prior.shares @ path
        return walks._replace(shift=walks.shift + path, paths=walks.paths + path[:, topic])

    def _still_precisions(self, walks: Walks) -> Tensor:
        """``(num_periods - 1, num_topics)`` precisions of the steps, summed over still words."""
        inverse = (1 / self.prior.variances).flatten().index_fill(0, walks.moving, 0.0)
        return inverse.view_as(self.prior.variances).sum(0) / self.prior.gaps[:, None]


def least_dispersions(repeats: Tensor, length: float, tokens: Tensor) -> Tensor:
    """Dispersions that the documents show.

    A document of N tokens, of a single topic and without repetitions, has Poisson numbers of a
    word. The average token of the word then is among 1 + N φ tokens of the word, for the mean of φ
    over the topics of the word's tokens. Further tokens are repetitions.

    Args:
        repeats: ``(num_words,)`` Σ_d c² / Σ_d c for the tokens c of the word in each document.
        length: N, the length of the document of an average token.
        tokens: ``(num_words, num_topics)`` expected tokens.

    Returns:
        ``(num_words,)``, at least 1, for all topics of a word.
    """
    probs = tokens / tokens.sum(0).clamp_min(1e-12)
    expected = length * (tokens * probs).sum(1) / tokens.sum(1).clamp_min(1e-12)
    return (repeats - expected).clamp_min(1.0)


class Evidence(NamedTuple):
    """What the tokens say about scales and dispersions of the moving words.

    Attributes:
        words: ``(num_informative,)`` words with tokens enough, as positions among the moving words.
        values: ``(num_informative, num_scales, num_dispersions)`` log evidence, up to a constant
            for each word.
        tokens: ``(num_words * num_topics,)`` expected tokens of every word in a period.
        scales: ``(num_scales,)`` scales s.
        dispersions: ``(num_dispersions,)`` dispersions d.
    """

    words: Tensor
    values: Tensor
    tokens: Tensor
    scales: Tensor
    dispersions: Tensor

    @classmethod
    def of(
        cls,
        counts: Tensor,
        walks: Walks,
        prior: WalkPrior,
        least: Tensor,
        scales: Sequence[float] = SCALES,
    ) -> Evidence:
        """The evidence after an M-step.

        Args:
            counts: As for :func:`walking_words`.
            walks: The factors.
            prior: Prior of the paths.
            least: ``(num_words,)`` least dispersions.
            scales: Ascending scales s.
        """
        flat, topic = counts.flatten(1), walks.moving % walks.level.shape[1]
        rates = counts.sum(1).double() / walks.normalisers()
        tokens = flat.sum(0).double()
        words = (tokens[walks.moving] >= LEARNING_TOKENS).nonzero().squeeze(1)
        d = rates.new_tensor(DISPERSIONS)
        # The largest dispersion is possible for all words.
        of_words = least[walks.moving[words] // walks.level.shape[1], None]
        too_small = d < of_words.clamp_max(d[-1]) / 2**0.5
        values = rates.new_empty(len(words), len(scales), len(d))
        for part in _parts(len(rates), len(words)):
            own = words[part]
            found = _log_evidence(
                flat[:, walks.moving[own]].double(), rates[:, topic[own]], prior.gaps, scales, d
            )
            values[part] = found.masked_fill(too_small[part, None], -math.inf)
        return cls(words, values, tokens / len(rates), rates.new_tensor(scales), d)

    def posteriors(
        self, scale_weights: Tensor, dispersion_weights: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yields slices of the words, and ``(num_selected, num_scales, num_dispersions)``.

        Args:
            scale_weights: ``(num_scales,)`` weights of the scales in the prior of a word.
            dispersion_weights: ``(num_dispersions,)`` weights of the dispersions.
        """
        prior = scale_weights.log()[:, None] + dispersion_weights.log()
        for part in _parts(prior.numel(), len(self.values)):
            yield part, (self.values[part] + prior).flatten(1).softmax(1).unflatten(1, prior.shape)


def _log_evidence(
    counts: Tensor, rates: Tensor, gaps: Tensor, scales: Sequence[float], dispersions: Tensor
) -> Tensor:
    """The evidence of the module's docstring, ``(num_selected, num_scales, num_dispersions)``.

    Args:
        counts: ``(num_periods, num_selected)`` tokens of some words.
        rates: ``(num_periods, num_selected)`` μ of the words' topics.
        gaps: ``(num_periods - 1,)`` Δ.
        scales: Ascending scales s.
        dispersions: ``(num_dispersions,)`` dispersions d.
    """
    rates = rates.clamp_min(1e-12)
    saturated = (torch.special.xlogy(counts, counts) - counts).sum(0)
    logits = (counts.sum(0) / rates.sum(0)).log().expand_as(counts)
    values = []
    for scale in scales:
        precisions = (1 / (scale**2 * gaps))[:, None].expand(-1, counts.shape[1])
        for _ in range(PATH_STEPS):
            expected = rates * logits.exp()
            pull = precisions * logits.diff(dim=0)
            gradient = counts - expected
            gradient[:-1] += pull
            gradient[1:] -= pull
            step = WalkHessian.of(expected.clamp_min(1e-12), precisions).solve(gradient)
            logits = logits + step * (LONGEST_STEP / step.abs().amax(0).clamp_min(LONGEST_STEP))
        expected = (rates * logits.exp()).clamp_min(1e-12)
        pivots = WalkHessian.of(expected, precisions).pivots
        deviance = 2 * (saturated - (counts * expected.log() - expected).sum(0))
        deviance = deviance + (precisions * logits.diff(dim=0).square()).sum(0)
        volume = pivots.log().sum(0) - precisions.log().sum(0)
        free = len(gaps) * dispersions.log()
        values.append(-0.5 * (deviance[:, None] / dispersions + free + volume[:, None]))
    return torch.stack(values, 1)


def learn_weights(evidence: Evidence, scale_weights: Tensor, dispersion_weights: Tensor) -> None:
    """Improve the weights of scales and dispersions in place, by EM over the words.

    Args:
        evidence: The evidence of the words.
        scale_weights: ``(num_scales,)`` weights of sum 1.
        dispersion_weights: ``(num_dispersions,)`` weights of sum 1.
    """
    weights = scale_weights, dispersion_weights
    pseudo = pseudo_weights(evidence.scales, evidence.dispersions)
    for _ in range(WEIGHT_STEPS):
        sums = [PSEUDO_WORDS * x for x in pseudo]
        for _, posterior in evidence.posteriors(*weights):
            sums[0] += posterior.sum((0, 2))
            sums[1] += posterior.sum((0, 1))
        for own, total in zip(weights, sums, strict=True):
            own.copy_(total / total.sum())


def pseudo_weights(scales: Tensor, dispersions: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of scales and dispersions without tokens."""
    distance = (scales / PSEUDO_SCALE).log() / PSEUDO_SPREAD
    return (-0.5 * distance.square()).softmax(0), (-dispersions.log()).softmax(0)


def learned_variances(
    evidence: Evidence, walks: Walks, scale_weights: Tensor, dispersion_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Variances of steps and dispersions by evidence.

    The path of a word should follow its tokens as much as its paths for all scales do on average.
    A step follows n tokens by the share n s² / (1 + n s²), and the variance of a word has the
    posterior mean of this share. Dispersions are geometric means. The weights are the posterior of
    words with few tokens.

    Args:
        evidence: The evidence of the words.
        walks: The factors.
        scale_weights: ``(num_scales,)`` weights of the scales.
        dispersion_weights: ``(num_dispersions,)`` weights of the dispersions.

    Returns:
        s² and d, both ``(num_words, num_topics)``.
    """
    logs = evidence.dispersions.log()
    variances = _mean_variances(evidence.scales, scale_weights, evidence.tokens)
    dispersions = (dispersion_weights @ logs).exp().repeat(walks.level.numel())
    for part, posterior in evidence.posteriors(scale_weights, dispersion_weights):
        own = walks.moving[evidence.words[part]]
        of_scales = posterior.sum(2).unbind(1)
        variances[own] = _mean_variances(evidence.scales, of_scales, evidence.tokens[own])
        dispersions[own] = (posterior.sum(1) @ logs).exp()
    return variances.view_as(walks.level), dispersions.view_as(walks.level)


def _mean_variances(scales: Tensor, weights: Iterable[Tensor], tokens: Tensor) -> Tensor:
    """Variances s² for which n s² / (1 + n s²) is the mean of this share over scales.

    Args:
        scales: ``(num_scales,)`` scales.
        weights: Weights of each scale: numbers, or ``(num_selected,)``.
        tokens: ``(num_selected,)`` n.
    """
    totals, kept = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for square, weight in zip(scales.square(), weights, strict=True):
        rest = weight / (1 + tokens * square)
        totals += rest * square
        kept += rest
    return totals / kept


def _parts(num_periods: int, num_walks: int) -> list[slice]:
    """Slices of the columns of a table of walks, small enough for the caches of a CPU."""
    size = max(256, CACHED_NUMBERS // num_periods)
    return [slice(i, i + size) for i in range(0, num_walks, size)]
