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
from torch_lntm.reports import (
    Score,
    SourceActivity,
    completion_scores,
    document_topics,
    format_scores,
    format_sources,
    format_topics,
    most_active_documents,
    source_activity,
    summarise_sources,
    summarise_topics,
    topic_shares,
    write_scores,
)

WORDS = ("ant", "bee", "cat", "dog")
TOPICS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]])


def make_model(**options):
    return lntm.models.ctm(3, 4, topics=TOPICS, **({"vocabulary": WORDS} | options))


MIXING = torch.tensor([[3.0, 0.5], [1.0, 0.6], [2.0, 0.1]], dtype=torch.float64)


def make_factor_model(source="gaussian", **options):
    settings = {
        "mixing": MIXING,
        "loc": torch.tensor([0.3, -0.2, 0.5]),
        "noise_precision": torch.tensor([1.0, 2.0, 4.0]),
        "topics": TOPICS,
        "vocabulary": WORDS,
        "dtype": "float64",
    }
    return lntm.models.iftm(3, 4, 2, source=source, **(settings | options))


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


@pytest.mark.parametrize("make", [make_factor_model, lambda: lntm.models.lda(3, 4, topics=TOPICS)])
def test_topics_of_every_model_are_summarised(make):
    model = make()
    correlation = model.topic_correlation()
    for summary in summarise_topics(model, num_words=1, num_correlated=2):
        pairs = summary.correlated + summary.opposed
        assert sorted(k for k, _ in pairs) == [k for k in range(3) if k != summary.topic]
        for k, r in pairs:
            assert r == pytest.approx(float(correlation[summary.topic, k]))


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


# -------------------------------------------------------------------- sources


@pytest.mark.parametrize(("source", "variance"), [("gaussian", 1.0), ("laplace", 2.0)])
def test_sources_by_the_ends_of_their_centred_columns(source, variance):
    first, second = summarise_sources(make_factor_model(source), num_topics=1, num_words=2)
    # A's columns less their means: (1, -1, 0) and (0.1, 0.2, -0.3).
    assert [(t.topic, pytest.approx(t.loading)) for t in first.positive] == [(0, 1.0)]
    assert [(t.topic, pytest.approx(t.loading)) for t in first.negative] == [(1, -1.0)]
    assert [(t.topic, pytest.approx(t.loading)) for t in second.positive] == [(1, 0.2)]
    assert [(t.topic, pytest.approx(t.loading)) for t in second.negative] == [(2, -0.3)]
    assert first.positive[0].words == ("ant", "bee")
    assert (first.source, second.source) == (0, 1)
    assert first.distribution == source
    # Of the centred logits' variance: the columns' squares, and the noise's less its mean's.
    noise = np.array([1.0, 0.5, 0.25])
    total = variance * (2.0 + 0.14) + noise.sum() * (1 - 1 / 3)
    assert first.share == pytest.approx(variance * 2.0 / total)
    assert second.share == pytest.approx(variance * 0.14 / total)


def test_the_share_is_of_the_variance_of_drawn_logits():
    model = make_factor_model("laplace")
    _, latents = model.generate([1] * 100_000)
    eta = latents["eta"].numpy()
    centred = eta - eta.mean(1, keepdims=True)
    of_first = latents["source"].numpy()[:, :1] * np.array([[1.0, -1.0, 0.0]])
    expected = of_first.var(0).sum() / centred.var(0).sum()
    # Both variances' relative errors are below 1 % (kurtosis 6, 100,000 draws); three of each.
    assert summarise_sources(model)[0].share == pytest.approx(expected, rel=0.06)


def test_each_end_has_topics_of_its_sign_the_strongest_first():
    mixing = torch.tensor([[-1.0], [2.0], [-4.0], [3.0]])
    model = lntm.models.iftm(4, 2, 1, mixing=mixing, topics=torch.full((4, 2), 0.5))
    (summary,) = summarise_sources(model, num_topics=9)
    assert [t.topic for t in summary.positive] == [3, 1]
    assert [t.topic for t in summary.negative] == [2, 0]
    assert summary.negative[0].words == ("#0", "#1")


def test_sources_in_three_formats():
    summaries = summarise_sources(make_factor_model("laplace"), num_words=2)
    text = format_sources(summaries)
    header, *rows = text.splitlines()[2:]
    assert "laplace, variance 2" in header
    assert "rotates" not in header
    assert [" ".join(row.split()) for row in rows] == [
        "source share loading topic top words",
        f"0 {summaries[0].share:.1%} +1.00 0 ant bee",
        "−1.00 1 dog cat",  # the third topic's centred loading is 0: it is at neither end
        f"1 {summaries[1].share:.1%} +0.20 1 dog cat",
        "+0.10 0 ant bee",
        "−0.30 2 ant cat",
    ]
    assert "rotates them" in format_sources(summarise_sources(make_factor_model()))
    records = json.loads(format_sources(summaries, "json"))
    assert records[1]["negative"] == [
        {"topic": 2, "loading": pytest.approx(-0.3), "words": ["ant", "cat"]}
    ]
    table = list(csv.DictReader(format_sources(summaries, "csv").splitlines()))
    assert [(row["source"], row["topic"]) for row in table] == [
        *(("0", "0"), ("0", "1")),
        *(("1", "1"), ("1", "0"), ("1", "2")),
    ]
    assert float(table[4]["loading"]) == pytest.approx(-0.3)
    assert float(table[4]["share"]) == pytest.approx(summaries[1].share, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: summarise_sources(m, num_topics=0),
        lambda m: summarise_sources(m, num_words=0),
        lambda m: format_sources(summarise_sources(m), "xml"),
        lambda m: most_active_documents(SourceActivity(*[torch.zeros(3, 2)] * 3), 2),
        lambda m: most_active_documents(SourceActivity(*[torch.zeros(3, 2)] * 3), -1),
        lambda m: most_active_documents(SourceActivity(*[torch.zeros(3, 2)] * 3), 0, num_docs=0),
    ],
)
def test_what_sources_cannot_tell_is_said(wrong):
    with pytest.raises(ConfigError):
        wrong(make_factor_model())


