"""Splits of topics by their documents, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.em import splitting
from torch_lntm.inference.em.splitting import document_scores, halves


def batch_of(counts: np.ndarray) -> DocumentBatch:
    return DocumentBatch.from_csr(torch.from_numpy(counts.astype(float)).to_sparse_csr())


def test_scores_are_the_first_axis_of_damped_reciprocal_averages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle is the leading eigenvector of a dense matrix for each topic."""
    monkeypatch.setattr(splitting, "ROUNDS", 500)
    rng = np.random.default_rng(3)
    topics, theta = rng.dirichlet(np.ones(12), 3), rng.dirichlet(np.ones(3), 20)
    counts = rng.poisson(1.5, (20, 12))
    ratio = (counts / (theta @ topics))[counts > 0]
    arrays = (torch.from_numpy(x) for x in (topics.T.copy(), theta, ratio))
    scores = document_scores(*arrays, batch_of(counts)).numpy()
    for k in range(3):
        tokens = counts * (theta[:, [k]] * topics[k]) / (theta @ topics)
        length = tokens.sum(1)
        by_word = tokens / (tokens.sum(0) + splitting.NEUTRAL_TOKENS)
        average = (tokens @ by_word.T) / (length[:, None] + splitting.NEUTRAL_TOKENS)
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
