"""Bursty models: programs, posteriors, fits and scores, against grids and formulas written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from oracles.grids import Quadrature
from scipy import optimize
from scipy.special import gammaln, logsumexp
from scipy.stats import beta
from support.pairs import sampled_statistics
from support.problems import make_batch
from torch import Tensor

import torch_lntm as lntm
from torch_lntm import noise
from torch_lntm.corpus import Corpus
from torch_lntm.evaluation import document_completion, residual_dispersion
from torch_lntm.evaluation.completion.theta import theta_modes
from torch_lntm.guides import guides_for, make_guide
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM
from torch_lntm.kernels.likelihood import INDEPENDENT, surrogate
from torch_lntm.kernels.mixture import mixture_log_likelihood, probability_floor
from torch_lntm.models import DirichletMultinomial, TopicModel
from torch_lntm.solvers.options import SolveOptions

NUM_WORDS = 12
TOPICS = np.random.default_rng(0).dirichlet(np.full(NUM_WORDS, 0.4), 3)
A = 9.0
KINDS = ("ctm", "lntm", "iftm", "lda")
BOUNDS = ("blei-lafferty", "khan-bouchard", "factor", "vb")
OTHER_BOUNDS = (("iftm", "factor"), ("lda", "vb"))


def make(kind: str, num_topics: int = 3, a: float = A, **settings: Any) -> TopicModel:
    constructor = getattr(lntm.models, kind)
    topics = torch.from_numpy(TOPICS[:num_topics])
    given = {"topics": topics, "dtype": "float64", "bursty": True, **settings}
    model = constructor(num_topics, NUM_WORDS, **given)
    return at(model, a) if given["bursty"] else model


def at(model: TopicModel, a: float) -> TopicModel:
    with torch.no_grad():
        model.words.log_concentration.fill_(math.log(a))
    return model


def counts_of(num_docs: int = 8, seed: int = 0) -> np.ndarray:
    """Counts with repetitions. The first document is empty, the second is a single word."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.7, (num_docs, NUM_WORDS)) * rng.integers(1, 6, (num_docs, NUM_WORDS))
    counts[0], counts[1] = 0, np.eye(NUM_WORDS, dtype=int)[0] * 7
    return counts.astype(float)


def log_probability(q: np.ndarray, counts: np.ndarray, a: float = A) -> np.ndarray:
    """Log probability of documents' tokens, words of which have the mean probabilities q."""
    rate = a * q
    words = np.where(counts > 0, gammaln(counts + rate) - gammaln(rate), 0.0).sum(-1)
    return words + gammaln(a) - gammaln(a + counts.sum(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_has_the_dirichlet_multinomial_density(device, kind) -> None:
    model, counts = make(kind).to(device), counts_of()
    batch = make_batch(counts, device)
    trace = pyro.poutine.trace(model).get_trace(batch)
    trace.compute_log_prob()
    found = trace.nodes["counts"]["log_prob"]
    theta = model.theta(trace.nodes[model.prior.latent]["value"]).detach().cpu().numpy()
    expected = log_probability(theta @ TOPICS, counts)
    np.testing.assert_allclose(found.detach().cpu().numpy(), expected, rtol=1e-9)
    assert "words.log_concentration" in trace.nodes

    # SVI's gradient in log a is the derivative of this density.
    model.zero_grad()
    found.sum().backward()
    step = 1e-5
    values = [log_probability(theta @ TOPICS, counts, A * math.exp(s)) for s in (step, -step)]
    slope = (values[0] - values[1]).sum() / (2 * step)
    assert float(model.words.log_concentration.grad) == pytest.approx(slope, rel=1e-6)


def test_statistics_are_derivatives_in_the_log_concentration(device) -> None:
    counts, words = counts_of(), DirichletMultinomial(dtype=torch.float64).to(device)
    with torch.no_grad():
        words.log_concentration.fill_(math.log(A))
    theta = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(3), len(counts)))
    theta, topics = theta.to(device), torch.from_numpy(TOPICS).to(device)
    batch = make_batch(counts, device)
    shares = torch.linspace(0.2, 1.0, len(counts), dtype=torch.float64, device=device)
    for weights in (None, shares):
        log_a = words.log_concentration
        value = mixture_log_likelihood(theta, topics, batch, words)
        value = value.sum() if weights is None else value @ weights
        (slope,) = torch.autograd.grad(value, log_a, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, log_a)
        probability = (theta @ topics)[batch.row_index, batch.word_index]
        found = words.statistics(probability, batch, weights)["log_concentration"]
        expected = torch.stack([-curvature, slope - curvature * log_a]).detach()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_m_steps_reach_the_maximum_for_any_batches(device) -> None:
    counts = counts_of(60, seed=2)
    theta = np.random.default_rng(3).dirichlet(np.ones(3), len(counts))
    q = theta @ TOPICS
    best = optimize.minimize_scalar(
        lambda log_a: -log_probability(q, counts, math.exp(log_a)).sum(), (-2.0, 5.0)
    ).x
    for num_parts in (1, 3):
        words = DirichletMultinomial(dtype=torch.float64).to(device)
        for _ in range(30):
            total = torch.zeros(2, dtype=torch.float64, device=device)
            for rows in np.array_split(np.arange(len(counts)), num_parts):
                batch = make_batch(counts[rows], device)
                at = (batch.row_index.cpu().numpy(), batch.word_index.cpu().numpy())
                probability = torch.from_numpy(q[rows][at]).to(device)
                total += words.statistics(probability, batch)["log_concentration"]
            words.m_step(log_concentration=total)
        assert words.log_concentration.item() == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("case", ["spread", "one word"])
