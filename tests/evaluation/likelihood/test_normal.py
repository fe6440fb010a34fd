"""Held-out log likelihood: quadrature against a dense grid, importance sampling against both."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from oracles.quadrature import log_marginals
from oracles.scores import z_scores

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.evaluation import LikelihoodEstimate, log_likelihood
from torch_lntm.guides import LaplaceGuide, make_guide
from torch_lntm.models import TopicModel, ctm

NUM_WORDS = 40


def make_model(
    num_topics: int, anchored: bool = False, seed: int = 0, scale: float = 0.3, **kwargs
) -> TopicModel:
    rng = np.random.default_rng(seed)
    dim = num_topics - anchored
    factor = scale * rng.normal(size=(dim, dim))
    return ctm(
        num_topics,
        NUM_WORDS,
        anchored=anchored,
        loc=torch.tensor(rng.normal(size=dim)),
        covariance=torch.tensor(factor @ factor.T + 0.2 * scale**2 * np.eye(dim)),
        topics=synthetic_topics(num_topics, NUM_WORDS, 0.2, seed=rng),
        **{"dtype": "float64", **kwargs},
    )


def make_corpus(model: TopicModel, num_docs: int, longest: int = 60, seed: int = 0) -> Corpus:
    lengths = np.random.default_rng(seed).integers(1, longest, num_docs)
    lengths[::7] = 0
    return model.generate(lengths, seed=seed)[0]


def full_prior(model: TopicModel) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of K components, the anchored one with variance 0."""
    pad = (0, model.num_topics - model.latent_dim)
    loc = np.pad(model.prior.loc.detach().numpy(), pad)
    return loc, np.pad(model.prior.covariance.detach().numpy(), (pad, pad))


def exact(model: TopicModel, corpus: Corpus, **kwargs) -> np.ndarray:
    counts = corpus.to_scipy().toarray()
    topics = model.topics.probs.detach().numpy()
    return log_marginals(counts, topics, *full_prior(model), **kwargs)


@cache
def short_documents(anchored: bool) -> tuple[TopicModel, Corpus, LikelihoodEstimate]:
    """200 documents whose posteriors every guide comes near, and their probabilities."""
    model = make_model(3, anchored, seed=2)
    corpus = make_corpus(model, 200, longest=30)
    return model, corpus, log_likelihood(model, corpus, Quadrature(101))


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize(("num_topics", "num_points"), [(2, 4001), (3, 601)])
def test_quadrature_equals_the_integral(num_topics: int, num_points: int, anchored: bool) -> None:
    model = make_model(num_topics, anchored, scale=1.5)
    corpus = make_corpus(model, 12)
    estimate = log_likelihood(model, corpus, Quadrature())
    expected = exact(model, corpus, num_points=num_points)
    np.testing.assert_allclose(estimate.log_likelihood.numpy(), expected, atol=1e-6)
    assert float(estimate.standard_error.max()) < 1e-4
    assert estimate.effective_sample_size is None
    assert estimate.pareto_k is None


