"""Topics that differ sparsely between groups: the M-step of content covariates, all words at once.

Topic k has in group g the word probabilities

    φ_gkv = t_kv a_gv b_gkv / Z_gk,      Z_gk = Σ_v t_kv a_gv b_gkv

with t_k the topic that all groups share, a_g how group g writes about anything, and b_gk how it
writes about topic k. Given expected counts n the M-step maximises

    Σ_gkv n_gkv log φ_gkv + s Σ_kv log t_kv − λ Σ_gv |log a_gv| − λ Σ_gkv |log b_gkv|

with t_k on the simplex. (*Roberts, Stewart & Airoldi 2016* and *Taddy 2013* approximate it by a
Poisson lasso for each word; R's stm solves them one by one.)

The words meet in the normalisers only. There −log Z ≥ 1 − log ξ − Z/ξ, with equality at ξ = Z:
given ξ, what is left is Poisson regression, separate for every word, in which each of t_kv, a_gv
and b_gkv alone has its maximum in closed form. Rounds over t, a, b and ξ, each for all words at
once, never lower the objective. It is concave in the logarithms, and its penalty is separate for
each of them, so that they end in its maximum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GroupedWords(NamedTuple):
    """The factors of topics that differ between groups.

    Attributes:
        shared: ``(num_words, num_topics)`` t, whose columns sum to 1.
        groups: ``(num_groups, num_words, 1)`` a.
        cells: ``(num_groups, num_words, num_topics)`` b.
    """

    shared: Tensor
    groups: Tensor
    cells: Tensor

    def probs(self) -> Tensor:
        """``(num_groups, num_words, num_topics)`` φ; sums over words are 1."""
        weights = self.shared * self.groups * self.cells
        return weights / weights.sum(1, keepdim=True)


def sparse_deviations(
    counts: Tensor,
    start: GroupedWords,
    *,
    smoothing: float,
    penalty: float,
    floor: float,
    rounds: int,
    tolerance: float,
) -> GroupedWords:
    """Rounds of the M-step of this module's first lines.

    Args:
        counts: ``(num_groups, num_words, num_topics)`` n, expected tokens.
        start: Where to start, in the floating-point type to compute in; a topic without counts and
            smoothing keeps its shared words.
        smoothing: s, pseudo-counts of every word in every shared topic.
        penalty: λ > 0, in tokens: a factor is 1 unless the counts differ by more from what the
            others expect.
        floor: The least probability of a word in a shared topic, and the least expected count.
        rounds: Rounds at most.
        tolerance: They end when no expected count changes by more tokens.

    Returns:
        The factors, where the objective is no less than at the start.
    """
    counts = counts.to(start.shared.dtype)
    by_group, by_cell = counts.sum(2, keepdim=True), counts.sum(1, keepdim=True)
    by_word = counts.sum(0) + smoothing
    pseudo = smoothing * counts.shape[1]
    t, a, b = start
    weights = t * a * b
    scale = by_cell / weights.sum(1, keepdim=True)  # N/ξ
    for _ in range(rounds):
        before = scale * weights
        expected = (scale * a * b).sum(0) + pseudo
        t = torch.where(by_word.sum(0) > 0, by_word / expected, t).clamp_min(floor)
        scaled = scale * t
        a = _shrunk(by_group, (scaled * b).sum(2, keepdim=True), penalty, floor)
        b = _shrunk(counts, scaled * a, penalty, floor)
        t = t / t.sum(0)
        weights = t * a * b
        scale = by_cell / weights.sum(1, keepdim=True)
        if rounds > 1 and bool((scale * weights - before).abs().max() <= tolerance):
            break
    return GroupedWords(t, a, b)


def _shrunk(counts: Tensor, expected: Tensor, penalty: float, floor: float) -> Tensor:
    """The maximiser of counts · log x − expected · x − penalty · abs(log x)."""
    expected = expected.clamp_min(floor)
    least = ((counts - penalty) / expected).clamp_(min=1.0)
    return torch.minimum(least, (counts + penalty) / expected)
