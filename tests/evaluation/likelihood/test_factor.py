"""Held-out log likelihood of factor models with Gaussian or Laplace sources."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from oracles.scores import z_scores
from scipy import stats

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import LikelihoodEstimate, document_completion, log_likelihood
from torch_lntm.guides import FactorGuide, LaplaceGuide, TaylorGuide
from torch_lntm.latents.contrasts import SourceContrastSpace
from torch_lntm.models import TopicModel, ctm, iftm

NUM_WORDS = 30
SAMPLES = 10_000
GUIDES = [LaplaceGuide, TaylorGuide, FactorGuide]


def make_model(
    num_topics: int,
    num_sources: int,
    source: str = "laplace",
    seed: int = 0,
    scale: float = 0.7,
    **kwargs,
) -> TopicModel:
    rng = np.random.default_rng(seed)
    return iftm(
        num_topics,
        NUM_WORDS,
        num_sources,
        source=source,
        loc=torch.tensor(rng.normal(size=num_topics)),
        mixing=torch.tensor(scale * rng.normal(size=(num_topics, num_sources))),
        noise_precision=torch.tensor(rng.uniform(2.0, 6.0, num_topics)),
        topics=synthetic_topics(num_topics, NUM_WORDS, 0.2, seed=rng),
        **{"dtype": "float64", **kwargs},
    )


def make_corpus(model: TopicModel, num_docs: int, longest: int, seed: int = 0) -> Corpus:
    lengths = np.random.default_rng(seed).integers(1, longest, num_docs)
    lengths[::7] = 0
    return model.generate(lengths, seed=seed)[0]


def as_ctm(model: TopicModel) -> TopicModel:
    """The same model with its sources integrated out."""
    prior = model.prior
    mixing, precision = prior.mixing.detach(), prior.noise_precision.detach()
    return ctm(
        model.num_topics,
        NUM_WORDS,
        loc=prior.loc.detach(),
        covariance=mixing @ mixing.mT + (1.0 / precision).diag(),
        topics=model.topics.probs.detach(),
        dtype="float64",
    )


def identified(model: TopicModel) -> SourceContrastSpace:
    return model.prior.identified(Corpus.from_matrix(np.ones((1, NUM_WORDS), int)).batch())


def quiet(*args, **kwargs) -> LikelihoodEstimate:
    """An estimate without warnings: k̂ is itself one, and a few may pass 0.7 by chance."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
        return log_likelihood(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("guide_type", [LaplaceGuide, TaylorGuide])
def test_gaussian_sources_are_integrated_out(guide_type: type) -> None:
    model = make_model(6, 2, "gaussian")
    same = as_ctm(model)
    corpus = make_corpus(model, 15, 40)
    values = [
        quiet(m, corpus, guide=guide_type(m, tolerance=1e-12)).log_likelihood for m in (model, same)
    ]
    torch.testing.assert_close(*values, atol=1e-4, rtol=0)


def test_default_guides_suit_the_sources() -> None:
    for source, name in (("gaussian", "LaplaceGuide's"), ("laplace", "FactorGuide's")):
        model = make_model(4, 1, source)
        assert name in repr(quiet(model, make_corpus(model, 3, 9), num_draws=100))


@pytest.mark.slow
def test_quadrature_with_gaussian_sources_equals_the_integral() -> None:
    model = make_model(3, 2, "gaussian")
    corpus = make_corpus(model, 12, 60)
    expected = log_likelihood(as_ctm(model), corpus, Quadrature()).log_likelihood
    for guide_type in GUIDES:
        estimate = log_likelihood(model, corpus, Quadrature(guide=guide_type(model)))
        torch.testing.assert_close(estimate.log_likelihood, expected, atol=1e-6, rtol=0)


@cache
def gaussian_documents() -> tuple[TopicModel, Corpus, torch.Tensor]:
    model = make_model(3, 1, "gaussian", seed=2)
    corpus = make_corpus(model, 100, 25)
    return model, corpus, log_likelihood(model, corpus, Quadrature()).log_likelihood


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("guide_type", GUIDES)
def test_gaussian_sources_are_unbiased_with_honest_errors(guide_type: type) -> None:
    # Over 85 documents. False-failure rate under 1e-5 for the mean (|z| < 4.5); the mean of 85
    # squared z-scores has standard deviation 0.15, so that 1.9 is more than five of them from 1.
    model, corpus, truth = gaussian_documents()
    estimate = quiet(model, corpus, guide=guide_type(model), num_draws=SAMPLES)
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 100
    mean, square = z_scores(estimate, truth)
    assert abs(mean) < 4.5
    assert 0.4 < square < 1.9


def laplace_marginals(model: TopicModel, corpus: Corpus) -> torch.Tensor:
    """log p(w_d) with one Laplace source by sums over a grid, in x_k = eta_k − eta_K.

    The prior of x is a sum over s of normals, by Gauss–Legendre's rule on either side of 0.
    """
    prior = model.prior
    loc, mixing = prior.loc.detach().numpy(), prior.mixing.detach().numpy()[:, 0]
    variance = 1.0 / prior.noise_precision.detach().numpy()
    num_topics = len(loc)
    difference = np.hstack([np.eye(num_topics - 1), -np.ones((num_topics - 1, 1))])
    noise = stats.multivariate_normal(cov=difference * variance @ difference.T)
    nodes, weights = np.polynomial.legendre.leggauss(150)
    half = 12.5 * (nodes + 1.0)
    s = np.concatenate([half, -half])
    p_s = 12.5 * np.tile(weights, 2) * np.exp(-np.abs(s)) / 2.0
    size = {2: 4001, 3: 301}[num_topics]
    centre, slope = difference @ loc, difference @ mixing
    axes = [np.linspace(c - 25.0, c + 25.0, size) for c in centre]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, num_topics - 1)
    density = np.zeros(len(x))
    for value, weight in zip(s, p_s, strict=True):
        density += weight * noise.pdf(x - centre - slope * value)
    density *= math.prod(axis[1] - axis[0] for axis in axes)
    assert density.sum() == pytest.approx(1, abs=1e-4)
    theta = np.exp(np.hstack([x, np.zeros((len(x), 1))]))
    log_words = np.log(theta / theta.sum(1, keepdims=True) @ model.topics.probs.detach().numpy())
    counts = corpus.to_scipy().toarray()
    return torch.tensor(np.log([density @ np.exp(log_words @ document) for document in counts]))


