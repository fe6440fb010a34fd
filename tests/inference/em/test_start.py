"""The start of variational EM: topics from documents, and stepwise EM for a stand-in."""

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

from torch_lntm.corpus import Corpus
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.start import (
    BACKGROUND_SHARE,
    FIRST_SWEEPS,
    SEED_DOCUMENTS,
    START_EXPONENT,
    SWEEPS,
    RunningTopics,
    Start,
    document_topics,
    start_concentration,
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


def test_topics_start_from_fewer_documents_in_a_tiny_corpus() -> None:
    corpus = Corpus.from_matrix(np.array([[3, 0], [0, 1]]))
    topics = document_topics(corpus, np.arange(2), 3, seed=0)
    assert bool((topics > 0).all())


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
