"""Guides: the Pyro face of the solvers, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from oracles.problems import make_batch, random_problem
from pyro import poutine
from torch import nn

from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import GUIDES, TaylorGuide, make_guide

ALL = pytest.mark.parametrize("name", GUIDES)


@ALL
@pytest.mark.parametrize("anchored", [False, True])
def test_a_guide_emits_its_posterior_at_the_model_s_site(device, name, anchored) -> None:
    problem = random_problem(anchored=anchored, lengths=(30, 1, 0, 8))
    model = problem.model(device)
    batch = make_batch(problem.counts, device, corpus_size=12)
    guide = make_guide(name, model, tolerance=1e-8)
    pyro.set_rng_seed(0)
    trace = poutine.trace(guide).get_trace(batch)
    trace.compute_log_prob()
    site = trace.nodes["eta"]
    posterior = guide.posterior(batch)
    assert site["value"].shape == (4, model.latent_dim)
    torch.testing.assert_close(site["unscaled_log_prob"], posterior.log_prob(site["value"]))
    torch.testing.assert_close(site["log_prob"], 3 * site["unscaled_log_prob"])
    torch.testing.assert_close(site["fn"].mean, posterior.mean)
    # The model replays it: same plate, same site, same shapes.
    replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace(batch)
    assert torch.equal(replayed.nodes["eta"]["value"], site["value"])
    assert not site["value"].requires_grad
    assert len(pyro.get_param_store()) == 0


@ALL
def test_a_posterior_follows_the_model_s_present_parameters(device, name) -> None:
    problem = random_problem()
    model, batch = problem.model(device), problem.batch(device)
    guide = GUIDES[name](model)
    before = guide.posterior(batch).mean
    model.prior.set_(loc=torch.from_numpy(problem.loc + np.array([3.0, 0, 0, 0])))
    after = guide.posterior(batch).mean
    assert bool((after[:, 0] > before[:, 0] + 0.1).all())


def test_counts_of_another_dtype_are_converted(device) -> None:
    problem = random_problem()
    guide = TaylorGuide(problem.model(device))
    single, double = (
        guide.posterior(problem.batch("cpu", t)) for t in (torch.float32, torch.float64)
    )
    assert single.mean.dtype == torch.float64
    assert torch.equal(single.mean, double.mean)


@ALL
def test_call_settings_override_the_guide_s(name) -> None:
    problem = random_problem(scale=10.0)
    guide = GUIDES[name](problem.model(), max_iterations=1)
    batch = problem.batch()
    assert guide.posterior(batch).iterations.max() == 1
    assert guide.posterior(batch, max_iterations=50).iterations.max() > 1
    loose = guide.posterior(batch, tolerance=1e3, max_iterations=50)
    tight = guide.posterior(batch, tolerance=1e-9, max_iterations=50)
    assert loose.iterations.sum() < tight.iterations.sum()


@ALL
def test_names(name) -> None:
    model = random_problem().model()
    guide = make_guide(name, model, tolerance=0.5, max_iterations=7)
    assert type(guide) is GUIDES[name]
    assert guide.name == name
    assert repr(guide) == f"{type(guide).__name__}(tolerance=0.5, max_iterations=7)"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="posterior 'gibbs'; expected one of taylor, laplace"):
        make_guide("gibbs", random_problem().model())


@ALL
@pytest.mark.parametrize(
    "model", [SimpleNamespace(prior=nn.Identity()), nn.Linear(2, 2), SimpleNamespace(prior=None)]
)
def test_a_model_without_a_logistic_normal_prior_is_refused(name, model) -> None:
    expected = rf"{GUIDES[name].__name__} needs a model with a LogisticNormalPrior; got .*ctm with"
    with pytest.raises(IncompatibleGuideError, match=expected):
        GUIDES[name](model)


@ALL
def test_documents_over_another_vocabulary_are_refused(name) -> None:
    guide = GUIDES[name](random_problem().model())
    batch = make_batch(np.ones((2, 9)))
    for use in (guide.posterior, guide, guide.bound):
        with pytest.raises(ConfigError, match="over 9 words given to a model of 15"):
            use(batch)


@pytest.mark.parametrize(
    "options", [{"tolerance": 0.0}, {"tolerance": float("nan")}, {"max_iterations": 0}]
)
def test_settings_that_are_not_positive_are_refused(options) -> None:
    with pytest.raises(ConfigError, match="expected both positive"):
        TaylorGuide(random_problem().model(), **options)