def test_the_concentration_stays_finite_without_a_maximum(case) -> None:
    counts = np.ones((3, NUM_WORDS)) if case == "spread" else np.eye(NUM_WORDS)[[0, 3]] * 1e6
    words = DirichletMultinomial(dtype=torch.float64)
    for _ in range(60):
        words.m_step(**statistics_of(words, counts))
    found = words.concentration.item()
    assert found == pytest.approx(1e7) if case == "spread" else found < 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_words_outside_all_topics_count_as_single_tokens(dtype) -> None:
    batch = make_batch(counts_of(), dtype=dtype)
    words = DirichletMultinomial(dtype=dtype)
    least = torch.full((batch.nnz,), probability_floor(dtype), dtype=dtype)
    found = words.statistics(least, batch)["log_concentration"]
    # One token of each word came from the topics, for any concentration.
    a, lengths = words.concentration.detach(), batch.lengths.double()
    slope = batch.nnz - (a * ((a + lengths).digamma() - a.digamma())).sum()
    line = slope + found[0] * words.log_concentration.detach()
    torch.testing.assert_close(found[1], line, rtol=1e-6, atol=1e-6)


def test_documents_of_at_most_one_token_do_not_change_the_concentration() -> None:
    counts = np.vstack([np.eye(NUM_WORDS)[[0, 3]], np.zeros((1, NUM_WORDS))])
    for start in np.geomspace(0.01, 1e4, 25):
        words = DirichletMultinomial(dtype=torch.float64)
        with torch.no_grad():
            words.log_concentration.fill_(math.log(start))
        for _ in range(20):
            words.m_step(**statistics_of(words, counts))
        assert words.concentration.item() == pytest.approx(start, rel=1e-3)


def statistics_of(words: DirichletMultinomial, counts: np.ndarray) -> dict[str, Tensor]:
    """Statistics of documents with equally probable words."""
    batch = make_batch(counts)
    probability = torch.full((batch.nnz,), 1.0 / NUM_WORDS, dtype=torch.float64)
    return words.statistics(probability, batch)


