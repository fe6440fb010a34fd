"""The model and its guides as ordinary Pyro: SVI, Predictive, MCMC, and no shared state."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.mcmc import RandomWalkKernel
from pyro.infer.mcmc.util import initialize_model
from support.pairs import FAMILIES, PAIRS
from support.pairs import make_model as make_any_model
from torch import Tensor

from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.guides import GUIDES, TaylorGuide
from torch_lntm.inference import DocumentHMC
from torch_lntm.models import TopicModel, ctm

NUM_TOPICS, NUM_WORDS = 3, 20


def make_model(seed: int = 0, **options: object) -> TopicModel:
    return ctm(
        NUM_TOPICS,
        NUM_WORDS,
        topics=synthetic_topics(NUM_TOPICS, NUM_WORDS, 0.3, seed=seed),
        dtype="float64",
        **options,  # type: ignore[arg-type]
    )


def make_corpus(num_docs: int = 40, length: int = 60, seed: int = 0) -> Corpus:
    loc = torch.tensor([1.0, 0.0, -1.0])
    corpus, _ = make_model(loc=loc).generate([length] * num_docs, seed=seed)
    return corpus


@pytest.mark.long
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("name", [name for family, name in PAIRS if family == "ctm"])
def test_svi_recovers_the_prior_mean_with_mini_batches(name: str, elbo: type, device: str) -> None:
    corpus = make_corpus(80)
    model = make_model(topic_smoothing=0.0).to(device)
    guide = GUIDES[name](model)
    pyro.set_rng_seed(0)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), elbo())
    before = svi.evaluate_loss(corpus.batch(device=device, dtype=torch.float64))
    topics = model.topics.probs.clone()
    for epoch in range(15):
        for batch in corpus.batches(
            max_docs=20, shuffle=True, seed=epoch, device=device, dtype=torch.float64
        ):
            svi.step(batch)
    after = svi.evaluate_loss(corpus.batch(device=device, dtype=torch.float64))
    # 4,800 tokens; the prior mean starts one standard deviation off in two contrasts.
    assert after < before - 20
    loc = model.prior.loc.detach()
    assert loc[0] > loc[1] > loc[2]
    assert not torch.equal(model.topics.probs, topics)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), dict(PAIRS).items())
def test_svi_raises_the_elbo_of_every_model(family: str, name: str, device: str) -> None:
    truth = make_any_model(family, seed=3)
    corpus, _ = truth.generate([50] * 40, seed=1)
    model = make_any_model(family, seed=4).to(device)
    guide = GUIDES[name](model)
    batch = corpus.batch(device=device, dtype=torch.float64)
    pyro.set_rng_seed(0)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    before = svi.evaluate_loss(batch)
    kept = {parameter: value.clone() for parameter, value in model.named_parameters()}
    for epoch in range(8):
        for part in corpus.batches(
            max_docs=20, shuffle=True, seed=epoch, device=device, dtype=torch.float64
        ):
            svi.step(part)
    # 2,000 tokens under topics of other words: what is to be gained is some nats per token.
    assert svi.evaluate_loss(batch) < before - 200
    for parameter, value in model.named_parameters():
        assert not torch.equal(value, kept[parameter]), parameter


@pytest.mark.slow
@pytest.mark.stat
def test_a_mini_batch_elbo_is_unbiased_for_the_full_one() -> None:
    corpus = make_corpus(40)
    model = make_model()
    guide = TaylorGuide(model)
    elbo = TraceMeanField_ELBO()

    def average(batches: list[object], repeats: int) -> tuple[float, float]:
        losses = torch.tensor(
            [elbo.loss(model, guide, batch) for _ in range(repeats) for batch in batches]
        )
        return losses.mean().item(), (losses.std() / math.sqrt(len(losses))).item()

    pyro.set_rng_seed(1)
    full, full_error = average([corpus.batch(dtype=torch.float64)], 60)
    parts = list(corpus.batches(max_docs=10, dtype=torch.float64))
    part, part_error = average(parts, 15)
    # The parts partition the corpus, so only Monte-Carlo noise separates the means; the spread
    # between parts inflates part_error. Five standard errors: false-failure rate below 1e-5.
    assert abs(full - part) < 5 * math.hypot(full_error, part_error)


def test_gradients_of_the_elbo_are_those_of_the_log_joint() -> None:
    corpus = make_corpus(10)
    batch = corpus.batch(dtype=torch.float64)
    model = make_model(topic_smoothing=0.0, pseudo_documents=0.0)
    guide = TaylorGuide(model)
    pyro.set_rng_seed(3)
    Trace_ELBO().loss_and_grads(model, guide, batch)
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    pyro.set_rng_seed(3)
    eta = guide(batch).detach()
    words = (torch.softmax(eta, -1) @ model.topics.probs).log()
    joint = model.prior.distribution(batch).log_prob(eta).sum()
    joint = joint + (batch.to_csr().to_dense() * words).sum()
    expected = torch.autograd.grad(-joint, list(model.parameters()))
    assert len(got) == len(expected) == 3
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.long
def test_nuts_agrees_with_quadrature_in_the_contrasts() -> None:
    """E theta of K = 2 documents against a grid, in units of the run's own standard error."""
    topics = synthetic_topics(2, NUM_WORDS, 0.3, seed=5)
    model = ctm(2, NUM_WORDS, topics=topics, anchored=True, dtype="float64")
    corpus, _ = model.generate([15, 40], seed=1)
    batch = corpus.batch(dtype=torch.float64)

    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    target = model.bind(batch)
    z = target.space.locate({"eta": grid[:, None, None].expand(-1, 2, 1)})
    prior, likelihood = target.log_joint(z)
    weights = torch.softmax(prior + likelihood, 0).detach()
    exact = (weights * torch.sigmoid(grid)[:, None]).sum(0)

    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(model), num_samples=400, warmup_steps=150, disable_progbar=True)
    mcmc.run(batch)
    theta = torch.sigmoid(mcmc.get_samples()["eta"][..., 0])
    size = pyro.ops.stats.effective_sample_size(theta[None], chain_dim=0, sample_dim=1)
    assert bool((size > 50).all())
    error = theta.std(0) / size.sqrt()
    # Two means at 4.5 standard errors: false-failure rate 1.4e-5 (and some for the error's own).
    assert bool(((theta.mean(0) - exact).abs() < 4.5 * error).all())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [NUTS, HMC])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sample_topics", [False, True])
