"""Splits of topics by their documents.

A topic of a start may hold two true topics. Their documents differ in words, so the documents of
such a topic fall into two groups. A split by these groups separates the two true topics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.contraction import sum_over_docs, sum_over_words
from torch_lntm.kernels.mixture import word_probabilities

#: Rounds of averages, and tokens with the score 0 that every average has in addition. Without them
#: a few unusual documents would be a group of their own.
ROUNDS, NEUTRAL_TOKENS = 8, 2.0
#: Smallest share of a half in the tokens of a word, so that both halves keep all words.
LEAST_SHARE = 0.02


@torch.no_grad()
def halves(topics: Tensor, theta: Tensor, batch: DocumentBatch) -> Tensor:
    """Split the tokens of every topic by two groups of documents with different words.

    The groups are the documents with positive and with negative :func:`document_scores`.

    Args:
        topics: ``(num_topics, num_words)`` word probabilities.
        theta: ``(num_docs, num_topics)`` topic proportions.
        batch: The documents.

    Returns:
        ``(num_topics, num_words)`` share of the first half of each topic in the tokens of each
        word. 1/2 for words that the documents lack.

    Example:
        >>> import torch
        >>> from torch_lntm.corpus import DocumentBatch
        >>> from torch_lntm.inference.em.splitting import halves
        >>> counts = torch.tensor([[4.0, 4, 0, 0], [3, 5, 0, 0], [0, 0, 4, 4], [0, 0, 5, 3]])
        >>> batch = DocumentBatch.from_csr(counts.to_sparse_csr())
        >>> [shares] = halves(torch.full((1, 4), 0.25), torch.ones(4, 1), batch)
        >>> bool(shares[0] == shares[1] and shares[2] == shares[3] and shares[0] != shares[2])
        True
    """
    words = topics.mT.contiguous()
    ratio = batch.counts / word_probabilities(theta, topics, batch)
    is_first = document_scores(words, theta, ratio, batch) > 0
    tokens = sum_over_docs(ratio, theta, batch).mul_(words)
    first = sum_over_docs(ratio, theta * is_first, batch).mul_(words)
    return first.div_(tokens).nan_to_num_(0.5).clamp_(LEAST_SHARE, 1.0 - LEAST_SHARE).mT


def document_scores(words: Tensor, theta: Tensor, ratio: Tensor, batch: DocumentBatch) -> Tensor:
    """Scores of documents in every topic, similar for documents with similar words.

    Let n_dvk be the expected tokens of word v of document d in topic k. In every topic documents
    have scores s and words have scores g. Each is the average of the other over tokens:

        g_vk = Σ_d n_dvk s_dk / (Σ_d n_dvk + τ)       s_dk = Σ_v n_dvk g_vk / (Σ_v n_dvk + τ)

    After each round the scores of the documents get mean 0 and variance 1 over the topic's tokens.
    They converge to the first axis of a correspondence analysis of the topic's tokens (reciprocal
    averaging, *Hill 1973*), damped by τ.

    Args:
        words: ``(num_words, num_topics)`` word probabilities of the topics, by word.
        theta: ``(num_docs, num_topics)`` topic proportions.
        ratio: ``(nnz,)`` counts, divided by their words' probabilities in the documents.
        batch: The documents.

    Returns:
        ``(num_docs, num_topics)`` scores. Their mean over a topic's tokens is 0.
    """
    doc_tokens = theta * sum_over_words(ratio, words, batch)
    # Tables of all words are changed in place: each takes as much memory as the topics.
    damped_tokens = sum_over_docs(ratio, theta, batch).mul_(words).add_(NEUTRAL_TOKENS)
    tiny = torch.finfo(words.dtype).tiny
    totals = doc_tokens.sum(0).clamp_min(tiny)
    scores = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0)).to(words)
    for _ in range(ROUNDS):
        scores = scores - (scores * doc_tokens).sum(0) / totals
        deviation = ((scores.square() * doc_tokens).sum(0) / totals).sqrt()
        scores = scores / deviation.clamp_min(tiny**0.5)
        word_scores = sum_over_docs(ratio, theta * scores, batch).mul_(words).div_(damped_tokens)
        of_words = theta * sum_over_words(ratio, word_scores.mul_(words), batch)
        scores = of_words / (doc_tokens + NEUTRAL_TOKENS)
    return scores - (scores * doc_tokens).sum(0) / totals
