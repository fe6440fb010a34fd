"""Topics in words, with shares and correlations."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from support.known import TOPICS, make_corpus, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.reports import format_topics, summarise_topics, topic_shares


def test_topics_by_share_with_words_and_partners():
    covariance = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    model = make_model(covariance=covariance)
    first, second, third = summarise_topics(model, [0.2, 0.5, 0.3], num_words=2, num_correlated=1)
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


def make_unequal():
    """All topics are opposed, each pair more or less than the others."""
    return make_model(covariance=torch.tensor([1.0, 0.5, 0.1]).diag())


@pytest.mark.parametrize(
    "make", [make_factor_model, lambda: lntm.models.lda(3, 4, topics=TOPICS), make_unequal]
)
def test_topics_of_every_model_are_summarised(make):
    model = make()
    correlation = model.topic_correlation()
    for summary in summarise_topics(model, num_words=1, num_correlated=2):
        pairs = summary.correlated + summary.opposed
        assert sorted(k for k, _ in pairs) == [k for k in range(3) if k != summary.topic]
        for k, r in pairs:
            assert r == pytest.approx(float(correlation[summary.topic, k]))
        # The most correlated first, and of the opposed the most opposed.
        positive, negative = ([r for _, r in p] for p in (summary.correlated, summary.opposed))
        assert positive == sorted(positive, reverse=True)
        assert negative == sorted(negative)


def test_topics_without_shares_and_words_keep_their_order():
    summaries = summarise_topics(make_model(vocabulary=None), num_words=100)
    assert [s.topic for s in summaries] == [0, 1, 2]
    assert summaries[0].share is None
    assert summaries[0].words == ("#0", "#1", "#2", "#3")


def test_topics_in_three_formats():
    summaries = summarise_topics(make_model(), [0.2, 0.5, 0.3], num_words=2)
    text = format_topics(summaries)
    assert "50.0%   dog cat" in text
    assert "−" in text
    records = json.loads(format_topics(summaries, "json"))
    assert records[0]["topic"] == 1
    assert records[0]["words"] == ["dog", "cat"]
    rows = list(csv.DictReader(format_topics(summaries, "csv").splitlines()))
    assert [row["topic"] for row in rows] == ["1", "2", "0"]
    assert float(rows[0]["share"]) == 0.5
    partner, r = rows[0]["opposed"].split()[0].split(":")
    assert float(r) == pytest.approx(records[0]["opposed"][0][1], abs=1e-4)
    assert int(partner) == records[0]["opposed"][0][0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: summarise_topics(m, [0.5, 0.5]),
        lambda m: summarise_topics(m, num_words=0),
        lambda m: format_topics(summarise_topics(m), "xml"),
    ],
)
def test_what_cannot_be_told_is_said(wrong):
    with pytest.raises(ConfigError):
        wrong(make_model())


def test_shares_leave_empty_documents_out():
    corpus = make_corpus()
    theta = torch.rand(9, 3, generator=torch.Generator().manual_seed(0))
    kept = [d for d in range(9) if d != 4]
    torch.testing.assert_close(topic_shares(theta, corpus), theta[kept].double().mean(0))
