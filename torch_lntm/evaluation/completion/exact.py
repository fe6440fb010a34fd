"""Scores at the exact posterior mean of theta, by several chains of every document."""

from __future__ import annotations

import torch
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.evaluation.completion.cache import held_out_words
from torch_lntm.inference.chains.chains import theta_chains
from torch_lntm.kernels import fused
from torch_lntm.kernels.chains import SparseWords
from torch_lntm.models import TopicModel

#: Most observed tokens of a short document, and number of leapfrog steps of a Hamiltonian
#: transition for short and for longer documents. The mass matrix is the prior's, because a separate
#: one for each document takes longer to reach the same error, and leaves some chains stuck where
#: they start, in the prior's tails.
SHORT, SHORT_STEPS, LONG_STEPS = 150, 10, 20


@fused.threaded
def score_by_chains(
    model: TopicModel,
    cache_weight: float | None,
    all_tokens: int,
    seen: DocumentBatch,
    unseen: DocumentBatch,
    *,
    tolerance: float,
    num_chains: int,
    num_draws: int,
    max_draws: int,
    seed: int,
) -> tuple[dict[str, Tensor], str]:
    """Scores of held-out tokens at the posterior mean of theta, by chains of doubling length.

    The first ``num_draws`` draws are warm-up, and the next ``num_draws`` are kept. If the error is
    still too large, all draws so far become warm-up and the chains draw as many again, so that
    warm-up is always half of the draws.

    Args:
        model: The model.
        cache_weight: Weight a of the topics, in tokens. None for the topics alone.
        all_tokens: Held-out tokens of the whole corpus.
        seen: Observed tokens of documents that are all short, or all longer than ``SHORT``.
        unseen: Held-out tokens of the same documents, float64.
        tolerance: Largest Monte-Carlo standard error over the corpus, and largest bias before its
            removal, in nats per token. The documents of this call get a share of it in proportion
            to their held-out tokens.
        num_chains: Chains of each document.
        num_draws: First number of kept draws of each chain, at least 4.
        max_draws: Most draws of each chain to keep.
        seed: Seed of all noise.

    Returns:
        Per-document attributes of :class:`ExactCompletion` by name, and the method in words.
    """
    words = held_out_words(model, seen, unseen, cache_weight)
    short = bool((seen.lengths <= SHORT).all())
    move, sampler = theta_chains(
        model,
        seen,
        num_chains=num_chains,
        warmup_steps=num_draws,
        seed=seed,
        num_steps=SHORT_STEPS if short else LONG_STEPS,
    )
    tokens = float(unseen.lengths.sum())
    # The last of these transitions only gives the shape of the sum.
    skipped = move(num_draws + 1)
    while True:
        total, values = torch.zeros_like(skipped), []
        for _ in range(num_draws):
            theta = move(1)
            total += theta
            values.append(words.log_likelihood(theta))
        scores = _score(words, total / num_draws, torch.stack(values, 1))
        precise = float(scores["variance"].sum()) <= tolerance**2 * all_tokens * tokens
        unbiased = float(scores["bias"].sum().abs()) <= tolerance * tokens
        if (precise and unbiased) or 2 * num_draws > max_draws:
            return scores, f"{model.name}, exact mean of theta by {sampler} chains"
        num_draws *= 2
        skipped = move(1)


def _score(words: SparseWords, means: Tensor, log_likelihood: Tensor) -> dict[str, Tensor]:
    """Scores, variances and biases from the mean of each chain.

    Args:
        words: The held-out tokens.
        means: ``(num_chains, num_docs, num_topics)`` of theta.
        log_likelihood: ``(num_chains, num_draws, num_docs)`` of the held-out tokens.
    """
    num_chains, num_docs = means.shape[:2]
    mean = means.mean(0)
    score = words.log_likelihood(mean[None])[0]
    # To first order, each chain influences the score by its mean times the gradient in theta.
    gradient = words.expected_topic_counts(mean[None])[0] / mean.clamp_min(1e-300)
    influence = (means * gradient).sum(-1)
    # The jackknife leaves out each chain in turn.
    without = (mean * num_chains - means) / (num_chains - 1)
    bias = (num_chains - 1) * (words.log_likelihood(without).mean(0) - score)
    # Draws that are equal within rounding, as without held-out tokens, could have any R-hat.
    rounding = 1e-12 * (1.0 + log_likelihood.abs().amax((0, 1)))
    constant = log_likelihood.std((0, 1)) <= rounding
    return {
        "log_predictive": score - bias,
        "variance": influence.var(0) / num_chains,
        "bias": bias,
        "rhat": torch.where(constant, 1.0, split_gelman_rubin(log_likelihood)),
        "num_draws": torch.full((num_docs,), log_likelihood.shape[1]),
    }
