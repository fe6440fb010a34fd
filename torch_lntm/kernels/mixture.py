"""Mixtures of topics at the observed words of a batch, their log likelihood and expected counts.

The inputs are positive weights t ``(num_docs, num_topics)``, topics φ ``(num_topics, num_words)``
and the stored counts c of a batch. Sums over v run over the words of a document only:

    s_dv = Σ_k t_dk φ_kv                 log_likelihood_d = Σ_v c_dv log s_dv
    topic_counts_dk = t_dk Σ_v (c_dv / s_dv) φ_kv
    word_counts_kv  = φ_kv Σ_d t_dk (c_dv / s_dv)

The two tables of counts are the gradients of the log likelihood in log t and log φ. Seen as
statistics, they are expected numbers of tokens per topic, under the responsibilities t_dk φ_kv /
s_dv (*Ahmed & Xing 2007, eq. 12; Khan & Bouchard 2009, eqs 30–31*). They are computed as sparse
products (:mod:`torch_lntm.kernels.contraction`) or by a single CUDA kernel
(:mod:`torch_lntm.kernels.fused`). Log likelihoods are summed in double precision.

The formulas hold for independent draws, the default. For another likelihood the terms differ, and
its expected tokens from the topics replace the counts c (:mod:`torch_lntm.kernels.likelihood`).

``s`` has a floor (:func:`probability_floor`). A word of probability zero under all weighted topics
therefore costs a large finite number of nats (65 in float32) rather than ``-inf``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels import fused
from torch_lntm.kernels.contraction import (
    document_sums,
    log_likelihood,
    sampled_product,
    sum_over_docs,
    sum_over_words,
)
from torch_lntm.kernels.likelihood import INDEPENDENT, CountLikelihood

#: Bound on the size of the padded responsibilities in memory.
MAX_ELEMENTS = 2**24
#: Bound on the proportions of tokens in memory, whose topics are drawn.
MAX_DRAWN = 2**22


def probability_floor(dtype: torch.dtype) -> float:
    """Smallest probability of a word: 5e-29 in float32, 1e-298 in float64.

    It is far above the smallest normal number, so that a count divided by it is finite.
    """
    return torch.finfo(dtype).tiny * 2.0**32


class ExpectedCounts(NamedTuple):
    """Log likelihood of a batch and the expected counts under its responsibilities.

    Attributes:
        log_likelihood: ``(num_docs,)`` float64, nats.
        topic_counts: ``(num_docs, num_topics)`` expected tokens of each topic. Rows sum to the
            document's tokens from the topics, which for independent draws are all tokens.
        word_counts: ``(num_topics, num_words)`` expected tokens of each word under each topic, with
            the total of ``topic_counts``. None by default.
    """

    log_likelihood: Tensor
    topic_counts: Tensor
    word_counts: Tensor | None


def word_probabilities(weights: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
    """Mixture probabilities s_dv = Σ_k t_dk φ_kv ``(nnz,)`` at the stored counts, without autograd.

    The probabilities are at least :func:`probability_floor`.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The documents.
    """
    words = topics.mT.contiguous()
    return sampled_product(weights, words, batch).clamp_min(probability_floor(weights.dtype))


def mixture_log_likelihood(
    weights: Tensor, topics: Tensor, batch: DocumentBatch, likelihood: CountLikelihood = INDEPENDENT
) -> Tensor:
    """Log likelihood Σ_v c_dv log Σ_k t_dk φ_kv of each document, differentiable in both inputs.

    With topic proportions as weights, this is the log probability of the document's tokens with
    their topics summed out. The function has derivatives of every order, in reverse mode.

    Args:
        weights: ``(..., num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The counts, in the dtype and on the device of ``weights``.
        likelihood: Distribution of the counts. Defaults to independent draws.

    Returns:
        ``(..., num_docs)`` float64 nats; 0 for an empty document.

    Example:
        >>> weights = torch.full((batch.num_docs, 10), 0.1)
        >>> lntm.kernels.mixture.mixture_log_likelihood(weights, model.topics.probs, batch).shape
        torch.Size([5])
    """
    words, floor = topics.mT.contiguous(), probability_floor(weights.dtype)
    if weights.dim() == 2:
        return log_likelihood(weights, words, batch, floor, likelihood)
    stacked = weights.reshape(-1, *weights.shape[-2:])
    rows = [log_likelihood(row, words, batch, floor, likelihood) for row in stacked]
    return torch.stack(rows).reshape(weights.shape[:-1])


def expected_counts(
    weights: Tensor,
    topics: Tensor,
    batch: DocumentBatch,
    likelihood: CountLikelihood = INDEPENDENT,
    *,
    word_counts: bool = False,
) -> ExpectedCounts:
    """Log likelihood and expected counts of a batch in one pass, without autograd.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The counts, in the dtype and on the device of ``weights``.
        likelihood: Distribution of the counts. Defaults to independent draws.
        word_counts: Whether to form the word counts of the topics too. Defaults to False.

    Returns:
        The :class:`ExpectedCounts` of the module's formulas.
    """
    words, floor = topics.mT.contiguous(), probability_floor(weights.dtype)
    if likelihood.independent and fused.kind(weights):
        values, by_topic, by_word = fused.expected_counts(weights, words, batch, floor, word_counts)
        return ExpectedCounts(values, by_topic, None if by_word is None else by_word.mT)
    s = sampled_product(weights, words, batch).clamp_min(floor)
    ratio = likelihood.slopes(s, batch)
    value = document_sums(likelihood.log_terms(s, batch), batch)
    if not likelihood.independent:
        value = value + likelihood.length_term(batch.lengths)
    return ExpectedCounts(
        log_likelihood=value,
        topic_counts=weights * sum_over_words(ratio, words, batch),
        word_counts=sum_over_docs(ratio, weights, batch).mul_(words).mT if word_counts else None,
    )


def expected_topic_counts(
    weights: Tensor, topics: Tensor, batch: DocumentBatch, likelihood: CountLikelihood = INDEPENDENT
) -> Tensor:
    """The ``topic_counts`` ``(num_docs, num_topics)`` of :func:`expected_counts` alone."""
    if likelihood.independent and fused.kind(weights):
        return expected_counts(weights, topics, batch).topic_counts
    words = topics.mT.contiguous()
    s = sampled_product(weights, words, batch).clamp_min(probability_floor(weights.dtype))
    ratio = likelihood.slopes(s, batch)
    return weights * sum_over_words(ratio, words, batch)


def expected_word_counts(
    weights: Tensor,
    topics: Tensor,
    batch: DocumentBatch,
    likelihood: CountLikelihood = INDEPENDENT,
    *,
    shares: Tensor | None = None,
    ratio: Tensor | None = None,
) -> Tensor:
    """The ``word_counts`` ``(num_topics, num_words)`` of :func:`expected_counts` alone.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The counts, in the dtype and on the device of ``weights``.
        likelihood: Distribution of the counts. Defaults to independent draws.
        shares: ``(num_docs,)`` factor of each document's counts. Defaults to 1.
        ratio: Slopes of the log likelihood in s ``(nnz,)``, in any shape, if a visit by compiled
            kernels has made them.
    """
    words = topics.mT.contiguous()
    if ratio is not None:
        ratio = ratio.flatten()
        if shares is not None:
            ratio = ratio * shares.to(ratio)[batch.row_index]
        return fused.word_counts(weights, words, batch, ratio).mT
    if likelihood.independent and fused.kind(weights):
        if shares is not None:
            batch = batch.with_counts(batch.counts * shares.to(batch.dtype)[batch.row_index])
        counts = expected_counts(weights, topics, batch, word_counts=True).word_counts
        assert counts is not None
        return counts
    s = sampled_product(weights, words, batch).clamp_min(probability_floor(weights.dtype))
    ratio = likelihood.slopes(s, batch)
    counted = weights if shares is None else weights * shares.to(weights.dtype)[:, None]
    return sum_over_docs(ratio, counted, batch).mul_(words).mT


def draw_topics(
    weights: Tensor, words: Tensor, batch: DocumentBatch, tokens: Tensor, uniforms: Tensor
) -> Tensor:
    """Draw the topic of each token given its document and word, and count the tokens.

    Args:
        weights: ``(num_docs, num_topics)`` float64 proportions of the documents.
        words: ``(num_words, num_topics)`` float64 topics by word, contiguous.
        batch: The documents.
        tokens: ``(nnz,)`` int64 tokens of the stored counts.
        uniforms: ``(num_tokens,)`` float64 uniform numbers, by stored count.

    Returns:
        ``(num_words, num_topics)`` float64.
    """
    if fused.is_compiled(weights):
        return fused.draw_topics(weights, words, batch, tokens, uniforms)
    num_words, num_topics = words.shape
    counts = weights.new_zeros(words.numel(), dtype=torch.int64)
    entries = torch.arange(batch.nnz, device=batch.device).repeat_interleave(tokens)
    size = max(1, MAX_DRAWN // num_topics)
    for entry, u in zip(entries.split(size), uniforms.split(size), strict=True):
        word = batch.word_index[entry]
        cumulative = (weights[batch.row_index[entry]] * words[word]).cumsum(-1)
        at = u.to(cumulative)[:, None] * cumulative[:, -1:]
        topic = torch.searchsorted(cumulative, at).squeeze(-1)
        counts += torch.bincount(word * num_topics + topic, minlength=len(counts))
    return counts.view(num_words, num_topics).double()


def responsibility_covariance(weights: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
    """Σ_v c_dv ρ_dv ρ_dvᵀ of each document, with responsibilities ρ_dvk = t_dk φ_kv / s_dv.

    Entry (d, j, k) is an expected number of tokens: if the topic of every token is drawn twice,
    independently, the first draw is j and the second is k.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ.
        batch: The counts.

    Returns:
        ``(num_docs, num_topics, num_topics)``.
    """
    words = topics.mT.contiguous()
    num_topics = weights.shape[1]
    scale = batch.counts.sqrt() / word_probabilities(weights, topics, batch)
    sizes = batch.row_offsets.diff()
    result = weights.new_zeros(batch.num_docs, num_topics, num_topics)
    # Documents of similar size share a chunk. Each chunk is padded to its longest document and
    # takes a single batched product.
    order = sizes.argsort()
    sorted_sizes = sizes[order].tolist()
    stop = batch.num_docs
    while stop > 0 and sorted_sizes[stop - 1] > 0:
        width = sorted_sizes[stop - 1]
        docs = order[max(0, stop - max(1, MAX_ELEMENTS // (width * num_topics))) : stop]
        stop -= docs.numel()
        position = torch.arange(width, device=weights.device)
        inside = position < sizes[docs, None]
        entry = torch.where(inside, batch.row_offsets[docs, None] + position, 0)
        rho = words[batch.word_index[entry]] * (scale[entry] * inside)[..., None]
        rho *= weights[docs, None, :]
        result[docs] = rho.mT @ rho
    return result
