"""Topics of sources, and activity of sources in documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.known import MIXING, make_corpus, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import transform
from torch_lntm.reports import summarise_sources


@pytest.fixture
def corpus():
    return make_corpus()


@pytest.mark.parametrize(("source", "variance"), [("gaussian", 1.0), ("laplace", 2.0)])
def test_topics_of_a_source_come_from_its_centred_column(source, variance):
    frame = summarise_sources(make_factor_model(source), top_n=2)
    columns = ["source", "distribution", "share", "topic", "name", "loading", "words"]
    assert list(frame) == columns
    # A's columns less their means: (1, -1, 0) and (0.1, 0.2, -0.3). A loading of 0 is at no end.
    assert frame["source"].tolist() == [0, 0, 1, 1, 1]
    assert frame["topic"].tolist() == [0, 1, 1, 0, 2]
    assert frame["loading"].tolist() == pytest.approx([1.0, -1.0, 0.2, 0.1, -0.3])
    assert frame["words"].tolist() == ["ant bee", "dog cat", "dog cat", "ant bee", "ant cat"]
    assert set(frame["distribution"]) == {source}
    # Of the centred logits' variance: the columns' squares, and the noise's less its mean's.
    noise = np.array([1.0, 0.5, 0.25])
    total = variance * (2.0 + 0.14) + noise.sum() * (1 - 1 / 3)
    assert frame["share"][[0, 2]].tolist() == pytest.approx(
        [variance * 2.0 / total, variance * 0.14 / total]
    )
    few = summarise_sources(make_factor_model(source), num_topics=1)
    assert few["topic"].tolist() == [0, 1, 1, 2]


def test_the_share_equals_the_explained_variance_of_drawn_logits():
    model = make_factor_model("laplace")
    _, latents = model.generate([1] * 100_000)
    eta = latents["eta"].numpy()
    centred = eta - eta.mean(1, keepdims=True)
    of_first = latents["source"].numpy()[:, :1] * np.array([[1.0, -1.0, 0.0]])
    expected = of_first.var(0).sum() / centred.var(0).sum()
    # Both variances' relative errors are below 1 % (kurtosis 6, 100,000 draws); three of each.
    assert summarise_sources(model)["share"][0] == pytest.approx(expected, rel=0.06)


def test_models_without_sources_are_refused(corpus):
    for model in (make_model(), lntm.models.lda(3, 4)):
        with pytest.raises(ConfigError, match=f"{model.name}, has no sources; iftm has"):
            summarise_sources(model)
    with pytest.raises(ConfigError, match="num_topics is 0"):
        summarise_sources(make_factor_model(), num_topics=0)
    assert transform(lntm.guides.TaylorGuide(make_model()), corpus).sources is None


@pytest.mark.parametrize("source", ["gaussian", "laplace"])
def test_source_activity_equals_the_factor_posterior(corpus, source):
    guide = lntm.guides.FactorGuide(make_factor_model(source))
    posterior = guide.posterior(corpus.batch())
    found = transform(guide, corpus, max_docs=2).sources
    torch.testing.assert_close(found.mean, posterior.source_mean)
    torch.testing.assert_close(found.std, posterior.source_std)
    assert found.mean[4].abs().max() == 0  # the empty document


@pytest.mark.parametrize("name", ["taylor", "laplace"])
def test_source_activity_integrates_eta_out_for_other_guides(corpus, name):
    model = make_factor_model()
    guide = lntm.guides.make_guide(name, model)
    found = transform(guide, corpus).sources
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