@cache
def laplace_documents(num_topics: int) -> tuple[TopicModel, Corpus, torch.Tensor]:
    model = make_model(num_topics, 1, scale=1.2)
    corpus = make_corpus(model, 100, 30)
    return model, corpus, laplace_marginals(model, corpus)


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("num_topics", [2, 3])
def test_laplace_sources_are_unbiased_with_honest_errors(num_topics: int) -> None:
    # As above, over 85 documents.
    model, corpus, truth = laplace_documents(num_topics)
    estimate = quiet(model, corpus, num_draws=SAMPLES)
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 100
    mean, square = z_scores(estimate, truth)
    assert abs(mean) < 4.5
    assert 0.4 < square < 1.9
    assert "Student-t(5) of sources and eta" in repr(estimate)


def test_source_contrasts_have_the_priors_density() -> None:
    # log density and logits against the model's own joint density with noise integrated over the
    # shift that all topics share, which is a normal density in one dimension.
    model = make_model(5, 2)
    prior = model.prior
    space = identified(model)
    rng = np.random.default_rng(0)
    loc, mixing = prior.loc.detach().numpy(), prior.mixing.detach().numpy()
    cov = np.diag(1.0 / prior.noise_precision.detach().numpy())
    difference = np.hstack([np.eye(4), -np.ones((4, 1))])
    law = stats.multivariate_normal(cov=difference @ cov @ difference.T)
    constants = []
    for _ in range(5):
        u = rng.normal(size=6)
        logits = space.logits(torch.tensor(u)[None])[0].numpy()
        assert logits.sum() == pytest.approx(0, abs=1e-10)
        residual = difference @ (logits - loc - mixing @ u[:2])
        expected = law.logpdf(residual) + stats.laplace.logpdf(u[:2]).sum()
        constants.append(float(space.log_density(torch.tensor(u)[None])) - expected)
    # The Jacobian between the two sets of contrasts is a constant, |det ∂x/∂e|.
    jacobian = 0.5 * np.linalg.slogdet(difference @ cov @ difference.T)[1]
    np.testing.assert_allclose(constants, jacobian, atol=1e-9)


