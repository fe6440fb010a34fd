"""The start of a fit: anchor words, stepwise EM for a stand-in, and mergers of topics."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.fits import assert_same, fit, fit_monte_carlo, make_corpus
from support.pairs import FAMILIES, make_model
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.inference.em import anchors, merging
from torch_lntm.inference.em.anchors import anchor_topics
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.merging import document_scores, halves, merged_labels
from torch_lntm.inference.em.start import (
    BACKGROUND_SHARE,
    FIRST_SWEEPS,
    SEED_DOCUMENTS,
    START_EXPONENT,
    SWEEPS,
    RunningTopics,
    Start,
    StartName,
    document_topics,
    mixed_topics,
    start_concentration,
    vector_topics,
)
from torch_lntm.models import TopicModel, ctm


def begun(model: TopicModel, corpus: Corpus, **options: Any) -> Start:
    """A start before its first epoch."""
    shard = DocumentShard(model, corpus, Processes(alone=True))
    return Start(model, shard, **{"name": "lda", "seed": 0, **options})


def test_initial_topics_mix_documents_with_corpus_frequencies() -> None:
    corpus = make_corpus(20, empty=(3,))
    occupied = np.flatnonzero(corpus.lengths)
    topics = document_topics(corpus, occupied, 4, seed=5).numpy()
    np.testing.assert_allclose(topics.sum(1), 1.0)
    counts = corpus.to_scipy().toarray()
    background = (counts.sum(0) + 1.0) / (counts.sum() + corpus.num_words)
    own = (topics - BACKGROUND_SHARE * background) / (1 - BACKGROUND_SHARE)
    # Each topic is proportional to the words of some three documents.
    size = SEED_DOCUMENTS
    triples = {
        (a, b, c) for a in range(20) for b in range(a) for c in range(b) if 3 not in (a, b, c)
    }
    sums = np.array([counts[list(t)].sum(0) / counts[list(t)].sum() for t in triples])
    assert size == 3
    for topic in own:
        assert np.abs(sums - topic).max(1).min() < 1e-12
    assert len(np.unique(own.round(9), axis=0)) == 4
    assert not torch.equal(document_topics(corpus, occupied, 4, seed=6), torch.from_numpy(topics))


@pytest.mark.parametrize("first", [True, False])
def test_an_epoch_makes_the_documented_updates(first: bool, device) -> None:
    """Fixed-point sweeps of theta, and counts averaged by step size, in plain loops."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(1.0, (5, 15)).astype(float)
    corpus = Corpus.from_matrix(counts)
    model = make_model("ctm", topic_smoothing=0.0).to(device)
    average = rng.gamma(1.0, size=(4, 15))
    topics = average / average.sum(1, keepdims=True)
    theta = rng.dirichlet(np.ones(4), 5)
    start = begun(model, corpus)
    start.order, start.step_docs, start.concentration = np.array([3, 0, 4, 1, 2]), 3, 0.3
    state = FitState(
        start.shard.table,
        step=int(not first),
        updates=6,
        word_counts=torch.from_numpy(average.T.copy()).to(device).mT,
        theta=torch.from_numpy(theta.copy()),
    )
    num_tokens = counts.sum()
    with torch.no_grad(), tqdm(disable=True) as bar:
        objective = start._epoch(state, bar)
    assert state.updates == 8
    expected_objective = 0.0
    for update, rows in ((7, [3, 0, 4]), (8, [1, 2])):
        found = np.zeros_like(average)
        for d in rows:
            for _ in range(FIRST_SWEEPS if first else SWEEPS):
                joint = theta[d][:, None] * topics
                tokens = counts[d] * joint / joint.sum(0)
                theta[d] = tokens.sum(1) + 0.3
                theta[d] /= theta[d].sum()
            found += tokens
            expected_objective += counts[d] @ np.log(joint.sum(0))
        step = update**-START_EXPONENT
        average = (1 - step) * average + step * num_tokens / counts[rows].sum() * found
        topics = average / average.sum(1, keepdims=True)
    np.testing.assert_allclose(state.theta.numpy(), theta, rtol=1e-9)
    np.testing.assert_allclose(state.word_counts.tolist(), average, rtol=1e-9)
    np.testing.assert_allclose(model.topics.probs.tolist(), topics, rtol=1e-9)
    assert objective == pytest.approx(expected_objective, rel=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_running_topics_equal_those_of_a_plain_average(smoothing: float, device) -> None:
    """Also where all is forgotten, and after so many updates that the scale would underflow."""
    rng = np.random.default_rng(1)
    average = rng.gamma(1.0, size=(3, 20))
    kept = torch.from_numpy(average.T.copy()).to(device).mT
    running = RunningTopics(kept, smoothing)
    for update in range(400):
        words = np.flatnonzero(rng.random(20) < 0.4) if update else np.arange(20)
        found = np.zeros((3, 20))
        found[:, words] = rng.gamma(1.0, size=(3, len(words)))
        weight = 1.0 if update in (0, 5) else 0.9
        if update == 5:
            found[:] = rng.gamma(1.0, size=(3, 20))
            words = np.arange(20)
        average = (1 - weight) * average + weight * 7.0 * found
        at = torch.from_numpy(words).to(device)
        part = torch.from_numpy(found[:, words].T.copy()).to(device).mT
        running.blend_(at, part, part.sum(1), weight, 7.0)
        smooth = average + smoothing
        expected = (smooth / smooth.sum(1, keepdims=True))[:, words]
        np.testing.assert_allclose(running.probs(at).cpu(), expected, rtol=1e-9)
    running.apply_scale()
    np.testing.assert_allclose(kept.cpu(), average, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_start_sets_the_prior_and_the_documents_means(family: str) -> None:
    corpus = make_corpus()
    posterior = {"lda": "vb"}.get(family, "factor" if "iftm" in family else "taylor")
    options = {"stepwise_epochs": 0, "max_iterations": 0, "tolerance": 0.0}
    model, result = fit(corpus, posterior, family, **options)
    phases = [record["phase"] for record in result.history]
    # At most 40 epochs, then the E-step that results are made of.
    assert phases == ["start"] * 40 + ["em"]
    if family == "lda":
        assert not torch.allclose(model.prior.concentration, torch.full((3,), 1 / 3).double())
    else:
        assert not torch.equal(model.prior.loc, torch.zeros(3, dtype=torch.float64))
        assert result.means.std(0).min() > 0.1


def test_pseudo_tokens_of_the_start_are_bounded() -> None:
    """Never more than a tenth of their own, nor than five, nor than 0.3 a topic."""
    assert start_concentration(2, 20.0) == start_concentration(10, 200.0) == 0.3
    for num_topics, mean_length, expected in ((50, 6.0, 0.6), (100, 1.0, 0.1), (400, 150.0, 5.0)):
        total = num_topics * start_concentration(num_topics, mean_length)
        assert total == pytest.approx(expected)


@pytest.mark.parametrize(("epochs", "mergers"), [(1, []), (2, [1]), (3, [1, 2]), (20, [7, 12])])
def test_topics_merge_split_and_merge_again(epochs: int, mergers: list[int]) -> None:
    """The fit keeps twice the topics of the model until the last merger."""
    corpus = Corpus.from_matrix(np.random.default_rng(2).poisson(4.0, (30, 15)))
    model = make_model("ctm")
    start = begun(model, corpus, epochs=epochs)
    assert start.mergers == mergers
    sizes, state = [], FitState(start.shard.table)
    with torch.no_grad():
        for _ in start.run(state, progress=False):
            sizes.append(len(state.word_counts))
            assert bool(model.topics.probs.isfinite().all())
            assert float(state.word_counts.sum()) == pytest.approx(corpus.num_tokens, rel=1e-5)
    last = mergers[-1] if mergers else 1
    few = model.num_topics
    assert sizes == (last - 1) * [2 * few] + (epochs - last + 1) * [few]


@pytest.mark.parametrize(
    ("mean_count", "keywords", "merges"),
    [(4.0, None, True), (4.0, {"one": [0, 1]}, False), (2.0, None, False)],
)
def test_topics_of_short_documents_and_of_keywords_neither_merge_nor_split(
    mean_count: float, keywords: dict[str, list[int]] | None, merges: bool
) -> None:
    corpus = Corpus.from_matrix(np.random.default_rng(2).poisson(mean_count, (30, 15)))
    model = ctm(3, corpus.num_words, keywords=keywords)
    assert bool(begun(model, corpus).mergers) == merges


def test_free_topics_start_apart_from_the_keywords() -> None:
    """Three topics of ten words each. A word of the first topic is a keyword."""
    of_first = []
    true = (np.kron(np.eye(3), np.ones(10)) + 0.01) / 10.3
    for seed in range(20):
        rng = np.random.default_rng(seed)
        theta = rng.dirichlet(np.full(3, 0.3), 500)
        corpus = Corpus.from_matrix(np.stack([rng.multinomial(60, row @ true) for row in theta]))
        model = ctm(4, corpus.num_words, keywords={"first": [0]})
        start = begun(model, corpus)
        state = FitState(start.shard.table)
        topics = start._initial_topics(4, 0).numpy()
        start._begin(state)
        assert not state.word_counts[1:, 0].any()
        assert topics[0].argmax() == 0
        np.testing.assert_allclose(topics[1], corpus.word_totals / corpus.num_tokens, atol=1e-3)
        of_first.extend(topics[2:].reshape(2, 3, 10).sum(2).argmax(1) == 0)
    assert np.mean(of_first) < 0.2


def test_a_merged_topic_splits_and_near_copies_merge() -> None:
    """The first topic holds two true topics, and the other two are copies of the third."""
    rng = np.random.default_rng(5)
    true, theta = rng.dirichlet(np.full(60, 0.1), 3), rng.dirichlet(np.full(3, 0.3), 400)
    corpus = Corpus.from_matrix(np.stack([rng.multinomial(60, row @ true) for row in theta]))
    model = ctm(3, corpus.num_words, dtype="float64")
    start = begun(model, corpus)
    shares = np.stack([theta[:, 0] + theta[:, 1], theta[:, 2] / 2, theta[:, 2] / 2], 1)
    tokens = 60 * theta.sum(0)[:, None] * true
    counts = np.stack([tokens[0] + tokens[1], tokens[2] / 2, tokens[2] / 2])
    state = FitState(
        start.shard.table,
        step=1,
        word_counts=torch.from_numpy(counts.T.copy()).mT,
        theta=torch.from_numpy(shares),
    )
    with torch.no_grad(), tqdm(disable=True) as bar:
        start._split(state)
        halves = state.word_counts.view(2, 3, -1).sum(0), state.theta.view(-1, 2, 3).sum(1)
        np.testing.assert_allclose(halves[0].numpy(), counts, rtol=1e-12)
        np.testing.assert_allclose(halves[1].numpy(), shares, rtol=1e-12)
        start.mergers = [2]
        start._epoch(state, bar)
    distance = np.abs(true[:, None] - model.topics.probs.detach().numpy()[None]).sum(-1)
    assert len(set(distance.argmin(1))) == 3
    assert distance.min(1).max() < 0.3


def test_a_start_continues_to_the_same_bits_after_every_epoch() -> None:
    corpus = Corpus.from_matrix(np.random.default_rng(2).poisson(4.0, (30, 15)))

    def epochs(state: FitState, model: TopicModel) -> Iterator[float]:
        start = begun(model, corpus, epochs=6)
        assert start.mergers == [2, 4]
        return start.run(state, progress=False)

    model, kept = make_model("ctm"), []
    state = FitState(begun(model, corpus).shard.table)
    with torch.no_grad():
        for _ in epochs(state, model):
            kept.append((copy.deepcopy(state), copy.deepcopy(model)))
        for number, (before, other) in enumerate(kept, start=1):
            assert len(list(epochs(before, other))) == 6 - number
            assert_same(model, other)
            assert torch.equal(before.documents.tensors["means"], state.documents.tensors["means"])


@pytest.mark.long
def test_two_fits_have_the_same_bits(device: torch.device) -> None:
    """Also on a GPU: no sum depends on the order of its threads."""
    rng = np.random.default_rng(6)
    topics, theta = rng.dirichlet(np.full(2000, 0.05), 20), rng.dirichlet(np.full(20, 0.1), 1500)
    corpus = Corpus.from_matrix(np.stack([rng.multinomial(60, row @ topics) for row in theta]))
    first, second = (ctm(20, corpus.num_words).to(device) for _ in range(2))
    for model in (first, second):
        fit_monte_carlo(model, corpus, max_epochs=3)
    assert_same(first, second)


def batch_of(counts: np.ndarray) -> DocumentBatch:
    return DocumentBatch.from_csr(torch.from_numpy(counts.astype(float)).to_sparse_csr())


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


def test_topics_from_vectors_join_documents_of_similar_meaning() -> None:
    counts = np.kron(np.eye(4, dtype=int), np.full((5, 2), 3))
    vectors = np.repeat([[1.0, 0.1], [0.1, 1.0]] * 2, 2, axis=0)
    topics = vector_topics(Corpus.from_matrix(counts), np.arange(20), vectors, 2, 0).numpy()
    np.testing.assert_allclose(topics.sum(1), 1.0)
    first = topics[topics[:, 0].argmax()]
    assert first[[0, 1, 4, 5]].min() > 5 * first[[2, 3, 6, 7]].max() > 0
    copies = Corpus.from_matrix(np.tile(np.eye(5, dtype=int), (12, 1)))
    assert len(vector_topics(copies, np.arange(60), np.eye(5) + 0.1, 30, 0)) == 5


def test_words_without_vectors_say_nothing_of_what_documents_mean() -> None:
    counts = np.kron(np.eye(2, dtype=int), np.full((10, 2), 2))
    # Half of the documents of either meaning have many of such words.
    unknown = np.arange(20)[:, None] % 2 * np.full((1, 3), 9)
    vectors = np.array([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0], *np.zeros((3, 2))])
    corpus = Corpus.from_matrix(np.hstack([counts, unknown]))
    topics = vector_topics(corpus, np.arange(20), vectors, 2, 0).numpy()
    assert topics[:, 0].max() > 5 * topics[topics[:, 0].argmax(), 2]


def test_topics_from_vectors_need_vectors() -> None:
    model = ctm(4, 30)
    with pytest.raises(ConfigError, match="word vectors"):
        MonteCarloEM(model, start="vectors")
    with pytest.raises(ConfigError, match="word vectors"):
        VariationalEM(model, TaylorGuide(model), start="vectors")


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


def test_the_start_of_a_large_corpus_visits_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(30, empty=(3,))
    monkeypatch.setattr("torch_lntm.inference.em.documents.LEAST_SAMPLE", 12)
    model = ctm(4, corpus.num_words)
    assert begun(model, corpus).sample.corpus.num_docs == 30  # few tokens for every topic
    monkeypatch.setattr("torch_lntm.inference.em.documents.SAMPLE_TOKENS", 1)
    sampled = [begun(model, corpus, seed=seed).sample.corpus for seed in (0, 0, 1)]
    assert [part.num_nonempty for part in sampled] == [12] * 3
    first, again, other = (part.to_scipy().toarray().tolist() for part in sampled)
    rows = corpus.to_scipy().toarray().tolist()
    assert first == again != other
    assert all(row in rows for row in first)
    assert begun(model, corpus, name="documents").sample.corpus.num_docs == 30
    result = fit_monte_carlo(model, corpus, max_epochs=2)
    assert result.means is not None
    assert bool(result.means[[0, 29]].isfinite().all())
