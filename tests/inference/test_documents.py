"""Posteriors of a whole corpus."""

from __future__ import annotations

import pytest
import torch
from support.known import TOPICS, make_corpus, make_factor_model, make_model

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import transform


@pytest.fixture
def corpus():
    return make_corpus()


@pytest.mark.slow
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
    together = transform(guide, corpus, estimate)
    apart = transform(guide, corpus, estimate, max_docs=2)
    torch.testing.assert_close(together.theta, apart.theta)
    assert together.theta.shape == (9, 3)
    torch.testing.assert_close(together.theta.sum(1), torch.ones(9).double())
    assert together.converged.all()
    assert (together.sources is not None) == hasattr(guide.model.prior, "mixing")


@pytest.mark.long
def test_chains_give_exact_means(corpus):
    """Beside quadrature over the two contrasts of three topics."""
    model = make_model(dtype="float64")
    chains = lntm.inference.DocumentHMC(model, num_chains=4, seed=0)
    found = transform(chains, corpus, num_draws=2000)
    assert found.estimate == "mean"
    assert found.sources is None
    assert bool(found.converged.all())
    axis = torch.linspace(-9.0, 9.0, 241, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    basis = torch.tensor([[1, -1, 0], [1, 1, -2]]).double()
    basis = basis / basis.norm(dim=1, keepdim=True)
    loc, covariance = model.prior.loc.detach(), model.prior.covariance.detach()
    contrast = torch.distributions.MultivariateNormal(basis @ loc, basis @ covariance @ basis.mT)
    logits = points @ basis
    theta = torch.softmax(logits, -1)
    for d in range(len(corpus)):
        counts = torch.from_numpy(corpus[d : d + 1].to_scipy().toarray()[0]).double()
        log_weight = contrast.log_prob(points) + (theta @ model.topics.probs).log() @ counts
        exact = torch.softmax(log_weight, 0) @ theta
        torch.testing.assert_close(found.theta[d], exact.detach(), rtol=0.0, atol=0.03)
    with pytest.raises(ConfigError, match=r"chains have no mode of theta; take .*'mean'"):
        transform(chains, corpus, "mode")
    # Existing draws count whole.
    draws = lntm.inference.theta_draws(chains, corpus, 60)
    existing = lntm.inference.ThetaDraws.of(draws.theta, model)
    torch.testing.assert_close(transform(existing, corpus).theta, draws.theta.mean(0))


def test_the_size_of_batches_follows_the_guides_memory(corpus, monkeypatch):
    guide, sizes = lntm.guides.TaylorGuide(make_model()), []
    kind, posterior = type(guide), type(guide).posterior

    def solved(self, batch, **options):
        sizes.append(batch.num_docs)
        return posterior(self, batch, **options)

    monkeypatch.setattr(kind, "posterior", solved)
    monkeypatch.setattr(kind, "memory_per_document", lambda self, entries: 2.0**23 / 20)
    # Modes take no covariances.
    monkeypatch.setattr(kind, "memory_of_means", lambda self, entries: 2.0**23 / 18.5)
    for estimate in ("mean", "mode"):
        transform(guide, corpus[[0, 1, 2] * 10], estimate, num_draws=2)
    assert sizes == [20, 10, 18, 12]


def test_document_topics_equal_the_guides_posteriors(corpus):
    guide = lntm.guides.LaplaceGuide(make_model(dtype="float64"))
    posterior = guide.posterior(corpus.batch())
    mode = transform(guide, corpus)
    torch.testing.assert_close(mode.theta, posterior.theta_mode())
    mean = transform(guide, corpus, "mean", num_draws=20_000)
    # A proportion's standard deviation is below 0.5, so 20,000 draws err by 0.0035; six of them.
    torch.testing.assert_close(mean.theta, posterior.theta_mean(20_000), atol=0.03, rtol=0)
    assert (mean.theta - mode.theta).abs().max() > 1e-3


def test_empty_documents_have_the_theta_of_the_prior(corpus):
    model = make_model(loc=torch.tensor([1.0, 0.0, -1.0]))
    theta = transform(lntm.guides.TaylorGuide(model), corpus).theta
    torch.testing.assert_close(theta[4], model.theta(model.prior.loc).detach())


def test_document_topics_keep_the_metadata(corpus):
    guide = lntm.guides.TaylorGuide(make_model())
    found = transform(guide, corpus)
    assert list(found.metadata) == []
    assert found.lengths.tolist() == corpus.lengths.tolist()
    labelled = corpus.with_metadata({"year": range(9), "label": list("abcdefghi")})
    found = transform(guide, labelled, max_docs=2)
    assert found.metadata["year"].tolist() == list(range(9))
    assert found.metadata["label"].tolist() == list("abcdefghi")
    frame = found.frame()
    topics = ["topic_0", "topic_1", "topic_2"]
    assert list(frame) == ["document", "year", "label", "tokens", "converged", *topics]
    assert frame[topics].to_numpy().tolist() == found.theta.tolist()
    assert frame.index.equals(labelled.metadata.index)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimate": "median"}, "estimate is 'median'"),
        ({"num_draws": 0}, "num_draws is 0; expected at least 1"),
        ({"max_docs": 0}, "max_docs is 0; expected at least 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
    ],
)
def test_invalid_settings_are_refused(corpus, settings, message):
    with pytest.raises(ConfigError, match=message):
        transform(lntm.guides.TaylorGuide(make_model()), corpus, **settings)
