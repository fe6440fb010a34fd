"""The tutorial's model: its densities, exact M-steps, and topics as latent variables."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from oracles.grids import Quadrature
from pyro import poutine
from pyro.infer import MCMC, NUTS
from scipy import optimize, stats
from scipy.special import log_softmax, softmax
from support.pairs import PAIRS, make_counts, make_model, start_prior
from support.problems import make_batch, random_problem

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import log_likelihood
from torch_lntm.guides import make_guide
from torch_lntm.inference import DocumentHMC
from torch_lntm.inference.chains.samples import effective_sample_size
from torch_lntm.models import TopicModel, ctm, lntm
from torch_lntm.models.topics.normal import NormalTopics

DTYPES = [torch.float32, torch.float64]


def arrays(model: TopicModel) -> tuple[np.ndarray, ...]:
    """loc, std and the topics' logits, topics by words."""
    tensors = (model.prior.loc, model.prior.std, model.topics.logits.mT)
    return tuple(x.detach().cpu().double().numpy().copy() for x in tensors)


# -- the model ------------------------------------------------------------------------------------


def test_the_priors_of_the_parameters_are_normal_and_inverse_gamma() -> None:
    """The density is known up to a constant, so two settings of the parameters are compared."""
    values, expected = [], []
    for seed in (1, 2):
        model = make_model("lntm", seed, topic_scale=2.5, pseudo_documents=7, pseudo_variance=0.6)
        _, std, logits = arrays(model)
        gamma = stats.invgamma(7 / 2 - 1, scale=7 * 0.6 / 2)
        values.append(model.log_prior().item())
        expected.append(gamma.logpdf(std**2).sum() + stats.norm(0, 2.5).logpdf(logits).sum())
    assert values[0] - values[1] == pytest.approx(expected[0] - expected[1], rel=1e-9)


@pytest.mark.parametrize("name", [n for family, n in PAIRS if family == "lntm"])
def test_guides_chains_and_estimates_match_a_diagonal_ctm(name, device) -> None:
    problem = random_problem(3, diagonal=True)
    topics, loc = torch.from_numpy(problem.topics), torch.from_numpy(problem.loc)
    std = torch.from_numpy(np.sqrt(np.diag(problem.covariance)))
    one = lntm(3, 15, loc=loc, std=std, topics=topics, dtype="float64").to(device)
    other = problem.model(device)
    batch = problem.batch(device)
    posteriors = [
        make_guide(name, model, tolerance=1e-9).posterior(batch) for model in (one, other)
    ]
    torch.testing.assert_close(posteriors[0].mean, posteriors[1].mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(posteriors[0].objective, posteriors[1].objective)
    if name == "laplace":
        draws = [
            DocumentHMC(m, mass_matrix="laplace", step_size=0.3)
            .run(batch, 9, 0, progress=False)
            .latents["eta"]
            for m in (one, other)
        ]
        torch.testing.assert_close(*draws)
        values = [
            log_likelihood(m, Corpus.from_matrix(problem.counts.astype(int)), method=Quadrature())
            for m in (one, other)
        ]
        torch.testing.assert_close(values[0].log_likelihood, values[1].log_likelihood)


# -- the documents' prior ------------------------------------------------------------------------


@pytest.mark.parametrize("pseudo", [0.0, 5.0])
def test_the_m_step_of_the_prior_is_a_stationary_point(pseudo: float, device: torch.device) -> None:
    prior = make_model("lntm", pseudo_documents=pseudo, pseudo_variance=0.3).prior.to(device)
    rng = np.random.default_rng(0)
    eta = torch.from_numpy(rng.normal(size=(20, 4)) @ rng.normal(size=(4, 4)) + 1).to(device)
    batch = make_batch(np.ones((20, 15)), device)
    prior.m_step(20, latent_sum=eta.sum(0), latent_outer=eta.mT @ eta)
    if pseudo == 0:
        np.testing.assert_allclose(prior.std.tolist(), eta.cpu().numpy().std(0), rtol=1e-10)
        np.testing.assert_allclose(prior.loc.tolist(), eta.cpu().numpy().mean(0), rtol=1e-10)
    value = prior.distribution(batch).log_prob(eta).sum() + prior.log_prior()
    gradients = torch.autograd.grad(value, [prior.loc, prior.log_std])
    for gradient in gradients:
        assert float(gradient.abs().max()) < 1e-9


def test_the_start_keeps_the_variances_of_the_log_proportions() -> None:
    model = make_model("lntm")
    prior = model.prior
    eta = start_prior(model, torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(4), 50)))
    np.testing.assert_allclose(prior.std.tolist(), np.sqrt(eta.numpy().var(0) + 0.1), rtol=1e-10)


