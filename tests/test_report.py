"""Tables say what the model says."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.report import (
    Score,
    completion_scores,
    document_topics,
    format_scores,
    format_topics,
    summarise_topics,
    topic_shares,
    write_scores,
)

WORDS = ("ant", "bee", "cat", "dog")
TOPICS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]])


def make_model(**options):
    return lntm.models.ctm(3, 4, topics=TOPICS, **({"vocabulary": WORDS} | options))


@pytest.fixture
def corpus():
    counts = np.random.default_rng(0).poisson(2.0, (9, 4))
    counts[4] = 0
    return lntm.Corpus.from_matrix(counts, WORDS)


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


def test_scores_show_the_digits_their_errors_allow(tmp_path):
    scores = [
        Score("perplexity", 1234.567, 45.6, "per token", "so", 30, 1000),
        Score("coherence", 0.123456, 0.0123, "mean over topics", "so"),
        Score("diversity", 0.5, None, "share", "so"),
        Score("lonely", 2.0, math.inf, "per token", "so", 1, 2),
    ]
    header, rule, *rows = format_scores(scores).splitlines()
    assert header.split() == ["metric", "value", "s.e.", "unit", "documents", "method"]
    assert set(rule) == {"-", " "}
    assert rows[0].split()[1:3] == ["1235", "46"]
    assert rows[1].split()[1:3] == ["0.123", "0.012"]
    assert rows[2].split()[1:3] == ["0.5", "–"]
    assert rows[3].split()[1:3] == ["2", "–"]
    write_scores(tmp_path / "scores.json", scores)
    records = json.loads((tmp_path / "scores.json").read_text())
    assert [record["standard_error"] for record in records] == [45.6, 0.0123, None, None]
    assert records[0]["value"] == 1234.567


def test_completion_scores_name_their_method(corpus):
    model = make_model()
    guide = lntm.guides.TaylorGuide(model)
    result = lntm.evaluation.document_completion(model, guide, corpus, 0.5, 3)
    (score,) = completion_scores(result)
    assert score.value == result.perplexity
    assert score.standard_error == result.standard_error
    assert "TaylorGuide" in score.method
    assert "50% of tokens observed, seed 3" in score.method
    assert score.documents == 8


@pytest.mark.parametrize("posterior", ["taylor", "blei-lafferty"])
@pytest.mark.parametrize("estimate", ["mode", "mean"])
def test_document_topics_do_not_depend_on_batches(corpus, posterior, estimate):
    guide = lntm.guides.make_guide(posterior, make_model(dtype="float64"))
    together = document_topics(guide, corpus, estimate)
    apart = document_topics(guide, corpus, estimate, max_docs=2)
    torch.testing.assert_close(together.theta, apart.theta)
    assert together.theta.shape == (9, 3)
    torch.testing.assert_close(together.theta.sum(1), torch.ones(9).double())
    assert together.converged.all()


def test_document_topics_are_the_posteriors(corpus):
    guide = lntm.guides.LaplaceGuide(make_model(dtype="float64"))
    posterior = guide.posterior(corpus.batch())
    mode = document_topics(guide, corpus)
    torch.testing.assert_close(mode.theta, posterior.theta_mode())
    mean = document_topics(guide, corpus, "mean", num_samples=20_000)
    # A proportion's standard deviation is below 0.5, so 20,000 draws err by 0.0035; six of them.
    torch.testing.assert_close(mean.theta, posterior.theta_mean(20_000), atol=0.03, rtol=0)
    assert (mean.theta - mode.theta).abs().max() > 1e-3


def test_empty_documents_have_the_priors_theta_and_no_share(corpus):
    model = make_model(loc=torch.tensor([1.0, 0.0, -1.0]))
    theta = document_topics(lntm.guides.TaylorGuide(model), corpus).theta
    torch.testing.assert_close(theta[4], model.theta(model.prior.loc).detach())
    shares = topic_shares(theta, corpus)
    kept = [d for d in range(9) if d != 4]
    torch.testing.assert_close(shares, theta[kept].double().mean(0))


def test_an_unknown_estimate_is_refused(corpus):
    with pytest.raises(ConfigError, match="estimate 'median'"):
        document_topics(lntm.guides.TaylorGuide(make_model()), corpus, "median")
