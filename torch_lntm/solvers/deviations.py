"""M-step for topics with sparse differences between levels (content covariates), all words at once.

Topic k has in level g the word probabilities

    φ_gkv = t_kv a_gv b_gkv / Z_gk,      Z_gk = Σ_v t_kv a_gv b_gkv

with t_k the topic shared by all levels, a_g the deviation of level g for all topics, and b_gk the
deviation of level g for topic k. Given expected counts n the M-step maximises

    Σ_gkv n_gkv log φ_gkv + Σ_kv s_kv log t_kv − λ Σ_gv |log a_gv| − λ Σ_gkv |log b_gkv|

with t_k on the simplex. (*Roberts, Stewart & Airoldi 2016* and *Taddy 2013* approximate the maximum
by a Poisson lasso for each word; R's stm solves them in turn.)

Only the normalisers connect the words. For them −log Z ≥ 1 − log ξ − Z/ξ, with equality at ξ = Z,
and given ξ the problem is a separate Poisson regression for every word. There t_kv, a_gv and b_gkv
each have a maximum in closed form, given the others. Rounds over t, a, b and ξ, each for all words
at once, never lower the objective. They end in its maximum, because it is concave in the logarithms
and its penalty is separate for each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LevelWords(NamedTuple):
    """Factors of topics with differences between levels.

    Attributes:
        shared: ``(num_words, num_topics)`` t, with columns of sum 1.
        levels: ``(num_levels, num_words, 1)`` a.
        cells: ``(num_levels, num_words, num_topics)`` b.
    """

    shared: Tensor
    levels: Tensor
    cells: Tensor

    def probs(self, dtype: torch.dtype) -> Tensor:
        """Word probabilities φ ``(num_levels, num_words, num_topics)``; sums over words are 1."""
        weights = self.shared * self.levels * self.cells
        return (weights / weights.sum(1, keepdim=True)).to(dtype)


def sparse_deviations(
    counts: Tensor,
    start: LevelWords,
    *,
    smoothing: float | Tensor,
    penalty: float,
    floor: float,
    rounds: int,
    tolerance: float,
) -> LevelWords:
    """Rounds of the M-step in the module's docstring.

    Args:
        counts: ``(num_levels, num_words, num_topics)`` n, expected tokens.
        start: Starting factors, in the floating-point type of the computation. A topic without
            counts and smoothing keeps its shared words.
        smoothing: s, pseudo-counts in the shared topics, ``(num_words, num_topics)``, or one
            number for all.
        penalty: λ > 0, in tokens. A factor is 1 if the counts differ by at most λ from their
            expectation under the other factors.
        floor: Least probability of a word in a shared topic, and least expected count.
        rounds: Largest number of rounds.
        tolerance: Rounds end once every expected count changes by at most this number of tokens.

    Returns:
        The factors. Their objective is at least that of the start.
    """
    counts = counts.to(start.shared.dtype)
    by_level, by_cell = counts.sum(2, keepdim=True), counts.sum(1, keepdim=True)
    by_word = counts.sum(0) + smoothing
    pseudo = smoothing.sum(0) if isinstance(smoothing, Tensor) else smoothing * counts.shape[1]
    t, a, b = start
    weights = t * a * b
    scale = by_cell / weights.sum(1, keepdim=True)  # N/ξ
    for _ in range(rounds):
        before = scale * weights
        # t, a and b take their maxima at fixed ξ in turn, and then N/ξ is updated.
        expected = (scale * a * b).sum(0) + pseudo
        t = torch.where(by_word.sum(0) > 0, by_word / expected, t).clamp_min(floor)
        scaled = scale * t
        a = _shrunk(by_level, (scaled * b).sum(2, keepdim=True), penalty, floor)
        b = _shrunk(counts, scaled * a, penalty, floor)
        t = t / t.sum(0)
        weights = t * a * b
        scale = by_cell / weights.sum(1, keepdim=True)
        if rounds > 1 and bool((scale * weights - before).abs().max() <= tolerance):
            break
    return LevelWords(t, a, b)


def _shrunk(counts: Tensor, expected: Tensor, penalty: float, floor: float) -> Tensor:
    """The maximiser of counts · log x − expected · x − penalty · abs(log x)."""
    expected = expected.clamp_min(floor)
    least = ((counts - penalty) / expected).clamp_(min=1.0)
    return torch.minimum(least, (counts + penalty) / expected)
