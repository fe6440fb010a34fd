"""Labels of topics against their formulas, and representative documents."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentTopics
from torch_lntm.models.names import name_words
from torch_lntm.reports import label_topics, representative_documents, topic_labels
from torch_lntm.reports.labels import word_scores

WORDS = ("the", "tax", "war", "rare")
TOPICS = np.array([[0.5, 0.4, 0.05, 0.05], [0.5, 0.05, 0.449, 0.001]])
TOTALS = np.array([100, 40, 50, 2])


def test_names_of_topics_skip_inflections() -> None:
    model = lntm.models.ctm(1, 4, vocabulary=["test", "Testing", "tests", "unit"])
    model.topics.set_(probs=torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    assert topic_labels(model) == ["0 test unit"]
    model.vocabulary = ["file", "files", "filed", "disk"]
    assert topic_labels(model) == ["0 file disk"]


def test_names_are_frequent_words_that_tell_topics() -> None:
    model = lntm.models.ctm(2, 4, vocabulary=WORDS)
    model.topics.set_(probs=torch.tensor(TOPICS))
    # By hand: of topic 0, √0.4 log(0.4/0.225) = 0.364 for "tax", 0.150 for "rare", 0 for "the".
    assert topic_labels(model) == ["0 tax rare the", "1 war"]
    assert topic_labels(model, 2) == ["0 tax rare", "1 war the"]
    model.topic_names = {0: "0 budget"}
    assert topic_labels(model, 1) == ["0 budget", "1 war"]
    assert topic_labels(model, 1, numbered=False) == ["0 budget", "war"]
    assert topic_labels(model, 0, numbered=False) == ["0 budget", "1"]
    assert topic_labels(lntm.models.ctm(2, 3)) == ["0", "1"]


def test_no_word_is_in_two_names() -> None:
    rng = np.random.default_rng(0)
    shared, own = rng.dirichlet(np.full(40, 0.3)), rng.dirichlet(np.full(40, 0.1), 8)
    probs = torch.tensor(0.7 * shared + 0.3 * own)
    names = name_words(probs, lambda row: [f"{v}x" for v in row], 3)
    found = [int(word[:-1]) for words in names for word in words]
    assert len({*found}) == len(found) > 20
    scores = (probs.sqrt() * (probs / probs.mean(0)).log()).numpy()
    for k, (first, *_) in enumerate(names):
        of_topic = [v for v in range(40) if probs[:, v].argmax() == k]
        assert int(first[:-1]) == max(of_topic, key=lambda v: scores[k, v])


def test_lift_and_score_equal_their_formulas() -> None:
    lift = word_scores(TOPICS, TOTALS, "lift")
    np.testing.assert_allclose(lift[0, 1], np.log(0.4 / (40 / 192)))
    score = word_scores(TOPICS, TOTALS, "score")
    np.testing.assert_allclose(score[1, 2], 0.449 * (np.log(0.449) - np.log(0.449 * 0.05) / 2))
    np.testing.assert_array_equal(word_scores(TOPICS, TOTALS, "probability"), TOPICS)
    never = word_scores(TOPICS, np.array([100, 40, 50, 0]), "lift")
    assert np.isneginf(never[:, 3]).all()
    assert np.isfinite(never[:, :3]).all()


def test_frex_equals_the_harmonic_mean_of_ranks() -> None:
    """By hand; of "rare" James and Stein leave 1/2 + (1 - lambda)(50/51 - 1/2)."""
    share = 0.05 / 0.051
    shrinkage = 2 * share * (1 - share) / 1 / (2 * (share - 0.5) ** 2)
    rare = shrinkage / 2 + (1 - shrinkage) * share
    tax = 0.4 / 0.45
    assert 0.5 < tax < rare  # so "rare" has the highest exclusivity of topic 0, then "tax"
    frequency = np.array([4, 3, 1.5, 1.5]) / 4
    exclusivity = np.array([2, 3, 1, 4]) / 4
    expected = 1 / (0.3 / frequency + 0.7 / exclusivity)
    found = word_scores(TOPICS, TOTALS, "frex", frequency_weight=0.3)
    np.testing.assert_allclose(found[0], expected)


def test_exclusivity_of_words_with_one_token_is_uniform() -> None:
    found = word_scores(TOPICS, np.array([100, 40, 50, 1]), "frex", frequency_weight=0.0)
    # The rare word ties with the one of both topics alike, behind "tax".
    np.testing.assert_allclose(found[0], np.array([2.5, 4, 1, 2.5]) / 4)


def test_labels_are_the_best_words_by_each_measure() -> None:
    counts = np.array([[50, 40, 0, 1], [50, 0, 50, 1]])
    corpus = lntm.Corpus.from_matrix(counts, WORDS)
    model = lntm.models.ctm(
        2, 4, topics=torch.from_numpy(TOPICS), vocabulary=WORDS, dtype="float64"
    )
    labels = label_topics(model, corpus, top_n=2)
    assert list(labels) == ["topic", "name", "probability", "frex", "lift", "score"]
    assert labels["probability"][0] == "the tax"
    # In topic 1 the ranks of "the" and "war" are those of each other, and the more probable leads.
    assert [words.split() for words in labels["frex"]] == [["tax", "the"], ["the", "war"]]
    assert labels["lift"][0].startswith("rare ")
    assert labels["score"][1].startswith("war ")


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="measure is 'tfidf'"):
        word_scores(TOPICS, TOTALS, "tfidf")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"frequency_weight is 1\.5"):
        word_scores(TOPICS, TOTALS, frequency_weight=1.5)


def make_found() -> DocumentTopics:
    theta = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4], [0.99, 0.01]])
    return DocumentTopics(
        theta,
        torch.ones(4, dtype=torch.bool),
        np.array([5, 5, 5, 0]),
        "mode",
        ("0", "fires"),
        metadata=pd.DataFrame({"title": ["a", "b", "c", "d"]}),
    )


def test_representative_documents_have_the_largest_shares() -> None:
    found = representative_documents(make_found(), num_docs=2)
    assert list(found) == ["topic", "name", "rank", "document", "gamma", "title"]
    assert found["topic"].tolist() == [0, 0, 1, 1]
    assert found["document"].tolist() == [1, 2, 0, 2]
    assert found["rank"].tolist() == [1, 2, 1, 2]
    assert found["gamma"][0] == pytest.approx(0.9)
    assert found["title"].tolist() == ["b", "c", "a", "c"]
    every = representative_documents(make_found(), num_docs=9)
    assert sorted(set(every["document"])) == [0, 1, 2]  # the last has no words
    few = representative_documents(make_found(), num_docs=1, topics=["fires"])
    assert few[["topic", "document"]].to_numpy().tolist() == [[1, 0]]
    with pytest.raises(ConfigError, match="topic 2; expected numbers from 0 to 1"):
        representative_documents(make_found(), topics=[2])


def test_a_text_of_three_words_comes_after_a_long_one_with_almost_its_share() -> None:
    theta, lengths = torch.tensor([[0.96], [0.95], [0.9]]), np.array([3, 100, 100])
    converged = torch.ones(3, dtype=torch.bool)
    shares = DocumentTopics(theta, converged, lengths, "mode", ("usa",))
    found = representative_documents(shares, num_docs=3)
    assert found["document"].tolist() == [1, 2, 0]
    # Wilson's interval as the roots of (p - q)² = z² q (1 - q) / n.
    p, n, z = 0.9, 100, 1.645
    low = min(np.roots([1 + z**2 / n, -2 * p - z**2 / n, p**2]))
    p, n = 0.96, 3
    assert low > min(np.roots([1 + z**2 / n, -2 * p - z**2 / n, p**2]))


def test_texts_are_matched_by_name() -> None:
    counts = np.array([[9, 1], [1, 9], [5, 5]])
    names = pd.DataFrame(index=["x", "y", "z"])
    corpus = lntm.Corpus.from_matrix(counts, ["a", "b"], metadata=names)
    model = lntm.models.ctm(2, 2, topics=torch.tensor([[0.9, 0.1], [0.1, 0.9]]), vocabulary="ab")
    shares = lntm.inference.transform(lntm.guides.TaylorGuide(model), corpus)
    texts = pd.Series({"z": "third", "x": "first", "y": "second"})
    options = {"num_docs": 1, "corpus": corpus, "texts": texts}
    best = lntm.reports.representative_documents(shares, **options)
    found = best[["document", "excerpt"]].to_numpy().tolist()
    assert found == [["x", "first"], ["y", "second"]]
    with pytest.raises(lntm.errors.CorpusError, match="texts: "):
        lntm.reports.representative_documents(
            shares, corpus=corpus, texts=texts.set_axis(["p", "q", "r"])
        )
