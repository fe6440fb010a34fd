"""Joint chains: draws of the prior's parameters, of the topics, and of all of them in turn."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import gammaln

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, IncompatibleGuideError, NumericalError
from torch_lntm.guides import make_guide
from torch_lntm.inference import DocumentHMC, JointChain, ThetaDraws, joint_draws, theta_draws
from torch_lntm.inference.chains.joint import _started_elsewhere
from torch_lntm.models import (
    IndependentFactorPrior,
    LogisticNormalPrior,
    TopicModel,
)
from torch_lntm.models.priors.logistic_normal import DiagonalNormalPrior
from torch_lntm.models.topics.dirichlet import CONCENTRATION, drawn_concentration

NUM_DOCS, DIM, NUM_DRAWS = 30, 3, 1000


def assert_near(draws: np.ndarray, expected: np.ndarray) -> None:
    """Means at 5 standard errors: of a dozen numbers, once in 100,000 runs."""
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - expected) < 5 * error + 1e-12).all()


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("kind", [LogisticNormalPrior, DiagonalNormalPrior])
def test_the_priors_parameters_are_drawn_from_their_posterior(kind: Any) -> None:
    """Against the moments of the inverse Wishart, or gamma, and of the mean of eta."""
    eta, rng = np.random.default_rng(0).normal(size=(NUM_DOCS, DIM)), np.random.default_rng(1)
    weight = 12.0
    prior = kind(DIM, pseudo_documents=weight, pseudo_variance=1.0, dtype=torch.float64)
    sums = {"latent_sum": eta.sum(0), "latent_outer": eta.T @ eta}
    tensors = {name: torch.as_tensor(value) for name, value in sums.items()}
    drawn = []
    for _ in range(NUM_DRAWS):
        prior.draw_(NUM_DOCS, rng, **tensors)
        drawn.append((prior.covariance.detach().numpy(), prior.loc.detach().numpy().copy()))
    covariances, means = map(np.array, zip(*drawn, strict=True))
    scale = weight * np.eye(DIM) + NUM_DOCS * np.cov(eta.T, ddof=0)
    # Densities |Σ|^(−(weight + D − 1)/2); those of single variances have moments of their own.
    expected = scale / (weight + NUM_DOCS - 2 * DIM - 3)
    if kind is DiagonalNormalPrior:
        expected = np.diag(np.diag(scale)) / (weight + NUM_DOCS - 5)
    assert_near(covariances, expected)
    assert_near(means, eta.mean(0))
    assert_near(np.square(means - eta.mean(0)), np.diag(expected) / NUM_DOCS)


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("kind", [LogisticNormalPrior, DiagonalNormalPrior])
def test_a_default_pseudo_variance_is_drawn(kind: Any) -> None:
    """Against its marginal on a grid, in which the covariance is integrated out."""
    eta, rng = 2.0 * np.random.default_rng(0).normal(size=(NUM_DOCS, DIM)), np.random.default_rng(1)
    prior, weight = kind(DIM, pseudo_documents=12.0, dtype=torch.float64), 12.0
    sums = {
        "latent_sum": torch.from_numpy(eta.sum(0)),
        "latent_outer": torch.from_numpy(eta.T @ eta),
    }
    drawn = []
    for _ in range(4 * NUM_DRAWS):
        prior.draw_(NUM_DOCS, rng, **sums)
        drawn.append(np.log(prior.pseudo_variance))
    grid = np.linspace(-6.0, 6.0, 4001)
    scatter, variance = NUM_DOCS * np.cov(eta.T, ddof=0), np.exp(grid)
    if kind is DiagonalNormalPrior:
        freedom = weight - 2
        sizes = np.log(weight * variance[:, None] + np.diag(scatter)).sum(1)
    else:
        freedom = weight - DIM - 1
        scale = weight * variance[:, None, None] * np.eye(DIM) + scatter
        sizes = np.linalg.slogdet(scale)[1]
    log_mass = 0.5 * grid - 0.5 * variance + 0.5 * freedom * DIM * grid
    log_mass -= 0.5 * (freedom + NUM_DOCS - 1) * sizes
    mass = np.exp(log_mass - log_mass.max())
    expected = np.array([mass @ grid, mass @ grid**2]) / mass.sum()
    found = np.stack([drawn, np.square(drawn)], 1).reshape(100, -1, 2).mean(1)
    assert_near(found, expected)
    fixed = kind(DIM, pseudo_documents=12.0, pseudo_variance=3.0)
    fixed.draw_(NUM_DOCS, rng, **sums)
    assert fixed.pseudo_variance == 3.0


def test_too_few_documents_for_a_proper_posterior_are_refused() -> None:
    prior = LogisticNormalPrior(DIM, pseudo_documents=0.0, dtype=torch.float64)
    sums = {"latent_sum": torch.zeros(DIM), "latent_outer": torch.eye(DIM)}
    with pytest.raises(NumericalError, match="7 documents and pseudo_documents=0 leave"):
        prior.draw_(7, np.random.default_rng(0), **sums)
    factors = IndependentFactorPrior(3, 1, pseudo_documents=0.0)
    with pytest.raises(NumericalError, match="4 documents and pseudo_documents=0 leave the noise"):
        factors.draw_(4, np.random.default_rng(0))


def make_corpus(num_docs: int = 40, length: int = 20) -> Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(length, rng.dirichlet(np.full(10, 0.3), num_docs))
    counts[3] = 0
    return Corpus.from_matrix(counts, metadata={"x": np.arange(num_docs) % 2})


@pytest.mark.slow
def test_draws_are_reproducible_and_leave_the_model_unchanged() -> None:
    corpus = make_corpus()
    model = lntm.models.stm(3, corpus, "~ x", seed=1)
    before = copy.deepcopy(model.state_dict())
    draws = joint_draws(model, corpus, num_draws=4, thinning=2, warmup_steps=5, seed=3)
    first = draws.theta
    again = joint_draws(model, corpus, num_draws=4, thinning=2, warmup_steps=5, seed=3).theta
    assert draws.rows.tolist() == [d for d in range(40) if d != 3]  # it has no words
    assert first.shape == (4, 39, 3)
    assert torch.equal(first, again)
    assert not torch.equal(
        first, joint_draws(model, corpus, num_draws=4, warmup_steps=5, seed=4).theta
    )
    torch.testing.assert_close(first.sum(-1), torch.ones(4, 39))
    assert draws.fixed == ()
    assert draws.sources_of_uncertainty[1] == "the topics' words"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    known = joint_draws(model, corpus, num_draws=2, warmup_steps=5, topics=False)
    assert torch.equal(known.model.topics.logits, model.topics.logits)
    assert known.fixed == ("the topics' words",)
    assert known.sources_of_uncertainty == ("the documents' proportions and their prior",)
    moved = joint_draws(model, corpus, num_draws=2, warmup_steps=5).model
    assert not torch.equal(moved.topics.logits, model.topics.logits)
    assert moved.vocabulary == model.vocabulary


@pytest.mark.parametrize("topics", [False, True])
def test_fixed_topics_stay_and_drawn_topics_move(topics: bool) -> None:
    corpus = make_corpus()
    model = lntm.models.stm(3, corpus, "~ x", seed=1)
    chain = JointChain(model, corpus, warmup_steps=2, topics=topics)
    chain.sweep()
    assert torch.equal(chain.model.topics.logits, model.topics.logits) != topics
    # A sweep draws the concentration under which topics are drawn.
    assert (chain.model.topics._draw_concentration == CONCENTRATION) != topics
    assert not torch.equal(chain.model.prior.loc, model.prior.loc)
    assert not torch.equal(chain.model.prior.slopes, model.prior.slopes)


@pytest.mark.long
def test_drawing_topics_and_prior_widens_the_intervals_of_effects() -> None:
    """Between draws, the difference of mean proportions varies more than under a known model.

    The ratio of the variances is about 1.6. Fits of further seeds, with 240 to 960 draws, have 1.4
    to 2.0. Draws under a known model would have 1.
    """
    corpus = make_corpus(60)
    model = lntm.models.stm(3, corpus, "~ x", dtype="float64")
    guide = lntm.guides.LaplaceGuide(model)
    lntm.inference.VariationalEM(model, guide, progress=False).fit(corpus)

    def variance(draws: ThetaDraws) -> float:
        theta, x = draws.theta, torch.from_numpy(corpus.metadata["x"].to_numpy()[draws.rows] == 1)
        return float((theta[:, x].mean(1) - theta[:, ~x].mean(1)).var(0).sum())

    joint = joint_draws(model, corpus, num_draws=240, thinning=3, warmup_steps=100)
    rows = np.flatnonzero(corpus.lengths)
    alone = theta_draws(DocumentHMC(model), corpus, 240, rows=rows, thinning=3)
    assert variance(joint) > 1.2 * variance(alone)


def test_priors_and_topics_without_draws_are_refused() -> None:
    corpus = make_corpus()
    with pytest.raises(IncompatibleGuideError, match="has no method draw_"):
        JointChain(lntm.models.lda(3, 10), corpus, warmup_steps=1)
    normal = lntm.models.lntm(3, 10)
    with pytest.raises(IncompatibleGuideError, match="NormalTopics has no method draw_"):
        JointChain(normal, corpus, warmup_steps=1)
    JointChain(normal, corpus, warmup_steps=1, topics=False)
    model = lntm.models.ctm(3, 10)
    with pytest.raises(CorpusError, match="no document has words"):
        JointChain(model, Corpus.from_matrix(np.zeros((2, 10)), allow_empty=True), warmup_steps=1)
    with pytest.raises(ConfigError, match="thinning is 0"):
        joint_draws(model, corpus, thinning=0)
    with pytest.raises(ConfigError, match="warmup_steps is 0"):
        joint_draws(model, corpus, warmup_steps=0)
    unlike = TopicModel(model.prior, model.topics)
    with pytest.raises(ConfigError):
        joint_draws(unlike, Corpus.from_matrix(np.ones((2, 9), int)))


@pytest.mark.parametrize("pseudo", [0.0, 0.7])
def test_the_topics_concentration_is_drawn_from_its_posterior(pseudo: float) -> None:
    """Against a grid of log β with the prior Gamma(1, 1); means of 10 draws are independent."""
    counts = np.random.default_rng(0).poisson(np.linspace(0.0, 3.0, 8), (3, 8)).astype(float)
    x = np.linspace(-8.0, 4.0, 2001)
    alpha = np.exp(x)[:, None, None] + pseudo
    terms = (gammaln(counts + alpha) - gammaln(alpha)).sum(2)
    terms -= gammaln(counts.sum(1) + 8 * alpha[..., 0]) - gammaln(8 * alpha[..., 0])
    log_density = terms.sum(1) + x - np.exp(x)
    mass = np.exp(log_density - log_density.max())
    n, rng, found = torch.from_numpy(counts), np.random.default_rng(1), [CONCENTRATION]
    s = torch.full_like(n if pseudo else n[:, :1], pseudo)
    for _ in range(2010):
        found.append(drawn_concentration(found[-1], n, s, torch.full((3,), 8.0), rng))
    y = np.log(found[11:])
    draws = np.column_stack([y, y**2]).reshape(200, 10, 2).mean(1)
    assert_near(draws, np.array([(mass * x).sum(), (mass * x**2).sum()]) / mass.sum())


@pytest.mark.slow
def test_fixed_priors_stay_and_are_named() -> None:
    rng = np.random.default_rng(0)
    corpus = Corpus.from_matrix(rng.multinomial(20, rng.dirichlet(np.full(10, 0.3), 40)))
    model = lntm.models.lda(3, 10, seed=1)
    with pytest.raises(IncompatibleGuideError, match=r"DirichletPrior has no .*prior=False"):
        joint_draws(model, corpus)
    draws = joint_draws(model, corpus, num_draws=3, warmup_steps=5, prior=False)
    assert draws.fixed == ("the prior's parameters",)
    assert draws.sources_of_uncertainty == ("the documents' proportions", "the topics' words")
    concentration = draws.model.prior.concentration  # type: ignore[operator]
    assert torch.equal(concentration, model.prior.concentration)  # type: ignore[arg-type]
    assert not torch.equal(draws.model.topics.probs, model.topics.probs)
    torch.testing.assert_close(draws.theta.sum(-1), torch.ones(3, 40))
    factors = lntm.models.iftm(4, 10, 2, seed=1)
    assert joint_draws(factors, corpus, num_draws=2, warmup_steps=5).fixed == ()
    kept = joint_draws(factors, corpus, num_draws=2, warmup_steps=5, topics=False, prior=False)
    assert kept.fixed == ("the topics' words", "the prior's parameters")


@pytest.mark.slow
def test_topics_of_groups_stay_fixed() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(20, rng.dirichlet(np.full(10, 0.3), 40))
    corpus = Corpus.from_matrix(counts, metadata={"side": np.arange(40) % 2})
    model = lntm.models.stm(3, corpus, content="side")
    with pytest.raises(IncompatibleGuideError, match=r"without groups or periods.*topics=False"):
        joint_draws(model, corpus)
    draws = joint_draws(model, corpus, num_draws=2, warmup_steps=5, topics=False)
    assert draws.fixed == ("the topics' words",)


@pytest.mark.slow
def test_several_chains_draw_in_turn_from_starts_of_their_own(monkeypatch) -> None:
    corpus = make_corpus()
    model = lntm.models.stm(3, corpus, "~ x", seed=1)
    options: dict[str, Any] = {"thinning": 1, "warmup_steps": 5, "seed": 3}
    four = joint_draws(model, corpus, num_draws=11, num_chains=4, **options)
    assert (four.num_draws, four.num_chains) == (12, 4)  # whole rounds
    assert repr(four).endswith("by 4 chains over documents, prior and topics)")
    one = joint_draws(model, corpus, num_draws=3, **options)
    assert torch.equal(four.theta[::4], one.theta)
    assert one.num_chains == 1
    taken = theta_draws(four, corpus, 8, rows=np.arange(3)).of_selection(np.arange(3))
    assert taken.num_chains == 4
    assert torch.equal(taken.theta, four.theta[:8, :3])
    # Chains do not fit again where topics stay fixed.
    monkeypatch.setattr("torch_lntm.inference.chains.joint.VariationalEM", None)
    joint_draws(model, corpus, num_draws=2, num_chains=2, topics=False, **options)


@pytest.mark.slow
def test_topics_of_later_chains_take_the_places_of_the_firsts(monkeypatch) -> None:
    """Three topics without common words, in another order at the start of the second chain."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([0.3] * 3, 40)
    corpus = Corpus.from_matrix(rng.poisson(6 * np.repeat(shares, 4, axis=1)) + 1)
    probs = torch.kron(torch.eye(3), torch.ones(1, 4)).double() * 0.997 / 4 + 0.001 / 4
    model = lntm.models.ctm(3, 12)
    model.topics.set_(probs)
    turned = copy.deepcopy(model)
    turned.topics.set_(probs[[1, 2, 0]])
    started = "torch_lntm.inference.chains.joint._started_elsewhere"
    monkeypatch.setattr(started, lambda *_: turned)
    draws = joint_draws(model, corpus, num_draws=40, num_chains=2, warmup_steps=40)
    first, second = draws.theta[::2].mean(0), draws.theta[1::2].mean(0)
    assert float((first - second).abs().mean()) < 0.05
    assert torch.equal(draws.model.topics.probs.argmax(0), probs.argmax(0))


@pytest.mark.slow
def test_starts_are_fits_to_other_documents_in_the_order_of_the_models_topics() -> None:
    corpus = make_corpus(200, 40)
    model = lntm.models.stm(3, corpus, "~ x", seed=1)
    lntm.inference.VariationalEM(model, make_guide(None, model), progress=False).fit(corpus)
    before = copy.deepcopy(model.state_dict())
    start = _started_elsewhere(model, corpus, 5)
    assert lntm.evaluation.align_topics(model, start).partner.tolist() == [0, 1, 2]
    assert not torch.allclose(start.topics.probs, model.topics.probs, rtol=0.01)
    torch.testing.assert_close(start.prior.covariance, model.prior.covariance)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
