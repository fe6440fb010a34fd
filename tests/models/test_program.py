"""The program under Pyro's handlers and tools, and as a module of torch."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    Predictive,
    Trace_ELBO,
    WeighedPredictive,
)
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoLaplaceApproximation, AutoNormal
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from support.memory import LargestStorage
from support.pairs import FAMILIES, PAIRS, make_model, prior_draws, prior_log_prob
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides import GUIDES
from torch_lntm.models import TopicModel, ctm

LENGTHS = [20, 5, 9]

each_family = pytest.mark.parametrize("family", FAMILIES)
each_way = pytest.mark.parametrize("parallel", [False, True])


@pytest.fixture(autouse=True)
def _pyro() -> Any:
    """A seed, and an empty parameter store."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def make_batch(model: TopicModel) -> DocumentBatch:
    return model.generate(LENGTHS, seed=2)[0].batch(device=model.device, dtype=model.dtype)


def make_guide(model: TopicModel, family: str) -> Any:
    return GUIDES[next(name for f, name in PAIRS if f == family)](model)


def log_joint(program: Any, batch: DocumentBatch) -> Tensor:
    return poutine.trace(program).get_trace(batch).log_prob_sum()


# Handlers and parameters


@each_family
def test_the_program_runs_at_substituted_parameters(family: str) -> None:
    model, other = make_model(family, seed=0), make_model(family, seed=1)
    batch = make_batch(model)
    latents = prior_draws(other, len(LENGTHS))
    values = {name: parameter.detach() for name, parameter in other.named_parameters()}
    before = copy.deepcopy(model.state_dict())
    got = log_joint(poutine.substitute(poutine.condition(model, latents), values), batch)
    torch.testing.assert_close(got, log_joint(poutine.condition(other, latents), batch))
    assert not torch.isclose(got, log_joint(poutine.condition(model, latents), batch))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_lift_puts_a_prior_on_a_parameter() -> None:
    """Posterior draws of the mean under a prior with almost no variance."""
    model = make_model("ctm").float()
    batch = make_batch(model)
    prior = dist.Normal(torch.full((4,), 7.0), 1e-3).to_event(1)
    lifted = poutine.lift(model, {"prior.loc": prior})
    trace = poutine.trace(lifted).get_trace(batch)
    drawn = trace.nodes["prior.loc"]["value"]
    assert bool(((drawn - 7).abs() < 0.01).all())
    assert torch.equal(trace.nodes["eta"]["fn"].loc, drawn.expand(3, 4))
    mcmc = MCMC(NUTS(lifted), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(batch)
    assert mcmc.get_samples()["prior.loc"].shape == (5, 4)


@each_family
def test_log_priors_of_parameters_can_be_left_out(family: str) -> None:
    model = make_model(family)
    batch = make_batch(model)
    program = poutine.condition(model, prior_draws(model, len(LENGTHS)))
    without = poutine.trace(program).get_trace(batch, log_prior=False)
    assert without.nodes.keys().isdisjoint({"topics_prior", "document_prior"})
    total = without.log_prob_sum() + model.log_prior()
    torch.testing.assert_close(total, log_joint(program, batch), rtol=1e-12, atol=0.0)


def lifted_log_joint(model: TopicModel, priors: dict[str, Any], batch: DocumentBatch) -> Any:
    """The trace of a lifted program, and the log probabilities of draws and words alone."""
    trace = poutine.trace(poutine.lift(model, priors)).get_trace(batch)
    trace.compute_log_prob()
    sites = {*priors, model.prior.latent, "counts"}
    return trace, sum(trace.nodes[name]["log_prob_sum"] for name in sites)


def normal_like(parameter: Tensor, scale: float = 0.1) -> Any:
    return dist.Normal(parameter.detach().clone(), scale).to_event(parameter.dim())


@pytest.mark.parametrize(
    ("family", "name"),
    [*((f, "topics.logits") for f in ("ctm", "lntm", "lda")), ("ctm", "prior.loc")],
)
def test_a_lifted_prior_replaces_the_prior_of_its_parameter_alone(family: str, name: str) -> None:
    model = make_model(family)
    priors = {name: normal_like(model.get_parameter(name))}
    trace, expected = lifted_log_joint(model, priors, make_batch(model))
    replaced = name == "topics.logits"
    assert ("topics_prior" in trace.nodes) != replaced
    kept = model.prior.log_prior() if replaced else model.log_prior()
    torch.testing.assert_close(trace.log_prob_sum(), expected + kept)


def test_a_log_prior_of_lifted_and_unlifted_parameters_is_refused() -> None:
    model = make_model("iftm(source='gaussian')")
    batch = make_batch(model)
    half = {"prior.mixing": normal_like(model.prior.mixing)}
    with pytest.raises(ConfigError, match=r"^mixing of model.prior got a prior .* log_prior=False"):
        poutine.lift(model, half)(batch)
    poutine.lift(model, half)(batch, log_prior=False)
    precision = normal_like(model.prior.log_noise_precision)
    both = {**half, "prior.log_noise_precision": precision}
    trace, expected = lifted_log_joint(model, both, batch)
    assert "document_prior" not in trace.nodes
    source = trace.nodes["source"]["log_prob_sum"]
    topics = model.topics.log_prior()
    torch.testing.assert_close(trace.log_prob_sum(), expected + source + topics)


@pytest.mark.parametrize("part", ["topics.logits", "prior.loc", "prior.mixing"])
def test_a_pyro_sample_replaces_the_models_prior(part: str) -> None:
    model = make_model("iftm(source='gaussian')")
    batch = make_batch(model)
    to_pyro_module_(model)
    owner, _, name = part.rpartition(".")
    prior = normal_like(model.get_parameter(part))
    setattr(model.get_submodule(owner), name, PyroSample(prior))
    program = poutine.trace(model)
    if name == "mixing":
        with pytest.raises(ConfigError, match=r"^mixing of model.prior got a prior"):
            program(batch)
        return
    nodes = program.get_trace(batch).nodes
    assert ("topics_prior" in nodes) == (part != "topics.logits")
    assert "document_prior" in nodes


def test_a_replaced_parameter_gets_the_gradient() -> None:
    model = make_model("ctm")
    batch = make_batch(model)
    eta = {"eta": torch.zeros(3, 4, dtype=torch.float64)}
    loc = torch.ones(4, dtype=torch.float64, requires_grad=True)
    program = poutine.substitute(poutine.condition(model, eta), {"prior.loc": loc})
    (got,) = torch.autograd.grad(log_joint(program, batch), loc)
    covariance = model.prior.covariance.detach()
    # Gradient of three times log Normal(0 | loc, Σ): −3 Σ⁻¹ loc.
    torch.testing.assert_close(got, -3 * torch.linalg.solve(covariance, loc.detach()))


@each_family
def test_copies_run_and_share_nothing(family: str) -> None:
    model = make_model(family)
    batch = make_batch(model)
    latents = prior_draws(model, 3)
    expected = log_joint(poutine.condition(model, latents), batch).detach()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.to("cpu")):
        got = log_joint(poutine.condition(twin, latents), batch)
        torch.testing.assert_close(got, expected)
        assert {id(p) for p in model.parameters()}.isdisjoint(
            id(p) for p in twin.parameters()
        ) or twin is model


