"""Evidence of words' tokens for the scales of their walks, and for the repetition of the words.

The walks are those of :mod:`~torch_lntm.solvers.walks`, and so are the symbols.
Documents repeat their words, so that the tokens of a word vary more than Poisson's by a factor
d_kv, the *dispersion*, and a token counts only 1/d. With d s² as the variance of a step, the path
stays the same for every d. Laplace's method gives the evidence of a word's tokens for s and d, with
the variances of extended quasi-likelihood (*Nelder & Pregibon 1987*):

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

from torch_lntm.solvers.walks import WalkHessian, Walks, column_parts, pull_of, shortened

#: Words with fewer tokens in a topic say nothing about scales.
LEARNING_TOKENS = 20.0
#: Values of the scales s and of the dispersions d.
SCALES = tuple(2.0**k for k in range(-8, 2))
DISPERSIONS = tuple(2.0**k for k in range(7))


def least_dispersions(repeats: Tensor, length: float, tokens: Tensor) -> Tensor:
    """Dispersions that the documents show.

    A document of N tokens, of a single topic and without repetitions, has Poisson numbers of a
    word. Its average token is then among 1 + N φ tokens of the word, for the mean of φ over the
    topics of the word's tokens, and any further ones are repetitions.

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
    """Log evidence of the moving words' tokens for scales and dispersions.

    Attributes:
        words: ``(num_informative,)`` positions of the words with tokens enough, in a flat table of
            words by topics.
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
        gaps: Tensor,
        repeats: Tensor,
        length: float,
        scales: Sequence[float],
    ) -> Evidence:
        """The evidence after an M-step.

        Args:
            counts: ``(num_periods, num_words, num_topics)`` expected tokens.
            walks: The factors.
            gaps: ``(num_periods - 1,)`` Δ.
            repeats: As for :func:`least_dispersions`.
            length: As for :func:`least_dispersions`.
            scales: Ascending scales s.
        """
        tokens, num_topics = counts.sum(0).double(), counts.shape[-1]
        rates = counts.sum(1).double() / walks.normalisers()
        words = walks.moving[tokens.flatten()[walks.moving] >= LEARNING_TOKENS]
        d = rates.new_tensor(DISPERSIONS)
        # The largest dispersion is possible for all words.
        least = least_dispersions(repeats, length, tokens).clamp_max(d[-1])
        too_small = d < least[words // num_topics, None] / 2**0.5
        values = rates.new_empty(len(words), len(scales), len(d))
        for part in column_parts(len(rates), len(words)):
            own = words[part]
            found = _log_evidence(
                counts.flatten(1)[:, own].double(), rates[:, own % num_topics], gaps, scales, d
            )
            values[part] = found.masked_fill(too_small[part, None], -math.inf)
        return cls(words, values, tokens.flatten() / len(rates), rates.new_tensor(scales), d)

    def posteriors(
        self, scale_weights: Tensor, dispersion_weights: Tensor
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yields slices of the words, and ``(num_selected, num_scales, num_dispersions)``.

        Args:
            scale_weights: ``(num_scales,)`` weights of the scales in the prior of a word.
            dispersion_weights: ``(num_dispersions,)`` weights of the dispersions.
        """
        prior = scale_weights.log()[:, None] + dispersion_weights.log()
        for part in column_parts(prior.numel(), len(self.values)):
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
        # Newton steps of a path for each scale, from the path of the next smaller scale.
        for _ in range(2):
            expected = rates * logits.exp()
            gradient = counts - expected + pull_of(logits, precisions)
            hessian = WalkHessian.of(expected.clamp_min(1e-12), precisions)
            logits = logits + shortened(hessian.solve(gradient))
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
    # An M-step takes five rounds of EM for the weights.
    for _ in range(5):
        sums = [5.0 * x for x in pseudo]  # of 5 pseudo-words
        for _, posterior in evidence.posteriors(*weights):
            sums[0] += posterior.sum((0, 2))
            sums[1] += posterior.sum((0, 1))
        for own, total in zip(weights, sums, strict=True):
            own.copy_(total / total.sum())


def pseudo_weights(scales: Tensor, dispersions: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of scales and dispersions without tokens."""
    # The typical scale is 0.1, and the spread of its logarithm is 1.
    distance = (scales / 0.1).log()
    return (-0.5 * distance.square()).softmax(0), (-dispersions.log()).softmax(0)


def learned_variances(
    evidence: Evidence, scale_weights: Tensor, dispersion_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Variances of steps and dispersions by evidence.

    The path of a word should follow its tokens as much as its paths for all scales do on average.
    A step follows n tokens by the share n s² / (1 + n s²), and the variance of a word has the
    posterior mean of this share. Dispersions are geometric means. The weights are the posterior of
    words with few tokens.

    Args:
        evidence: The evidence of the words.
        scale_weights: ``(num_scales,)`` weights of the scales.
        dispersion_weights: ``(num_dispersions,)`` weights of the dispersions.

    Returns:
        s² and d, both ``(num_words * num_topics,)``.
    """
    logs, tokens = evidence.dispersions.log(), evidence.tokens
    variances = _mean_variances(evidence.scales, scale_weights, tokens)
    dispersions = (dispersion_weights @ logs).exp().repeat(len(tokens))
    for part, posterior in evidence.posteriors(scale_weights, dispersion_weights):
        own, of_scales = evidence.words[part], posterior.sum(2).unbind(1)
        variances[own] = _mean_variances(evidence.scales, of_scales, tokens[own])
        dispersions[own] = (posterior.sum(1) @ logs).exp()
    return variances, dispersions


def _mean_variances(scales: Tensor, weights: Iterable[Tensor], tokens: Tensor) -> Tensor:
    """Variances s² for which n s² / (1 + n s²) is the mean of this share over scales.

    Args:
        scales: ``(num_scales,)`` scales.
        weights: Weights of each scale: numbers, or ``(num_selected,)``.
        tokens: ``(num_selected,)`` n.
    """
    totals, rests = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for square, weight in zip(scales.square(), weights, strict=True):
        rest = weight / (1 + tokens * square)
        totals += rest * square
        rests += rest
    return totals / rests
