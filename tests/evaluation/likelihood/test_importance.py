"""Importance sampling and quadrature of every family, against grids, sums and expansions."""

from __future__ import annotations

import math
import re
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from oracles.quadrature import log_marginals
from oracles.scores import z_scores
from scipy import special, stats

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import LikelihoodEstimate, log_likelihood
from torch_lntm.guides import FactorGuide, LaplaceGuide, TaylorGuide, make_guide
from torch_lntm.latents.contrasts import SourceContrastSpace
from torch_lntm.models import TopicModel, ctm, iftm, lda

NUM_WORDS = 30


def normal_model(
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


def factor_model(
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


def dirichlet_model(num_topics: int, concentration: float, seed: int = 0) -> TopicModel:
    rng = np.random.default_rng(seed)
    alpha = torch.tensor(concentration * np.exp(0.5 * rng.normal(size=num_topics)))
    topics = synthetic_topics(num_topics, NUM_WORDS, 0.2, seed=rng)
    return lda(num_topics, NUM_WORDS, concentration=alpha, topics=topics, dtype="float64")


def make_corpus(model: TopicModel, num_docs: int, longest: int) -> Corpus:
    lengths = np.random.default_rng(0).integers(1, longest, num_docs)
    lengths[::7] = 0
    return model.generate(lengths, seed=0)[0]


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


def quiet(*args, **kwargs) -> LikelihoodEstimate:
    """An estimate without warnings: k̂ is itself one, and a few may pass 0.7 by chance."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Pareto k.*", UserWarning)
        return log_likelihood(*args, **kwargs)


# -- the truth -----------------------------------------------------------------------------------


def by_grid(model: TopicModel, corpus: Corpus, num_points: int) -> np.ndarray:
    """log p(w_d) under a normal prior, whose anchored component has variance 0."""
    pad = (0, model.num_topics - model.latent_dim)
    loc = np.pad(model.prior.loc.detach().numpy(), pad)
    covariance = np.pad(model.prior.covariance.detach().numpy(), (pad, pad))
    counts = corpus.to_scipy().toarray()
    topics = model.topics.probs.detach().numpy()
    return log_marginals(counts, topics, loc, covariance, num_points=num_points)


def by_expansion(model: TopicModel, corpus: Corpus) -> np.ndarray:
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


def by_sums(model: TopicModel, corpus: Corpus) -> torch.Tensor:
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


@pytest.mark.slow
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize(("num_topics", "num_points"), [(2, 4001), (3, 601)])
def test_quadrature_equals_the_integral(num_topics: int, num_points: int, anchored: bool) -> None:
    model = normal_model(num_topics, anchored, scale=1.5)
    corpus = make_corpus(model, 12, 60)
    estimate = log_likelihood(model, corpus, Quadrature())
    expected = by_grid(model, corpus, num_points)
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
    expected = by_grid(model, corpus, 1201)
    np.testing.assert_allclose(estimate.log_likelihood.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 5.0])
@pytest.mark.parametrize(("num_topics", "longest", "tolerance"), [(2, 150, 1e-8), (3, 25, 1e-5)])
def test_quadrature_equals_the_expansion_over_topics(
    num_topics: int, longest: int, tolerance: float, concentration: float
) -> None:
    model = dirichlet_model(num_topics, concentration)
    corpus = make_corpus(model, 12, longest)
    estimate = log_likelihood(model, corpus, Quadrature())
    truth = by_expansion(model, corpus)
    np.testing.assert_allclose(estimate.log_likelihood.numpy(), truth, atol=tolerance, rtol=0)
    error = np.abs(estimate.log_likelihood.numpy() - truth)
    assert (error <= estimate.standard_error.numpy() + 1e-11).all()
    assert float(estimate.standard_error.max()) < 1e-3
    assert estimate.num_draws == 201 ** (num_topics - 1)


@pytest.mark.slow
def test_quadrature_with_gaussian_sources_equals_the_integral() -> None:
    model = factor_model(3, 2, "gaussian")
    corpus = make_corpus(model, 12, 60)
    expected = log_likelihood(as_ctm(model), corpus, Quadrature()).log_likelihood
    for guide_type in (LaplaceGuide, TaylorGuide, FactorGuide):
        estimate = log_likelihood(model, corpus, Quadrature(guide=guide_type(model)))
        torch.testing.assert_close(estimate.log_likelihood, expected, atol=1e-6, rtol=0)


# -- importance sampling -------------------------------------------------------------------------


@cache
def documents(
    family: str, variant: int | bool
) -> tuple[TopicModel, Corpus, torch.Tensor | np.ndarray]:
    """Short documents, to whose posteriors every guide comes near, and their probabilities."""
    if family == "ctm":
        model = normal_model(3, bool(variant), seed=2)
        corpus = make_corpus(model, 200, 30)
        return model, corpus, log_likelihood(model, corpus, Quadrature(101)).log_likelihood
    if family == "lda":
        model = dirichlet_model(4, 0.3, seed=2)
        corpus = make_corpus(model, 100, 10)
        return model, corpus, by_expansion(model, corpus)
    if family == "gaussian":
        model = factor_model(3, 1, "gaussian", seed=2)
        corpus = make_corpus(model, 100, 25)
        return model, corpus, log_likelihood(model, corpus, Quadrature()).log_likelihood
    model = factor_model(variant, 1, scale=1.2)
    corpus = make_corpus(model, 100, 30)
    return model, corpus, by_sums(model, corpus)


@pytest.mark.stat
@pytest.mark.parametrize(
    ("family", "variant", "guide", "num_draws"),
    [
        *[
            pytest.param("ctm", anchored, guide, 4000, marks=pytest.mark.slow)
            for anchored in (False, True)
            for guide in ("taylor", "laplace", "blei-lafferty", "khan-bouchard")
        ],
        *[
            pytest.param("gaussian", 0, guide, 10_000, marks=pytest.mark.slow)
            for guide in ("laplace", "taylor", "factor")
        ],
        pytest.param("laplace", 2, "factor", 10_000, marks=pytest.mark.slow),
        pytest.param("laplace", 3, "factor", 10_000, marks=pytest.mark.slow),
        ("lda", 0, "ep", 4000),
        ("lda", 0, "vb", 4000),
    ],
)
def test_estimates_are_unbiased_with_honest_errors(
    family: str, variant: int | bool, guide: str, num_draws: int
) -> None:
    # Two z-tests over 171 or 85 documents, gated on the effective sample size. False-failure rate
    # under 1e-5 for the mean (|z| < 4.5). The mean of 171 squared z-scores has the standard
    # deviation 0.11 and that of 85 has 0.15, so that the limits are more than five of them from 1.
    model, corpus, truth = documents(family, variant)
    estimate = quiet(model, corpus, guide=make_guide(guide, model), num_draws=num_draws)
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 100
    mean, square = z_scores(estimate, torch.as_tensor(truth))
    assert abs(mean) < 4.5
    least, most = (0.5, 1.6) if len(corpus) == 200 else (0.4, 1.9)
    assert least < square < most


@pytest.mark.stat
def test_normal_proposal_agrees_where_its_weights_have_finite_variance() -> None:
    # False-failure rate under 1e-5 (|z| < 4.5).
    model = normal_model(3, seed=4)
    corpus = make_corpus(model, 60, 8)
    truth = log_likelihood(model, corpus, Quadrature())
    estimate = quiet(model, corpus, proposal="gaussian", num_draws=4000)
    good = (estimate.lengths > 0) & (estimate.pareto_k < 0.4)
    assert int(good.sum()) > 20
    excess = (estimate.log_likelihood - truth.log_likelihood)[good].expm1()
    assert abs(float(excess.sum() / estimate.standard_error[good].square().sum().sqrt())) < 4.5
    assert "normal" in repr(estimate)


def test_the_dirichlet_itself_agrees_where_its_weights_have_finite_variance() -> None:
    # A large concentration keeps γ within twice α. False-failure rate under 1e-5 (|z| < 4.5).
    model = dirichlet_model(3, 20.0)
    corpus = make_corpus(model, 40, 12)
    estimate = log_likelihood(model, corpus, proposal="dirichlet", num_draws=4000)
    assert abs(z_scores(estimate, torch.tensor(by_expansion(model, corpus)))[0]) < 4.5
    assert float(estimate.effective_sample_size[estimate.lengths > 0].min()) > 3000
    assert "EPGuide's Dirichlet" in repr(estimate)


@pytest.mark.parametrize("num_topics", [2, 6])
def test_free_and_anchored_models_have_equal_likelihoods(num_topics: int) -> None:
    # The contrasts of the two have the same prior and posterior, so even the draws agree.
    free = normal_model(num_topics)
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
    corpus = make_corpus(free, 10, 60)
    values = [
        log_likelihood(model, corpus, guide=LaplaceGuide(model, tolerance=1e-12)).log_likelihood
        for model in (free, anchored)
    ]
    torch.testing.assert_close(*values, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("guide_type", [LaplaceGuide, TaylorGuide])
def test_gaussian_sources_are_integrated_out(guide_type: type) -> None:
    model = factor_model(6, 2, "gaussian")
    same = as_ctm(model)
    corpus = make_corpus(model, 15, 40)
    values = [
        quiet(m, corpus, guide=guide_type(m, tolerance=1e-12)).log_likelihood for m in (model, same)
    ]
    torch.testing.assert_close(*values, atol=1e-4, rtol=0)


def identified(model: TopicModel) -> SourceContrastSpace:
    return model.prior.identified(Corpus.from_matrix(np.ones((1, NUM_WORDS), int)).batch())


def test_source_contrasts_have_the_priors_density() -> None:
    # log density and logits against the model's own joint density with noise integrated over the
    # shift that all topics share, which is a normal density in one dimension.
    model = factor_model(5, 2)
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
    space = identified(factor_model(4, 2))
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


def test_single_precision_agrees_with_double() -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))[0]
    covariance = rotation * np.geomspace(1e-6, 1e2, 12) @ rotation.T
    wide = {"covariance": torch.tensor((covariance + covariance.T) / 2)}
    wide |= {"topics": synthetic_topics(12, NUM_WORDS)}
    rounding = torch.tensor([0.2, 1e-4, 1e-2])  # the sum of 20,000 rounded logs
    cases = [
        (lambda dtype: normal_model(5, dtype=dtype), [30] * 20, torch.tensor(5e-3), 0.0),
        (lambda dtype: factor_model(4, 1, dtype=dtype), [20_000, 1, 300], rounding, 4.5),
        (lambda dtype: ctm(12, NUM_WORDS, dtype=dtype, **wide), [30] * 20, torch.tensor(3e-3), 3.0),
    ]
    for make, lengths, least, errors in cases:
        corpus, _ = make("float64").generate(lengths, seed=1)
        found = [quiet(make(dtype), corpus, num_draws=4000) for dtype in ("float32", "float64")]
        assert found[0].log_likelihood.dtype == torch.float64
        difference = (found[0].log_likelihood - found[1].log_likelihood).abs()
        error = sum(each.standard_error.square() for each in found).sqrt()
        # Much the same draws around means that differ by rounding, which may choose between modes.
        close = difference < errors * error + least
        assert float(close.double().mean()) > (0.5 if len(lengths) == 20 and errors else 0.99)


def test_empty_documents_have_probability_one_and_are_left_out() -> None:
    model = normal_model(3)
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
    estimate = log_likelihood(model, make_corpus(normal_model(4), 20, 60), proposal="gaussian")
    # The weights still vary by how well q matches the prior: they are the same up to its error.
    assert estimate.perplexity == pytest.approx(NUM_WORDS, rel=1e-6)
    torch.testing.assert_close(estimate.pareto_k, torch.full((20,), -math.inf).double())


@pytest.mark.parametrize(
    ("make", "proposals", "message"),
    [
        (lambda: dirichlet_model(4, 0.5), ("student_t", "gaussian"), "sticks, dirichlet"),
        (lambda: factor_model(3, 1), ("sticks", "gaussian"), "student_t for Ind"),
        (lambda: factor_model(3, 1, "gaussian"), ("sticks",), "student_t, gaussian"),
    ],
)
def test_proposals_that_do_not_suit_the_prior_are_refused(make, proposals, message) -> None:
    model = make()
    corpus = make_corpus(model, 3, 9)
    for proposal in proposals:
        with pytest.raises(ConfigError, match=f"'{proposal}'; expected one of {message}"):
            log_likelihood(model, corpus, proposal=proposal)


@pytest.mark.parametrize(
    ("make", "description"),
    [
        (lambda: factor_model(4, 1, "gaussian"), r"LaplaceGuide's Student-t\(5\)"),
        (lambda: factor_model(4, 1), r"FactorGuide's Student-t\(5\) of sources and eta"),
        (lambda: dirichlet_model(4, 0.5), "EPGuide's stick-breaking mixture"),
    ],
)
def test_default_guides_and_proposals_suit_the_prior(make, description) -> None:
    model = make()
    assert re.search(description, repr(quiet(model, make_corpus(model, 3, 9), num_draws=100)))