def grid_of_two_topics(model: TopicModel, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities and means of theta_1 of documents under ``lda`` of two topics."""
    alpha = model.prior.concentration.detach().numpy()
    u = (np.arange(40_000) + 0.5) / 40_000
    prior = beta.logpdf(u, *alpha)
    prior -= logsumexp(prior)
    q = np.stack([u, 1 - u], 1) @ TOPICS[:2]
    joint = np.array([log_probability(q, c) + prior for c in counts])
    value = logsumexp(joint, 1)
    return value, np.exp(joint - value[:, None]) @ u


def lda_of_two() -> TopicModel:
    return make("lda", 2, concentration=[1.3, 1.8])


@pytest.mark.slow
@pytest.mark.parametrize("method", [Quadrature(), "importance", "ais"])
def test_likelihoods_match_a_grid(method) -> None:
    model, counts = lda_of_two(), counts_of()
    expected, _ = grid_of_two_topics(model, counts)
    corpus = Corpus.from_matrix(counts, allow_empty=True)
    found = lntm.evaluation.log_likelihood(model, corpus, method, seed=1)
    tolerance = 1e-5 if found.method == "quadrature" else 5 * found.standard_error.numpy() + 1e-9
    assert np.all(np.abs(found.log_likelihood.numpy() - expected) <= tolerance)
    assert float(found.standard_error.max()) < 0.1


@pytest.mark.long
def test_means_of_chains_and_guides_match_a_grid() -> None:
    model, counts = lda_of_two(), counts_of()
    _, expected = grid_of_two_topics(model, counts)
    batch = make_batch(counts)
    samples = DocumentHMC(model, num_chains=40, seed=1).run(batch, 150, warmup_steps=100)
    found = samples.mean()[:, 0].numpy()
    assert np.abs(found - expected).max() < 0.02
    ep = make_guide("ep", model).posterior(batch)
    assert bool(ep.converged.all())
    assert np.abs(ep.mean[:, 0].numpy() - expected).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_guide_is_as_accurate_as_with_independent_draws(device, kind) -> None:
    counts, gaps = counts_of(), {}
    corpus = Corpus.from_matrix(counts, allow_empty=True)
    method, slack = (Quadrature(), 1e-6) if kind != "iftm" else ("ais", 0.1)
    for model in (make(kind, 2, bursty=False), make(kind, 2)):
        exact = lntm.evaluation.log_likelihood(model, corpus, method).log_likelihood
        model, batch = model.to(device), make_batch(counts, device)
        for name in guides_for(model):
            guide = make_guide(name, model)
            posterior = guide.posterior(batch, tolerance=1e-8, max_iterations=2000)
            assert bool(posterior.converged.all()), name
            bound, objective = guide.bound(batch, posterior), posterior.objective.cpu()
            assert bool((bound.cpu() <= exact + slack).all()), name
            if name in BOUNDS:
                assert bool((objective <= exact + slack).all()), name
            if name in ("vb", "factor"):
                torch.testing.assert_close(posterior.objective, bound, rtol=1e-5, atol=1e-5)
            gap = float((exact - objective).abs().mean())
            assert gap < gaps.setdefault(name, gap) + 0.1, name
            if not model.words.independent:
                tokens = float(guide.word_counts(batch, posterior).sum())
                assert counts.astype(bool).sum() <= tokens + 0.2 <= counts.sum(), name


@pytest.mark.parametrize(("kind", "name"), [("ctm", n) for n in BOUNDS[:2]] + [*OTHER_BOUNDS])
def test_surrogate_counts_maximise_the_bound(device, kind, name) -> None:
    model, batch = make(kind).to(device), make_batch(counts_of(), device)
    guide = make_guide(name, model)
    posterior = guide.posterior(batch, tolerance=1e-10, max_iterations=2000)
    independent = make_guide(name, make(kind, bursty=False).to(device))
    kind_of_bound = {} if name == "vb" else {"kind": "tangent"}
    best = guide.bound(batch, posterior, **kind_of_bound)
    probability = guide.word_probabilities(batch, posterior)
    for factor in (0.5, 0.9, 1.0, 1.1, 2.0):
        drawn, raised = surrogate(model.words, probability * factor, batch)
        bound = independent.bound(drawn, posterior, **kind_of_bound) + raised
        assert bool((bound <= best + 1e-9).all())
        lower = float((best - bound).max())
        assert lower > 1e-3 if factor != 1.0 else lower < 1e-9


def test_documents_converge_with_their_surrogate_counts(device) -> None:
    model, batch = make("ctm", 2).to(device), make_batch(counts_of(), device)
    guide = make_guide("blei-lafferty", model)
    exact = guide.posterior(batch, tolerance=1e-10, max_iterations=1000)
    few = guide.posterior(batch, tolerance=1e-2, max_iterations=3)
    error = (few.mean - exact.mean).abs().amax(-1)
    assert bool(few.converged[0])
    assert bool((error[~few.converged] > 1e-3).all())
    # The solver had converged for these documents, but their surrogate counts still changed.
    assert bool((~few.converged & (few.iterations < 3)).any())


@pytest.mark.parametrize("kind", ["ctm", "lntm"])
def test_modes_maximise_the_density(device, kind) -> None:
    model, batch = make(kind).to(device), make_batch(counts_of(), device)
    settings = {"tolerance": 1e-14, "max_iterations": 500}
    posterior = make_guide("taylor", model, **settings).posterior(batch)
    target = model.bind(batch)
    z = target.space.whiten(posterior.mean)[None]
    gradient = target.likelihood_gradient(z) + target.prior_gradient(z)
    assert float(gradient.abs().max()) < 1e-4
    independent = model.bind(batch)
    object.__setattr__(independent, "words", INDEPENDENT)
    other = independent.likelihood_gradient(z) + independent.prior_gradient(z)
    assert float(other.abs().max()) > 0.1  # repetitions of words count


def test_modes_under_a_dirichlet_prior_maximise_the_density(device) -> None:
    model, counts = lda_of_two().to(device), counts_of()
    found = theta_modes(model, make_batch(counts, device))[:, 0].cpu().numpy()
    alpha = model.prior.concentration.detach().cpu().numpy()
    for document, mode in zip(counts, found, strict=True):

        def loss(x: float, document: np.ndarray = document) -> float:
            u = 1 / (1 + math.exp(-x))
            theta = np.array([u, 1 - u])
            return -float(log_probability(theta @ TOPICS[:2], document) + alpha @ np.log(theta))

        best = optimize.minimize_scalar(loss, bounds=(-20, 20), method="bounded").x
        assert mode == pytest.approx(1 / (1 + math.exp(-best)), abs=2e-3)


def test_drawn_words_repeat_at_the_expected_rate() -> None:
    model = make("lda", 1)
    corpus, _ = model.generate([2] * 20_000, seed=0)
    pairs = float((corpus.counts == 2).sum()) / len(corpus)
    same = float((TOPICS[0] ** 2).sum())
    expected = (1 + A * same) / (1 + A)
    assert pairs == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 20_000))
    # Token by token: the third token copies the first, the second, or neither.
    corpus, _ = model.generate([3] * 20_000, seed=1)
    triples = float((corpus.counts == 3).sum()) / len(corpus)
    p = TOPICS[0]
    expected = float((p * (1 + A * p) * (2 + A * p)).sum()) / ((1 + A) * (2 + A))
    assert triples == pytest.approx(expected, abs=4 * math.sqrt(expected / 20_000))


@pytest.fixture(scope="module")
def generated() -> Corpus:
    model = make("ctm", 3, a=25.0, covariance=2.0 * torch.eye(3))
    return model.generate([70] * 500, seed=5)[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["taylor", "blei-lafferty", "hmc", "vb"])
def test_fits_recover_the_concentration(generated, engine) -> None:
    kind = "lda" if engine == "vb" else "ctm"
    model = getattr(lntm.models, kind)(3, NUM_WORDS, bursty=True)
    if engine == "hmc":
        MonteCarloEM(model, max_epochs=15, progress=False).fit(generated)
    else:
        guide = make_guide(engine, model)
        VariationalEM(model, guide, tolerance=1e-4, progress=False).fit(generated)
    # Approximate posteriors attribute some variation of the topics to repetitions.
    assert 0.7 * 25.0 < model.words.cache_weight < 1.3 * 25.0


@pytest.mark.slow
def test_without_repetitions_words_are_independent_draws() -> None:
    plain = lntm.models.ctm(
        3, NUM_WORDS, topics=torch.from_numpy(TOPICS), covariance=2.0 * torch.eye(3)
    )
    corpus, _ = plain.generate([70] * 300, seed=5)
    model = lntm.models.ctm(3, NUM_WORDS, bursty=True)
    MonteCarloEM(model, max_epochs=15, progress=False).fit(corpus)
    assert model.words.cache_weight > 400.0


@pytest.mark.slow
def test_em_never_lowers_the_bound(generated) -> None:
    model = at(lntm.models.lda(3, NUM_WORDS, bursty=True, dtype="float64"), 5.0)
    guide = make_guide("vb", model, tolerance=1e-8)
    guide.em_options = SolveOptions(tolerance=1e-8, max_iterations=500)  # type: ignore[misc]
    result = VariationalEM(
        model, guide, start="model", stepwise_epochs=0, tolerance=1e-6, progress=False
    ).fit(generated[:60])
    objective = [r["objective"] for r in result.history if r["phase"] == "em"]
    assert len(objective) > 8
    assert min(np.diff(objective)) > -1e-7


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_guides_keep_their_contract_if_most_words_are_repetitions(kind) -> None:
    model = make(kind, a=0.3)
    for name in guides_for(model):
        lntm.testing.check_guide(make_guide(name, model, tolerance=1e-8), make_batch(counts_of()))


def test_a_batch_is_solved_again_after_the_concentration_changes(device, monkeypatch) -> None:
    model, batch = make("ctm").to(device), make_batch(counts_of(), device)
    guide, solved = make_guide("taylor", model), []
    solve = guide.posterior
    monkeypatch.setattr(guide, "posterior", lambda *a, **k: solved.append(1) or solve(*a, **k))
    for _ in range(3):
        guide(batch)
    assert len(solved) == 1
    # A new value, and a value from a handler, each need a new solution.
    at(model, 5.0)
    guide(batch)
    assert len(solved) == 2
    value = {"words.log_concentration": torch.tensor(1.0, dtype=torch.float64, device=device)}
    trace = pyro.poutine.trace(pyro.poutine.substitute(model, data=value)).get_trace(batch)
    trace.compute_log_prob()
    site = trace.nodes["counts"]
    theta = site["fn"].theta.detach().cpu().numpy()
    expected = log_probability(theta @ TOPICS, counts_of(), math.e)
    np.testing.assert_allclose(site["log_prob"].detach().cpu().numpy(), expected, rtol=1e-9)
    assert model.words.cache_weight == pytest.approx(5.0)


@pytest.mark.slow
def test_completion_adds_the_documents_own_words(generated) -> None:
    model = make("lda", a=25.0)
    guide = make_guide(None, model)
    hold_out = generated[:30].hold_out_words(0.5, seed=0)
    own = document_completion(model, hold_out, theta="mode", guide=guide)
    given = document_completion(model, hold_out, theta="mode", guide=guide, cache_weight=25.0)
    alone = document_completion(model, hold_out, theta="mode", guide=guide, cache_weight=None)
    torch.testing.assert_close(own.log_predictive, given.log_predictive)
    assert own.perplexity < alone.perplexity
    assert "own words (a = 25)" in own.method

    exact, again = (
        document_completion(model, hold_out, theta="exact", tolerance=0.01, seed=seed)
        for seed in (0, 1)
    )
    assert exact.nats_per_token == pytest.approx(again.nats_per_token, abs=0.02)
    assert exact.nats_per_token == pytest.approx(own.nats_per_token, abs=0.1)
    assert "Hamiltonian" in exact.method


def test_residual_dispersion_is_about_1(generated) -> None:
    model = make("ctm", a=25.0, covariance=2.0 * torch.eye(3))
    own = residual_dispersion(model, make_guide(None, model), generated)
    independent = at(model, 1e7)
    other = residual_dispersion(independent, make_guide(None, independent), generated)
    assert 0.8 < own.value < 1.15
    assert other.value > 2.0


@pytest.mark.slow
def test_stepwise_em_updates_the_concentration(generated) -> None:
    model = lntm.models.ctm(3, NUM_WORDS, bursty=True)
    guide = make_guide("taylor", model)
    engine = VariationalEM(model, guide, max_iterations=2, progress=False)
    result = engine.fit(generated[:250])
    before = model.words.cache_weight
    lntm.inference.StepwiseEM(model, guide, result.statistics).update(generated[250:])
    assert model.words.cache_weight != before
    assert 10.0 < model.words.cache_weight < 60.0


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.UnreliableEstimateWarning")
def test_proposals_account_for_repetitions() -> None:
    mixing = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
    model = make("iftm", source="laplace", num_sources=2, mixing=mixing)
    corpus = Corpus.from_matrix(counts_of(), allow_empty=True)
    drawn = lntm.evaluation.log_likelihood(model, corpus, "importance", seed=1)
    annealed = lntm.evaluation.log_likelihood(model, corpus, "ais", seed=1)
    error = (drawn.standard_error.square() + annealed.standard_error.square()).sqrt()
    assert bool(((drawn.log_likelihood - annealed.log_likelihood).abs() <= 4 * error + 1e-9).all())
    # 423 of 1,000; 282 if all tokens count as draws from the topics.
    assert drawn.effective_sample_size is not None
    assert float(drawn.effective_sample_size.mean()) > 350.0


def test_excluded_chains_do_not_enter_the_statistics(device) -> None:
    model, batch = make("lda").to(device), make_batch(counts_of()[1:], device)
    target = model.bind(batch)
    z = target.draw_prior(noise.document_keys(0, batch.index, 2))
    latents, logits = target.space.latents(z), target.space.logits(z)
    log_likelihood = target.log_joint(z)[1]
    used = torch.zeros_like(log_likelihood, dtype=torch.bool)
    used[1] = True
    both = sampled_statistics(model, batch, latents, logits, log_likelihood, used)
    of_one = {name: value[1:] for name, value in latents.items()}
    one = sampled_statistics(model, batch, of_one, logits[1:], log_likelihood[1:])
    torch.testing.assert_close(both.sums, one.sums)
    torch.testing.assert_close(both.word_counts, one.word_counts)
    assert len(one.sums["words.log_concentration"]) == 2
