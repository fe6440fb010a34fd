"""The ascent in the mean and its rounds with variances, in cases of failure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.problems import make_batch, random_problem

from torch_lntm.latents import NormalSpace
from torch_lntm.solvers import ascent
from torch_lntm.solvers.ascent import (
    MeanAscent,
    Objective,
    Point,
    Secant,
    Words,
    _conjugate_gradients,
    _dense_solution,
    maximise_mean,
)
from torch_lntm.solvers.khan_bouchard import _Dual, _Full, _inverse_root, _root
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.tangent import maximise_tangent_bound


class Scripted(Objective):
    """A function of a coordinate of two empty documents, with a slope of the test's choice."""

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: float

    def evaluate(self, z: torch.Tensor, words: Words | None = None) -> Point:
        value = self.value(z.double().squeeze(-1))
        return Point(
            z, value, torch.full_like(z, self.slope), torch.ones_like(z), Words(z, value, z)
        )

    def select(self, rows: torch.Tensor) -> Scripted:
        return scripted(self.value, self.slope, len(rows))


def scripted(
    value: Callable[[torch.Tensor], torch.Tensor], slope: float, num_docs: int = 2
) -> Scripted:
    space = NormalSpace(torch.zeros(1), torch.eye(1, dtype=torch.float64))
    batch = make_batch(np.zeros((num_docs, 3)), dtype=torch.float32)
    objective = Scripted(batch, torch.full((1, 3), 1 / 3), space)
    object.__setattr__(objective, "value", value)
    object.__setattr__(objective, "slope", slope)
    return objective


def test_a_failed_line_search_is_not_convergence() -> None:
    """Every step lowers the function by far more than rounding, against the stated slope."""
    objective = scripted(lambda z: -1e3 * z, slope=1.0)
    found = maximise_mean(objective, torch.zeros(2, 1), tolerance=1e-6, max_iterations=10)
    assert found.point.z.tolist() == [[0.0], [0.0]]
    assert found.point.value.tolist() == [0.0, 0.0]
    assert found.converged.tolist() == [False, False]
    assert found.iterations.tolist() == [1, 1]


def test_a_halved_step_with_a_gain_below_rounding_is_accepted() -> None:
    # The full step is bad. The gain of half the step is below the rounding of a value of 1e6.
    objective = scripted(lambda z: torch.where(z > 0.03, -2e6, -1e6).double(), slope=0.04)
    found = maximise_mean(objective, torch.zeros(2, 1), tolerance=1e-9, max_iterations=1)
    torch.testing.assert_close(found.point.z, torch.full((2, 1), 0.02))
    assert found.point.value.tolist() == [-1e6, -1e6]
    assert found.converged.tolist() == [False, False]


def test_a_failed_search_below_rounding_is_convergence() -> None:
    objective = scripted(lambda z: torch.where(z > 0, -2e6, -1e6).double(), slope=0.04)
    found = maximise_mean(objective, torch.zeros(2, 1), tolerance=1e-9, max_iterations=10)
    assert found.point.z.tolist() == [[0.0], [0.0]]
    assert found.converged.tolist() == [True, True]


@pytest.mark.parametrize("solve", [_conjugate_gradients, _dense_solution])
def test_conjugate_gradients_solve_every_document(device, solve, monkeypatch) -> None:
    monkeypatch.setattr(ascent, "CG_TOLERANCE", 1e-8)
    monkeypatch.setattr(ascent, "CG_STEPS", 64)
    rng = np.random.default_rng(0)
    tril = torch.from_numpy(np.linalg.cholesky(np.diag(np.logspace(-1, 2, 8)) + 0.5)).to(device)
    space = NormalSpace(torch.zeros(8, dtype=torch.float64, device=device), tril)
    p = torch.from_numpy(rng.dirichlet(np.ones(8), 5)).to(device)
    lengths = torch.tensor([0.0, 1.0, 30.0, 1000.0, 5.0], dtype=torch.float64, device=device)
    rhs = torch.from_numpy(rng.normal(size=(5, 8))).to(device)
    rhs[4] = 0.0
    found = solve(space, p, lengths, rhs)
    factor = space.factor.cpu().numpy()
    for d in range(5):
        q = p[d].cpu().numpy()
        information = np.eye(8)
        information += float(lengths[d]) * factor.T @ (np.diag(q) - np.outer(q, q)) @ factor
        product = information @ found[d].cpu().numpy()
        np.testing.assert_allclose(product, rhs[d].cpu().numpy(), atol=1e-6)


