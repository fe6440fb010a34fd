"""The ascent in the mean and its rounds with variances, where they must not claim success."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from support.problems import make_batch, random_problem

from torch_lntm.latents import NormalSpace
from torch_lntm.solvers.ascent import Objective, Point, Words, _conjugate_gradients, maximise_mean
from torch_lntm.solvers.khan_bouchard import _sweep
from torch_lntm.solvers.tangent import maximise_tangent_bound


class Scripted(Objective):
    """A function of one coordinate of two empty documents, whose slope is what it says it is."""

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: float

    def evaluate(self, z: torch.Tensor, words: Words | None = None) -> Point:
        value = self.value(z.double().squeeze(-1))
        return Point(z, value, torch.full_like(z, self.slope), torch.ones_like(z), value, z)

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


def test_a_line_search_that_fails_is_no_convergence() -> None:
    """Every step lowers the function, by far more than rounding, and the slope says otherwise."""
    objective = scripted(lambda z: -1e3 * z, slope=1.0)
    found = maximise_mean(objective, torch.zeros(2, 1), tolerance=1e-6, max_iterations=10)
    assert found.point.z.tolist() == [[0.0], [0.0]]
    assert found.point.value.tolist() == [0.0, 0.0]
    assert found.converged.tolist() == [False, False]
    assert found.iterations.tolist() == [1, 1]


def test_a_step_whose_gain_rounding_hides_is_taken_after_halving_too() -> None:
    # The full step is bad; half of it gains nothing that a value of 1e6 could show.
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


def test_conjugate_gradients_solve_every_document(device) -> None:
    rng = np.random.default_rng(0)
    tril = torch.from_numpy(np.linalg.cholesky(np.diag(np.logspace(-1, 2, 8)) + 0.5)).to(device)
    space = NormalSpace(torch.zeros(8, dtype=torch.float64, device=device), tril)
    p = torch.from_numpy(rng.dirichlet(np.ones(8), 5)).to(device)
    lengths = torch.tensor([0.0, 1.0, 30.0, 1000.0, 5.0], dtype=torch.float64, device=device)
    rhs = torch.from_numpy(rng.normal(size=(5, 8))).to(device)
    rhs[4] = 0.0
    found = _conjugate_gradients(space, p, lengths, rhs, 1e-8, 64)
    factor = space.factor.cpu().numpy()
    for d in range(5):
        q = p[d].cpu().numpy()
        information = np.eye(8)
        information += float(lengths[d]) * factor.T @ (np.diag(q) - np.outer(q, q)) @ factor
        product = information @ found[d].cpu().numpy()
        np.testing.assert_allclose(product, rhs[d].cpu().numpy(), atol=1e-6)


def test_the_prior_s_part_of_the_objective_is_summed_in_double_precision(device) -> None:
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


def test_a_bound_that_falls_is_no_convergence(device) -> None:
    """Variances whose update makes the bound worse."""

    class Growing:
        def __init__(self) -> None:
            self.variance = torch.full((2, 4), 0.1, dtype=torch.float64, device=device)

        def marginal(self, rows: torch.Tensor) -> torch.Tensor:
            return self.variance[rows]

        def bound_terms(self, rows: torch.Tensor) -> torch.Tensor:
            return -self.variance[rows].sum(-1)

        def update(self, rows: torch.Tensor, log_rate: torch.Tensor, index: torch.Tensor) -> None:
            self.variance[rows] *= 2.0

    problem = random_problem(lengths=(30, 8))
    model = problem.model(device)
    batch = problem.batch(device)
    space = model.prior.space(batch)
    found = maximise_tangent_bound(
        batch,
        model.topics.probs.detach(),
        space,
        Growing(),
        start=space.centre.expand(2, -1),
        tolerance=1e-6,
        max_iterations=50,
        temperature=1.0,
    )
    assert found.converged.tolist() == [False, False]
    assert found.iterations.tolist() == [2, 2]


def test_a_sweep_in_single_precision_leaves_no_negative_information(device) -> None:
    """Where the data say nothing, d is 0, which rounding misses on either side."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 6, 6))
    data = torch.from_numpy(rng.gamma(1.0, size=(20, 6))).float().to(device)
    precision = np.linalg.inv(root @ root.transpose(0, 2, 1) + 0.1 * np.eye(6))
    precision[:, range(6), range(6)] += data.cpu().double().numpy()
    covariance = torch.from_numpy(np.linalg.inv(precision)).float().to(device)
    _sweep(covariance, data, torch.full((20, 6), -60.0, device=device), exponent=0.5)
    assert bool((data >= 0).all())
    assert float(data.max()) < 1e-4
