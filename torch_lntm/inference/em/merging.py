"""Merging of topics, until a wanted number is left.

A start with as many topics as the model has misses topics: two true topics share one topic, and
two others are near copies. A start with more topics finds more of them, and near copies merge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

#: Number of the most similar topics with which a topic may merge. The loss is computed for these.
NEIGHBOURS = 10


def merged_labels(
    word_counts: NDArray[Any],
    topic_counts: NDArray[Any],
    num_topics: int,
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
        self._words = np.array(word_counts, np.float32)
        self._documents = np.array(topic_counts, np.float32)
        self._tokens = self._words.sum(1, dtype=np.float64)
        self._entropies = np.array([_entropy(row) for row in self._words])
        self._roots = np.stack([_root(row) for row in self._words])
        self._affinity = self._roots @ self._roots.T
        self._loss = np.full((many, many), np.inf)
        for topic in range(many):
            self._update_losses(topic)

    def merge(self) -> None:
        """Merge the pair with the least loss."""
        first, second = sorted(map(int, np.unravel_index(self._loss.argmin(), self._loss.shape)))
        if not np.isfinite(self._loss[first, second]):
            # No topic has a neighbour left, so the two topics with the fewest tokens merge.
            alive = np.unique(self.label)
            first, second = sorted(map(int, alive[self._tokens[alive].argsort(kind="stable")[:2]]))
        self.label[self.label == second] = first
        for table in (self._words, self._tokens, self._documents.T):
            table[first] += table[second]
            table[second] = 0.0
        self._entropies[first] = _entropy(self._words[first])
        self._roots[first], self._roots[second] = _root(self._words[first]), 0.0
        self._affinity[first] = self._affinity[:, first] = self._roots @ self._roots[first]
        for gone in (first, second):
            self._loss[gone] = self._loss[:, gone] = np.inf
        self._update_losses(first)

    def _update_losses(self, topic: int) -> None:
        """Compute the losses of mergers of a topic with its neighbours."""
        possible = np.unique(self.label)
        possible = possible[possible != topic]
        nearest = np.argsort(-self._affinity[topic, possible], kind="stable")[:NEIGHBOURS]
        others = possible[nearest]
        losses = [self._divergence(topic, j) * self._separation(topic, j) for j in others]
        self._loss[topic, others] = self._loss[others, topic] = losses

    def _divergence(self, i: int, j: int) -> float:
        """(N_i + N_j) · JS_ij, nats."""
        both = _entropy(self._words[i] + self._words[j])
        return max(both - self._entropies[i] - self._entropies[j], 0.0)

    def _separation(self, i: int, j: int) -> float:
        """Variance of the pair's shares between documents, as a share of its maximum."""
        first, second = self._documents[:, i].astype(float), self._documents[:, j].astype(float)
        sums, most = first + second, first.sum() + second.sum()
        product = first.sum() * second.sum()
        if product <= 0:
            return 1.0
        within = (first * second / np.where(sums > 0, sums, 1.0)).sum()
        return float(np.clip(1.0 - within * most / product, 0.0, 1.0))


def _entropy(counts: NDArray[Any]) -> float:
    """Number of tokens times the entropy of their words, nats."""
    counts = counts.astype(np.float64)
    total = float(counts.sum())
    return (total * math.log(total) if total > 0 else 0.0) - float(xlogy(counts, counts).sum())


def _root(counts: NDArray[Any]) -> NDArray[np.float32]:
    """Square roots of the shares of the words."""
    return np.sqrt(counts / max(float(counts.sum()), np.finfo(np.float32).tiny))
