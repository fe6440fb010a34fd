"""Plots of documents show means and intervals of the posterior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta
from support.pictures import WORDS, make_model, small_corpus

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.plotting import document_proportions


def test_document_proportions_show_means_and_quantiles_of_the_posterior():
    model = make_model()
    posterior = lntm.guides.LaplaceGuide(model).posterior(small_corpus().batch())
    labels = lntm.reports.topic_labels(model)
    options = {"labels": labels, "num_topics": 4, "num_draws": 4000}
    ax = document_proportions(posterior, 1, level=0.8, **options)
    draws = posterior.theta_samples(4000)[:, 1].numpy()
    mean = draws.mean(0)
    order = np.argsort(-mean)[:4][::-1]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), mean[order], atol=1e-6)
    segments = np.array(ax.collections[0].get_segments())
    ends = np.quantile(draws, [0.1, 0.9], axis=0)[:, order]
    np.testing.assert_allclose(segments[:, :, 0], ends.T, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == [labels[k] for k in order]
    # A document may be counted from the end.
    last, again = (document_proportions(posterior, d).lines[0].get_xdata() for d in (2, -1))
    assert np.array_equal(last, again)


def test_document_proportions_of_a_dirichlet_equal_its_marginals():
    model = lntm.models.lda(6, len(WORDS), concentration=0.7)
    posterior = lntm.guides.DirichletGuide(model).posterior(small_corpus().batch())
    ax = document_proportions(posterior, 2, level=0.9, num_topics=None, num_draws=20_000)
    gamma = posterior.gamma[2].numpy()
    shown = [int(label.get_text()) for label in ax.get_yticklabels()]
    marginal = beta(gamma[shown], gamma.sum() - gamma[shown])
    # Six standard errors of 20,000 draws: of the mean; and of quantiles, through their probability.
    error = 6 * marginal.std() / np.sqrt(20_000)
    assert (np.abs(ax.lines[0].get_xdata() - marginal.mean()) < error).all()
    segments = np.array(ax.collections[0].get_segments())
    for end, probability in ((0, 0.05), (1, 0.95)):
        found = marginal.cdf(segments[:, end, 0])
        assert (np.abs(found - probability) < 6 * np.sqrt(0.05 * 0.95 / 20_000)).all()


def test_document_proportions_accept_draws_of_a_corpus():
    corpus = small_corpus()
    guide = lntm.guides.LaplaceGuide(make_model())
    draws = lntm.inference.theta_draws(guide, corpus, 5)
    by_draws = document_proportions(draws, 2, num_draws=400).lines[0]
    by_posterior = document_proportions(guide.posterior(corpus.batch()), 2, num_draws=400)
    expected = by_posterior.lines[0].get_xdata()
    np.testing.assert_allclose(by_draws.get_xdata(), expected, atol=1e-5)
    with pytest.raises(ConfigError, match=f"document {len(corpus)} is not in ThetaDraws"):
        document_proportions(draws, len(corpus))
