"""Merging of topics, until a wanted number is left.

A start with as many topics as the model has misses topics: two true topics share one topic, and
two others are near copies. A start with more topics finds more of them, and near copies merge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Number of the most similar topics with which a topic may merge. The loss is computed for these.
NEIGHBOURS = 10


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
        self._words = np.array(word_counts, np.float32)
        self._documents = np.array(topic_counts.T, np.float32, order="C")
        self._tokens = self._words.sum(1, dtype=np.float64)
        self._entropies = np.concatenate([_entropies(row[None]) for row in self._words])
        self._roots = np.empty_like(self._words)
        for root, row in zip(self._roots, self._words, strict=True):
            root[:] = _root(row)
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
        for table in (self._words, self._tokens, self._documents):
            table[first] += table[second]
            table[second] = 0.0
        self._entropies[first] = _entropies(self._words[first, None])[0]
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
        losses = self._divergences(topic, others) * self._separations(topic, others)
        self._loss[topic, others] = self._loss[others, topic] = losses

    def _divergences(self, topic: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N_i + N_j) · JS_ij of a topic i and each other topic j, nats."""
        both = _entropies(self._words[topic] + self._words[others])
        return np.maximum(both - self._entropies[topic] - self._entropies[others], 0.0)

    def _separations(self, topic: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        """Variance of each pair's shares between documents, as a share of its maximum."""
        first = self._documents[topic].astype(np.float64)
        second = self._documents[others].astype(np.float64)
        sums = first + second
        within = np.divide(first * second, sums, out=np.zeros_like(sums), where=sums > 0).sum(1)
        most, product = sums.sum(1), first.sum() * second.sum(1)
        share = np.divide(within * most, product, out=np.zeros_like(most), where=product > 0)
        return np.clip(1.0 - share, 0.0, 1.0)


def _entropies(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers of tokens times the entropies of their words ``(rows,)``, nats."""
    counts = counts.astype(np.float64)
    total = counts.sum(1)
    # A logarithm of NumPy and a product take half the time of SciPy's xlogy.
    return _times_log(total[:, None]) - _times_log(counts)


def _times_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of x log x in each row; 0 log 0 is 0."""
    logs = np.log(np.maximum(x, np.finfo(np.float64).tiny))
    return np.einsum("ij,ij->i", x, logs)


def _root(counts: NDArray[Any]) -> NDArray[np.float32]:
    """Square roots of the shares of the words."""
    return np.sqrt(counts / max(float(counts.sum()), np.finfo(np.float32).tiny))
