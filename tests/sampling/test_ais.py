"""Annealed importance sampling: its schedules, targets, transitions and weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles.factor import random_factor_problem
from support.problems import make_batch, random_problem
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget, GammaSpace
from torch_lntm.sampling import ais, hmc

LENGTHS = (30, 1, 0, 60, 3)


def padded_target(device: torch.device, source: str | None = None) -> DocumentTarget:
    problem: Any = random_problem(lengths=LENGTHS)
    if source is not None:
        problem = random_factor_problem(lengths=LENGTHS, source=source)
    topics, batch = torch.from_numpy(problem.topics).to(device), make_batch(problem.counts, device)
    return DocumentTarget(problem.space(device), topics, batch, padded=True)


def dirichlet_target(device: torch.device, concentration: float = 0.3) -> DocumentTarget:
    problem = random_problem(3, lengths=LENGTHS)
    alpha = concentration * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, device=device)
    topics = torch.from_numpy(problem.topics).to(device)
    batch = make_batch(problem.counts, device)
    return DocumentTarget(GammaSpace(alpha), topics, batch, padded=True)


def some_keys(target: DocumentTarget, num_chains: int = 3, seed: int = 0) -> Tensor:
    return noise.document_keys(seed, target.batch.index, num_chains)


# -- schedules -----------------------------------------------------------------------------------


def test_schedules_equal_their_formulas() -> None:
    unit = np.arange(9) / 8
    logistic = 1 / (1 + np.exp(-4 * (2 * unit - 1)))
    sigmoid = (logistic - logistic[0]) / (logistic[-1] - logistic[0])
    np.testing.assert_allclose(ais.make_schedule(9, from_prior=True), unit**3, atol=1e-15)
    np.testing.assert_allclose(ais.make_schedule(9, from_prior=False), sigmoid, atol=1e-15)


# -- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, "gaussian", "laplace"])
def test_padding_changes_no_density(source: str | None, device: torch.device) -> None:
    padded = padded_target(device, source)
    plain = replace(padded, padded=False)
    for num_chains in (3, 2):
        z = plain.draw_prior(some_keys(plain, num_chains))
        torch.testing.assert_close(padded.log_joint(z), plain.log_joint(z))
        torch.testing.assert_close(padded.likelihood(z), plain.likelihood(z))
        torch.testing.assert_close(padded.likelihood_gradient(z), plain.likelihood_gradient(z))


@pytest.mark.parametrize("concentration", [0.01, 1.0, 100.0])
def test_gradients_of_the_dirichlet_target(concentration: float, device: torch.device) -> None:
    target = dirichlet_target(device, concentration)
    z = target.draw_prior(some_keys(target))
    h = 1e-6
    for k in range(3):
        step = h * torch.eye(3, dtype=z.dtype, device=device)[k]
        for density, gradient in (
            (target.log_prior, target.prior_gradient(z)),
            (lambda z: target.likelihood(z)[0], target.likelihood_gradient(z)),
        ):
            slope = (density(z + step) - density(z - step)) / (2 * h)
            torch.testing.assert_close(gradient[..., k], slope, rtol=1e-4, atol=1e-4)


# -- transitions ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("kind", ["normal", "dirichlet"])
def test_transitions_keep_the_tempered_posterior(kind: str, device: torch.device) -> None:
    """Moments at t = ½ against integration over prior draws; z-tests of chains at |z| < 5."""
    make = padded_target if kind == "normal" else dirichlet_target
    target = make(device)
    keys = some_keys(target, 300)
    schedule = [0.0, 0.5, 1.0]
    transitions = ais.tune(target, schedule, keys, 5)
    state = hmc.init(target, target.draw_prior(noise.fold_in(keys, 7)))
    for t in range(25):
        key = noise.fold_in(keys, 100 + t)
        state, info = transitions.move(key, target, state, schedule, 1)
    assert 0.6 < float(info.acceptance.mean()) < 0.95
    theta = target.theta(state.position)
    z = target.draw_prior(some_keys(target, 8000, seed=9))
    weights, exact = torch.softmax(0.5 * target.likelihood(z)[0], 0)[..., None], target.theta(z)
    for power in (1, 2):
        draws, expected = theta**power, (weights * exact**power).sum(0)
        of_weights = (weights * (exact**power - expected)).square().sum(0)
        error = (draws.var(0) / len(draws) + of_weights).sqrt()
        # At most 40 means per case, at 5 standard errors: false-failure rate 5e-5.
        assert bool(((draws.mean(0) - expected).abs() < 5 * error).all())


def test_tuned_transitions_do_not_depend_on_the_weighted_chains(device: torch.device) -> None:
    """Step sizes are functions of the document, the seed and the position alone."""
    target = padded_target(device)
    keys = some_keys(target, 12)
    schedule = ais.make_schedule(30, from_prior=True)
    transitions = ais.tune(target, schedule, keys, 4)
    before = transitions.log_step_size.clone()
    first = ais.anneal(target, schedule, transitions, keys)
    assert torch.equal(before, transitions.log_step_size)
    assert torch.equal(before, ais.tune(target, schedule, keys[:9], 4).log_step_size)
    again = ais.anneal(target, schedule, transitions, keys[:9])
    torch.testing.assert_close(again.log_weights, first.log_weights[:9])
    # Linear in the logs between the knots.
    a, b = transitions.knots[3:5]
    steps = torch.stack([transitions.step_size(i) for i in range(a, b + 1)]).log()
    torch.testing.assert_close(steps[0], before[3])
    torch.testing.assert_close(steps[-1], before[4])
    torch.testing.assert_close(steps.diff(dim=0), steps.diff(dim=0)[:1].expand(b - a, -1))


def test_weights_equal_their_formula(device: torch.device) -> None:
    """Against a loop over temperatures that stores every state, in both directions."""
    target = padded_target(device)
    keys = some_keys(target)
    schedule = [0.0, 0.1, 0.4, 1.0]
    transitions = ais.tune(target, schedule, keys, 3)
    forward = ais.anneal(target, schedule, transitions, keys)
    root = noise.fold_in(keys, 1)
    state = hmc.init(target, target.draw_prior(noise.fold_in(root, 0)))
    expected = 0.1 * state.log_likelihood
    for i, width in ((1, 0.3), (2, 0.6)):
        state, _ = transitions.move(noise.fold_in(root, i), target, state, schedule, i)
        expected = expected + width * state.log_likelihood
    torch.testing.assert_close(forward.log_weights, expected)
    back = ais.anneal(target, schedule, transitions, keys, state.position)
    root = noise.fold_in(keys, 2)
    expected = 0.6 * state.log_likelihood
    for i, width in ((2, 0.3), (1, 0.1)):
        state, _ = transitions.move(noise.fold_in(root, i), target, state, schedule, i)
        expected = expected + width * state.log_likelihood
    torch.testing.assert_close(back.log_weights, expected)
    assert bool(forward.moved.any())
    assert float(forward.acceptance.mean()) > 0.5


def test_acceptance_is_the_mean_over_transitions(device: torch.device) -> None:
    """Very short steps are nearly all accepted, for any number of temperatures."""
    target = padded_target(device)
    tiny = torch.full((1, len(LENGTHS)), -12.0, dtype=torch.float64, device=device)
    for num_temperatures in (3, 5):
        schedule = ais.make_schedule(num_temperatures, from_prior=True)
        chains = ais.anneal(target, schedule, ais.Transitions(1, [1], tiny), some_keys(target))
        torch.testing.assert_close(
            chains.acceptance, torch.ones_like(chains.acceptance), atol=1e-3, rtol=0
        )
