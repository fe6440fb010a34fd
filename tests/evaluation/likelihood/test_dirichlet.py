"""Held-out log likelihood under a Dirichlet prior, against its exact expansion."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from oracles.scores import z_scores
from scipy import special

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import document_completion, log_likelihood
from torch_lntm.guides import DirichletGuide, EPGuide
from torch_lntm.models import TopicModel, lda

NUM_WORDS = 25


def make_model(num_topics: int, concentration: float, seed: int = 0, **kwargs) -> TopicModel:
    rng = np.random.default_rng(seed)
    alpha = concentration * np.exp(0.5 * rng.normal(size=num_topics))
    topics = synthetic_topics(num_topics, NUM_WORDS, 0.2, seed=rng)
    options = {"concentration": torch.tensor(alpha), "topics": topics, "dtype": "float64", **kwargs}
    return lda(num_topics, NUM_WORDS, **options)


def make_corpus(model: TopicModel, num_docs: int, longest: int, seed: int = 0) -> Corpus:
    lengths = np.random.default_rng(seed).integers(1, longest, num_docs)
    lengths[::7] = 0
    return model.generate(lengths, seed=seed)[0]


def exact(model: TopicModel, corpus: Corpus) -> np.ndarray:
    """log p(w_d) by multiplying out ∏ (Σ_k θ_k φ_kv)^c, whose monomials have known expectations.

    All terms are positive, so nothing cancels.
    """
    alpha = model.prior.concentration.detach().numpy()
    topics = model.topics.probs.detach().numpy()
    result = []
    for document in corpus.to_scipy().toarray():
        terms = {(0,) * len(alpha): 1.0}
        for v in np.repeat(np.arange(NUM_WORDS), document):
            longer: dict[tuple[int, ...], float] = {}
            for powers, value in terms.items():
                for k in range(len(alpha)):
                    key = (*powers[:k], powers[k] + 1, *powers[k + 1 :])
                    longer[key] = longer.get(key, 0.0) + value * topics[k, v]
            terms = longer
        powers, values = np.array(list(terms)), np.array(list(terms.values()))
        moments = special.gammaln(alpha + powers).sum(1) - special.gammaln(alpha).sum()
        moments += special.gammaln(alpha.sum()) - special.gammaln(alpha.sum() + document.sum())
        result.append(special.logsumexp(moments, b=values))
    return np.array(result)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 5.0])
@pytest.mark.parametrize(("num_topics", "longest", "tolerance"), [(2, 150, 1e-8), (3, 25, 1e-5)])
def test_quadrature_equals_the_expansion_over_topics(
    num_topics: int, longest: int, tolerance: float, concentration: float
) -> None:
    model = make_model(num_topics, concentration)
    corpus = make_corpus(model, 12, longest)
    estimate = log_likelihood(model, corpus, Quadrature())
    truth = exact(model, corpus)
    np.testing.assert_allclose(estimate.log_likelihood.numpy(), truth, atol=tolerance, rtol=0)
    error = np.abs(estimate.log_likelihood.numpy() - truth)
    assert (error <= estimate.standard_error.numpy() + 1e-11).all()
    assert float(estimate.standard_error.max()) < 1e-3
    assert estimate.num_draws == 201 ** (num_topics - 1)


@pytest.mark.parametrize("num_topics", [2, 3])
def test_one_token_has_its_prior_probability(num_topics: int) -> None:
    model = make_model(num_topics, 0.2)
    corpus = Corpus.from_matrix(np.eye(NUM_WORDS, dtype=int))
    estimate = log_likelihood(model, corpus, Quadrature())
    alpha = model.prior.concentration.detach()
    expected = (alpha / alpha.sum() @ model.topics.probs.detach()).log()
    torch.testing.assert_close(estimate.log_likelihood, expected, atol=1e-9, rtol=0)


@cache
def short_documents() -> tuple[TopicModel, Corpus, np.ndarray]:
    model = make_model(4, 0.3, seed=2)
    corpus = make_corpus(model, 100, longest=10)
    return model, corpus, exact(model, corpus)


@pytest.mark.stat
@pytest.mark.parametrize("guide_type", [EPGuide, DirichletGuide])
def test_sticks_are_unbiased_with_honest_errors(guide_type: type) -> None:
    # Two z-tests over 85 documents, gated on the effective sample size. False-failure rate under
    # 1e-5 for the mean (|z| < 4.5); the mean of 85 squared z-scores has standard deviation 0.15, so
    # that 1.9 is more than five of them from 1.
    model, corpus, truth = short_documents()
    with warnings.catch_warnings():
        # k̂ is itself an estimate: a few of 85 may pass 0.7 by chance.
        warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
        estimate = log_likelihood(model, corpus, guide=guide_type(model), num_draws=4000)
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 100
    mean, square = z_scores(estimate, torch.tensor(truth))
    assert abs(mean) < 4.5
    assert 0.4 < square < 1.9
    assert "stick-breaking mixture" in repr(estimate)


def test_the_dirichlet_itself_agrees_where_its_weights_have_finite_variance() -> None:
    # A large concentration keeps γ within twice α. False-failure rate under 1e-5 (|z| < 4.5).
    model = make_model(3, 20.0)
    corpus = make_corpus(model, 40, longest=12)
    estimate = log_likelihood(model, corpus, proposal="dirichlet", num_draws=4000)
    assert abs(z_scores(estimate, torch.tensor(exact(model, corpus)))[0]) < 4.5
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 3000
    assert "EPGuide's Dirichlet" in repr(estimate)


def test_extreme_models_give_finite_estimates() -> None:
    # A tiny concentration, topics that share no word, a huge count; float32 throughout.
    topics = torch.tensor([[1.0, 1e-30, 1e-30], [1e-30, 1.0, 1e-30], [1e-30, 1e-30, 1.0]])
    model = lda(3, 3, concentration=1e-6, topics=topics)
    corpus = Corpus.from_matrix(np.array([[1, 0, 0], [1_000_000, 0, 0], [3, 5, 1], [0, 0, 0]]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(Pareto k|quadrature error).*", UserWarning)
        drawn = log_likelihood(model, corpus)
        summed = log_likelihood(model, corpus, Quadrature())
    for estimate in (drawn, summed):
        assert bool(torch.isfinite(estimate.log_likelihood).all())
        assert estimate.log_likelihood[:2].tolist() == pytest.approx([-math.log(3)] * 2, abs=0.05)


def test_invalid_proposals_are_refused() -> None:
    model = make_model(4, 0.5)
    corpus = make_corpus(model, 3, longest=5)
    for proposal in ("student_t", "gaussian", "beta"):
        with pytest.raises(ConfigError, match=f"'{proposal}'; expected one of sticks, dirichlet"):
            log_likelihood(model, corpus, proposal=proposal)


@pytest.mark.slow
def test_completion_works_with_a_dirichlet_posterior() -> None:
    model = make_model(4, 0.5)
    corpus = make_corpus(model, 30, longest=30)
    guide = EPGuide(model)
    observed, held_out = corpus.hold_out_words(0.5, seed=0)
    gamma = guide.posterior(observed.batch(dtype=torch.float64)).gamma.numpy()
    counts = held_out.to_scipy().toarray()
    topics = model.topics.probs.detach().numpy()
    mean = gamma / gamma.sum(1, keepdims=True)
    expected = (counts * np.log(mean @ topics)).sum(1)
    for predictive in ("mode", "mean"):
        result = document_completion(model, corpus, guide=guide, theta=predictive)
        np.testing.assert_allclose(result.log_predictive, expected, rtol=1e-9)
        assert "exact" in result.method
        assert "draws" not in result.method
    # Draws of NumPy's; tolerances are five times what 4,000 draws against 4,000 leave.
    result = document_completion(
        model, corpus, guide=guide, theta="integrated", num_draws=4000, max_docs=7
    )
    assert "4000 draws" in result.method
    rng = np.random.default_rng(0)
    for d in range(corpus.num_docs):
        weights = np.exp(np.log(rng.dirichlet(gamma[d], 4000) @ topics) @ counts[d])
        error = weights.std() / weights.mean() / math.sqrt(4000)
        difference = abs(float(result.log_predictive[d]) - math.log(weights.mean()))
        assert difference <= 5 * math.sqrt(2) * error + 1e-9