# -- the topics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_topics_can_be_set_and_have_logits_of_sum_0(dtype) -> None:
    probs = np.random.default_rng(0).dirichlet(np.ones(6), 3)
    probs[0, 1] = 0.0
    topics = NormalTopics(3, 6, probs=torch.from_numpy(probs), dtype=dtype)
    expected = probs / probs.sum(1, keepdims=True)
    np.testing.assert_allclose(topics.probs.tolist(), expected, rtol=1e-5, atol=1e-20)
    assert topics.logits.sum(0).abs().max().item() < 1e-4


#: Counts of a rich, a poor, an empty, a one-word and a fractional topic.
COUNTS = np.array(
    [
        [400.0, 3.0, 0.0, 0.0, 70.0, 1e5],
        [1.0, 0.0, 0.0, 2.0, 0.0, 0.0],
        [0.0] * 6,
        [0.0, 0.0, 1e6, 0.0, 0.0, 0.0],
        [1e-3, 0.2, 3.3, 0.1, 1e-9, 0.5],
    ]
)


def log_joint(logits: np.ndarray, counts: np.ndarray, scale: float) -> float:
    return float(counts @ log_softmax(logits) - logits @ logits / (2 * scale**2))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1000.0])
def test_the_m_step_of_the_topics_is_the_maximiser(scale: float, device: torch.device) -> None:
    topics = NormalTopics(5, 6, scale=scale, dtype=torch.float64).to(device)
    counts = torch.from_numpy(COUNTS).to(device)
    topics.m_step(counts)
    found = topics.logits.detach().cpu().mT.numpy().copy()
    value = (counts * torch.log_softmax(topics.logits.mT, 1)).sum() + topics.log_prior()
    (gradient,) = torch.autograd.grad(value, topics.logits)
    size = COUNTS.sum(1) + 1
    assert (gradient.abs().cpu().numpy() / size < 1e-12).all()
    assert (found[2] == 0).all()
    for row, best in zip(COUNTS, found, strict=True):
        start = np.zeros(6)
        result = optimize.minimize(lambda b, n: -log_joint(b, n, scale), start, (row,), tol=1e-12)
        # The optimiser is less exact than the M-step: it may exceed it by rounding errors only.
        assert log_joint(best, row, scale) >= -result.fun - 1e-9 * max(1.0, abs(result.fun))
        if row.sum() < 1e4 and scale < 1000:
            np.testing.assert_allclose(best, result.x, rtol=2e-3, atol=2e-3)
    # The M-step reaches the same maximum from its own result and from another start.
    topics.m_step(counts)
    np.testing.assert_allclose(topics.logits.detach().cpu().mT, found, rtol=1e-9, atol=1e-12)


def test_the_m_step_of_the_topics_works_in_single_precision() -> None:
    exact, rounded = (NormalTopics(5, 6, dtype=dtype) for dtype in (torch.float64, torch.float32))
    for topics in (exact, rounded):
        topics.m_step(torch.from_numpy(COUNTS))
    torch.testing.assert_close(exact.logits.float(), rounded.logits, rtol=1e-6, atol=1e-6)


# -- topics as latent variables ------------------------------------------------------------------