@pytest.mark.slow
def test_quadrature_finds_both_modes_of_a_narrow_bimodal_posterior() -> None:
    # Words 0 and 1 are each likely under either extreme topic, and hardly under the middle one.
    topics = torch.tensor([[0.499, 0.5, 0.001], [0.001, 0.002, 0.997], [0.5, 0.499, 0.001]])
    model = ctm(3, 3, covariance=9.0 * torch.eye(3), topics=topics, dtype="float64")
    corpus = Corpus.from_matrix(np.array([[40, 40, 2], [0, 3, 0]]))
    estimate = log_likelihood(model, corpus, Quadrature())
    expected = exact(model, corpus, num_points=1201)
    np.testing.assert_allclose(estimate.log_likelihood.numpy(), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("guide_name", ["taylor", "laplace", "blei-lafferty", "khan-bouchard"])
@pytest.mark.parametrize("anchored", [False, True])
def test_importance_is_unbiased_with_honest_errors(guide_name: str, anchored: bool) -> None:
    # Two z-tests over 171 documents, gated on the effective sample size. False-failure rate under
    # 1e-5 for the mean (|z| < 4.5); the mean of 171 squared z-scores has standard deviation 0.11,
    # so that 1.6 is more than five of them from 1.
    model, corpus, truth = short_documents(anchored)
    with warnings.catch_warnings():
        # k̂ is itself an estimate: a few of 171 may pass 0.7 by chance.
        warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
        estimate = log_likelihood(
            model, corpus, guide=make_guide(guide_name, model), num_draws=4000
        )
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 100
    mean, square = z_scores(estimate, truth.log_likelihood)
    assert abs(mean) < 4.5
    assert 0.5 < square < 1.6


@pytest.mark.stat
def test_normal_proposal_agrees_where_its_weights_have_finite_variance() -> None:
    # False-failure rate under 1e-5 (|z| < 4.5).
    model = make_model(3, seed=4)
    corpus = make_corpus(model, 60, longest=8)
    truth = log_likelihood(model, corpus, Quadrature())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
        estimate = log_likelihood(model, corpus, proposal="gaussian", num_draws=4000)
    good = (estimate.lengths > 0) & (estimate.pareto_k < 0.4)
    assert int(good.sum()) > 20
    excess = (estimate.log_likelihood - truth.log_likelihood)[good].expm1()
    assert abs(float(excess.sum() / estimate.standard_error[good].square().sum().sqrt())) < 4.5
    assert "normal" in repr(estimate)


@pytest.mark.parametrize("num_topics", [2, 6])
def test_free_and_anchored_models_have_equal_likelihoods(num_topics: int) -> None:
    # The contrasts of the two have the same prior and posterior, so even the draws agree.
    free = make_model(num_topics)
    difference = torch.cat([torch.eye(num_topics - 1), -torch.ones(num_topics - 1, 1)], 1).double()
    anchored = ctm(
        num_topics,
        NUM_WORDS,
        anchored=True,
        loc=difference @ free.prior.loc.detach(),
        covariance=difference @ free.prior.covariance.detach() @ difference.T,
        topics=free.topics.probs.detach(),
        dtype="float64",
    )
    corpus = make_corpus(free, 10)
    values = [
        log_likelihood(model, corpus, guide=LaplaceGuide(model, tolerance=1e-12)).log_likelihood
        for model in (free, anchored)
    ]
    torch.testing.assert_close(*values, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_weights_are_the_joint_density_over_the_proposal() -> None:
    # In the anchored case eta is a linear function of the contrasts: the estimate is the plain
    # average of exp(log joint − log q) over draws of eta from the guide's q itself.
    model = make_model(4, anchored=True)
    corpus = make_corpus(model, 6)
    guide = LaplaceGuide(model)
    posterior = guide.posterior(corpus.batch(dtype=torch.float64))
    eta = posterior.samples(40_000, seed=0)
    law = torch.distributions.MultivariateNormal(
        model.prior.loc.detach(), model.prior.covariance.detach()
    )
    theta = torch.softmax(torch.nn.functional.pad(eta, (0, 1)), -1)
    counts = torch.from_numpy(corpus.to_scipy().toarray()).double()
    likelihood = ((theta @ model.topics.probs.detach()).log() * counts).sum(-1)
    q = torch.distributions.MultivariateNormal(posterior.mean, scale_tril=posterior.scale_tril)
    log_weights = law.log_prob(eta) + likelihood - q.log_prob(eta)
    plain = log_weights.logsumexp(0) - math.log(40_000)
    spread = (log_weights - plain).exp().std(0) / math.sqrt(40_000)
    estimate = log_likelihood(model, corpus, guide=guide, num_draws=4000)
    # False-failure rate under 1e-4: six z-scores below 4.5.
    error = (estimate.standard_error.square() + spread.square()).sqrt()
    z = (estimate.log_likelihood - plain) / error.clamp_min(1e-9)
    assert bool((z[estimate.lengths > 0].abs() < 4.5).all())


def test_float32_model_agrees_with_float64() -> None:
    single, double = (make_model(5, dtype=dtype) for dtype in ("float32", "float64"))
    corpus = make_corpus(double, 30)
    values = [log_likelihood(m, corpus).log_likelihood for m in (single, double)]
    assert values[0].dtype == torch.float64
    torch.testing.assert_close(*values, atol=5e-3, rtol=0)


def test_empty_documents_have_probability_one_and_are_left_out() -> None:
    model = make_model(3)
    counts = np.zeros((4, NUM_WORDS), int)
    counts[1, :5] = 2
    counts[3, 4] = 1
    with_empty = log_likelihood(model, Corpus.from_matrix(counts))
    assert with_empty.log_likelihood[[0, 2]].tolist() == [0.0, 0.0]
    assert with_empty.standard_error[[0, 2]].tolist() == [0.0, 0.0]
    assert with_empty.pareto_k[[0, 2]].tolist() == [-math.inf] * 2
    assert with_empty.effective_sample_size[0] == 1000
    assert with_empty.num_docs == 2
    expected = with_empty.log_likelihood[[1, 3]].sum() / 11
    assert with_empty.nats_per_token == pytest.approx(float(expected))
    for method in ("importance", Quadrature()):
        estimate = log_likelihood(model, Corpus.from_matrix(counts)[1:2], method)
        assert math.isinf(estimate.perplexity_standard_error)
        assert math.isfinite(estimate.perplexity)


def test_uniform_topics_have_perplexity_v() -> None:
    model = ctm(4, NUM_WORDS, topics=torch.ones(4, NUM_WORDS), dtype="float64")
    estimate = log_likelihood(model, make_corpus(make_model(4), 20), proposal="gaussian")
    # The weights still vary by how well q matches the prior: they are the same up to its error.
    assert estimate.perplexity == pytest.approx(NUM_WORDS, rel=1e-6)
    torch.testing.assert_close(estimate.pareto_k, torch.full((20,), -math.inf).double())


def test_float32_agrees_with_float64_for_an_ill_conditioned_prior() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    covariance = rotation * np.geomspace(1e-6, 1e2, 12) @ rotation.T
    covariance = torch.tensor((covariance + covariance.T) / 2)
    topics = synthetic_topics(12, NUM_WORDS)
    values = []
    for dtype in ("float32", "float64"):
        model = ctm(12, NUM_WORDS, covariance=covariance, topics=topics, dtype=dtype)
        corpus, _ = model.double().generate([30] * 20, seed=1)
        model = ctm(12, NUM_WORDS, covariance=covariance, topics=topics, dtype=dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
            values.append(log_likelihood(model, corpus, num_draws=4000))
    assert bool(torch.isfinite(values[0].log_likelihood).all())
    difference = values[0].log_likelihood - values[1].log_likelihood
    error = (values[0].standard_error.square() + values[1].standard_error.square()).sqrt()
    # Much the same draws, up to local modes that rounding chooses between.
    assert float((difference.abs() / (error + 1e-3)).median()) < 3
