"""Annealed importance sampling: its schedules, targets, transitions and weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles.factor import random_factor_problem
from oracles.problems import make_batch, random_problem
from scipy import stats
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.solvers import ais, hmc
from torch_lntm.solvers.factor import FactorPrior
from torch_lntm.solvers.gaussian import GaussianPrior

LENGTHS = (30, 1, 0, 60, 3)


def padded_target(device: torch.device, num_chains: int = 3) -> ais.PaddedTarget:
    problem = random_problem(lengths=LENGTHS)
    tril = torch.linalg.cholesky(torch.from_numpy(problem.covariance)).to(device)
    prior = GaussianPrior(torch.from_numpy(problem.loc).to(device), tril)
    topics = torch.from_numpy(problem.topics).to(device)
    return ais.PaddedTarget(make_batch(problem.counts, device), topics, prior, num_chains)


def dirichlet_target(
    device: torch.device, concentration: float = 0.3, num_chains: int = 3
) -> ais.DirichletTarget:
    problem = random_problem(3, lengths=LENGTHS)
    alpha = concentration * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, device=device)
    topics = torch.from_numpy(problem.topics).to(device)
    batch = make_batch(problem.counts, device)
    return ais.DirichletTarget(batch, topics, ais.GammaCoordinates(alpha), num_chains)


def some_keys(target: hmc.DocumentTarget, seed: int = 0) -> Tensor:
    return hmc.chain_keys(seed, target.batch.index, target.num_chains)


# -- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power", "sigmoid", "linear"])
def test_schedules_rise_from_0_to_1(name: str) -> None:
    values = ais.make_schedule(name, 20)
    assert values.shape == (20,)
    assert values.dtype == torch.float64
    assert float(values[0]) == 0
    assert float(values[-1]) == 1
    assert bool((values.diff() > 0).all())


def test_schedules_are_those_written_down() -> None:
    unit = np.arange(9) / 8
    logistic = 1 / (1 + np.exp(-4 * (2 * unit - 1)))
    sigmoid = (logistic - logistic[0]) / (logistic[-1] - logistic[0])
    expected = {"linear": unit, "power": unit**3, "sigmoid": sigmoid}
    for name, values in expected.items():
        np.testing.assert_allclose(ais.make_schedule(name, 9).numpy(), values, atol=1e-15)
    given = torch.tensor([0.0, 0.25, 1.0])
    assert ais.make_schedule(given, 100).tolist() == given.tolist()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("cosine", "'cosine'; expected power, sigmoid, linear or a tensor"),
        (torch.tensor([0.0, 1.0]), "at least 3"),
        (torch.zeros(3, 2), r"shape \(3, 2\)"),
        (torch.tensor([0.1, 0.5, 1.0]), "from 0.1"),
        (torch.tensor([0.0, 0.5, 0.9]), "rise from 0 to 1"),
        (torch.tensor([0.0, 0.5, 0.5, 1.0]), "each above the one before"),
        (torch.tensor([0.0, torch.nan, 1.0]), "each above the one before"),
    ],
)
def test_schedules_that_cannot_be_used(schedule: str | Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ais.make_schedule(schedule, 10)
    with pytest.raises(ConfigError, match="num_temperatures is 2; expected at least 3"):
        ais.make_schedule("power", 2)


# -- targets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [None, "gaussian", "laplace"])
def test_padding_changes_no_density(sources: str | None, device: torch.device) -> None:
    padded = padded_target(device)
    if sources is not None:
        problem = random_factor_problem(lengths=LENGTHS, source=sources)
        parts = (problem.loc, problem.mixing, problem.noise_precision)
        prior = FactorPrior(*(torch.from_numpy(x).to(device) for x in parts), sources)
        topics = torch.from_numpy(problem.topics).to(device)
        padded = ais.PaddedTarget(make_batch(problem.counts, device), topics, prior, 3)
    plain = hmc.DocumentTarget(padded.batch, padded.topics, padded.prior, 3)
    z = plain.draw_prior(some_keys(plain))
    for got, expected in zip(padded.likelihood(z), plain.likelihood(z), strict=True):
        torch.testing.assert_close(got, expected)
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


@pytest.mark.parametrize("concentration", [0.003, 0.3, 3.0, 300.0])
def test_gamma_coordinates_have_the_density_of_gamma_variates(
    concentration: float, device: torch.device
) -> None:
    """Their law by quadrature of the density, and of draws, against SciPy's."""
    alpha = torch.tensor([concentration], dtype=torch.float64, device=device)
    coordinates = ais.GammaCoordinates(alpha)
    grid = torch.linspace(-12, 12, 60_001, dtype=torch.float64, device=device)[:, None]
    parts = coordinates.log_gamma(grid)
    log_density = (alpha * parts.value - parts.value.exp() + parts.slope.log())[:, 0]
    density = (log_density - torch.lgamma(alpha)).exp() * float(grid[1] - grid[0])
    cdf = density.cumsum(0).cpu().numpy()
    assert cdf[-1] == pytest.approx(1, abs=1e-8)
    law = stats.gamma(concentration)
    x = parts.value[:, 0].cpu().numpy()
    # Where gamma variates can be represented; the sum is half a step late.
    seen = x > -600
    np.testing.assert_allclose(cdf[seen], law.cdf(np.exp(x[seen])), atol=1e-3)
    back = coordinates.whiten(parts.value)
    near = (grid.abs() < 6)[:, 0]
    torch.testing.assert_close(coordinates.unwhiten(back)[near], parts.value[near])
    keys = hmc.chain_keys(0, torch.arange(3000, device=device), 1)[0]
    u = law.cdf(np.exp(coordinates.unwhiten(coordinates.draw(keys)).cpu().numpy()))[:, 0]
    # False-failure rate 1e-6 in each of four cases. Below the smallest number all are equal.
    u = np.where(u > 0, u, law.cdf(1e-300) * np.linspace(0, 1, 3000))
    assert stats.kstest(u, "uniform").pvalue > 1e-6