def test_samplers_run_on_every_model_in_single_precision(
    family: str, kernel: type, sample_topics: bool
) -> None:
    model = make_any_model(family).float()
    batch = model.generate([20, 5, 9], seed=2)[0].batch()
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel(model), num_samples=3, warmup_steps=2, disable_progbar=True)
    mcmc.run(batch, sample_topics=sample_topics)
    samples = mcmc.get_samples()
    assert samples[model.prior.latent].shape == (3, 3, model.latent_dim)
    assert ("topics" in samples) == sample_topics
    assert all(bool(draws.isfinite().all()) for draws in samples.values())


@pytest.mark.parametrize("kernel", [NUTS, HMC, RandomWalkKernel])
@pytest.mark.parametrize("family", ["ctm", "lda"])
def test_pyros_samplers_refuse_mini_batches(family: str, kernel: type) -> None:
    model = make_any_model(family).float()
    corpus = model.generate([20, 5, 9, 4], seed=2)[0]
    batch = next(iter(corpus.batches(max_docs=2)))
    for options in ({}, {"sample_topics": True}):
        mcmc = MCMC(kernel(model), num_samples=1, warmup_steps=1, disable_progbar=True)
        with pytest.raises(
            ConfigError, match=r"2 documents of a corpus of 4.*corpus\[rows\]\.batch"
        ):
            mcmc.run(batch, **options)
    _, potential, transforms, trace = initialize_model(model, (batch,))
    sampler = kernel(potential_fn=potential) if kernel is not RandomWalkKernel else kernel(model)
    params = {
        model.prior.latent: transforms[model.prior.latent](trace.nodes[model.prior.latent]["value"])
    }
    mcmc = MCMC(sampler, 1, 1, initial_params=params, transforms=transforms, disable_progbar=True)
    with pytest.raises(ConfigError, match="too narrow"):
        mcmc.run(batch) if kernel is RandomWalkKernel else mcmc.run()


