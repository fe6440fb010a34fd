"""The report's section on keyword topics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.frames import is_missing
from torch_lntm.models import TopicModel
from torch_lntm.reports import keyword_topics

WORDS = ["tax", "<b>", "war", "oil", "sea", "sky"]
SHARES = [0.5, 0.3, 0.2]
PROBS = [[0.4, 0.1, 0.2, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1, 0.5, 0.1], [0.1] * 5 + [0.5]]


def make_model() -> TopicModel:
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
    money, water = keyword_topics(make_model(), SHARES, 1000, top_n=2).to_dict("records")
    assert (money["topic"], money["name"]) == (0, "money")
    assert is_missing(money["rival"])
    assert money["keywords"] == "tax <b>"
    assert money["mass"] == pytest.approx(0.5)
    assert money["joined"] == "war oil"
    assert water["rival"] == "2"
    assert set(water["keywords"].split()) == {"oil", "sky"}


def test_intervals_are_those_of_simulated_topics() -> None:
    """Words drawn from the Dirichlet posterior of a topic with known tokens."""
    money = keyword_topics(make_model(), SHARES, 1000, level=0.9).iloc[0]
    tokens = 0.5 * 1000 + 10.0 + 0.5 * 6
    draws = np.random.default_rng(0).dirichlet(np.array(PROBS[0]) * tokens, 200_000)[:, :2].sum(1)
    expected = np.quantile(draws, [0.05, 0.95])
    np.testing.assert_allclose([money["lower"], money["upper"]], expected, atol=5e-4)


def test_models_without_keywords_and_wrong_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="no keywords"):
        keyword_topics(lntm.models.ctm(2, 6), [0.5, 0.5], 10)
    with pytest.raises(ConfigError, match="level is 2"):
        keyword_topics(make_model(), SHARES, 10, level=2)


def test_the_page_has_a_section_for_models_with_keywords_alone(tmp_path) -> None:
    rng = np.random.default_rng(0)
    corpus = Corpus.from_matrix(rng.multinomial(30, np.full(6, 1 / 6), 20), WORDS)
    for model in (make_model(), lntm.models.ctm(3, 6, vocabulary=WORDS)):
        guide, place = lntm.guides.TaylorGuide(model), tmp_path / "page.html"
        path = lntm.report(guide, corpus, place, overwrite=True)
        page = path.read_text(encoding="utf-8")
        has_keywords = model.topics.keywords is not None
        assert ("Keywords" in Page(page).said("h2")) == has_keywords
        assert ("the keywords of water are more probable in 2" in page) == has_keywords
        assert ("tax &lt;b&gt;" in page) == has_keywords
