"""Groups of topics: their proportions are sums of draws, with the intervals of the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import ThetaDraws
from torch_lntm.models import TopicGroups, ctm, lda
from torch_lntm.models.topic_groups import merged_topics

WORDS = tuple(f"word{v}" for v in range(20))
GROUPS = {"economy": [0, "trade"], "war": [3], "all but one": [0, 1, 2, 3]}


@pytest.fixture(scope="module")
def documents() -> tuple[Any, Any, torch.Tensor]:
    model = ctm(5, len(WORDS), vocabulary=WORDS)
    model.topic_names = {2: "trade"}
    corpus, _ = model.generate([30] * 60, seed=1)
    column = np.array(["left", "right", "left"] * 20, object)
    corpus = corpus.with_metadata({"party": column, "year": np.arange(60) % 7})
    logits = torch.randn(12, 60, 5, generator=torch.Generator().manual_seed(0)).double()
    return model, corpus, (0.5 * logits + torch.randn(60, 5)).softmax(-1)


def merged_draws(theta: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """A model of 2 topics, and the draws of economy and of the rest as its topics' draws."""
    economy = theta[..., [0, 2]].sum(-1)
    return lda(2, len(WORDS), vocabulary=WORDS), torch.stack([economy, 1 - economy], -1)


def test_groups_are_found_and_summed(documents: Any) -> None:
    model, _, theta = documents
    groups = TopicGroups.of(model.topic_names, GROUPS)
    assert groups.members == ((0, 2), (3,), (0, 1, 2, 3))
    assert TopicGroups.of(model.topic_names, groups) == groups
    sums = groups.sums(theta)
    torch.testing.assert_close(sums[..., 0], theta[..., 0] + theta[..., 2])
    torch.testing.assert_close(sums[..., 2], 1 - theta[..., 4])
    # A group may be a topic.
    assert TopicGroups.of(model.topic_names, {"trade": [2], "3": [3]}).names == ("trade", "3")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "expected topics by name"),
        ([[1, 2]], "expected topics by name"),
        ({"a": []}, "group 'a' is empty"),
        ({"a": [5]}, "group 'a': topic 5; expected numbers from 0 to 4, or names: 'trade'"),
        ({"a": [2, "trade"]}, "group 'a': topic trade is given twice"),
        ({"a": "trade"}, "group 'a' is 'trade'; expected a list of topics"),
        ({"trade": [0, 2]}, "the group 'trade' has the name of a topic"),
        ({"3": [0]}, "numbers denote topics"),
        ({" a": [0], "a": [1]}, "two groups have the name 'a'"),
        ({"a\n": [0], "\x07": [1]}, "printable"),
    ],
)
def test_unsuitable_groups_are_refused(groups: Any, message: str, documents: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        TopicGroups.of(documents[0].topic_names, groups)


def test_prevalence_of_a_group_is_the_prevalence_of_the_summed_draws(documents: Any) -> None:
    model, corpus, theta = documents
    draws = ThetaDraws.of(theta, model)
    summary = lntm.reports.summarise_corpus(draws, corpus, ["party"], groups=GROUPS)
    other, sums = merged_draws(theta)
    expected = lntm.reports.summarise_corpus(ThetaDraws.of(sums, other), corpus, ["party"])
    size = model.num_topics
    for all_columns, topic in (
        (summary.overall, expected.overall),
        (summary.prevalence[0], expected.prevalence[0]),
    ):
        assert all_columns.columns[size:] == tuple(GROUPS)
        for name in ("mean", "lower", "upper", "standard_error"):
            first, second = getattr(all_columns, name)[:, size], getattr(topic, name)[:, 0]
            np.testing.assert_allclose(first, second, rtol=1e-9)
    # The interval of a sum is not the sum of the ends.
    width = (summary.overall.upper - summary.overall.lower)[0]
    assert width[size] < width[[0, 2]].sum() * 0.99
    plain = lntm.reports.summarise_corpus(draws, corpus, ["party"])
    np.testing.assert_allclose(plain.overall.lower, summary.overall.lower[:, :size], rtol=1e-12)


def test_effects_of_a_group_are_the_effects_of_the_summed_draws(documents: Any) -> None:
    model, corpus, theta = documents
    formula, link = "~ party + year", "identity"
    effects = lntm.effects.estimate(model, theta, corpus, formula, groups=GROUPS, link=link)
    assert effects.topics == ("economy", "war", "all but one")
    other, sums = merged_draws(theta)
    expected = lntm.effects.estimate(other, sums, corpus, formula, topics=[0], link=link)
    compared = ("party", "left", "right")
    for rows, others in (
        (effects.table()[:3], expected.table()),
        (effects.predict("party")[:2], expected.predict("party")),
        (effects.difference(*compared)[:1], expected.difference(*compared)),
    ):
        assert set(rows["topic"]) == {"economy"}
        names = ["estimate", "std_error", "lower", "upper"]
        np.testing.assert_allclose(rows[names], others[names], rtol=1e-8)
    # Effects are linear in the proportions: those of a group are sums over its topics.
    two = {"topics": [0, "trade"], "groups": {"economy": [0, "trade"]}}
    for link in ("identity", "logit"):
        both = lntm.effects.estimate(model, theta, corpus, formula, link=link, **two)
        assert both.table()["name"].tolist()[3::3] == ["trade", "economy"]
        estimates = both.table()["estimate"].to_numpy().reshape(3, 3)
        np.testing.assert_allclose(estimates[2], estimates[:2].sum(0), rtol=1e-9, atol=1e-14)


def test_proportions_of_groups_are_sums(documents: Any) -> None:
    model, corpus, _ = documents
    guide = lntm.guides.TaylorGuide(model)
    topics = lntm.inference.transform(guide, corpus, groups=GROUPS)
    torch.testing.assert_close(topics.group_theta[:, 0], topics.theta[:, [0, 2]].sum(1))
    with pytest.raises(ConfigError, match="there are no groups"):
        _ = lntm.inference.transform(guide, corpus).group_theta


def test_words_of_a_merged_topic_are_weighted_by_tokens(documents: Any) -> None:
    model = documents[0]
    tokens = torch.tensor([3.0, 1.0, 1.0, 2.0, 0.0])
    words = merged_topics(model, {"a": [0, 2], "b": [4]}, tokens)
    probs = model.topics.probs.detach().double()
    torch.testing.assert_close(words[0], 0.75 * probs[0] + 0.25 * probs[2])
    torch.testing.assert_close(words[1], probs[4])
    summary = lntm.reports.summarise_groups(model, {"a": [0, 2]}, tokens / 7, top_n=3)
    best = words[0].argsort(descending=True)[:3]
    assert summary["words"].tolist() == [" ".join(model.words_at(best.tolist()))]
    assert summary["share"].tolist() == pytest.approx([4 / 7])
    with pytest.raises(ConfigError, match="expected 5 numbers from 0"):
        merged_topics(model, {"a": [0]}, [1.0, 2.0])
