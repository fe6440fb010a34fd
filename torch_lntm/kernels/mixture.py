"""Mixtures of topics at the observed words of a batch, their log likelihood and expected counts.

For positive weights t ``(num_docs, num_topics)`` and topics φ ``(num_topics, num_words)``, over the
stored counts c only,

    s_dv = Σ_k t_dk φ_kv                 log_likelihood_d = Σ_v c_dv log s_dv
    topic_counts_dk = t_dk Σ_v (c_dv / s_dv) φ_kv
    word_counts_kv  = φ_kv Σ_d t_dk (c_dv / s_dv)

The two tables of counts are the gradients of the log likelihood in log t and log φ: the expected
numbers of tokens per topic under the responsibilities t_dk φ_kv / s_dv (*Ahmed & Xing 2007, eq. 12;
Khan & Bouchard 2009, eqs 30–31*). Nothing of size documents × words or stored counts × topics is
formed: s is a sampled matrix product, and both gradients are weighted bags of rows. Document sums
run in CSR order and word sums in the transposed order, without atomics, so a result is
reproducible on its device. Log likelihoods are summed in double precision.

``s`` is floored (:func:`probability_floor`), so a word that every weighted topic gives probability
zero costs a large finite number of nats (65 in float32) instead of ``-inf``.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch

with warnings.catch_warnings():
    # Torch announces once per process that its sparse CSR support is in beta; what is used of it
    # is tested here, and a user of topic models can do nothing about it.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), check_invariants=False)


def probability_floor(dtype: torch.dtype) -> float:
    """The probability that stands for zero: 5e-29 in float32, 1e-298 in float64.

    Far enough above the smallest normal number that a count divided by it is finite.
    """
    return torch.finfo(dtype).tiny * 2.0**32


class ExpectedCounts(NamedTuple):
    """Log likelihood of a batch and the expected counts under its responsibilities.

    Attributes:
        log_likelihood: ``(num_docs,)`` float64, nats.
        topic_counts: ``(num_docs, num_topics)`` expected tokens of each topic; rows sum to the
            documents' lengths.
        word_counts: ``(num_topics, num_words)`` expected tokens of each word under each topic, or
            None if not asked for; sums to the number of tokens.
    """

    log_likelihood: Tensor
    topic_counts: Tensor
    word_counts: Tensor | None


def _by_word(topics: Tensor) -> Tensor:
    """Topics as contiguous rows per word ``(num_words, num_topics)``; free if stored that way."""
    return topics.mT.contiguous()


def _mixture(weights: Tensor, words: Tensor, batch: DocumentBatch) -> Tensor:
    """``(nnz,)`` s_dv = Σ_k t_dk φ_kv at the stored counts, floored."""
    pattern = torch.sparse_csr_tensor(
        batch.row_offsets,
        batch.word_index,
        weights.new_zeros(batch.nnz),
        size=tuple(batch.shape),
        check_invariants=False,
    )
    s = torch.sparse.sampled_addmm(pattern, weights, words.mT, beta=0.0).values()
    return s.clamp_min(probability_floor(s.dtype))


def _sum_over_words(ratio: Tensor, words: Tensor, batch: DocumentBatch) -> Tensor:
    """``(num_docs, num_topics)`` Σ_v ratio_dv φ_kv."""
    if batch.nnz == 0:
        return words.new_zeros(batch.num_docs, words.shape[1])
    return F.embedding_bag(
        batch.word_index,
        words,
        batch.row_offsets,
        mode="sum",
        per_sample_weights=ratio,
        include_last_offset=True,
    )


def _sum_over_docs(ratio: Tensor, weights: Tensor, batch: DocumentBatch) -> Tensor:
    """``(num_words, num_topics)`` Σ_d ratio_dv t_dk."""
    if batch.nnz == 0:
        return weights.new_zeros(batch.num_words, weights.shape[1])
    order, doc_index, word_offsets = batch.by_word
    return F.embedding_bag(
        doc_index,
        weights,
        word_offsets,
        mode="sum",
        per_sample_weights=ratio[order],
        include_last_offset=True,
    )


def _document_sums(values: Tensor, batch: DocumentBatch) -> Tensor:
    """``(num_docs,)`` float64 sums of per-count values within each document."""
    return torch.segment_reduce(
        values.double(), "sum", offsets=batch.row_offsets, axis=0, initial=0.0
    )


class _MixtureLogLikelihood(torch.autograd.Function):
    """``log_likelihood`` of one weight per document; its backward pass forms both gradients."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
        words = _by_word(topics)
        s = _mixture(weights, words, batch)
        ctx.save_for_backward(weights, words, s)
        ctx.batch = batch
        return _document_sums(batch.counts * s.log(), batch)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        if torch.is_grad_enabled():
            # Marking the function once differentiable would not do: it lets a Hessian through that
            # takes these gradients for constants.
            raise RuntimeError(
                "mixture_log_likelihood has no second derivative (create_graph=True was asked "
                "for); mixture_log_likelihood_reference has"
            )
        weights, words, s = ctx.saved_tensors
        batch: DocumentBatch = ctx.batch
        ratio = grad.to(s.dtype)[batch.row_index] * (batch.counts / s)
        grad_weights = grad_topics = None
        if ctx.needs_input_grad[0]:
            grad_weights = _sum_over_words(ratio, words, batch)
        if ctx.needs_input_grad[1]:
            grad_topics = _sum_over_docs(ratio, weights, batch).mT
        return grad_weights, grad_topics, None