def test_models_without_sources_say_so(corpus):
    for model in (make_model(), lntm.models.lda(3, 4)):
        with pytest.raises(ConfigError, match=f"{model.name}, has no sources; iftm has"):
            summarise_sources(model)
    with pytest.raises(ConfigError, match="has no sources"):
        source_activity(lntm.guides.TaylorGuide(make_model()), corpus)
    assert document_topics(lntm.guides.TaylorGuide(make_model()), corpus).sources is None


@pytest.mark.parametrize("source", ["gaussian", "laplace"])
def test_source_activity_is_the_factor_posteriors(corpus, source):
    guide = lntm.guides.FactorGuide(make_factor_model(source))
    posterior = guide.posterior(corpus.batch())
    found = source_activity(guide, corpus, max_docs=2)
    torch.testing.assert_close(found.mean, posterior.source_mean)
    torch.testing.assert_close(found.std, posterior.source_std)
    assert torch.equal(found.converged, posterior.converged)
    assert found.mean[4].abs().max() == 0  # the empty document


@pytest.mark.parametrize("name", ["taylor", "laplace"])
def test_source_activity_of_a_posterior_of_eta(corpus, name):
    model = make_factor_model()
    guide = lntm.guides.make_guide(name, model)
    found = source_activity(guide, corpus)
    posterior = guide.posterior(corpus.batch())
    # The joint prior of source and eta, conditioned by blocks.
    mixing, noise = MIXING.numpy(), np.diag([1.0, 0.5, 0.25])
    gain = mixing.T @ np.linalg.inv(mixing @ mixing.T + noise)
    loc = np.array([0.3, -0.2, 0.5])
    for d in range(len(corpus)):
        mean = gain @ (posterior.mean[d].numpy() - loc)
        covariance = np.eye(2) - gain @ mixing
        covariance += gain @ posterior.covariance[d].numpy() @ gain.T
        np.testing.assert_allclose(found.mean[d], mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found.std[d], np.sqrt(np.diag(covariance)), rtol=1e-6)
    # Without words, the prior's.
    np.testing.assert_allclose(found.std[4], 1.0, rtol=1e-6)


def test_the_most_active_documents_are_at_either_end():
    mean = torch.tensor([[0.0, 1.0], [0.5, -2.0], [2.0, 0.0], [-1.0, 3.0], [0.0, -4.0]])
    activity = SourceActivity(mean, torch.ones(5, 2), torch.ones(5, dtype=torch.bool))
    assert most_active_documents(activity, 0) == ([2, 1], [3])
    assert most_active_documents(activity, 0, num_docs=1) == ([2], [3])
    assert most_active_documents(activity, 1, num_docs=2) == ([3, 0], [4, 1])


# -------------------------------------------------------------------- scores and documents


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


@pytest.mark.parametrize(
    ("posterior", "make"),
    [
        ("taylor", make_model),
        ("blei-lafferty", make_model),
        ("factor", lambda **options: make_factor_model("laplace", **options)),
        ("taylor", make_factor_model),
        ("vb", lambda **options: lntm.models.lda(3, 4, topics=TOPICS, **options)),
        ("ep", lambda **options: lntm.models.lda(3, 4, topics=TOPICS, **options)),
    ],
)
@pytest.mark.parametrize("estimate", ["mode", "mean"])
def test_document_topics_do_not_depend_on_batches(corpus, posterior, make, estimate):
    guide = lntm.guides.make_guide(posterior, make(dtype="float64"))
    together = document_topics(guide, corpus, estimate)
    apart = document_topics(guide, corpus, estimate, max_docs=2)
    torch.testing.assert_close(together.theta, apart.theta)
    assert together.theta.shape == (9, 3)
    torch.testing.assert_close(together.theta.sum(1), torch.ones(9).double())
    assert together.converged.all()
    assert (together.sources is not None) == (guide.model.name == "iftm")


def test_batches_are_as_large_as_the_guide_needs_them(corpus, monkeypatch):
    guide = lntm.guides.TaylorGuide(make_model())
    sizes = []
    solve = type(guide).posterior

    def posterior(self, batch, *arguments, **options):
        sizes.append(batch.num_docs)
        return solve(self, batch, *arguments, **options)

    monkeypatch.setattr(type(guide), "posterior", posterior)
    thirty = corpus[[0, 1, 2] * 10]
    asked = []

    def numbers(self, entries):
        asked.append(entries)
        return 2.0**23 / 20

    monkeypatch.setattr(type(guide), "numbers_per_document", numbers)
    document_topics(guide, thirty)
    assert sizes == [20, 10]
    assert asked == [thirty.nnz / 30]


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
