"""Posterior means of theta by several chains of every document, as exact as one waits for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.chains import chains_for
from torch_lntm.inference.chains.diagnostics import split_rhat
from torch_lntm.kernels import SparseWords
from torch_lntm.models import TopicModel

#: Most observed tokens of a short document, and the leapfrog steps of a Hamiltonian transition for
#: short and for longer ones. The mass matrix is the prior's: chains with the documents' own take
#: longer to the same error, and some of them stick where they start, in the tails of the prior.
SHORT, SHORT_STEPS, LONG_STEPS = 150, 10, 20


@dataclass(frozen=True, eq=False)
class ChainScores:
    """What the chains of some documents say of their held-out tokens.

    Attributes:
        log_predictive: ``(num_docs,)`` float64 nats of the held-out tokens at the mean of theta,
            ``bias`` taken off.
        variance: ``(num_docs,)`` its Monte-Carlo variance, between the chains.
        bias: ``(num_docs,)`` nats that the score at the mean of theta over all chains is off by on
            average, by the jackknife over chains. It is negative: a logarithm is concave.
        rhat: ``(num_docs,)`` split R-hat of the held-out tokens' log probability.
        num_samples: ``(num_docs,)`` int64 draws of each chain that the means are over.
        sampler: The chains' sampler, as an adjective.
    """

    log_predictive: Tensor
    variance: Tensor
    bias: Tensor
    rhat: Tensor
    num_samples: Tensor
    sampler: str


def score_by_chains(
    model: TopicModel,
    seen: DocumentBatch,
    words: SparseWords,
    all_tokens: int,
    *,
    tolerance: float,
    num_chains: int,
    num_samples: int,
    max_samples: int,
    seed: int,
) -> ChainScores:
    """Scores of held-out tokens at the mean of theta, from draws that double until they suffice.

    The first ``num_samples`` draws are discarded and as many kept. While they do not suffice, all
    draws so far are discarded and as many are made: half of all draws are warm-up, however many.

    Args:
        model: The model.
        seen: The observed tokens of documents that are all short, or all longer than ``SHORT``.
        words: The held-out tokens of the same documents, float64.
        all_tokens: Held-out tokens of all documents, of which these have a part.
        tolerance: Monte-Carlo standard error of all documents, and bias before it is taken off, in
            nats per token, that suffice. These documents have a share by their held-out tokens.
        num_chains: Chains of each document.
        num_samples: Draws of each chain to start with, at least 4.
        max_samples: Most draws of each chain to keep.
        seed: Seed of all noise.
    """
    short = bool((seen.lengths <= SHORT).all())
    chains = chains_for(
        model,
        seen,
        num_chains=num_chains,
        warmup_steps=num_samples,
        seed=seed,
        mass_matrix="prior",
        num_steps=SHORT_STEPS if short else LONG_STEPS,
    )
    tokens = float(words.batch.lengths.sum())
    for _ in range(num_samples):
        chains.move()
    while True:
        # One more transition, whose values are not used.
        total, found = torch.zeros_like(chains.move()), []
        for _ in range(num_samples):
            theta = chains.move()
            total += theta
            found.append(words.log_likelihood(theta))
        scores = _score(words, total / num_samples, torch.stack(found, 1), chains.name)
        precise = float(scores.variance.sum()) <= tolerance**2 * all_tokens * tokens
        unbiased = float(scores.bias.sum().abs()) <= tolerance * tokens
        if (precise and unbiased) or 2 * num_samples > max_samples:
            return scores
        num_samples *= 2


def _score(words: SparseWords, means: Tensor, log_likelihood: Tensor, sampler: str) -> ChainScores:
    """Scores from the means of each chain.

    Args:
        words: The held-out tokens.
        means: ``(num_chains, num_docs, num_topics)`` of theta.
        log_likelihood: ``(num_chains, num_samples, num_docs)`` of the held-out tokens.
        sampler: The chains' sampler.
    """
    num_chains, num_docs = means.shape[:2]
    mean = means.mean(0)
    score = words.log_likelihood(mean[None])[0]
    # To first order a chain's own mean would move the score by its gradient in theta.
    gradient = words.expected_topic_counts(mean[None])[0] / mean.clamp_min(1e-300)
    influence = (means * gradient).sum(-1)
    without = (mean * num_chains - means) / (num_chains - 1)
    bias = (num_chains - 1) * (words.log_likelihood(without).mean(0) - score)
    return ChainScores(
        log_predictive=score - bias,
        variance=influence.var(0) / num_chains,
        bias=bias,
        rhat=split_rhat(log_likelihood),
        num_samples=torch.full((num_docs,), log_likelihood.shape[1]),
        sampler=sampler,
    )
