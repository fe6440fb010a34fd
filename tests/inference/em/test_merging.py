"""Mergers of topics against the definition of the loss, and splits against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.em import merging
from torch_lntm.inference.em.merging import document_scores, halves, merged_labels


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


def batch_of(counts: np.ndarray) -> DocumentBatch:
    return DocumentBatch.from_csr(torch.from_numpy(counts.astype(float)).to_sparse_csr())


def test_scores_are_the_first_axis_of_damped_reciprocal_averages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle is the leading eigenvector of a dense matrix for each topic."""
    monkeypatch.setattr(merging, "ROUNDS", 500)
    rng = np.random.default_rng(3)
    topics, theta = rng.dirichlet(np.ones(12), 3), rng.dirichlet(np.ones(3), 20)
    counts = rng.poisson(1.5, (20, 12))
    ratio = (counts / (theta @ topics))[counts > 0]
    arrays = (torch.from_numpy(x) for x in (topics.T.copy(), theta, ratio))
    scores = document_scores(*arrays, batch_of(counts)).numpy()
    for k in range(3):
        tokens = counts * (theta[:, [k]] * topics[k]) / (theta @ topics)
        length = tokens.sum(1)
        by_word = tokens / (tokens.sum(0) + merging.NEUTRAL_TOKENS)
        average = (tokens @ by_word.T) / (length[:, None] + merging.NEUTRAL_TOKENS)
        centre = np.eye(20) - length / length.sum()
        values, vectors = np.linalg.eig(centre @ average)
        axis = np.real(vectors[:, np.argmax(np.real(values))])
        cosine = axis @ scores[:, k] / np.linalg.norm(axis) / np.linalg.norm(scores[:, k])
        assert abs(cosine) == pytest.approx(1.0, abs=1e-6)


def test_a_topic_of_two_true_topics_splits_into_both() -> None:
    rng = np.random.default_rng(4)
    true = rng.dirichlet(np.full(60, 0.1), 3)
    theta = rng.dirichlet(np.full(3, 0.3), 400)
    counts = np.stack([rng.multinomial(50, row @ true) for row in theta])
    # The model has the first two topics as a single one.
    weight = theta[:, :2].sum(0) / theta[:, :2].sum()
    topics = torch.from_numpy(np.stack([weight @ true[:2], true[2]]))
    proportions = torch.from_numpy(np.stack([theta[:, :2].sum(1), theta[:, 2]], 1))
    shares = halves(topics, proportions, batch_of(counts)).numpy()[0]
    first, second = topics[0].numpy() * shares, topics[0].numpy() * (1.0 - shares)
    parts = np.stack([first / first.sum(), second / second.sum()])
    distance = np.abs(parts[:, None] - true[None, :2]).sum(-1)
    best = min(distance[0, 0] + distance[1, 1], distance[0, 1] + distance[1, 0]) / 2
    assert best < np.abs(topics[0].numpy() - true[:2]).sum(-1).mean() / 2


def test_words_and_topics_without_tokens_stay_finite() -> None:
    topics = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    theta = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    counts = batch_of(np.array([[3, 1, 0, 0], [1, 3, 0, 0]])).to(dtype=topics.dtype)
    shares = halves(topics, theta, counts)
    assert shares.isfinite().all()
    assert shares[:, 2:].eq(0.5).all()
