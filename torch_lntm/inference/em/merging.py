"""Merging of topics until a wanted number is left, and splits of topics by their documents.

A start with as many topics as the model has misses some, because two true topics share one while
two others are near copies. A start with more topics finds more of them, and near copies merge.

If a topic of a start holds two true topics, its documents fall into two groups that differ in
words, and splitting it by these groups separates the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.contraction import sum_over_docs, sum_over_words
from torch_lntm.kernels.mixture import word_probabilities

#: Number of the most similar topics with which a topic may merge, for which alone the loss is
#: computed.
NEIGHBOURS = 10
#: Rounds of averages, and tokens with the score 0 that every average has in addition, so that a few
#: unusual documents do not form a group of their own.
ROUNDS, NEUTRAL_TOKENS = 8, 2.0
#: Smallest share of a half in the tokens of a word, so that both halves keep all words.
LEAST_SHARE = 0.02
#: Number of values of pairs of rows in memory at once, as many as a cache holds.
NUMBERS_AT_ONCE = 2**17
_TINY = float(np.finfo(np.float64).tiny)


def merged_labels(
    word_counts: NDArray[Any], topic_counts: NDArray[Any], num_topics: int
) -> NDArray[np.int64]:
    """Merge topics pair by pair, always the pair whose merger loses the least likelihood.

    Let topics i and j have N_i and N_j tokens, and n_di and n_dj tokens in document d. In document
    d, their tokens follow a mixture of both topics with shares in proportion to n_di and n_dj.
    After the merger every document has the same shares, in proportion to N_i and N_j. The merger
    loses the likelihood that different shares gain, about

        (N_i + N_j) · JS_ij · (1 − Σ_d n_di n_dj / (n_di + n_dj) · (N_i + N_j) / (N_i N_j))

    JS is the Jensen-Shannon divergence of the topics' words, with weights N_i and N_j. The last
    factor is the variance of the shares between documents, as a share of its maximum. It is 1 if no
    document has both topics, and 0 if all documents mix both alike.

    Args:
        word_counts: ``(many, num_words)`` expected tokens, nonnegative.
        topic_counts: ``(num_docs, many)`` expected tokens of some documents, nonnegative.
        num_topics: Number of topics to keep.

    Returns:
        ``(many,)`` int64 new positions of the topics. Kept topics keep their order.

    Example:
        >>> import numpy as np
        >>> from torch_lntm.inference.em.merging import merged_labels
        >>> words = np.array([[9.0, 1, 0], [0, 5, 5], [8, 1, 0]])
        >>> documents = np.array([[9.0, 0, 0], [0, 9, 0], [0, 0, 9]])
        >>> merged_labels(words, documents, num_topics=2)
        array([0, 1, 0])
    """
    merger = _Merger(word_counts, topic_counts)
    for _ in range(len(word_counts) - num_topics):
        merger.merge()
    return np.unique(merger.label, return_inverse=True)[1].astype(np.int64)


class _Merger:
    """Topics between mergers. A topic of several topics has the position of the first.

    Args:
        word_counts: As for :func:`merged_labels`.
        topic_counts: As for :func:`merged_labels`.
    """

    def __init__(self, word_counts: NDArray[Any], topic_counts: NDArray[Any]) -> None:
        many = len(word_counts)
        self.label = np.arange(many)
        self._words = np.array(word_counts, np.float32, order="C")
        self._documents = np.array(topic_counts.T, np.float32, order="C")
        self._entropies = self._pair_entropies(np.stack([self.label] * 2)) / 2
        self._roots = np.empty_like(self._words)
        for root, row in zip(self._roots, self._words, strict=True):
            root[:] = _root(row)
        self._affinity = _product(self._roots, self._roots.T)
        self._loss = np.full((many, many), np.inf)
        self._update_losses(self.label)

    def merge(self) -> None:
        """Merge the pair with the least loss."""
        first, second = sorted(map(int, np.unravel_index(self._loss.argmin(), self._loss.shape)))
        self.label[self.label == second] = first
        for table in (self._words, self._documents):
            table[first] += table[second]
            table[second] = 0.0
        merged = np.array([first])
        self._entropies[merged] = self._pair_entropies(np.stack([merged] * 2)) / 2
        self._roots[first], self._roots[second] = _root(self._words[first]), 0.0
        self._affinity[first] = self._affinity[:, first] = _product(self._roots, self._roots[first])
        for gone in (first, second):
            self._loss[gone] = self._loss[:, gone] = np.inf
        self._update_losses(merged)

    def _update_losses(self, topics: NDArray[np.int64]) -> None:
        """Compute the losses of mergers of some topics with their neighbours."""
        possible = np.unique(self.label)
        found: set[tuple[int, int]] = set()
        for topic in topics.tolist():
            others = possible[possible != topic]
            nearest = np.argsort(-self._affinity[topic, others], kind="stable")[:NEIGHBOURS]
            found.update((min(topic, x), max(topic, x)) for x in others[nearest].tolist())
        pairs = np.array(sorted(found), np.int64).reshape(-1, 2).T
        # (N_i + N_j) · JS_ij, in nats.
        gains = self._pair_entropies(pairs) - self._entropies[pairs].sum(0)
        losses = np.maximum(gains, 0.0) * self._separations(pairs)
        self._loss[tuple(pairs)] = self._loss[tuple(pairs[::-1])] = losses

    def _pair_entropies(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Tokens of two topics times the entropy of their words, nats, for pairs ``(2, n)``."""
        return _of_pairs(_entropies, self._words, pairs)

    def _separations(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Variance of each pair's shares between documents, as a share of its maximum."""
        overlaps = _of_pairs(_overlaps, self._documents, pairs)
        first, second = self._documents.sum(1, dtype=np.float64)[pairs]
        within, product = overlaps * (first + second), first * second
        share = np.divide(within, product, out=np.zeros_like(within), where=product > 0)
        return np.clip(1.0 - share, 0.0, 1.0)


def _of_pairs(
    number: Callable[[Tensor, Tensor], Tensor], rows: NDArray[Any], pairs: NDArray[np.int64]
) -> NDArray[np.float64]:
    """A number of each of some pairs ``(2, n)`` of rows, float64."""
    table, at_once = torch.from_numpy(rows), max(1, NUMBERS_AT_ONCE // rows.shape[1])
    parts = torch.from_numpy(pairs).split(at_once, 1)
    return torch.cat([number(*table[part]) for part in parts]).numpy()


def _entropies(first: Tensor, second: Tensor) -> Tensor:
    """N log N − Σ_v n_v log n_v of each row n of a sum, with N tokens; 0 log 0 is 0."""
    counts = (first + second).double()
    return torch.special.entr(counts).sum(1) - torch.special.entr(counts.sum(1))


def _overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Σ_d n_d m_d / (n_d + m_d) of the rows n and m."""
    n, m = first.double(), second.double()
    return (n * m / (n + m).clamp_min(_TINY)).sum(1)


def _product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Product by PyTorch, which has one thread in a fit; NumPy's threads would spin afterwards."""
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def _root(counts: NDArray[Any]) -> NDArray[np.float32]:
    """Square roots of the shares of the words."""
    return np.sqrt(counts / max(float(counts.sum()), np.finfo(np.float32).tiny))


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
        >>> from torch_lntm.inference.em.merging import halves
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
