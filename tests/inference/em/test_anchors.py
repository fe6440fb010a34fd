"""Initial topics from anchor words."""

from __future__ import annotations

import numpy as np
import pytest
from support.fits import make_corpus

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.inference.em import anchors
from torch_lntm.inference.em.anchors import anchor_topics
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.start import Start, StartName, mixed_topics
from torch_lntm.models import ctm


def batch_of(counts: np.ndarray) -> DocumentBatch:
    return Corpus.from_matrix(counts).batch()


def neighbours(counts: np.ndarray) -> np.ndarray:
    """Mean frequencies of the other tokens of a document, for every token of each word."""
    found = np.zeros((counts.shape[1], counts.shape[1]))
    for row in counts:
        tokens = np.repeat(np.arange(len(row)), row)
        for i, word in enumerate(tokens):
            others = np.delete(tokens, i)
            for other in others:
                found[word, other] += 1.0 / len(others)
    return found


def distances(points: np.ndarray, corners: list[int]) -> np.ndarray:
    """Squared distances of points from the affine span of some of them, by least squares."""
    origin = points[corners[0]]
    basis = (points[corners[1:]] - origin).T
    rest = (points - origin).T
    if basis.shape[1]:
        rest = rest - basis @ np.linalg.lstsq(basis, rest, rcond=None)[0]
    return np.square(rest).sum(0)


def test_every_topic_is_the_neighbours_of_a_word() -> None:
    counts = np.random.default_rng(0).poisson(0.4, (30, 12))
    counts[3] = 0
    counts[4] = np.eye(12, dtype=int)[0]  # a token without neighbours
    topics = anchor_topics(batch_of(counts), 5)
    expected = neighbours(counts)
    expected /= expected.sum(1, keepdims=True)
    gaps = np.abs(topics[:, None] - expected).max(2)
    assert gaps.min(1).max() < 1e-12
    assert len(set(gaps.argmin(1))) == 5


@pytest.mark.parametrize("num_known", [0, 1, 3])
def test_each_corner_is_farthest_from_the_span_of_earlier_corners(num_known: int) -> None:
    points = np.random.default_rng(1).dirichlet(np.full(9, 0.3), 40)
    points[20] = 0.0
    found = anchors._corners(points, num_known, 6) + num_known
    corners = list(range(num_known))
    if not num_known:
        assert found[0] == np.square(points).sum(1).argmax()
        corners, found = [found[0]], found[1:]
    for corner in found:
        far = distances(points, corners)
        far[[20, *range(num_known)]] = 0.0
        assert far[corner] == pytest.approx(far.max(), rel=1e-9)
        corners.append(corner)
    assert len(set(corners)) == len(corners)


def test_copies_of_corners_are_no_corners() -> None:
    points = np.repeat(np.eye(4), 3, 0)
    assert sorted(anchors._corners(points, 0, 10) // 3) == [0, 1, 2, 3]
    assert len(anchors._corners(points[:6], 3, 10)) == 1


def test_separable_topics_are_found() -> None:
    """Every topic has a word of its own, with a fifth of its tokens."""
    rng = np.random.default_rng(2)
    num_topics, num_words = 6, 120
    true = rng.dirichlet(np.full(num_words, 0.5), num_topics)
    true[:, :num_topics] = 0.0
    true = 0.8 * true / true.sum(1, keepdims=True)
    true[np.arange(num_topics), np.arange(num_topics)] = 0.2
    theta = rng.dirichlet(np.full(num_topics, 0.1), 2000)
    counts = np.stack([rng.multinomial(30, p) for p in theta @ true])
    topics = anchor_topics(batch_of(counts), num_topics)
    assert sorted(topics[:, :num_topics].argmax(1)) == list(range(num_topics))
    # Known words take the place of three topics.
    for known in ([0, 1, 2], [3, 4, 5]):
        others = anchor_topics(batch_of(counts), num_topics - 3, [[word] for word in known])
        assert sorted([*known, *others[:, :num_topics].argmax(1)]) == list(range(num_topics))


def test_rare_words_are_no_anchor_words() -> None:
    """Ten pairs of words, the rarest first. All pairs are equally far from each other."""
    counts = np.repeat(np.kron(np.eye(10, dtype=int), [1, 1]), np.arange(1, 11), 0)
    topics = anchor_topics(batch_of(counts), 2)
    most = anchors.CANDIDATES * 2
    assert len(topics) == 2
    assert not topics[:, :-most].any()


def test_without_neighbours_there_are_no_topics() -> None:
    """Every document has a single token."""
    assert anchor_topics(batch_of(np.eye(3, dtype=int)), 2).shape == (0, 3)


def test_a_small_corpus_has_fewer_topics() -> None:
    topics = anchor_topics(batch_of(np.array([[2, 2, 0, 0], [0, 0, 2, 2]])), 7)
    np.testing.assert_allclose(topics.sum(1), 1.0)
    assert 2 <= len(topics) <= 4


def initial_topics(name: StartName, seed: int, restart: int = 0) -> np.ndarray:
    model, corpus = ctm(4, 30, dtype="float64"), make_corpus(60)
    processes = Processes(alone=True)
    shard = DocumentShard(model, corpus, processes)
    state = FitState(shard.table, restart=restart)
    start = Start(model, shard, name=name, seed=seed)
    start.mergers = []
    start._begin(state)
    assert state.word_counts is not None
    return state.word_counts.numpy() * 4 / corpus.num_tokens


def test_a_start_begins_with_anchor_words_and_a_restart_with_documents() -> None:
    corpus = make_corpus(60)
    expected = mixed_topics(corpus, anchor_topics(corpus.batch(), 4)).numpy()
    for seed in (0, 1):
        np.testing.assert_allclose(initial_topics("lda", seed), expected)
    for name, restart in (("lda", 1), ("documents", 0)):
        found = [initial_topics(name, seed, restart) for seed in (0, 1)]
        assert np.abs(found[0] - found[1]).max() > 1e-3
        assert np.abs(found[0] - expected).max() > 1e-3
