"""Merging of topics, against the definition of the loss."""

from __future__ import annotations

import numpy as np

from torch_lntm.inference.em.merging import merged_labels


def loss_by_definition(words: np.ndarray, documents: np.ndarray) -> float:
    """Loss of a merger of two topics, term by term."""
    (n_i, n_j), both = words.sum(1), words.sum(0)
    divergence = sum(
        count * np.log((count / n) / (total / both.sum()))
        for n, row in zip((n_i, n_j), words, strict=True)
        for count, total in zip(row, both, strict=True)
        if count
    )
    share = documents[:, 0].sum() / documents.sum()
    lengths = documents.sum(1)
    variance = (lengths * (documents[:, 0] / lengths - share) ** 2).sum() / lengths.sum()
    return float(divergence * variance / (share * (1 - share)))


def test_the_pair_with_the_least_loss_merges() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        words, documents = rng.gamma(0.5, size=(5, 12)), rng.gamma(0.3, size=(30, 5)) + 1e-3
        labels = merged_labels(words, documents, num_topics=4)
        losses = {
            (i, j): loss_by_definition(words[[i, j]], documents[:, [i, j]])
            for i in range(5)
            for j in range(i + 1, 5)
        }
        i, j = min(losses, key=losses.__getitem__)
        assert labels[i] == labels[j]
        assert len(set(labels)) == 4


def test_kept_topics_keep_their_order_and_copies_merge() -> None:
    rng = np.random.default_rng(1)
    topics, shares = rng.dirichlet(np.full(40, 0.1), 3), rng.dirichlet(np.full(6, 0.2), 200)
    words = 1000 * topics[[0, 1, 2, 1, 0, 2]] + 0.01 * rng.random((6, 40))
    assert merged_labels(words, 50 * shares, num_topics=3).tolist() == [0, 1, 2, 1, 0, 2]


def test_topics_without_tokens_merge_without_a_fault() -> None:
    words, documents = np.zeros((4, 6)), np.zeros((3, 4))
    words[0, :2] = 5.0
    assert len(set(merged_labels(words, documents, num_topics=2))) == 2
