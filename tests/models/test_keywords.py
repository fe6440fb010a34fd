"""Keywords: topics that stay on words given before the fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, KeywordWarning
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.models import (
    ContentTopics,
    DirichletTopics,
    DynamicTopics,
    Keywords,
    Levels,
    Periods,
    TopicModel,
)
from torch_lntm.models.topics.dirichlet import drawn_concentration

NUM_TOPICS, NUM_WORDS = 4, 24
VOCABULARY = [f"w{v}" for v in range(NUM_WORDS)]
#: Words 6k to 6k + 5 belong to topic k. Keywords name the last topic first.
KEYWORDS = {"last": ["w18", "w19"], "second": ["w6", "w7", "w8"]}


def make_corpus(num_docs: int = 200, seed: int = 0) -> Corpus:
    """Documents of four topics, each with six words of its own and some of all words."""
    rng = np.random.default_rng(seed)
    topics = np.full((NUM_TOPICS, NUM_WORDS), 0.1 / NUM_WORDS)
    for k in range(NUM_TOPICS):
        topics[k, 6 * k : 6 * k + 6] += 0.15
    theta = rng.dirichlet(np.full(NUM_TOPICS, 0.2), num_docs)
    counts = np.stack([rng.multinomial(30, p) for p in theta @ topics])
    party = np.array(["left", "right"])[np.arange(num_docs) % 2]
    return Corpus.from_matrix(counts, VOCABULARY, metadata={"party": party})


def keywords(strength: float | None = 20.0, exclusive: bool = True) -> Keywords:
    return Keywords.of(KEYWORDS, VOCABULARY, strength, exclusive)


def topics_of(strength: float = 20.0, exclusive: bool = True, **settings: Any) -> DirichletTopics:
    settings = {"dtype": torch.float64, "smoothing": 0.1, **settings}
    lists = keywords(strength, exclusive)
    return DirichletTopics(NUM_TOPICS, NUM_WORDS, keywords=lists, **settings)


def content_topics(groups: Levels, penalty: float = 2.0, strength: float = 20.0) -> ContentTopics:
    settings = {"smoothing": 0.1, "keywords": keywords(strength), "dtype": torch.float64}
    return ContentTopics(NUM_TOPICS, NUM_WORDS, groups, penalty=penalty, **settings)


def expected_counts(groups: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    size = (NUM_TOPICS, groups * NUM_WORDS)
    return 50 * torch.rand(size, generator=generator, dtype=torch.float64).pow(3)


def block_of(model: TopicModel, topic: int) -> int:
    """The block of six words with the most probability in a topic."""
    probs = model.topics.mean_probs[topic].detach()
    return int(probs.unflatten(0, (NUM_TOPICS, 6)).sum(1).argmax())


# -- the prior -------------------------------------------------------------------------------------


def test_topics_with_keywords_keep_the_contract() -> None:
    batch = make_corpus(8).batch(dtype=torch.float64)
    lntm.testing.check_topics(topics_of(), batch)
    parties = Levels("party", ("left", "right"))
    batch = parties.encode(make_corpus(8)).batch(dtype=torch.float64)
    lntm.testing.check_topics(content_topics(parties), batch)


def test_the_m_step_maximises_the_mixture_of_keyatm() -> None:
    """Against a numerical maximum over the free words, the keywords and their share."""
    counts, smoothing, strength = expected_counts(), 0.1, 20.0
    topics = topics_of(strength)
    topics.m_step(counts)
    columns = np.array(keywords().columns[1])
    n, per_word = counts[1].numpy(), strength / len(columns)

    def loss(x: np.ndarray) -> float:
        free = np.exp(x[:NUM_WORDS] - np.logaddexp.reduce(x[:NUM_WORDS]))
        key = np.exp(x[NUM_WORDS:-1] - np.logaddexp.reduce(x[NUM_WORDS:-1]))
        share = 1 / (1 + np.exp(-x[-1]))
        phi = (1 - share) * free
        phi[columns] += share * key
        prior = smoothing * np.log(free).sum() + per_word * np.log(key).sum()
        prior += strength * np.log(share) + smoothing * NUM_WORDS * np.log(1 - share)
        return -float((n * np.log(phi)).sum() + prior)

    best = scipy.optimize.minimize(loss, np.zeros(NUM_WORDS + len(columns) + 1), tol=1e-10).x
    free = np.exp(best[:NUM_WORDS] - np.logaddexp.reduce(best[:NUM_WORDS]))
    share = 1 / (1 + np.exp(-best[-1]))
    phi = (1 - share) * free
    key = np.exp(best[NUM_WORDS:-1] - np.logaddexp.reduce(best[NUM_WORDS:-1]))
    phi[columns] += share * key
    np.testing.assert_allclose(topics.probs[1].detach().numpy(), phi, rtol=1e-4, atol=1e-7)


def test_strength_0_without_exclusion_gives_free_topics() -> None:
    counts = expected_counts()
    free = DirichletTopics(NUM_TOPICS, NUM_WORDS, smoothing=0.1, dtype=torch.float64)
    with_keywords = topics_of(0.0, exclusive=False)
    for topics in (free, with_keywords):
        topics.m_step(counts)
    torch.testing.assert_close(with_keywords.probs, free.probs)
    torch.testing.assert_close(with_keywords.log_prior(), free.log_prior())


def test_exclusive_keywords_leave_the_remaining_words_to_free_topics() -> None:
    """The M-step, the prior and the draws of a free topic equal those over fewer words."""
    counts, lists = expected_counts(), keywords()
    kept = [v for v in range(NUM_WORDS) if v not in {6, 7, 8, 18, 19}]
    small = DirichletTopics(2, len(kept), smoothing=0.1, dtype=torch.float64)
    topics = topics_of()
    topics.m_step(counts)
    small.m_step(counts[2:, kept])
    torch.testing.assert_close(topics.probs[2:, kept], small.probs)
    assert topics.probs[2:, lists.excluded].max() < 1e-100
    assert topics.num_free_parameters == NUM_TOPICS * (NUM_WORDS - 1) - 2 * 5
    before = topics.log_prior() - small.log_prior()
    change = 50 * torch.rand(2, len(kept), dtype=torch.float64)
    counts[2:, kept] += change
    topics.m_step(counts)
    small.m_step(counts[2:, kept])
    torch.testing.assert_close(topics.log_prior() - small.log_prior(), before)
    drawn = topics.sites()["topics"].sample((2000,))
    probs = torch.stack([topics.compute_probs(topics=each) for each in drawn])[:, 2, kept]
    expected = small.sites()["topics"].sample((2000,))[:, 0]
    for power in (1, 2):
        both = torch.stack([x.pow(power).mean(0) for x in (probs, expected)])
        errors = (probs.pow(power).var(0) + expected.pow(power).var(0)).div(2000).sqrt()
        assert ((both[0] - both[1]).abs() < 5 * errors).all()


def test_excluded_words_leave_the_concentration_of_draws_alone() -> None:
    counts = expected_counts()[:1].round()
    counts[:, -5:] = 0.0
    allowed = torch.tensor([NUM_WORDS - 5.0], dtype=torch.float64)
    found, expected = (
        drawn_concentration(0.1, n, torch.zeros_like(n), allowed, np.random.default_rng(0))
        for n in (counts, counts[:, :-5])
    )
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("content", [False, True])
def test_tokens_of_keywords_leave_free_topics_in_an_m_step(content: bool) -> None:
    parties = Levels("party", ("left", "right"))
    topics = content_topics(parties) if content else topics_of()
    counts = expected_counts(2 if content else 1)
    without = counts.clone()
    for first in range(0, counts.shape[1], NUM_WORDS):
        without[2:, keywords().excluded + first] = 0.0
    before = counts.clone()
    topics.m_step(counts)
    found = topics.double_probs
    torch.testing.assert_close(counts, before, rtol=0, atol=0)
    again = content_topics(parties) if content else topics_of()
    again.m_step(without)
    torch.testing.assert_close(found, again.double_probs)
    sums = torch.full((NUM_TOPICS,), 2.0 if content else 1.0, dtype=torch.float64)
    torch.testing.assert_close(found.sum(1), sums)


@pytest.mark.parametrize("kind", ["plain", "content", "time"])
def test_drawn_topics_have_no_excluded_words(kind: str) -> None:
    topics = topics_of()
    if kind == "content":
        topics = content_topics(Levels("party", ("left", "right")))
    elif kind == "time":
        years = Periods("year", (1, 2), (1.0, 2.0), (0.5, 0.5))
        options: dict[str, Any] = {"keywords": keywords(), "dtype": torch.float64}
        topics = DynamicTopics(NUM_TOPICS, NUM_WORDS, years, **options)
    drawn = topics.compute_probs(**{name: site.sample() for name, site in topics.sites().items()})
    for probs in drawn.split(NUM_WORDS, 1):
        assert probs[2:, keywords().excluded].max() < 1e-100
        assert probs[:2, keywords().excluded].min() > 1e-100


def test_a_large_strength_puts_a_topic_on_its_keywords_alone() -> None:
    topics = topics_of(1e9)
    topics.m_step(expected_counts())
    mass = keywords().loads(topics.probs.detach()).diagonal()
    torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-5)


def test_pseudo_tokens_are_tokens_of_the_keywords() -> None:
    """Keywords of strength s and the counts without them give equal topics."""
    counts = expected_counts()
    with_keywords, free = topics_of(30.0), topics_of(0.0)
    with_keywords.m_step(counts)
    counts[0, [18, 19]] += 15.0
    counts[1, [6, 7, 8]] += 10.0
    free.m_step(counts)
    torch.testing.assert_close(with_keywords.probs, free.probs)


def test_content_m_steps_raise_the_log_joint() -> None:
    topics, counts = content_topics(Levels("party", ("left", "right"))), expected_counts(2)
    before = -np.inf
    for _ in range(5):
        topics.m_step(counts)
        value = float((counts * topics.double_probs.log()).sum() + topics.log_prior().detach())
        assert value >= before - 1e-6
        before = value


# -- the start -------------------------------------------------------------------------------------


def test_initial_topics_hold_keywords_and_words_of_their_documents() -> None:
    counts = np.array([[2, 3, 0, 0], [0, 0, 1, 4]])
    lists = Keywords({"a": {"w0": 0}, "b": {"w2": 2}})
    first, second = lists.initial_topics(Corpus.from_matrix(counts))
    assert first.sum() == pytest.approx(1.0)
    assert (first > 0).all()
    assert first[0] > first[1] > max(first[2:])
    assert second[2] > second[3] > max(second[:2])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ctm", "iftm", "lda", "stm", "bursty", "content"])
def test_keyword_topics_come_first_in_the_order_of_their_names(family: str) -> None:
    corpus = make_corpus()
    settings: dict[str, Any] = {"keywords": KEYWORDS, "vocabulary": VOCABULARY}
    if family in ("stm", "content"):
        part = {"prevalence": "~ party"} if family == "stm" else {"content": "party"}
        model = lntm.models.stm(NUM_TOPICS, corpus, **part, **settings)
    else:
        kind = "ctm" if family == "bursty" else family
        make = getattr(lntm.models, kind)
        bursty = family == "bursty"
        model = make(NUM_TOPICS, NUM_WORDS, bursty=bursty, **settings)
    guide = lntm.guides.make_guide(None, model)
    VariationalEM(model, guide, max_iterations=3, progress=False).fit(corpus)
    assert [block_of(model, topic) for topic in (0, 1)] == [3, 1]
    assert model.topic_names == ("last", "second", "2", "3")
    theta = lntm.inference.transform(guide, corpus[:5], progress=False).theta
    assert theta.shape == (5, NUM_TOPICS)


@pytest.mark.slow
def test_monte_carlo_em_keeps_keyword_topics() -> None:
    model = lntm.models.ctm(NUM_TOPICS, NUM_WORDS, keywords=KEYWORDS, vocabulary=VOCABULARY)
    MonteCarloEM(model, max_epochs=4, progress=False).fit(make_corpus())
    assert [block_of(model, topic) for topic in (0, 1)] == [3, 1]


@pytest.mark.slow
def test_the_default_strength_follows_the_documents() -> None:
    corpus = make_corpus(50)
    model = lntm.models.ctm(NUM_TOPICS, NUM_WORDS, keywords=KEYWORDS, vocabulary=VOCABULARY)
    assert model.topics.keywords is not None
    assert model.topics.keywords.tokens == 200.0
    guide = lntm.guides.TaylorGuide(model)
    VariationalEM(model, guide, max_iterations=0, progress=False).fit(corpus)
    assert model.topics.keywords.tokens == pytest.approx(0.02 * corpus.num_tokens / NUM_TOPICS)
    assert model.config["keyword_strength"] == model.topics.keywords.tokens


# -- words -----------------------------------------------------------------------------------------


def test_unknown_keywords_get_a_line_and_shared_ones_count_for_all() -> None:
    with pytest.warns(KeywordWarning) as caught:
        found = Keywords.of({"a": ["w1", "w99", "w2"], "b": ["w2"]}, VOCABULARY)
    (unknown,) = (str(warning.message) for warning in caught)
    assert "'w99' of the topic 'a' is not in the vocabulary" in unknown
    assert found.columns == ((1, 2), (2,))


@pytest.mark.slow
def test_rare_keywords_and_lost_topics_get_a_line() -> None:
    counts = make_corpus().to_scipy().toarray()
    counts[:, 0] = 0
    counts[:3, 0] = 1
    corpus = Corpus.from_matrix(counts, VOCABULARY)
    lists = {"mixed": ["w0", "w12"], "other": ["w13", "w14", "w15", "w16", "w12"]}
    model = lntm.models.ctm(2, NUM_WORDS, keywords=lists, vocabulary=VOCABULARY)
    engine = VariationalEM(model, lntm.guides.TaylorGuide(model), max_iterations=0, progress=False)
    with pytest.warns(KeywordWarning) as caught:
        engine.fit(corpus)
    rare, lost = (str(warning.message) for warning in caught)
    assert rare.startswith("keyword 'w0' of the topic 'mixed' occurs in 3 documents")
    assert lost.startswith("the topic 'mixed' lost its keywords")


@pytest.mark.parametrize(
    ("lists", "words", "message"),
    [
        ({}, VOCABULARY, "expected words by the name"),
        ({"a": "w1"}, VOCABULARY, "expected a list"),
        ({" ": ["w1"]}, VOCABULARY, "has no name"),
        ({"a": ["w1"]}, None, "needs a vocabulary"),
        ({"a": [-1]}, None, "columns of the vocabulary from 0"),
        ({"a": [99]}, None, "column 99 of a vocabulary of 24 words"),
        ({"a": [NUM_WORDS]}, VOCABULARY, "hold 24; expected .* from 0 to 23"),
        ({"a": [10**30]}, None, "hold 1000.*; expected words, or columns"),
        ({"a": {"w": 10**30}}, VOCABULARY, "hold 1000.*; expected .* from 0 to 23"),
        ({"a": []}, VOCABULARY, "no keyword of the topic 'a'"),
        ({"a": [1], "b": [2], "c": [3]}, None, "3 topics have keywords, and num_topics is 2"),
        ({"a": list(range(NUM_WORDS))}, None, "all 24 words are keywords, and not all of 2 topics"),
    ],
)
def test_unusable_keywords_are_refused(lists: Any, words: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lntm.models.ctm(2, NUM_WORDS, keywords=lists, vocabulary=words)


def test_a_strength_needs_keywords() -> None:
    with pytest.raises(ConfigError, match="give keywords"):
        lntm.models.stm(2, NUM_WORDS, keyword_strength=5.0)


def test_columns_are_accepted_in_place_of_words() -> None:
    by_column = lntm.models.lda(2, NUM_WORDS, keywords={"a": [3, 4]}, vocabulary=VOCABULARY)
    by_word = lntm.models.lda(2, NUM_WORDS, keywords={"a": ["w3", "w4"]}, vocabulary=VOCABULARY)
    assert by_column.topics.keywords == by_word.topics.keywords


# -- files, continuation, processes ----------------------------------------------------------------


def test_saved_models_keep_keywords_and_names(tmp_path: Path) -> None:
    model = lntm.models.ctm(
        NUM_TOPICS, NUM_WORDS, keywords=KEYWORDS, keyword_strength=7.0, vocabulary=VOCABULARY
    )
    model.topic_names = ("z", "y", "x", "w")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = lntm.load_model(lntm.save_model(model, tmp_path / "model"))
    assert loaded.topics.keywords == model.topics.keywords
    assert loaded.topic_names == ("z", "y", "x", "w")
    torch.testing.assert_close(loaded.log_prior(), model.log_prior())
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    about["topic_names"] = ["z"]
    (tmp_path / "model" / "model.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="a name for each of the 4 topics"):
        lntm.load_model(tmp_path / "model")
