"""Splits of topics by their documents.

A topic of a start may hold two true topics. Their documents differ in words, so the documents of
such a topic fall into two groups. A split by these groups separates the two true topics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels import sum_over_docs, sum_over_words, word_probabilities

#: Rounds of averages, and tokens with the score 0 that every average has in addition. Without them
#: a few unusual documents would be a group of their own.
ROUNDS, NEUTRAL_TOKENS = 8, 2.0
#: Smallest share of a half in the tokens of a word, so that both halves keep all words.
LEAST_SHARE = 0.02


class Halves(NamedTuple):
    """Two halves of every topic.

    Attributes:
        word_shares: ``(num_topics, num_words)`` share of the first half in the tokens of each word.
            1/2 for words that the documents lack.
        scores: ``(num_docs, num_topics)`` scores of the documents. Positive scores belong to the
            first half.
    """

    word_shares: Tensor
    scores: Tensor


@torch.no_grad()
def halves(topics: Tensor, theta: Tensor, batch: DocumentBatch) -> Halves:
    """Split the tokens of every topic by two groups of documents with different words.

    Let n_dvk be the expected tokens of word v of document d in topic k. In every topic documents
    have scores s and words have scores g. Each is the average of the other over tokens:

        g_vk = Σ_d n_dvk s_dk / (Σ_d n_dvk + τ)       s_dk = Σ_v n_dvk g_vk / (Σ_v n_dvk + τ)

    After each round the scores of the documents get mean 0 and variance 1 over the topic's tokens.
    They converge to the first axis of a correspondence analysis of the topic's tokens (reciprocal
    averaging, *Hill 1973*), damped by τ. The signs of the scores are the groups.

    Args:
        topics: ``(num_topics, num_words)`` word probabilities.
        theta: ``(num_docs, num_topics)`` topic proportions.
        batch: The documents.

    Returns:
        The halves of every topic.

    Example:
        >>> import torch
        >>> from torch_lntm.corpus import DocumentBatch
        >>> from torch_lntm.inference.em.splitting import halves
        >>> counts = torch.tensor([[4.0, 4, 0, 0], [3, 5, 0, 0], [0, 0, 4, 4], [0, 0, 5, 3]])
        >>> batch = DocumentBatch.from_csr(counts.to_sparse_csr())
        >>> one_topic = halves(torch.full((1, 4), 0.25), torch.ones(4, 1), batch)
        >>> sides = one_topic.scores.flatten() > 0
        >>> bool(sides[0] == sides[1] and sides[2] == sides[3] and sides[0] != sides[2])
        True
    """
    words = topics.mT.contiguous()
    ratio = batch.counts / word_probabilities(theta, topics, batch)
    doc_tokens = theta * sum_over_words(ratio, words, batch)
    word_tokens = words * sum_over_docs(ratio, theta, batch)
    tiny = torch.finfo(words.dtype).tiny
    totals = doc_tokens.sum(0).clamp_min(tiny)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(theta.shape, generator=generator).to(words)
    for _ in range(ROUNDS):
        scores = scores - (scores * doc_tokens).sum(0) / totals
        deviation = ((scores.square() * doc_tokens).sum(0) / totals).sqrt()
        scores = scores / deviation.clamp_min(tiny**0.5)
        of_docs = words * sum_over_docs(ratio, theta * scores, batch)
        word_scores = of_docs / (word_tokens + NEUTRAL_TOKENS)
        of_words = theta * sum_over_words(ratio, words * word_scores, batch)
        scores = of_words / (doc_tokens + NEUTRAL_TOKENS)
    scores = scores - (scores * doc_tokens).sum(0) / totals
    first = words * sum_over_docs(ratio, theta * (scores > 0), batch)
    shares = (first / word_tokens).nan_to_num(0.5).clamp(LEAST_SHARE, 1.0 - LEAST_SHARE)
    return Halves(shares.mT, scores)