@pytest.mark.slow
def test_secants_save_most_steps_if_topics_overlap(device, monkeypatch) -> None:
    problem = random_problem(lengths=(60, 200, 500, 40), scale=3.0)
    batch = problem.batch(device)
    topics = torch.from_numpy(0.1 * problem.topics + 0.9 * problem.topics.mean(0)).to(device)
    space = problem.model(device).prior.space(batch)
    objective = Objective(batch, topics, space)
    options = {"tolerance": 1e-10, "max_iterations": 2000}
    monkeypatch.setattr(ascent, "CG_TOLERANCE", 1e-6)
    start = torch.zeros(4, space.dim, dtype=torch.float64, device=device)
    found = maximise_mean(objective, start, **options)

    def none(before: Point, after: Point) -> Secant:
        nothing = torch.zeros_like(after.z)
        return Secant(nothing, nothing, nothing[:, :1])

    monkeypatch.setattr(Secant, "between", none)
    plain = maximise_mean(objective, start, **options)
    assert bool((found.converged & plain.converged).all())
    torch.testing.assert_close(found.point.value, plain.point.value, rtol=0, atol=1e-6)
    assert int(found.iterations.sum()) < 0.5 * int(plain.iterations.sum())
    assert float(found.point.gradient.norm()) < float(plain.point.gradient.norm())


def test_an_ascent_continued_from_its_secant_equals_an_unbroken_ascent(device) -> None:
    problem = random_problem(lengths=(60, 200, 500, 40), scale=3.0)
    batch = problem.batch(device)
    model = problem.model(device)
    space = model.prior.space(batch)
    objective = Objective(batch, model.topics.probs.detach(), space)
    start = torch.zeros(4, space.dim, dtype=torch.float64, device=device)

    def ascend(steps: int, start: torch.Tensor, **known: object) -> MeanAscent:
        return maximise_mean(objective, start, tolerance=0.0, max_iterations=steps, **known)

    whole, half = ascend(6, start), ascend(3, start)
    rest = ascend(3, half.point.z, words=half.point.words, secant=half.secant)
    torch.testing.assert_close(rest.point.z, whole.point.z, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rest.secant.step, whole.secant.step, rtol=1e-8, atol=1e-12)
    without = ascend(3, half.point.z, words=half.point.words)
    assert float(without.point.value.sum()) < float(whole.point.value.sum())


def test_a_secant_without_a_possible_step_is_dropped() -> None:
    """No halving of the longer second step ends at a point of high values."""

    class Kinked(Scripted):
        def evaluate(self, z: torch.Tensor, words: Words | None = None) -> Point:
            return super().evaluate(z, words)._replace(gradient=1.0 - 1e-6 * z)

    def value(z: torch.Tensor) -> torch.Tensor:
        return torch.where(((z - z.round()).abs() < 1e-5) & (z < 2.5), z, -1e9)

    objective = scripted(value, slope=1.0)
    kinked = Kinked(objective.batch, objective.topics, objective.space)
    object.__setattr__(kinked, "value", objective.value)
    object.__setattr__(kinked, "slope", 1.0)
    for iterations, reached in ((1, 1.0), (2, 1.0), (3, 2.0)):
        found = maximise_mean(kinked, torch.zeros(2, 1), tolerance=0.5, max_iterations=iterations)
        torch.testing.assert_close(found.point.z, torch.full((2, 1), reached), rtol=0, atol=1e-4)
        assert found.converged.tolist() == [False, False]