@pytest.mark.parametrize("family", ["ctm", "lntm", "iftm(source='gaussian')", "lda"])
def test_sampled_topics_replace_their_parameters(family, device) -> None:
    options = {"topic_scale": 2.0} if family == "lntm" else {"topic_smoothing": 0.4}
    model = make_model(family, **options).to(device)
    batch = make_batch(make_counts(), device)
    trace = poutine.trace(model).get_trace(batch, sample_topics=True)
    trace.compute_log_prob()
    assert "topics_prior" not in trace.nodes
    own = {f"prior.{name}" for name, _ in model.prior.named_parameters()}
    assert set(trace.param_nodes) == own
    site = trace.nodes["topics"]
    value = site["value"].detach().cpu().numpy()
    if family == "lntm":
        expected, probs = stats.norm(0, 2).logpdf(value).sum(), softmax(value, 1)
    else:
        expected = sum(stats.dirichlet(np.full(15, 1.4)).logpdf(row) for row in value)
        probs = value
    assert float(site["log_prob"].detach()) == pytest.approx(expected, rel=1e-9)
    counts_site = trace.nodes["counts"]
    np.testing.assert_allclose(counts_site["fn"].topics.tolist(), probs, rtol=1e-12)


@pytest.mark.long
def test_stock_nuts_draws_topics_and_documents_together() -> None:
    """Two topics over two words, by a grid of both topics and of the document's theta."""
    # Anchored, eta is the difference of two independent logits.
    loc = torch.tensor([1.5], dtype=torch.float64)
    model = ctm(2, 2, anchored=True, loc=loc, topic_smoothing=1.0, dtype="float64")
    phi = (np.arange(121) + 0.5) / 121
    log_phi = stats.beta(2, 2).logpdf(phi)
    eta = np.linspace(-9, 12, 101)
    theta = 1 / (1 + np.exp(-eta))
    first = theta * phi[:, None, None] + (1 - theta) * phi[None, :, None]
    weight = stats.norm(1.5, np.sqrt(2)).pdf(eta)
    joint = softmax(log_phi[:, None] + log_phi + np.log((first**9 * (1 - first) ** 2) @ weight))
    moments = [(joint.sum(1 - k) @ phi, joint.sum(1 - k) @ phi**2) for k in range(2)]

    pyro.set_rng_seed(0)
    kernel = NUTS(model, max_tree_depth=4)
    mcmc = MCMC(kernel, num_samples=250, warmup_steps=80, disable_progbar=True)
    mcmc.run(make_batch(np.array([[9.0, 2.0]])), sample_topics=True)
    probs = mcmc.get_samples()["topics"][:, :, 0]
    draws = torch.stack([probs, probs.square()], -1)[None]
    size = effective_sample_size(draws).clamp_max(250)
    assert float(size.min()) > 50
    error = draws[0].std(0) / size.sqrt()
    # 4 means at 5 standard errors: false-failure rate 2e-6.
    assert bool(((draws[0].mean(0) - torch.tensor(moments)).abs() < 5 * error).all())


def test_a_covariance_must_be_diagonal() -> None:
    prior = make_model("lntm").prior
    prior.set_(covariance=torch.tensor([4.0, 1.0, 9.0, 0.25]).diag())
    np.testing.assert_allclose(prior.std.tolist(), [2, 1, 3, 0.5])
    with pytest.raises(ConfigError, match="not diagonal"):
        prior.set_(covariance=torch.eye(4) + 0.1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [0.1, 10.0, 1e3, 1e6])
@pytest.mark.parametrize("total", [1e-12, 1.0, 1e3, 1e9])
def test_the_m_step_stays_finite_from_any_start(dtype: str, scale: float, total: float) -> None:
    """This includes topics with words of probability zero, and logits that differ by hundreds."""
    topics = lntm(3, 20, topic_scale=scale, dtype=dtype).topics
    topics.set_(torch.eye(3).repeat(1, 7)[:, :20])
    counts = torch.zeros(3, 20, dtype=torch.float64)
    counts[0, 0], counts[1] = total, total / 20
    counts[2, :5] = total / 5
    topics.m_step(counts)
    assert bool(torch.isfinite(topics.logits).all())
    topics.gradient_(counts)
    gradient = topics.logits.grad.double().norm(dim=0)
    # Relative to the gradient of the log prior, which balances the gradient of the counts.
    pull = (topics.logits.double() / scale**2).norm(dim=0)
    resolution = 1e-2 if dtype == "float32" else 1e-6
    assert bool((gradient <= resolution * (pull + counts.sum(1)) + 1e-30).all())