def test_what_may_take_a_mini_batch_takes_it() -> None:
    model = make_model()
    corpus = make_corpus(6)
    batch = next(iter(corpus.batches(max_docs=2, dtype=torch.float64)))
    pyro.set_rng_seed(0)
    for guide in (TaylorGuide(model), AutoNormal(model, create_plates=model.plate)):
        SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(batch)
        drawn = Predictive(model, guide=guide, num_samples=2)(batch)
        assert drawn["eta"].shape[-2:] == (2, NUM_TOPICS)
    Predictive(model, num_samples=2, parallel=True)(batch)
    poutine.trace(model).get_trace(batch).compute_log_prob()
    # Chains of a document alone draw as if it had no corpus.
    found = {}
    for name, documents in {"part": batch, "whole": corpus[:2].batch(dtype=torch.float64)}.items():
        pyro.set_rng_seed(0)
        mcmc = MCMC(DocumentHMC(model), num_samples=3, warmup_steps=3, disable_progbar=True)
        mcmc.run(documents)
        found[name] = mcmc.get_samples()["eta"]
    torch.testing.assert_close(found["part"], found["whole"])


def test_optimisers_know_the_parameters_by_name() -> None:
    batch = make_corpus(10).batch(dtype=torch.float64)
    model = make_model()
    asked = []

    def settings(name: str) -> dict[str, float]:
        asked.append(name)
        return {"lr": 0.01}

    optimiser = pyro.optim.Adam(settings)
    SVI(model, TaylorGuide(model), optimiser, Trace_ELBO()).step(batch)
    names = {name for name, _ in model.named_parameters()}
    assert set(asked) == names == set(optimiser.get_state())


def test_two_models_share_nothing_and_leave_the_parameter_store_alone() -> None:
    pyro.clear_param_store()
    corpus = make_corpus(10)
    batch = corpus.batch(dtype=torch.float64)
    first, second = make_model(seed=0), make_model(seed=1)
    untouched: list[Tensor] = [p.clone() for p in second.parameters()]
    svi = SVI(first, TaylorGuide(first), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    svi.step(batch)
    SVI(second, TaylorGuide(second), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).evaluate_loss(
        batch
    )
    for before, after in zip(untouched, second.parameters(), strict=True):
        assert torch.equal(before, after)
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("optimiser", [pyro.optim.ClippedAdam, pyro.optim.AdagradRMSProp])
def test_posteriors_follow_every_optimiser(optimiser: type) -> None:
    """The same batch object at every step, whose posterior must not stay that of the first."""
    corpus = make_corpus(10)
    losses = []
    for same in (True, False):
        batch, model = corpus.batch(dtype=torch.float64), make_model()
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = SVI(model, TaylorGuide(model), optimiser({}), Trace_ELBO())
        steps = range(4)
        given = [batch if same else corpus.batch(dtype=torch.float64) for _ in steps]
        losses.append([svi.step(one) for one in given])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("bursty", [False, True])
def test_batches_and_models_of_inference_mode_work(bursty: bool) -> None:
    """What was met there is trained on later, and what was made there can be used there."""
    model = make_model(bursty=bursty)
    guide, batch = TaylorGuide(model), make_corpus(10).batch(dtype=torch.float64)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    with torch.inference_mode():
        assert math.isfinite(svi.evaluate_loss(batch))
    assert math.isfinite(svi.step(batch))
    with torch.inference_mode():
        made = make_model(bursty=bursty)
        drawn = Predictive(made, guide=TaylorGuide(made), num_samples=2)(batch)
    assert drawn["eta"].shape[0] == 2
