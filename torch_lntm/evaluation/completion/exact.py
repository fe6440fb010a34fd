"""Posterior means of theta by several chains of every document, as exact as one waits for."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import UnreliableEstimateWarning, warn
from torch_lntm.evaluation.completion.cache import held_out_words
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.inference.chains import chains_for
from torch_lntm.inference.chains.diagnostics import split_rhat
from torch_lntm.kernels import SparseWords
from torch_lntm.models import TopicModel

#: Most observed tokens of a short document, and the leapfrog steps of a Hamiltonian transition for
#: short and for longer ones. The mass matrix is the prior's: chains with the documents' own take
#: longer to the same error, and some of them stick where they start, in the tails of the prior.
SHORT, SHORT_STEPS, LONG_STEPS = 150, 10, 20


def score_by_chains(
    model: TopicModel,
    cache_weight: float | None,
    all_tokens: int,
    seen: DocumentBatch,
    unseen: DocumentBatch,
    *,
    tolerance: float,
    num_chains: int,
    num_samples: int,
    max_samples: int,
    seed: int,
) -> tuple[dict[str, Tensor], str]:
    """Scores of held-out tokens at the mean of theta, from draws that double until they suffice.

    The first ``num_samples`` draws are discarded and as many kept. While they do not suffice, all
    draws so far are discarded and as many are made: half of all draws are warm-up, however many.

    Args:
        model: The model.
        cache_weight: Weight a of the topics, in tokens. None for the topics alone.
        all_tokens: Held-out tokens of all documents, of which these have a part.
        seen: The observed tokens of documents that are all short, or all longer than ``SHORT``.
        unseen: The held-out tokens of the same documents, float64.
        tolerance: Monte-Carlo standard error of all documents, and bias before it is taken off, in
            nats per token, that suffice. These documents have a share by their held-out tokens.
        num_chains: Chains of each document.
        num_samples: Draws of each chain to start with, at least 4.
        max_samples: Most draws of each chain to keep.
        seed: Seed of all noise.

    Returns:
        The attributes of :class:`ExactCompletion` that are one value a document, and a description.
    """
    words = held_out_words(model, seen, unseen, cache_weight)
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
    tokens = float(unseen.lengths.sum())
    for _ in range(num_samples):
        chains.move()
    while True:
        # One more transition, whose values are not used.
        total, found = torch.zeros_like(chains.move()), []
        for _ in range(num_samples):
            theta = chains.move()
            total += theta
            found.append(words.log_likelihood(theta))
        scores = _score(words, total / num_samples, torch.stack(found, 1))
        precise = float(scores["variance"].sum()) <= tolerance**2 * all_tokens * tokens
        unbiased = float(scores["bias"].sum().abs()) <= tolerance * tokens
        if (precise and unbiased) or 2 * num_samples > max_samples:
            return scores, f"{model.name}, exact posterior mean of theta by {chains.name} chains"
        num_samples *= 2


def _score(words: SparseWords, means: Tensor, log_likelihood: Tensor) -> dict[str, Tensor]:
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
    return {
        "log_predictive": score - bias,
        "variance": influence.var(0) / num_chains,
        "bias": bias,
        "rhat": split_rhat(log_likelihood),
        "num_samples": torch.full((num_docs,), log_likelihood.shape[1]),
    }


def checked(result: ExactCompletion) -> ExactCompletion:
    """The result, with a warning if its error is above the tolerance."""
    if not result.within_tolerance:
        warn(
            f"the simulation's error is {result.simulation_error:.2g} nats per token and its bias "
            f"{result.simulation_bias:.2g}, not within {result.tolerance:g}, after "
            f"{int(result.num_samples.max())} draws of each chain; raise max_samples",
            UnreliableEstimateWarning,
        )
    return result