def test_the_prior_term_is_summed_in_double_precision(device) -> None:
    dim = 50
    space = NormalSpace(
        torch.zeros(dim, device=device), torch.eye(dim, dtype=torch.float64, device=device)
    )
    topics = torch.full((dim, 3), 1 / 3, device=device)
    batch = make_batch(np.zeros((1, 3)), device, torch.float32)
    z = torch.cat([torch.tensor([[3e4]]), torch.full((1, dim - 1), 0.5)], 1).to(device)
    point = Objective(batch, topics, space).evaluate(z)
    assert point.value.tolist() == [-0.5 * (9e8 + 0.25 * (dim - 1))]
    assert torch.equal(point.gradient, -z)


def test_a_falling_bound_is_not_convergence(device) -> None:
    """Variances with an update that lowers the bound."""

    class Growing:
        def __init__(self) -> None:
            self.variance = torch.full((2, 4), 0.1, dtype=torch.float64, device=device)

        def marginal(self, rows: torch.Tensor) -> torch.Tensor:
            return self.variance[rows]

        def bound_terms(self, rows: torch.Tensor) -> torch.Tensor:
            return -self.variance[rows].sum(-1)

        def update(self, rows: torch.Tensor, batch: object, logits: torch.Tensor) -> None:
            self.variance[rows] *= 2.0

    problem = random_problem(lengths=(30, 8))
    model = problem.model(device)
    batch = problem.batch(device)
    space = model.prior.space(batch)
    options = SolveOptions(space.centre.expand(2, -1), tolerance=1e-6, max_iterations=50)
    found = maximise_tangent_bound(batch, model.topics.probs.detach(), space, Growing(), options)
    assert found.converged.tolist() == [False, False]
    assert found.iterations.tolist() == [1, 1]


@pytest.mark.parametrize("variance", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
def test_the_update_of_v_converges_from_distant_starts(device, variance, spread) -> None:
    """Start from equal shares, for priors, lengths and means of many kinds."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    covariance = variance * (root @ root.T / 12 + 0.01 * np.eye(12))
    tril = torch.from_numpy(np.linalg.cholesky(covariance)).to(device)
    space = NormalSpace(torch.zeros(12, dtype=torch.float64, device=device), tril)
    lengths = torch.tensor([1.0, 1e2, 1e4, 1e6] * 4, dtype=torch.float64, device=device)
    logits = torch.from_numpy(rng.normal(scale=spread, size=(16, 12))).to(device)
    dual = _Dual(space, lengths, torch.arange(16, device=device), logits, half=0.5)
    point = dual.at(torch.full_like(logits, -np.log(12.0)))
    dual.minimise_(point, tolerance=1e-6)
    assert bool((point.gap <= 1e-6).all())


def test_the_update_of_v_works_in_single_precision_without_data(device) -> None:
    """With impossible topics V equals the prior covariance."""
    problem = random_problem(lengths=(300, 8))
    batch = problem.batch(device, torch.float32)
    space = problem.model(device, torch.float32).prior.space(batch)
    log_p = torch.full((2, 4), -np.log(4.0), device=device)
    variances = _Full(
        space, log_p, _inverse_root(space, batch.lengths, batch.index, log_p), 1.0, tolerance=1e-6
    )
    logits = torch.tensor([[200.0, 0.0, -200.0, 0.0]], device=device).expand(2, -1)
    rows = torch.arange(2, device=device)
    variances.update(rows, batch, logits)
    only = torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device).expand(2, -1)
    torch.testing.assert_close(variances.log_p.exp(), only)
    precision = torch.linalg.inv(torch.from_numpy(problem.covariance)).expand(2, -1, -1).clone()
    precision[:, 0, 0] += batch.lengths.cpu()
    expected = torch.linalg.inv(precision)
    root = _root(space, variances.whitened).double().cpu()
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-4, atol=1e-5)
