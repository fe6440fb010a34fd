"""Shares of topics, and the topics that a printed result shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.known import make_corpus, make_model

import torch_lntm as lntm
from torch_lntm.inference import ThetaDraws, topic_shares
from torch_lntm.inference.em import result as results
from torch_lntm.reports import summarise_corpus


def fit(corpus, num_topics=3, **options):
    """A short fit by a guide."""
    model = lntm.models.ctm(num_topics, corpus.num_words, vocabulary=corpus.vocabulary, seed=0)
    guide = lntm.guides.TaylorGuide(model)
    return lntm.inference.VariationalEM(model, guide, progress=False, **options).fit(corpus)


def test_shares_are_posterior_means_over_the_documents_with_words():
    model, corpus = make_model(dtype="float64"), make_corpus()
    guide = lntm.guides.TaylorGuide(model)
    nonempty = torch.tensor([d for d in range(9) if d != 4])
    posterior = guide.posterior(corpus.batch(dtype=torch.float64))
    means = posterior.theta_samples(50, seed=0)[:, nonempty].mean((0, 1))
    shares = topic_shares(guide, corpus)
    torch.testing.assert_close(shares, means)
    assert float(shares.sum()) == pytest.approx(1.0)
    # The proportions at the modes differ from the means: these documents have few words.
    modes = posterior.theta_mode()[nonempty].mean(0)
    assert float((shares - modes).abs().max()) > 0.01
    draws = ThetaDraws.of(torch.eye(3).expand(2, 3, 3), model)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(topic_shares(draws, corpus[[0, 1, 2]]), third)


@pytest.mark.slow
@pytest.mark.parametrize("by_chains", [False, True])
def test_a_result_and_its_report_have_the_same_shares(by_chains):
    corpus = lntm.lee_corpus()[:120]
    if by_chains:
        model = lntm.models.ctm(3, corpus.num_words, seed=0)
        engine = lntm.inference.MonteCarloEM(model, max_epochs=14, num_chains=2, progress=False)
        result = engine.fit(corpus)
    else:
        result = fit(corpus)
    shares = result.topic_shares.numpy()
    overall = summarise_corpus(result.source, corpus, seed=9).overall
    # The Monte-Carlo errors of both are about 0.1 percentage points.
    assert shares == pytest.approx(overall.mean[0], abs=6e-3)
    assert (shares > overall.lower[0]).all()
    assert (shares < overall.upper[0]).all()


@pytest.mark.slow
def test_shares_of_many_documents_are_means_of_the_last_draws_of_all_chains(monkeypatch):
    corpus = make_corpus()
    model = lntm.models.ctm(3, 4, vocabulary=corpus.vocabulary, dtype="float64", seed=0)
    engine = lntm.inference.MonteCarloEM(model, max_epochs=3, num_chains=2, progress=False)
    result = engine.fit(corpus)
    monkeypatch.setattr(results, "SHARE_DRAWS", 16)
    nonempty = torch.tensor([d for d in range(9) if d != 4])
    last = model.theta(result.chains.latents["eta"][:, nonempty])
    torch.testing.assert_close(result.topic_shares, last.mean((0, 1)))


@pytest.mark.slow
def test_shares_of_many_documents_are_corrected_by_a_sample_of_them(monkeypatch):
    corpus = lntm.lee_corpus()
    result = fit(corpus, 4, max_iterations=2)
    exact = result.topic_shares
    guide, model = result.source, result.source.model
    torch.testing.assert_close(exact, topic_shares(guide, corpus), rtol=0, atol=1e-3)
    monkeypatch.setattr(results, "_SHARE_DOCS", 100)
    num_rows = []
    draw = lntm.guides.draws.GuideDraws.draw
    monkeypatch.setattr(
        lntm.guides.draws.GuideDraws,
        "draw",
        lambda self, rows, n: num_rows.append(len(rows)) or draw(self, rows, n),
    )
    sampled = replace(result).topic_shares
    assert num_rows == [100]
    assert float(sampled.sum()) == pytest.approx(1.0)
    modes = model.theta(result.means).double().mean(0)
    # Differences of 100 documents from their modes have standard deviations below 0.05.
    assert float((sampled - exact).abs().max()) < 5 * 0.05 / 10
    assert float((sampled - modes).abs().max()) > 0