def test_the_approximation_equals_laplaces() -> None:
    # The precision is minus the Hessian of the log joint by automatic differentiation, with the
    # sources' prior replaced by N(0, scale), less the directions in which the likelihood is convex.
    # (Two topics share the words and a third has the document: which of the two is undecided.)
    space = identified(make_model(4, 2))
    words = torch.tensor([[0.5, 0.5, 0.01, 0.001], [0.1, 0.3, 0.2, 0.001]]).double()
    counts = torch.tensor([20.0, 3.0]).double()
    scale = torch.tensor([0.5, 2.0]).double()
    eta, source = torch.tensor([0.0, 0.3, 0.1, 3.0]).double(), torch.tensor([0.4, -1.0]).double()
    loc, tril = space.approximate(eta[None], source[None], scale, words, counts)
    centred = eta - eta.mean()
    torch.testing.assert_close(space.logits(loc), centred)
    torch.testing.assert_close(loc[:2], source)

    def log_likelihood_of(u: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(space.logits(u), -1) @ words.mT).log() @ counts

    data = -torch.autograd.functional.hessian(log_likelihood_of, loc)
    root = torch.cat([scale, torch.ones(3).double()]).sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * data * root)
    precision = vectors @ (1 + values.clamp_min(0)).diag() @ vectors.mT / root[:, None] / root
    torch.testing.assert_close(torch.linalg.inv(tril @ tril.mT), precision)
    assert float(values.min()) < -0.1, "nothing was convex here"


def test_float32_agrees_with_float64_for_long_documents() -> None:
    single, double = (make_model(4, 1, dtype=dtype) for dtype in ("float32", "float64"))
    corpus, _ = double.generate([20_000, 1, 300], seed=1)
    values = [quiet(m, corpus) for m in (single, double)]
    difference = (values[0].log_likelihood - values[1].log_likelihood).abs()
    error = (values[0].standard_error.square() + values[1].standard_error.square()).sqrt()
    # The same draws around means that differ by rounding; the sum of 20,000 rounded logs by more.
    assert bool((difference < 4.5 * error + torch.tensor([0.2, 1e-4, 1e-2])).all())


def test_methods_that_do_not_suit_the_sources_are_refused() -> None:
    model = make_model(3, 1)
    corpus = make_corpus(model, 3, 9)
    for proposal in ("sticks", "dirichlet", "gaussian"):
        with pytest.raises(ConfigError, match=f"'{proposal}'; expected one of student_t for Ind"):
            log_likelihood(model, corpus, proposal=proposal)
    with pytest.raises(ConfigError, match="'sticks'; expected one of student_t, gaussian"):
        log_likelihood(make_model(3, 1, "gaussian"), corpus, proposal="sticks")


@pytest.mark.parametrize("source", ["gaussian", "laplace"])
def test_completion_works_with_a_factor_posterior(source: str) -> None:
    # Draws of eta's diagonal posterior by NumPy; tolerances are five times what 4,000 draws
    # against 4,000 leave.
    model = make_model(4, 1, source)
    corpus = make_corpus(model, 20, 30)
    guide = FactorGuide(model)
    observed, held_out = corpus.hold_out_words(0.5, seed=0)
    posterior = guide.posterior(observed.batch(dtype=torch.float64))
    counts, topics = held_out.to_scipy().toarray(), model.topics.probs.detach().numpy()
    theta = torch.softmax(posterior.mean, -1).numpy()
    result = document_completion(model, corpus, theta="mode", guide=guide)
    np.testing.assert_allclose(
        result.log_predictive, (counts * np.log(theta @ topics)).sum(1), rtol=1e-9
    )
    result = document_completion(
        model, corpus, guide=guide, theta="integrated", num_draws=4000, max_docs=7
    )
    rng = np.random.default_rng(0)
    for d in range(corpus.num_docs):
        eta = rng.normal(posterior.mean[d].numpy(), posterior.std[d].numpy(), (4000, 4))
        draws = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
        weights = np.exp(np.log(draws @ topics) @ counts[d])
        error = weights.std() / weights.mean() / math.sqrt(4000)
        difference = abs(float(result.log_predictive[d]) - math.log(weights.mean()))
        assert difference <= 5 * math.sqrt(2) * error + 1e-9
