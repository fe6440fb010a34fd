"""Guides: solvers as Pyro guides, warm starts, and refused arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from support.pairs import FAMILIES, PAIRS, each_pair, make_counts, make_model, prior_draws
from support.problems import make_batch, random_problem
from torch import nn

from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import GUIDES, TaylorGuide, make_guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.solvers.options import SolveOptions

LENGTHS = (30, 1, 0, 8)


def trace_of(program: Any, batch: Any) -> Any:
    trace = poutine.trace(program).get_trace(batch)
    trace.compute_log_prob()
    return trace


# -- Pyro ----------------------------------------------------------------------------------------


@each_pair
def test_a_guide_emits_its_posterior_at_the_models_sites(device, family, name) -> None:
    model = make_model(family).to(device)
    batch = make_batch(make_counts(LENGTHS), device, corpus_size=12)
    guide = make_guide(name, model, tolerance=1e-8)
    pyro.set_rng_seed(0)
    trace = trace_of(guide, batch)
    site = trace.nodes[model.prior.latent]
    posterior = guide.posterior(batch)
    assert site["value"].shape == (4, model.latent_dim)
    if family == "lda":
        expected = torch.distributions.Dirichlet(posterior.gamma).log_prob(site["value"])
    else:
        normal = torch.distributions.MultivariateNormal(posterior.mean, posterior.covariance)
        expected = normal.log_prob(site["value"])
    torch.testing.assert_close(site["unscaled_log_prob"], expected)
    torch.testing.assert_close(site["log_prob"], 3 * site["unscaled_log_prob"])
    # The model replays the guide's trace: same plate, same sites, same shapes.
    replayed = trace_of(poutine.replay(model, trace=trace), batch)
    latent = {n for n, s in replayed.nodes.items() if s["type"] == "sample" and "value" in s}
    for found in {n for n, s in trace.nodes.items() if s["type"] == "sample"} - {"documents"}:
        assert found in latent
        assert torch.equal(replayed.nodes[found]["value"], trace.nodes[found]["value"])
        assert not trace.nodes[found]["value"].requires_grad
    assert ("source" in trace.nodes) == family.startswith("iftm")
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("name", ["taylor", "laplace"])
def test_the_source_site_has_the_exact_conditional_distribution(device, name) -> None:
    """log q(source | eta) equals log p(source, eta) minus the marginal log p(eta)."""
    model = make_model("iftm(source='gaussian')").to(device)
    batch = make_batch(make_counts(LENGTHS), device)
    trace = trace_of(make_guide(name, model), batch)
    source, eta = (trace.nodes[site]["value"] for site in ("source", "eta"))
    prior = model.prior
    normal = torch.distributions.Normal
    given = normal(prior.loc + source @ prior.mixing.mT, prior.noise_precision.rsqrt())
    joint = normal(0.0, 1.0).log_prob(source).sum(-1) + given.log_prob(eta).sum(-1)
    marginal = torch.distributions.MultivariateNormal(prior.loc, prior.covariance).log_prob(eta)
    torch.testing.assert_close(trace.nodes["source"]["log_prob"], (joint - marginal).detach())


@pytest.mark.slow
@each_pair
def test_svi_starts_documents_at_their_last_solution(family, name) -> None:
    """A second call at nearly the same parameters converges almost at once."""
    guide = make_guide(name, make_model(family), tolerance=1e-6, max_iterations=500)
    if guide.warm_start_rows == "entries":
        pytest.skip("a start for each stored count is not kept")
    batch = make_batch(make_counts((30, 1, 8, 60, 3)))
    iterations: list[int] = []
    solve = guide._solve

    def counted(*args: Any, **settings: Any) -> Any:
        posterior = solve(*args, **settings)
        iterations.append(int(posterior.iterations.sum()))
        return posterior

    guide._solve = counted  # type: ignore[method-assign]
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 1e-9}), Trace_ELBO())
    pyro.set_rng_seed(0)
    svi.step(batch)
    svi.step(batch)
    first, second = iterations
    # A solver takes at least one iteration to find that a document has converged.
    assert second - 5 <= 0.35 * (first - 5)
    # The order and the composition of the batch do not matter.
    svi.step(batch.select(torch.tensor([4, 0])))
    assert iterations[2] <= second
    # Documents of another corpus of the same size start as with a new guide.
    other = make_batch(make_counts((31, 2, 9, 61, 4), seed=1))
    svi.step(other)
    fresh = make_guide(name, guide.model, tolerance=1e-6, max_iterations=500)
    assert iterations[3] == int(fresh.posterior(other).iterations.sum()) > 2 * second


# -- posteriors ----------------------------------------------------------------------------------


@each_pair
def test_a_posterior_uses_the_models_current_parameters(device, family, name) -> None:
    model, batch = make_model(family).to(device), make_batch(make_counts(), device)
    guide = GUIDES[name](model)
    before = guide.posterior(batch).theta_mode()
    if family == "lda":
        more = model.prior.concentration.detach().clone()
        more[0] += 5.0
        model.prior.set_(more)
    else:
        loc = model.prior.loc.detach().clone()
        loc[0] += 3.0
        model.prior.set_(loc=loc)
    after = guide.posterior(batch).theta_mode()
    assert bool((after[:, 0] > before[:, 0]).all())


@each_pair
def test_a_bound_is_below_the_evidence_and_word_counts_cover_all_tokens(
    device, family, name
) -> None:
    """Importance sampling from the prior, unbiased, against the bound: 5 standard errors."""
    model = make_model(family).to(device)
    batch = make_batch(make_counts((6, 1, 3)), device)
    guide = make_guide(name, model, tolerance=1e-8)
    posterior = guide.posterior(batch)
    num_draws = 20_000
    theta = model.theta(prior_draws(model, num_draws, device)[model.prior.latent])
    weights = (torch.log(theta @ model.topics.probs) @ batch.to_csr().to_dense().mT).exp()
    mean, error = weights.mean(0), weights.std(0) / num_draws**0.5
    assert bool((guide.bound(batch, posterior).exp() < mean + 5 * error).all())
    counts = guide.word_counts(batch, posterior)
    assert counts.sum().item() == pytest.approx(10, rel=0.1 if name == "ep" else 1e-9)
    assert bool((counts >= 0).all())


def test_word_counts_follow_the_temperatures() -> None:
    """Responsibilities ∝ t_k φ_kv^T′ of every word, in plain loops."""
    model, counts = make_model("ctm"), make_counts()
    guide, batch = TaylorGuide(model), make_batch(counts)
    temperatures = {"inverse_temperature": 0.5, "inverse_topic_temperature": 0.25}
    posterior = guide.posterior(batch, **temperatures)
    found = guide.word_counts(batch, posterior, SolveOptions(**temperatures)).numpy()
    weights = posterior.topic_weights(0.5).numpy()
    topics = model.topics.probs.detach().numpy() ** 0.25
    expected = np.zeros_like(topics)
    for d, v in np.argwhere(counts):
        joint = weights[d] * topics[:, v]
        expected[:, v] += counts[d, v] * joint / joint.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # The E-step sees the same topics as the M-step.
    cold = guide.posterior(batch, inverse_temperature=0.5)
    assert float((cold.mean - posterior.mean).abs().max()) > 0.1


def test_counts_of_another_dtype_are_converted(device) -> None:
    problem = random_problem()
    guide = TaylorGuide(problem.model(device))
    single, double = (
        guide.posterior(problem.batch("cpu", t)) for t in (torch.float32, torch.float64)
    )
    assert single.mean.dtype == torch.float64
    assert torch.equal(single.mean, double.mean)


@pytest.mark.parametrize("name", ["taylor", "ep"])
def test_call_settings_override_the_guides_settings(name) -> None:
    guide = GUIDES[name](make_model("lda" if name == "ep" else "ctm"), max_iterations=1)
    batch = make_batch(make_counts())
    assert guide.posterior(batch).iterations.max() == 1
    assert guide.posterior(batch, max_iterations=50).iterations.max() > 1
    loose = guide.posterior(batch, tolerance=1e3, max_iterations=50)
    tight = guide.posterior(batch, tolerance=1e-9, max_iterations=50)
    assert loose.iterations.sum() < tight.iterations.sum()


@pytest.mark.parametrize("name", ["vb", "ep"])
def test_both_aspect_guides_support_both_topic_updates(name) -> None:
    model, batch = make_model("lda"), make_batch(make_counts())
    found = [
        GUIDES[name](model, topics_update=update).word_counts(
            batch, GUIDES[name](model).posterior(batch)
        )
        for update in ("bound", "second-order")
    ]
    assert not torch.allclose(*found, rtol=1e-3)
    torch.testing.assert_close(found[0].sum(0), found[1].sum(0), rtol=0.1, atol=0.1)
    with pytest.raises(ConfigError, match="topics_update is 'both'; expected one of bound, second"):
        GUIDES[name](model, topics_update="both")


# -- names, and refused arguments ----------------------------------------------------------------


def test_guides_are_made_by_name() -> None:
    for family, name in PAIRS:
        guide = make_guide(name, make_model(family), tolerance=0.5, max_iterations=7)
        assert type(guide) is GUIDES[name]
        assert guide.name == name
        assert repr(guide).startswith(f"{type(guide).__name__}(")
        assert repr(guide).endswith("tolerance=0.5, max_iterations=7)")
    defaults = {make_guide(None, make_model(family)).name for family in FAMILIES}
    assert defaults == {"taylor", "factor", "vb"}
    with pytest.raises(ConfigError, match=r"posterior is 'gibbs'; expected one of .*taylor"):
        make_guide("gibbs", make_model("ctm"))


#: The guides that go with each kind of prior, written out.
FIT = {
    "ctm": {"taylor", "laplace", "blei-lafferty", "khan-bouchard"},
    "lntm": {"taylor", "laplace", "blei-lafferty", "khan-bouchard"},
    "iftm(source='gaussian')": {"taylor", "laplace", "factor"},
    "iftm(source='laplace')": {"factor"},
    "lda": {"vb", "ep"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_error_for_an_unsuitable_prior_names_suitable_guides(family) -> None:
    model = make_model(family)
    assert {name for f, name in PAIRS if f == family} == FIT[family]
    for name in {name for _, name in PAIRS} - FIT[family]:
        guide = GUIDES[name]
        with pytest.raises(IncompatibleGuideError) as caught:
            guide(model)
        needed, fitting = str(caught.value).split("; guides for it: ")
        prior = type(model.prior).__name__
        assert needed == f"{guide.__name__} needs {guide.needs}, which {prior} does not have"
        assert set(fitting.split(", ")) >= FIT[family]


def test_arguments_of_other_types_than_a_model_are_refused() -> None:
    for model in (SimpleNamespace(prior=nn.Identity()), nn.Linear(2, 2), "ctm"):
        with pytest.raises(
            ConfigError, match=f"expected a topic model, got a {type(model).__name__}"
        ):
            TaylorGuide(model)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected a topic model"):
            require_guide(TaylorGuide(make_model("ctm")), model)  # type: ignore[arg-type]


@each_pair
def test_documents_over_another_vocabulary_are_refused(family, name) -> None:
    guide = GUIDES[name](make_model(family))
    batch = make_batch(np.ones((2, 9)))
    for use in (guide.posterior, guide, guide.bound):
        with pytest.raises(ConfigError, match="over 9 words given to a model of 15"):
            use(batch)
    # Counts of the wrong words would pass for an M-step.
    posterior = guide.posterior(make_batch(np.ones((2, 15))))
    with pytest.raises((ConfigError, RuntimeError), match=r"over 9 words|shape"):
        guide.word_counts(batch, posterior)


@each_pair
def test_an_invalid_start_is_refused(family, name) -> None:
    guide = GUIDES[name](make_model(family))
    batch = make_batch(make_counts())
    what = "stored count" if name == "ep" else "document"
    for start in (torch.ones(2, 3), torch.full((batch.nnz if name == "ep" else 5, 4), torch.nan)):
        with pytest.raises(ConfigError, match=f"init of shape .* a row for each {what}"):
            guide.posterior(batch, start)


def test_a_start_of_theta_must_be_positive() -> None:
    guide = make_guide("vb", make_model("lda"))
    with pytest.raises(ConfigError, match="positive"):
        guide.posterior(make_batch(make_counts()), torch.zeros(5, 4))


def test_a_temperature_is_refused_by_guides_without_annealing() -> None:
    batch = make_batch(make_counts())
    message = r"DirichletGuide only has inverse temperature 1; annealing is for TaylorGuide"
    for temperatures in ({"inverse_temperature": 0.5}, {"inverse_topic_temperature": 0.5}):
        with pytest.raises(ConfigError, match=message):
            make_guide("vb", make_model("lda")).posterior(batch, **temperatures)


@pytest.mark.parametrize(
    "options", [{"tolerance": 0.0}, {"tolerance": float("nan")}, {"max_iterations": 0}]
)
def test_settings_of_zero_or_less_are_refused(options) -> None:
    with pytest.raises(ConfigError, match="expected both positive"):
        TaylorGuide(random_problem().model(), **options)