def mixture_log_likelihood(weights: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
    """Log likelihood Σ_v c_dv log Σ_k t_dk φ_kv of each document, differentiable in both inputs.

    Args:
        weights: ``(..., num_docs, num_topics)`` nonnegative topic weights t. With topic proportions
            this is the log probability of the document's tokens with their topics summed out.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The counts, in the same dtype and on the same device.

    Returns:
        ``(..., num_docs)`` float64 nats; 0 for an empty document.
    """
    if weights.dim() == 2:
        return _MixtureLogLikelihood.apply(weights, topics, batch)
    stacked = weights.reshape(-1, *weights.shape[-2:])
    rows = [_MixtureLogLikelihood.apply(row, topics, batch) for row in stacked]
    return torch.stack(rows).reshape(weights.shape[:-1])


def expected_counts(
    weights: Tensor, topics: Tensor, batch: DocumentBatch, *, word_counts: bool = False
) -> ExpectedCounts:
    """The log likelihood and expected counts of a batch in one pass, without autograd.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ, in the dtype of ``weights``.
        batch: The counts, in the same dtype and on the same device.
        word_counts: Also form the word counts of the topics.

    Returns:
        The :class:`ExpectedCounts` of the module's formulas.
    """
    words = _by_word(topics)
    s = _mixture(weights, words, batch)
    ratio = batch.counts / s
    return ExpectedCounts(
        log_likelihood=_document_sums(batch.counts * s.log(), batch),
        topic_counts=weights * _sum_over_words(ratio, words, batch),
        word_counts=(words * _sum_over_docs(ratio, weights, batch)).mT if word_counts else None,
    )


def expected_topic_counts(weights: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
    """Only the ``topic_counts`` ``(num_docs, num_topics)`` of :func:`expected_counts`."""
    words = _by_word(topics)
    ratio = batch.counts / _mixture(weights, words, batch)
    return weights * _sum_over_words(ratio, words, batch)


def responsibility_covariance(
    weights: Tensor, topics: Tensor, batch: DocumentBatch, *, max_elements: int = 2**24
) -> Tensor:
    """Σ_v c_dv ρ_dv ρ_dvᵀ of each document, ρ_dvk = t_dk φ_kv / s_dv the responsibilities.

    Args:
        weights: ``(num_docs, num_topics)`` nonnegative topic weights t.
        topics: ``(num_topics, num_words)`` word probabilities φ.
        batch: The counts.
        max_elements: Bound on the numbers held at once for padded responsibilities.

    Returns:
        ``(num_docs, num_topics, num_topics)``; entry (d, j, k) is the expected number of pairs of
        independent draws of one token's topic that come out as j and k.
    """
    words = _by_word(topics)
    num_topics = weights.shape[1]
    scale = batch.counts.sqrt() / _mixture(weights, words, batch)
    sizes = batch.row_offsets.diff()
    result = weights.new_zeros(batch.num_docs, num_topics, num_topics)
    # Documents of similar size share a chunk, padded to its longest: one batched product each.
    order = sizes.argsort()
    sorted_sizes = sizes[order].tolist()
    stop = batch.num_docs
    while stop > 0 and sorted_sizes[stop - 1] > 0:
        width = sorted_sizes[stop - 1]
        docs = order[max(0, stop - max(1, max_elements // (width * num_topics))) : stop]
        stop -= docs.numel()
        position = torch.arange(width, device=weights.device)
        inside = position < sizes[docs, None]
        entry = torch.where(inside, batch.row_offsets[docs, None] + position, 0)
        rho = words[batch.word_index[entry]] * (scale[entry] * inside)[..., None]
        rho *= weights[docs, None, :]
        result[docs] = rho.mT @ rho
    return result


def mixture_log_likelihood_reference(
    weights: Tensor, topics: Tensor, batch: DocumentBatch
) -> Tensor:
    """:func:`mixture_log_likelihood` written plainly, one document at a time, for autograd.

    It shares no sparse kernel with the fast version and exists to check it.
    """
    totals = []
    for d in range(batch.num_docs):
        entries = slice(int(batch.row_offsets[d]), int(batch.row_offsets[d + 1]))
        s = weights[..., d, :] @ topics[:, batch.word_index[entries]]
        totals.append((batch.counts[entries].double() * s.double().log()).sum(-1))
    return torch.stack(totals, -1)
