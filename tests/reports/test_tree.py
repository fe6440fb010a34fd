"""A tree of topics merges similar topics, and its levels are groups."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.pages import Page

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel, ctm
from torch_lntm.models.priors.logistic_normal import DiagonalNormalPrior
from torch_lntm.reports.tree import TopicTree, hellinger_distances

WORDS = tuple(f"{letter}{v}" for v in range(8) for letter in ("ant", "bee", "cat"))
BY_WORDS = {(0, 3), (1, 4), (2, 5)}


def make_model() -> TopicModel:
    """Topics 0, 3 and topics 1, 4 and topics 2, 5 share their frequent words."""
    probs = torch.rand(6, len(WORDS), generator=torch.Generator().manual_seed(0)) + 0.05
    for k in range(6):
        probs[k, k % 3 :: 3] += 4
    model = ctm(6, len(WORDS), vocabulary=WORDS, topics=probs / probs.sum(1, keepdim=True))
    model.topic_names = {1: "bees", 4: "hives"}
    return model


def make_tree(levels: Any = ()) -> TopicTree:
    return lntm.topic_tree(make_model(), levels, by="words")


def test_similar_topics_are_merged() -> None:
    tree = make_tree([3, 5, 3])
    assert tree.levels == (5, 3)
    assert set(tree.groups(3).values()) == BY_WORDS
    assert "bees + hives" in tree.groups(3)
    assert len({*tree.names}) == len(tree.names) == 11
    groups = lntm.models.TopicGroups.of(make_model().topic_names, tree.groups())
    assert {*groups.members} == {*tree.groups(3).values(), *tree.groups(5).values()}


@pytest.mark.parametrize("level", range(1, 7))
def test_every_level_divides_the_topics_and_refines_the_next(level: int) -> None:
    tree = make_tree()
    groups = tree.groups(level)
    assert len(groups) == level
    assert sorted(itertools.chain.from_iterable(groups.values())) == list(range(6))
    if level > 1:
        coarse = [set(topics) for topics in tree.groups(level - 1).values()]
        assert all(any(set(topics) <= other for other in coarse) for topics in groups.values())


class Unknown(lntm.models.LogisticNormalPrior):
    """A prior that says of itself that it has no correlations."""

    has_correlations = False


def test_topics_merge_by_correlation_if_the_prior_has_correlations() -> None:
    # Topics 0, 1 and topics 2, 3 and topics 4, 5 come together.
    covariance = 0.4 * torch.eye(6) + 0.6 * torch.kron(torch.eye(3), torch.ones(2, 2))
    priors = lntm.models
    pairs = make_model().with_parts(priors.LogisticNormalPrior(6, covariance=covariance))
    tree = lntm.topic_tree(pairs)
    assert tree.by == "correlation"
    assert set(tree.groups(3).values()) == {(0, 1), (2, 3), (4, 5)}
    assert lntm.topic_tree(lntm.models.iftm(6, 8, 2)).by == "correlation"
    assert set(lntm.topic_tree(pairs, by="words").groups(3).values()) == BY_WORDS
    for prior in (
        priors.DirichletPrior(6, concentration=torch.linspace(0.1, 3.0, 6)),
        DiagonalNormalPrior(6, std=torch.linspace(0.2, 4.0, 6)),
        Unknown(6, covariance=covariance),
    ):
        tree = lntm.topic_tree(make_model().with_parts(prior))
        assert tree.by == "words"
        assert set(tree.groups(3).values()) == BY_WORDS


def test_distances_are_those_of_ward() -> None:
    probs = make_model().topics.probs.detach().double().numpy()
    distance = hellinger_distances(probs)
    direct = np.sqrt(np.square(np.sqrt(probs)[:, None] - np.sqrt(probs)).sum(-1) / 2)
    np.testing.assert_allclose(distance, direct, atol=1e-7)
    first, second, height, size = make_tree().merges[0]
    assert size == 2
    assert height == pytest.approx(distance[int(first), int(second)])
    assert height == pytest.approx(distance[distance > 1e-6].min())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": [7]}, "level is 7; expected a number of groups from 1 to 6"),
        ({"levels": ["a"]}, "level is 'a'"),
        ({"by": "sound"}, "by is 'sound'; expected one of words, correlation"),
    ],
)
def test_unsuitable_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lntm.topic_tree(make_model(), **settings)
    with pytest.raises(ConfigError, match="at least 2 topics"):
        lntm.topic_tree(ctm(1, 5))
    with pytest.raises(ConfigError, match="the tree has no levels"):
        make_tree().groups()


def test_common_words_of_all_topics_name_no_group() -> None:
    probs = torch.rand(4, 10, generator=torch.Generator().manual_seed(0))
    probs[:, 0] += 50  # "will" is the most probable word of every topic
    for k in range(4):
        probs[k, 1 + 3 * (k % 2) : 4 + 3 * (k % 2)] += 10
    words = ("will", "oil", "gas", "coal", "court", "law", "jury", "a7", "a8", "\x1b")
    model = ctm(4, 10, vocabulary=words, topics=probs / probs.sum(1, keepdim=True))
    tree = lntm.topic_tree(model, by="words")
    named = {frozenset(name.split()): topics for name, topics in tree.groups(2).items()}
    assert named == {frozenset(words[1:4]): (0, 2), frozenset(words[4:7]): (1, 3)}
    strange = model.with_parts(vocabulary=[f"\x1b{v}" for v in range(10)])
    assert all(name.isprintable() for name in lntm.topic_tree(strange).names)


def test_a_tree_is_printed_plotted_and_reported(tmp_path: Any) -> None:
    tree = make_tree([3])
    assert "bees + hives bees, hives" in " ".join(str(tree).split())
    frame = tree.frame()
    assert list(frame) == ["level", "group", "topics"]
    assert [3, "bees + hives", "bees, hives"] in frame.to_numpy().tolist()
    ax = lntm.plotting.tree_plot(tree)
    assert {"bees", "hives"} <= {label.get_text() for label in ax.get_yticklabels()}
    assert {"3 groups", *tree.groups(3)} <= {text.get_text() for text in ax.texts}
    cut = next(text.get_position()[0] for text in ax.texts if text.get_text() == "3 groups")
    assert tree.merges[2, 2] < cut < tree.merges[3, 2]
    corpus, _ = make_model().generate([20] * 30, seed=0)
    guide = lntm.guides.TaylorGuide(make_model())
    path = lntm.report(guide, corpus, tmp_path / "page.html", tree=tree, num_draws=2)
    page = path.read_text(encoding="utf-8")
    assert "Tree of the topics" in Page(page).said("title")
    assert "bees + hives" in Page(page).said("text")
    assert "<strong>bees + hives</strong>" in page
