"""Posterior means of theta by several chains of every document, as exact as one waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.kernels import SparseWords
from torch_lntm.latents.gamma import GammaSpace
from torch_lntm.models import TopicModel
from torch_lntm.sampling.collapsed import CollapsedGibbs

#: Draws ``(num_chains, num_docs, num_topics)`` float64, one a call, whose mean is that of theta.
Draw = Callable[[], Tensor]

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
    """

    log_predictive: Tensor
    variance: Tensor
    bias: Tensor
    rhat: Tensor
    num_samples: Tensor


def chains_of(
    model: TopicModel, batch: DocumentBatch, num_chains: int, warmup_steps: int, seed: int
) -> Draw:
    """Chains of a batch's documents: Gibbs sampling's under a Dirichlet prior, or Hamiltonian.

    Args:
        model: The model.
        batch: The observed tokens of documents that are all short, or all longer than ``SHORT``.
        num_chains: Chains of each document.
        warmup_steps: Transitions in which Hamiltonian chains adapt their step sizes.
        seed: Seed of all noise.
    """
    if model.is_conjugate:
        concentration = cast(GammaSpace, model.prior.space(batch)).concentration
        gibbs = CollapsedGibbs(
            model.topics.place(batch),
            model.topics.double_probs,
            concentration,
            num_chains=num_chains,
            seed=seed,
        )
        return gibbs.sweep
    short = bool((batch.lengths <= SHORT).all())
    settings = HMCSettings.of(
        model,
        num_chains=num_chains,
        mass_matrix="prior",
        num_steps=SHORT_STEPS if short else LONG_STEPS,
        step_size=None,
        target_accept=0.8,
        jitter=0.2,
        seed=seed,
    )
    chains = Chains(model, settings, batch, seed, warmup_steps)

    def move() -> Tensor:
        chains.move()
        return torch.softmax(chains.logits.double(), -1)

    return move


def scores_of(
    draw: Draw,
    words: SparseWords,
    num_samples: int,
    max_samples: int,
    tolerance: float,
    all_tokens: int,
) -> ChainScores:
    """Scores of held-out tokens at the mean of theta, from draws that double until they suffice.

    The first ``num_samples`` draws are discarded and as many kept. While they do not suffice, all
    draws so far are discarded and as many are made: half of all draws are warm-up, however many.

    Args:
        draw: The chains.
        words: The held-out tokens of the same documents, float64.
        num_samples: Draws of each chain to start with, at least 4.
        max_samples: Most draws of each chain to keep.
        tolerance: Monte-Carlo standard error of all documents, and bias before it is taken off, in
            nats per token, that suffice. These documents have a share by their held-out tokens.
        all_tokens: Held-out tokens of all documents.
    """
    tokens = float(words.batch.lengths.sum())
    for _ in range(num_samples):
        draw()
    while True:
        total, found = torch.zeros_like(draw()), []
        for _ in range(num_samples):
            theta = draw()
            total += theta
            found.append(words.log_likelihood(theta))
        scores = _score(words, total / num_samples, torch.stack(found, 1))
        precise = float(scores.variance.sum()) <= tolerance**2 * all_tokens * tokens
        unbiased = float(scores.bias.sum().abs()) <= tolerance * tokens
        if (precise and unbiased) or 2 * num_samples > max_samples:
            return scores
        num_samples *= 2


def _score(words: SparseWords, means: Tensor, log_likelihood: Tensor) -> ChainScores:
    """Scores from the means of each chain.

    Args:
        words: The held-out tokens.
        means: ``(num_chains, num_docs, num_topics)`` of theta.
        log_likelihood: ``(num_chains, num_samples, num_docs)`` of the held-out tokens.
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
    )


def split_rhat(draws: Tensor) -> Tensor:
    """R-hat of the halves of each chain (*Gelman et al. 2013, BDA3, eq. 11.4*).

    Args:
        draws: ``(num_chains, num_samples, ...)``, at least 4 samples.

    Returns:
        ``(...)``; 1 where all draws are the same within rounding.
    """
    half = draws.shape[1] // 2
    split = torch.cat([draws[:, :half], draws[:, -half:]])
    within, between = split.var(1).mean(0), split.mean(1).var(0)
    rounding = (1e-12 * (1.0 + draws.abs().amax((0, 1)))).square()
    still = within + between <= rounding
    ratio = (half - 1) / half + between / torch.where(still, 1.0, within)
    return torch.where(still, 1.0, ratio.sqrt())
