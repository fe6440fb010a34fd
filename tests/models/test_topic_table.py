"""The table of a model's topics, in words and with shares."""

from __future__ import annotations

import re

import pytest
import torch
from support.known import TOPICS, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError


def test_topics_are_sorted_by_share_and_list_correlated_topics():
    covariance = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    model = make_model(covariance=covariance)
    first, second, third = model.topic_table([0.2, 0.5, 0.3], top_n=2, num_correlated=1)
    assert [s.topic for s in (first, second, third)] == [1, 2, 0]
    assert first.words == ("dog", "cat")
    assert first.probabilities == pytest.approx((0.4, 0.3))
    assert third.words == ("ant", "bee")
    correlation = model.topic_correlation()
    assert third.correlated == ((1, pytest.approx(float(correlation[0, 1]))),)
    assert third.correlated[0][1] > 0
    assert third.opposed == ((2, pytest.approx(float(correlation[0, 2]))),)
    assert third.opposed[0][1] < 0
    assert second.correlated == ()
    line = f"with 1 dog ({third.correlated[0][1]:+.2f}); against 2"
    assert line in str(model.topic_table([0.2, 0.5, 0.3], num_correlated=1))


def make_unequal():
    """All pairs of topics have different negative correlations."""
    return make_model(covariance=torch.tensor([1.0, 0.5, 0.1]).diag())


@pytest.mark.parametrize(
    "make", [make_factor_model, lambda: lntm.models.lda(3, 4, topics=TOPICS), make_unequal]
)
def test_every_model_has_a_table_with_the_strongest_correlations_first(make):
    model = make()
    correlation = model.topic_correlation()
    for topic in model.topic_table(top_n=1, num_correlated=2):
        pairs = topic.correlated + topic.opposed
        assert sorted(k for k, _ in pairs) == [k for k in range(3) if k != topic.topic]
        for k, r in pairs:
            assert r == pytest.approx(float(correlation[topic.topic, k]))
        positive, negative = ([r for _, r in p] for p in (topic.correlated, topic.opposed))
        assert positive == sorted(positive, reverse=True)
        assert negative == sorted(negative)


def test_the_html_of_a_table_has_a_row_for_each_topic_and_escapes_words():
    model = make_model(vocabulary=("<b>", "bee", "cat", "dog"))
    html = model.topic_table([0.2, 0.5, 0.3], top_n=2)._repr_html_()
    assert html.count("<tr") == 4
    assert re.search(r"<td>1</td>\s*<td>50.0%</td>", html)
    assert "&lt;b&gt; bee" in html
    assert "share" not in model.topic_table()._repr_html_()


@pytest.mark.parametrize("wrong", [{"shares": [0.5, 0.5]}, {"top_n": 0}, {"num_correlated": -1}])
def test_shares_of_other_topics_and_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError):
        make_model().topic_table(**wrong)
