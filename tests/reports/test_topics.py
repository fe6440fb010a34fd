"""Topics in words, with shares and correlations."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from support.known import TOPICS, make_corpus, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import ThetaDraws
from torch_lntm.reports import (
    format_topics,
    summarise_corpus,
    summarise_topics,
    topic_shares,
    topics,
)


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


def test_shares_are_posterior_means_of_the_documents_with_words():
    model, corpus = make_model(dtype="float64"), make_corpus()
    guide = lntm.guides.TaylorGuide(model)
    kept = torch.tensor([d for d in range(9) if d != 4])
    posterior = guide.posterior(corpus.batch(dtype=torch.float64))
    means = posterior.theta_samples(50, 0)[:, kept].mean((0, 1))
    shares = topic_shares(guide, corpus)
    torch.testing.assert_close(shares, means)
    assert float(shares.sum()) == pytest.approx(1.0)
    # The proportions at the modes are others: these documents have few words.
    modes = posterior.theta_mode()[kept].mean(0)
    assert float((shares - modes).abs().max()) > 0.01
    given = ThetaDraws.of(torch.eye(3).expand(2, 3, 3), model)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(topic_shares(given, corpus[[0, 1, 2]]), third)


@pytest.mark.parametrize("by_chains", [False, True])
def test_a_fit_and_its_report_say_the_same_shares(by_chains):
    corpus = lntm.lee_corpus()[:120]
    model = lntm.models.ctm(3, corpus.num_words, seed=0)
    if by_chains:
        engine = lntm.inference.MonteCarloEM(model, max_epochs=14, num_chains=2, progress=False)
    else:
        guide = lntm.guides.TaylorGuide(model)
        engine = lntm.inference.VariationalEM(model, guide, progress=False)
    result = engine.fit(corpus)
    printed = topic_shares(result, corpus).numpy()
    overall = summarise_corpus(result.posterior, corpus, seed=9).overall
    # Monte-Carlo errors of both are some 0.1 percentage points.
    assert printed == pytest.approx(overall.mean[0], abs=6e-3)
    assert (printed > overall.lower[0]).all()
    assert (printed < overall.upper[0]).all()


def test_shares_of_many_documents_are_of_the_last_draws_of_all_chains(monkeypatch):
    corpus = make_corpus()
    model = lntm.models.ctm(3, 4, vocabulary=corpus.vocabulary, dtype="float64", seed=0)
    engine = lntm.inference.MonteCarloEM(model, max_epochs=3, num_chains=2, progress=False)
    result = engine.fit(corpus)
    monkeypatch.setattr(topics, "_SHARE_DRAWS", 16)
    kept = torch.tensor([d for d in range(9) if d != 4])
    last = model.theta(result.chains["eta"][:, kept])
    torch.testing.assert_close(topic_shares(result, corpus), last.mean((0, 1)))


def test_shares_after_a_fit_to_many_documents_are_corrected_by_some_of_them(monkeypatch):
    corpus = lntm.lee_corpus()
    model = lntm.models.ctm(4, corpus.num_words, seed=0)
    guide = lntm.guides.TaylorGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, max_iterations=2, progress=False)
    result = engine.fit(corpus)
    exact = topic_shares(result, corpus)
    torch.testing.assert_close(exact, topic_shares(guide, corpus), rtol=0, atol=1e-3)
    monkeypatch.setattr(topics, "_SHARE_DOCS", 100)
    asked = []
    make = lntm.inference.draws.guides.GuideDraws.make
    monkeypatch.setattr(
        lntm.inference.draws.guides.GuideDraws,
        "make",
        lambda self, rows, n: asked.append(len(rows)) or make(self, rows, n),
    )
    some = topic_shares(result, corpus)
    assert asked == [100]
    assert float(some.sum()) == pytest.approx(1.0)
    modes = model.theta(result.means).double().mean(0)
    # Differences of 100 documents from their modes have standard deviations below 0.05.
    assert float((some - exact).abs().max()) < 5 * 0.05 / 10
    assert float((some - modes).abs().max()) > 0
