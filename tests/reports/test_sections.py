"""The report's sections on keyword topics and on words over time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.frames import is_missing
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.reports import keyword_topics, moving_topics
from torch_lntm.reports.labels import words_by_period

WORDS = ["tax", "<b>", "war", "oil", "sea", "sky"]
TOKENS = [500.0, 300.0, 200.0]
PROBS = [[0.4, 0.1, 0.2, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.5, 0.1], [0.1] * 5 + [0.5]]


def keyword_model() -> TopicModel:
    return lntm.models.ctm(
        3,
        6,
        topics=torch.tensor(PROBS),
        keywords={"money": ["<b>", "tax"], "water": ["sky", "oil"]},
        keyword_strength=10.0,
        exclusive_keywords=False,
        topic_smoothing=0.5,
        vocabulary=WORDS,
    )


def test_rows_name_words_probabilities_and_lost_topics() -> None:
    money, water = keyword_topics(keyword_model(), TOKENS, top_n=2).to_dict("records")
    assert (money["topic"], money["name"]) == (0, "money")
    assert is_missing(money["rival"])
    assert money["keywords"] == "tax <b>"
    assert money["mass"] == pytest.approx(0.5)
    assert money["joined"] == "war oil"
    assert water["rival"] == "2"
    assert set(water["keywords"].split()) == {"oil", "sky"}


def test_intervals_are_those_of_simulated_topics() -> None:
    """Words drawn from the Dirichlet posterior of a topic with known tokens."""
    money = keyword_topics(keyword_model(), TOKENS, level=0.9).iloc[0]
    tokens = 0.5 * 1000 + 10.0 + 0.5 * 6
    draws = np.random.default_rng(0).dirichlet(np.array(PROBS[0]) * tokens, 200_000)[:, :2].sum(1)
    expected = np.quantile(draws, [0.05, 0.95])
    np.testing.assert_allclose([money["lower"], money["upper"]], expected, atol=5e-4)


def test_long_documents_count_more_for_the_tokens_of_topics() -> None:
    documents = lntm.inference.DocumentTopics(
        torch.tensor([[0.9, 0.1], [0.2, 0.8]]),
        torch.ones(2, dtype=torch.bool),
        np.array([10, 1000]),
        "mean",
        ("0", "1"),
    )
    assert documents.topic_tokens.tolist() == pytest.approx([209.0, 801.0])


def test_models_without_keywords_and_wrong_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="no keywords"):
        keyword_topics(lntm.models.ctm(2, 6), [5.0, 5.0])
    with pytest.raises(ConfigError, match="level is 2"):
        keyword_topics(keyword_model(), TOKENS, level=2)


MOVING = ["up", "<b>down</b>", "still", "a", "b", "c"]
YEARS = np.repeat(np.arange(2000, 2010), 10)


def posts() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(30, np.full(6, 1 / 6), len(YEARS))
    return Corpus.from_matrix(counts, MOVING, metadata={"year": YEARS})


def moving_model() -> TopicModel:
    """Two topics over 10 years. In topic 0 the word ``up`` rises, and ``<b>down</b>`` falls."""
    model = lntm.models.stm(2, posts(), content="~ rw(year)", content_scale=0.3)
    late = np.linspace(0, 1, 10)[:, None]
    moving = 400 * np.hstack([1 + 9 * late, 10 - 9 * late, *[np.full((10, 1), 5.0)] * 4])
    still = np.full((10, 6), 700.0)
    tokens = torch.tensor(np.stack([moving.ravel(), still.ravel()]), dtype=torch.float32)
    for _ in range(5):
        model.topics.m_step(tokens)
    return model


def test_words_that_rose_and_fell_are_found_with_their_intervals() -> None:
    model = moving_model()
    words = words_by_period(model, top_n=2, num_periods=3)
    assert list(words) == ["topic", "drift", "by noise", "2000", "2004", "2009"]
    assert words["2000"][0].startswith("<b>down</b> ")
    assert words["2009"][0].startswith("up ")
    assert words["drift"].tolist() == pytest.approx([9 / 31, 0], abs=0.01)
    found = moving_topics(model)
    assert set(found["topic"]) == {0}
    rose, fell = (found[found["change"] == kind].iloc[0] for kind in ("rose", "fell"))
    assert (rose["word"], fell["word"]) == ("up", "<b>down</b>")
    topics = model.topics
    assert isinstance(topics, DynamicTopics)
    probs = topics.double_probs.view(2, 10, 6)[0]
    assert rose["first"] == pytest.approx(float(probs[0, 0]))
    assert rose["last"] == pytest.approx(float(probs[-1, 0]))
    change, error = topics.log_changes(0)
    ends = np.exp(float(change[0]) + 1.959964 * float(error[0]) * np.array([-1, 1]))
    assert (rose["lower"], rose["upper"]) == pytest.approx(tuple(ends), rel=1e-5)
    assert rose["lower"] < rose["ratio"] < rose["upper"]


def test_models_with_still_words_and_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not move with time"):
        moving_topics(lntm.models.ctm(2, 6))
    with pytest.raises(ConfigError, match="level is 2"):
        moving_topics(moving_model(), level=2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "make", "words", "told"),
    [
        ("Keywords", keyword_model, WORDS, "the keywords of water are more probable in 2"),
        ("Words over time", moving_model, MOVING, "10 periods of year"),
    ],
)
def test_the_page_has_a_section_for_models_of_a_kind_alone(
    tmp_path, title, make, words, told
) -> None:
    plain = lntm.models.ctm(3, 6, vocabulary=words)
    for model, has_section in ((make(), True), (plain, False)):
        documents = Corpus.from_matrix(posts().to_scipy(), words, metadata=posts().metadata)
        guide, place = lntm.guides.TaylorGuide(model), tmp_path / "page.html"
        path = lntm.report(guide, documents, place, overwrite=True)
        page = path.read_text(encoding="utf-8")
        assert (title in Page(page).said("h2")) == has_section
        assert (told in page) == has_section
        assert "<b>down" not in page
        assert "tax <b>" not in page
