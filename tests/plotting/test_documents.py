"""Plots of documents show means and intervals of the posterior."""

from __future__ import annotations

import numpy as np
from scipy.stats import beta
from support.pictures import WORDS, make_model, small_corpus

import torch_lntm as lntm
from torch_lntm.plotting import document_proportions


def test_document_proportions_show_means_and_quantiles_of_the_draws():
    model = make_model()
    guide = lntm.guides.LaplaceGuide(model, tolerance=1e-12, max_iterations=500)
    draws = lntm.inference.theta_draws(guide, small_corpus(), 5)
    labels = lntm.reports.topic_labels(model)
    options = {"labels": labels, "num_topics": 4, "num_draws": 4000}
    ax = document_proportions(draws, 1, level=0.8, **options)
    theta = draws.take(np.array([1]), 4000).theta[:, 0].double().numpy()
    mean = theta.mean(0)
    order = np.argsort(-mean)[:4][::-1]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), mean[order], atol=1e-6)
    segments = np.array(ax.collections[0].get_segments())
    ends = np.quantile(theta, [0.1, 0.9], axis=0)[:, order]
    np.testing.assert_allclose(segments[:, :, 0], ends.T, atol=1e-6)
    assert [label.get_text() for label in ax.get_yticklabels()] == [labels[k] for k in order]


def test_document_proportions_of_a_dirichlet_equal_its_marginals():
    guide = lntm.guides.DirichletGuide(lntm.models.lda(6, len(WORDS), concentration=0.7))
    draws = lntm.inference.theta_draws(guide, small_corpus())
    ax = document_proportions(draws, 2, level=0.9, num_topics=None, num_draws=20_000)
    gamma = guide.posterior(small_corpus().batch()).gamma[2].numpy()
    shown = [int(label.get_text()) for label in ax.get_yticklabels()]
    marginal = beta(gamma[shown], gamma.sum() - gamma[shown])
    # Six standard errors of 20,000 draws: of the mean; and of quantiles, through their probability.
    error = 6 * marginal.std() / np.sqrt(20_000)
    assert (np.abs(ax.lines[0].get_xdata() - marginal.mean()) < error).all()
    segments = np.array(ax.collections[0].get_segments())
    for end, probability in ((0, 0.05), (1, 0.95)):
        found = marginal.cdf(segments[:, end, 0])
        assert (np.abs(found - probability) < 6 * np.sqrt(0.05 * 0.95 / 20_000)).all()
