"""The report's section on words over time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.reports import moving_topics
from torch_lntm.reports.labels import words_by_period

WORDS = ["up", "<b>down</b>", "still", "a", "b", "c"]
YEARS = np.repeat(np.arange(2000, 2010), 10)


def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(30, np.full(6, 1 / 6), len(YEARS))
    return Corpus.from_matrix(counts, WORDS, metadata={"year": YEARS})


def make_model() -> TopicModel:
    """Two topics over 10 years. In topic 0 the word ``up`` rises, and ``<b>down</b>`` falls."""
    model = lntm.models.stm(2, corpus(), content="~ rw(year)", content_scale=0.3)
    late = np.linspace(0, 1, 10)[:, None]
    moving = 400 * np.hstack([1 + 9 * late, 10 - 9 * late, *[np.full((10, 1), 5.0)] * 4])
    still = np.full((10, 6), 700.0)
    tokens = torch.tensor(np.stack([moving.ravel(), still.ravel()]), dtype=torch.float32)
    for _ in range(5):
        model.topics.m_step(tokens)
    return model


def test_words_that_rose_and_fell_are_found_with_their_intervals() -> None:
    model = make_model()
    words = words_by_period(model, top_n=2, num_periods=3)
    assert list(words) == ["topic", "drift", "2000", "2004", "2009"]
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
        moving_topics(make_model(), level=2.0)


@pytest.mark.slow
def test_the_page_has_a_section_for_models_with_moving_words_alone(tmp_path) -> None:
    pages = []
    for model in (make_model(), lntm.models.ctm(2, 6, vocabulary=WORDS)):
        guide = lntm.guides.TaylorGuide(model)
        file = lntm.report(guide, corpus(), tmp_path / f"{model.name}.html")
        pages.append(file.read_text(encoding="utf-8"))
    moving, still = (Page(page).said("h2") for page in pages)
    assert "Words over time" in moving
    assert "Words over time" not in still
    assert "<b>down" not in pages[0]