# Mini-batches under autoguides


@pytest.mark.parametrize("autoguide", [AutoNormal, AutoDelta, AutoDiagonalNormal])
def test_an_autoguide_needs_plates_unless_it_gets_all_documents_in_order(autoguide: Any) -> None:
    model = make_model("ctm")
    refused = r"AutoNormal\(model, create_plates=model.plate\)"
    corpus, _ = model.generate([40] * 12, seed=5)
    svi = SVI(model, autoguide(model), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    assert math.isfinite(svi.step(corpus.batch(dtype=model.dtype)))
    for rows in (np.arange(12)[::-1].copy(), np.array([3, 4, 5])):
        with pytest.raises(ConfigError, match=refused):
            svi.step(corpus.batch(rows, dtype=model.dtype))


@pytest.mark.slow
def test_an_autoguide_with_the_models_plate_trains_the_documents_of_the_batch() -> None:
    model = make_model("ctm").requires_grad_(False)
    corpus, _ = model.generate([40] * 30, seed=5)
    guide = AutoNormal(model, create_plates=model.plate)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1}), Trace_ELBO())
    for epoch in range(60):
        for batch in corpus.batches(max_docs=10, shuffle=True, seed=epoch, dtype=model.dtype):
            svi.step(batch)
    got = model.theta(guide.median()["eta"])
    expected = make_guide(model, "ctm").posterior(corpus.batch(dtype=model.dtype)).theta_mode()
    # Rows of different documents have the correlation between documents, 0.2.
    both = torch.stack([got.flatten(), expected.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.9


# Predictions


@each_family
@each_way
def test_predictive_repeats_observed_counts_and_draws_the_remaining_sites(family, parallel) -> None:
    model = make_model(family)
    batch = make_batch(model)
    guide = make_guide(model, family)
    observed = Predictive(model, guide=guide, num_samples=7, parallel=parallel)(batch)
    latents = set(guide.posterior(batch).sites) if hasattr(guide, "sites") else set()
    assert observed.keys() >= {model.prior.latent, "counts", *latents}
    dense = batch.to_csr().to_dense()
    assert torch.equal(observed["counts"], dense.expand(7, -1, -1))

    free = poutine.uncondition(model)
    drawn = Predictive(free, guide=guide, num_samples=7, parallel=parallel)(batch)
    assert drawn["counts"].shape == (7, 3, model.num_words)
    assert drawn["counts"].to_dense().sum(-1).tolist() == [[float(n) for n in LENGTHS]] * 7
    assert not torch.equal(drawn["counts"][0], drawn["counts"][1])

    names = model.prior.space(batch).sites
    samples = {name: observed[name] for name in names}
    again = Predictive(free, posterior_samples=samples, parallel=parallel)(batch)
    assert again["counts"].shape == (7, 3, model.num_words)
    prior = Predictive(free, num_samples=4, parallel=parallel)(batch)
    assert prior[model.prior.latent].shape == (4, 3, model.latent_dim)


@pytest.mark.stat
def test_predicted_words_have_posterior_frequencies() -> None:
    model = make_model("ctm")
    batch = make_batch(model)
    free = poutine.uncondition(model)
    draws = Predictive(free, guide=make_guide(model, "ctm"), num_samples=2000, parallel=True)(batch)
    expected = model.theta(draws["eta"]) @ model.topics.probs.detach()
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)[:, None]
    variance = expected * (1 - expected) / lengths
    counts = draws["counts"].to_dense()
    error = (counts / lengths - expected).mean(0) / (variance.mean(0) / 2000).sqrt()
    # 45 frequencies at 5 standard errors: false-failure rate 3e-5.
    assert bool((error.abs() < 5).all())


@each_family
@each_way
def test_weighed_predictive_returns_log_densities_of_model_and_guide(family, parallel) -> None:
    model = make_model(family)
    batch = make_batch(model)
    guide = make_guide(model, family)
    # The guide continues from its last solution: only a converged posterior stays the same.
    guide.tolerance, guide.max_iterations = 1e-10, 1000
    result = WeighedPredictive(model, guide=guide, num_samples=6, parallel=parallel)(batch)
    names = model.prior.space(batch).sites
    for i in range(6):
        at = {name: result.samples[name][i] for name in names}
        torch.testing.assert_close(
            result.model_log_prob[i], log_joint(poutine.condition(model, at), batch)
        )
        of_guide = log_joint(poutine.condition(guide, at), batch)
        torch.testing.assert_close(result.guide_log_prob[i], of_guide, rtol=1e-5, atol=1e-5)


@each_family
def test_log_likelihoods_of_documents_at_posterior_draws(family: str) -> None:
    model = make_model(family)
    batch = make_batch(model)
    draws = Predictive(make_guide(model, family), num_samples=5)(batch)
    trace = Predictive(model, posterior_samples=draws).get_vectorized_trace(batch)
    site = trace.nodes["counts"]
    got = site["fn"].log_prob(site["value"])
    theta = model.theta(draws[model.prior.latent])
    words = (theta @ model.topics.probs).log()
    torch.testing.assert_close(got, (batch.to_csr().to_dense() * words).sum(-1))


def test_parallel_predictive_works_with_sampled_topics() -> None:
    model = make_model("ctm")
    batch = make_batch(model)
    samples = Predictive(model, num_samples=4)(batch, sample_topics=True)
    posterior = {name: samples[name] for name in ("eta", "topics")}
    trace = Predictive(model, posterior).get_vectorized_trace(batch, sample_topics=True)
    site = trace.nodes["counts"]
    words = (model.theta(samples["eta"]) @ samples["topics"].squeeze(1)).log()
    torch.testing.assert_close(
        site["fn"].log_prob(site["value"]), (batch.to_csr().to_dense() * words).sum(-1)
    )


# Derivatives


@pytest.mark.slow
@each_family
def test_autolaplace_matches_the_curvature_of_the_log_joint(family: str) -> None:
    model = make_model(family)
    batch = make_batch(model)
    guide = AutoLaplaceApproximation(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    kept = copy.deepcopy(model.state_dict())
    for _ in range(100):
        svi.step(batch)
        model.load_state_dict(kept)
    laplace = guide.laplace_approximation(batch)
    flat = guide.loc.detach()
    dense = batch.to_csr().to_dense()

    def potential(z: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        latents = {}
        for site, unconstrained in guide._unpack_latent(z):
            transform = dist.transforms.biject_to(site["fn"].support)
            latents[site["name"]] = transform(unconstrained)
            jacobian = transform.log_abs_det_jacobian(unconstrained, latents[site["name"]])
            total = total + jacobian.sum()
        words = (model.theta(latents[model.prior.latent]) @ model.topics.probs).log()
        return -(total + prior_log_prob(model, batch, latents).sum() + (dense * words).sum())

    expected = torch.autograd.functional.hessian(potential, flat)
    covariance = laplace.get_posterior().covariance_matrix
    torch.testing.assert_close(covariance @ expected, torch.eye(len(flat)).double())


def test_the_log_joint_is_a_differentiable_function_of_parameters() -> None:
    """Gradient and Hessian in the prior mean, in closed form."""
    model = make_model("ctm")
    batch = make_batch(model)
    eta = torch.randn(3, 4, dtype=torch.float64)

    def function(loc: Tensor) -> Tensor:
        def program(batch: DocumentBatch) -> Tensor:
            return torch.func.functional_call(model, {"prior.loc": loc}, (batch,))

        with pyro.validation_enabled(False):
            return log_joint(poutine.condition(program, {"eta": eta}), batch)

    loc, precision = model.prior.loc.detach(), model.prior.covariance.detach().inverse()
    torch.testing.assert_close(torch.func.grad(function)(loc), precision @ (eta - loc).sum(0))
    torch.testing.assert_close(torch.autograd.functional.hessian(function, loc), -3 * precision)


@pytest.mark.parametrize(
    ("num_docs", "num_words", "num_topics", "forbidden"),
    [
        pytest.param(200, 20_000, 3, 200 * 20_000, id="documents x words"),
        pytest.param(100, 300, 40, 100 * 90 * 40, id="counts x topics"),
    ],
)
def test_an_svi_step_allocates_no_large_tensor(num_docs, num_words, num_topics, forbidden) -> None:
    """In single precision, with draws in double, and in second derivatives."""
    model = ctm(num_topics, num_words)
    batch = model.generate([100] * num_docs)[0].batch()
    eta = torch.zeros(num_docs, num_topics, dtype=torch.float64, requires_grad=True)
    program = poutine.condition(model, {"eta": eta})
    with LargestStorage() as largest:
        value = log_joint(program, batch)
        (gradient,) = torch.autograd.grad(value, eta, create_graph=True)
        torch.autograd.grad(gradient.square().sum(), [eta, model.topics.logits])
        Trace_ELBO().loss_and_grads(model, make_guide(model, "ctm"), batch)
    assert largest.size > 8 * batch.nnz
    assert largest.size < 0.7 * 8 * forbidden


# Masks, precision, and refused arguments


def test_a_mask_excludes_documents_and_counts_priors_once() -> None:
    model = make_model("ctm")
    corpus, latents = model.generate(LENGTHS, seed=2)
    batch = corpus.batch(dtype=torch.float64)
    mask = torch.tensor([True, False, True])
    at = poutine.condition(model, latents)
    trace = poutine.trace(at).get_trace(batch)
    trace.compute_log_prob()
    nodes = trace.nodes
    per_document = nodes["eta"]["log_prob"] + nodes["counts"]["log_prob"]
    expected = per_document[mask].sum() + model.log_prior()
    torch.testing.assert_close(log_joint(poutine.mask(at, mask), batch), expected)
    assert log_joint(poutine.mask(at, torch.zeros(3, dtype=torch.bool)), batch) == 0
    part = batch.select(torch.tensor([0, 2]))
    two = {"eta": latents["eta"][[0, 2]]}
    both = torch.tensor([True, True])
    torch.testing.assert_close(
        log_joint(poutine.mask(poutine.condition(model, two), both), part),
        log_joint(poutine.condition(model, two), part),
    )
    guide = make_guide(model, "ctm")
    masked = poutine.mask(model, mask), poutine.mask(guide, mask)
    SVI(*masked, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(batch)
    assert bool(torch.isfinite(model.topics.logits).all())


@each_family
def test_autocast_affects_neither_program_nor_guide(family: str) -> None:
    model = make_model(family).float()
    batch = make_batch(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trace = poutine.trace(model).get_trace(batch)
        got = trace.log_prob_sum()
        posterior = make_guide(model, family).posterior(batch)
    assert torch.equal(posterior.mean, make_guide(model, family).posterior(batch).mean)
    latents = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
    assert {latents[name].dtype for name in latents if name != "documents"} == {torch.float32}
    expected = log_joint(poutine.condition(model, latents), batch)
    torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
def test_jit_is_refused_at_once() -> None:
    model = make_model("ctm")
    batch = make_batch(model)
    kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
    with pytest.raises(ConfigError, match=r"torch\.jit cannot trace the program"):
        MCMC(kernel, num_samples=2, warmup_steps=2, disable_progbar=True).run(batch)
    svi = SVI(model, make_guide(model, "ctm"), pyro.optim.Adam({"lr": 0.1}), JitTrace_ELBO())
    with pytest.raises(ConfigError, match="use Trace_ELBO instead of JitTrace_ELBO"):
        svi.step(batch)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_program_has_the_same_density_and_gradient() -> None:
    model = make_model("ctm")
    batch, guide = make_batch(model), make_guide(model, "ctm")
    torch._dynamo.reset()

    def loss(batch: DocumentBatch) -> Tensor:
        return Trace_ELBO().differentiable_loss(model, guide, batch)

    values, slopes = [], []
    for function in (loss, torch.compile(loss, backend="eager")):
        pyro.set_rng_seed(3)
        model.zero_grad()
        value = function(batch)
        value.backward()
        values.append(value.detach())
        slopes.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(slopes[1], slopes[0])
    for program in (torch.compile(model, backend="eager"), torch.compile(model.forward)):
        with poutine.seed(rng_seed=0), poutine.trace() as trace:
            program(batch)
        with poutine.seed(rng_seed=0), poutine.trace() as expected:
            model(batch)
        assert torch.equal(trace.trace.nodes["eta"]["value"], expected.trace.nodes["eta"]["value"])