def test_proportions_determine_coordinates_up_to_their_sum(device: torch.device) -> None:
    alpha = torch.tensor([0.02, 0.5, 3.0], dtype=torch.float64, device=device)
    coordinates = ais.GammaCoordinates(alpha)
    keys = hmc.chain_keys(1, torch.arange(4000, device=device), 1)
    theta = torch.softmax(coordinates.unwhiten(coordinates.draw(hmc.fold_in(keys, 0))), -1)
    z = coordinates.draw_given(theta, hmc.fold_in(keys, 1))
    torch.testing.assert_close(torch.softmax(coordinates.unwhiten(z), -1), theta)
    # With theta from the prior, z is from the prior; also where theta was rounded to 0.
    rounded = coordinates.draw_given(theta.float(), hmc.fold_in(keys, 1))
    assert bool((theta.float() == 0).any())
    prior = coordinates.draw(hmc.fold_in(keys, 2))[0].cpu().numpy()
    for values in (z[0].cpu().numpy(), rounded[0].cpu().numpy()):
        for k in range(3):
            # Six tests at 1e-6.
            assert stats.ks_2samp(values[:, k], prior[:, k]).pvalue > 1e-6


# -- transitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "dirichlet"])
def test_transitions_keep_the_tempered_posterior(kind: str, device: torch.device) -> None:
    """Moments at t = ½ against integration over prior draws; z-tests of chains at |z| < 5."""
    make = padded_target if kind == "normal" else dirichlet_target
    few = make(device, num_chains=1)
    target = replace(few, num_chains=300)
    keys = some_keys(target)
    schedule = [0.0, 0.5, 1.0]
    transitions = ais.tune(target, schedule, keys, 5)
    state = hmc.init(target, target.draw_prior(hmc.fold_in(keys, 7)))
    for t in range(25):
        key = hmc.fold_in(keys, 100 + t)
        state, info = transitions.move(key, target, state, schedule, 1)
    assert 0.6 < float(info.acceptance.mean()) < 0.95
    theta = target.theta(state.position)
    many = replace(few, num_chains=8000)
    z = many.draw_prior(some_keys(many, 9))
    weights, exact = torch.softmax(0.5 * many.likelihood(z)[0], 0)[..., None], many.theta(z)
    for power in (1, 2):
        draws, expected = theta**power, (weights * exact**power).sum(0)
        noise = (weights * (exact**power - expected)).square().sum(0)
        error = (draws.var(0) / len(draws) + noise).sqrt()
        # At most 40 means a case, at 5 standard errors: false-failure rate 5e-5.
        assert bool(((draws.mean(0) - expected).abs() < 5 * error).all())


def test_transitions_do_not_depend_on_the_chains_that_make_weights(device: torch.device) -> None:
    """Step sizes are functions of the document, the seed and the position alone."""
    target = padded_target(device, num_chains=12)
    keys = some_keys(target)
    schedule = ais.make_schedule("power", 30).tolist()
    transitions = ais.tune(target, schedule, keys, 4)
    before = transitions.log_step_size.clone()
    first = ais.anneal(target, schedule, transitions, keys)
    assert torch.equal(before, transitions.log_step_size)
    fewer = replace(target, num_chains=9)
    assert torch.equal(before, ais.tune(fewer, schedule, keys[:9], 4).log_step_size)
    again = ais.anneal(fewer, schedule, transitions, keys[:9])
    torch.testing.assert_close(again.log_weights, first.log_weights[:9])
    # Linear in the logs between the knots.
    a, b = transitions.knots[3:5]
    steps = torch.stack([transitions.step_size(i) for i in range(a, b + 1)]).log()
    torch.testing.assert_close(steps[0], before[3])
    torch.testing.assert_close(steps[-1], before[4])
    torch.testing.assert_close(steps.diff(dim=0), steps.diff(dim=0)[:1].expand(b - a, -1))


def test_weights_are_written_out(device: torch.device) -> None:
    """Against a loop over temperatures that keeps every state, both ways."""
    target = padded_target(device)
    keys = some_keys(target)
    schedule = [0.0, 0.1, 0.4, 1.0]
    transitions = ais.tune(target, schedule, keys, 3)
    forward = ais.anneal(target, schedule, transitions, keys)
    root = hmc.fold_in(keys, 1)
    state = hmc.init(target, target.draw_prior(hmc.fold_in(root, 0)))
    expected = 0.1 * state.log_likelihood
    for i, width in ((1, 0.3), (2, 0.6)):
        state, _ = transitions.move(hmc.fold_in(root, i), target, state, schedule, i)
        expected = expected + width * state.log_likelihood
    torch.testing.assert_close(forward.log_weights, expected)
    back = ais.anneal(target, schedule, transitions, keys, state.position)
    root = hmc.fold_in(keys, 2)
    expected = 0.6 * state.log_likelihood
    for i, width in ((2, 0.3), (1, 0.1)):
        state, _ = transitions.move(hmc.fold_in(root, i), target, state, schedule, i)
        expected = expected + width * state.log_likelihood
    torch.testing.assert_close(back.log_weights, expected)
    assert bool(forward.moved.any())
    assert float(forward.acceptance.mean()) > 0.5
