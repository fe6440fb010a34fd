"""Each solver against its equations, and all solvers against their common contract."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from oracles import gaussian as oracle
from pyro import poutine
from scipy.special import softmax
from support.problems import Problem, random_problem
from torch.distributions import MultivariateNormal, kl_divergence

from torch_lntm.guides import GUIDES
from torch_lntm.latents import NormalSpace
from torch_lntm.posteriors import NormalPosterior
from torch_lntm.solvers.khan_bouchard import _Full, _inverse_root, _root

NAMES = [name for name, guide in GUIDES.items() if issubclass(NormalSpace, guide.space_type)]
ALL = pytest.mark.parametrize("name", NAMES)
ANCHORED = pytest.mark.parametrize("anchored", [False, True])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
MODES = pytest.mark.parametrize("name", ["taylor", "laplace"])
VARIATIONAL = pytest.mark.parametrize("name", ["blei-lafferty", "khan-bouchard"])


def solve(
    name: str,
    problem: Problem,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    init: torch.Tensor | None = None,
    **options: float,
) -> NormalPosterior:
    """Posteriors, by default with tight tolerances."""
    settings = {"tolerance": 1e-5 if dtype == torch.float32 else 1e-12, "max_iterations": 2000}
    guide = GUIDES[name](problem.model(device, dtype), **settings)
    return guide.posterior(problem.batch(device, dtype), init, **options)


def arrays(posterior: NormalPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances."""
    return posterior.mean.cpu().numpy(), posterior.covariance.cpu().numpy()


# The common contract.


@ALL
@ANCHORED
@DTYPES
def test_contract(device, name, anchored, dtype) -> None:
    problem = random_problem(lengths=(30, 1, 0, 60), anchored=anchored)
    post = solve(name, problem, device, dtype)
    dim = 4 - anchored
    assert post.mean.shape == (4, dim)
    assert post.mean.dtype == post.covariance.dtype == dtype
    assert post.objective.dtype == torch.float64
    assert bool(post.converged.all())
    assert bool((post.iterations >= 1).all())

    tril = post.scale_tril
    assert torch.equal(tril, tril.tril())
    assert bool((tril.diagonal(dim1=1, dim2=2) > 0).all())
    torch.testing.assert_close(tril @ tril.mT, post.covariance)
    torch.testing.assert_close(post.variance, post.covariance.diagonal(dim1=1, dim2=2))
    total = post.covariance.double().sum(0)
    torch.testing.assert_close(post.covariance_sum(), total, rtol=1e-5, atol=1e-6)

    q = MultivariateNormal(post.mean.double(), post.covariance.double())
    prior = MultivariateNormal(
        torch.from_numpy(problem.loc).to(device), torch.from_numpy(problem.covariance).to(device)
    )
    loose = {"rtol": 2e-4, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(post.kl(), kl_divergence(q, prior), **loose)
    theta = post.theta_mode().double().cpu()
    lift = oracle.lift_matrix(4, anchored)
    expected = softmax(post.mean.double().cpu().numpy() @ lift.T, axis=1)
    np.testing.assert_allclose(theta.numpy(), expected, rtol=1e-5)


@ALL
def test_samples_and_intervals(device, name) -> None:
    post = solve(name, random_problem(), device)
    num_draws = 20_000
    draws = post.samples(num_draws, seed=0)
    assert draws.shape == (num_draws, 5, 4)
    white = torch.linalg.solve_triangular(
        post.scale_tril, (draws - post.mean)[..., None], upper=False
    ).squeeze(-1)
    second = torch.einsum("sdj,sdk->djk", white, white) / num_draws
    spread = ((1 + torch.eye(4, dtype=torch.float64, device=device)) / num_draws).sqrt()
    # 20 means and 50 second moments at 6 standard errors: false-failure rate 1.4e-7.
    assert bool((white.mean(0).abs() < 6 / num_draws**0.5).all())
    assert bool(((second - torch.eye(4).to(second)).abs() < 6 * spread).all())

    lower, upper = post.theta_interval(0.8, num_draws=4000, seed=1)
    assert bool((lower < upper).all())
    fresh = post.theta_samples(4000, seed=2)
    assert torch.equal(fresh, post.theta_samples(4000, seed=2))
    inside = ((fresh > lower) & (fresh < upper)).double().mean(0)
    # Two samples' worth of noise: sd 0.4·sqrt(2/4000) = 0.009; 20 values at 6 sd.
    assert bool(((inside - 0.8).abs() < 6 * 0.009).all())
    torch.testing.assert_close(post.theta_mean(4000, seed=2), fresh.mean(0))


@ALL
@ANCHORED
def test_float32_is_close_to_float64(device, name, anchored) -> None:
    problem = random_problem(lengths=(30, 1, 0, 60, 8), anchored=anchored)
    single, double = (solve(name, problem, device, t) for t in (torch.float32, torch.float64))
    # If the objective is flat to within the single-precision tolerance, means may differ by its
    # root.
    torch.testing.assert_close(single.theta_mode().double(), double.theta_mode(), rtol=0, atol=3e-3)
    torch.testing.assert_close(single.covariance.double(), double.covariance, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(single.objective, double.objective, rtol=1e-5, atol=1e-3)


def ill_conditioned(kind: str) -> Problem:
    num_topics = 200 if kind != "wide" else 5
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(300, 0.1), num_topics) + 1e-6
    topics /= topics.sum(1, keepdims=True)
    if kind == "spectrum":
        rotation = np.linalg.qr(rng.normal(size=(num_topics, num_topics)))[0]
        covariance = rotation * np.logspace(-6, 2, num_topics) @ rotation.T
        covariance = (covariance + covariance.T) / 2
    elif kind == "shared":
        covariance = np.eye(num_topics) + 1e4
    else:
        covariance = 1e3 * np.eye(num_topics)
    theta = rng.dirichlet(np.full(num_topics, 0.05), 4)
    counts = [rng.multinomial(n, p @ topics) for n, p in zip((150, 20, 1, 0), theta, strict=True)]
    return Problem(np.stack(counts).astype(float), topics, np.zeros(num_topics), covariance)


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("kind", ["spectrum", "shared", "wide"])
def test_ill_conditioned_priors_in_single_precision(device, name, kind) -> None:
    """Eigenvalues 1e-6 … 1e2, a common variance of 1e4 for all topics, and 1e3 everywhere."""
    problem = ill_conditioned(kind)
    options = {"tolerance": 1e-6, "max_iterations": 500}
    single = solve(name, problem, device, torch.float32, **options)
    double = solve(name, problem, device, torch.float64, **options)
    for post in (single, double):
        assert bool(post.converged.all())
        assert bool(post.scale_tril.isfinite().all())
        assert bool((post.scale_tril.diagonal(dim1=1, dim2=2) > 0).all())
    torch.testing.assert_close(single.objective, double.objective, rtol=1e-4, atol=0.1)
    torch.testing.assert_close(single.theta_mode().double(), double.theta_mode(), rtol=0, atol=0.05)
    if name in ("taylor", "laplace"):
        torch.testing.assert_close(single.variance.double(), double.variance, rtol=0.05, atol=0.02)


@ALL
@DTYPES
def test_a_posterior_does_not_depend_on_its_batch(device, name, dtype) -> None:
    problem = random_problem(lengths=(30, 1, 0, 60, 8, 200))
    guide = GUIDES[name](problem.model(device, dtype), tolerance=1e-6)
    batch = problem.batch(device, dtype)
    whole = guide.posterior(batch)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    for rows in ([0], [5, 2, 1], [4, 3]):
        part = guide.posterior(batch.select(torch.tensor(rows, device=device)))
        for field in ("mean", "covariance", "objective"):
            got, expected = getattr(part, field), getattr(whole, field)[rows]
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        if dtype == torch.float64:
            assert part.iterations.tolist() == whole.iterations[rows].tolist()


@ALL
@ANCHORED
def test_all_starts_reach_a_unique_solution(device, name, anchored) -> None:
    # Long documents of well-separated topics: nearly every token reveals its topic.
    rng = np.random.default_rng(3)
    topics = np.kron(np.eye(3), rng.dirichlet(np.ones(5), 1)) + 1e-3
    problem = random_problem(3, lengths=(80, 40), anchored=anchored)
    problem.topics = topics / topics.sum(1, keepdims=True)
    cold = solve(name, problem, device)
    warm = solve(name, problem, device, init=cold.mean)
    assert bool((warm.iterations <= cold.iterations).all())
    starts = [cold.mean] + [
        torch.from_numpy(rng.normal(size=cold.mean.shape)) * 3 for _ in range(3)
    ]
    for start in starts:
        other = solve(name, problem, device, init=start.to(device))
        torch.testing.assert_close(other.mean, cold.mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other.objective, cold.objective, rtol=1e-10, atol=1e-8)


@ALL
@ANCHORED
def test_empty_documents(device, name, anchored) -> None:
    problem = random_problem(lengths=(0, 20), anchored=anchored)
    post = solve(name, problem, device)
    mean, covariance = arrays(post)
    np.testing.assert_allclose(mean[0], problem.loc, atol=1e-9)
    if name == "blei-lafferty":
        variances = 1 / np.diag(np.linalg.inv(problem.covariance))
        np.testing.assert_allclose(covariance[0], np.diag(variances), rtol=1e-9)
        expected = oracle.tangent_elbo(
            mean[0],
            covariance[0],
            problem.counts[0],
            problem.topics,
            problem.loc,
            problem.covariance,
        )
        assert post.objective[0].item() == pytest.approx(expected)
        assert expected < -0.01
    else:
        np.testing.assert_allclose(covariance[0], problem.covariance, rtol=1e-9, atol=1e-12)
        assert post.objective[0].item() == pytest.approx(0, abs=1e-9)


@ALL
def test_unconverged_documents_are_reported(device, name) -> None:
    problem = random_problem(scale=20.0)
    post = solve(name, problem, device, max_iterations=1)
    assert not bool(post.converged.any())
    assert post.iterations.tolist() == [1] * 5
    assert bool(post.objective.isfinite().all())


# Taylor and Laplace.


@MODES
@ANCHORED
def test_the_mode_is_a_stationary_point_of_the_traced_joint(device, name, anchored) -> None:
    problem = random_problem(lengths=(30, 1, 0, 60, 3, 8), anchored=anchored, scale=4.0)
    model, batch = problem.model(device), problem.batch(device)
    post = solve(name, problem, device)
    eta = post.mean.clone().requires_grad_()
    program = poutine.condition(model, {"eta": eta})
    log_joint = poutine.trace(program).get_trace(batch).log_prob_sum()
    (gradient,) = torch.autograd.grad(log_joint, eta)
    assert gradient.abs().max().item() < 1e-5
    # The objective is Laplace's formula with the posterior's own precision.
    for d, (m, v) in enumerate(zip(*arrays(post), strict=True)):
        value = oracle.log_joint(
            m, problem.counts[d], problem.topics, problem.loc, problem.covariance
        )
        value += 0.5 * np.linalg.slogdet(2 * np.pi * v)[1]
        assert post.objective[d].item() == pytest.approx(value, rel=1e-9, abs=1e-9)


@ANCHORED
def test_taylor_precision_is_equation_9(device, anchored) -> None:
    problem = random_problem(anchored=anchored)
    post = solve("taylor", problem, device)
    lift = oracle.lift_matrix(4, anchored)
    for m, v, c in zip(*arrays(post), problem.counts, strict=True):
        g = softmax(lift @ m)
        expected = np.linalg.inv(problem.covariance)
        expected += c.sum() * lift.T @ (np.diag(g) - np.outer(g, g)) @ lift
        np.testing.assert_allclose(np.linalg.inv(v), expected, rtol=1e-8, atol=1e-8)


@ANCHORED
def test_laplace_covariance_is_the_inverse_negative_hessian(device, anchored) -> None:
    problem = random_problem(lengths=(30, 1, 60, 3), anchored=anchored)
    post = solve("laplace", problem, device)
    assert not bool(post.fallback.any())
    topics = torch.from_numpy(problem.topics)
    lift = torch.from_numpy(oracle.lift_matrix(4, anchored))
    prior = MultivariateNormal(torch.from_numpy(problem.loc), torch.from_numpy(problem.covariance))
    for d, counts in enumerate(torch.from_numpy(problem.counts)):

        def log_joint(eta: torch.Tensor, counts: torch.Tensor = counts) -> torch.Tensor:
            words = torch.softmax(lift @ eta, 0) @ topics
            return prior.log_prob(eta) + counts @ words.log()

        hessian = torch.autograd.functional.hessian(log_joint, post.mean[d].cpu())
        covariance = torch.linalg.inv(-hessian)
        torch.testing.assert_close(post.covariance[d].cpu(), covariance, rtol=1e-7, atol=1e-9)


def test_laplace_at_a_saddle_keeps_taylors_precision_and_marks_it(device) -> None:
    """Two topics explain the document alike and the prior favours a third.

    Each of the two topics has a mode. Between the modes is a saddle, and symmetry keeps an ascent
    from the prior mean there.
    """
    topics = np.array([[0.9, 0.1], [0.9, 0.1], [0.001, 0.999]])
    counts = np.array([[3.0, 0], [0, 3]])
    problem = Problem(counts, topics, np.array([0.0, 0, 8]), 16 * np.eye(3))
    laplace, taylor = (solve(name, problem, device) for name in ("laplace", "taylor"))
    assert laplace.fallback.tolist() == [True, False]
    torch.testing.assert_close(laplace.covariance[0], taylor.covariance[0])
    assert bool((laplace.variance[1] > 1.0001 * taylor.variance[1]).any())


@cache
def short_documents() -> Problem:
    """Ahmed & Xing's printed iteration fails to converge on some of the documents."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), 10) * 0.99 + 0.01 / 30
    root = rng.normal(size=(10, 10))
    lengths = [1, 2, 3, 5, 8] * 20
    problem = Problem(
        np.stack([rng.multinomial(n, rng.dirichlet(np.ones(30))) for n in lengths]) * 1.0,
        topics,
        3 * rng.normal(size=10),
        5 * (root @ root.T + np.eye(10)),
    )
    settled = [
        oracle.undamped_taylor_converges(c, topics, problem.loc, problem.covariance)
        for c in problem.counts
    ]
    assert settled.count(False) >= 10, "the documents are too easy to show anything"
    return problem


@pytest.mark.slow
@MODES
def test_short_documents_converge_although_the_undamped_iteration_fails(device, name) -> None:
    problem = short_documents()
    default = GUIDES[name](problem.model(device)).posterior(problem.batch(device))
    assert bool(default.converged.all())
    post = solve(name, problem, device)
    assert bool(post.converged.all())
    # The trial steps overshoot by more than a single halving repairs.
    rest = (problem.topics, problem.loc, problem.covariance)
    previous = np.full(100, -np.inf)
    for iterations in range(1, 16):
        means = solve(name, problem, device, max_iterations=iterations).mean.cpu().numpy()
        pairs = zip(means, problem.counts, strict=True)
        value = np.array([oracle.log_joint(m, c, *rest) for m, c in pairs])
        assert np.all(value >= previous - 1e-9)
        previous = value
    precision = np.linalg.inv(problem.covariance)
    for m, c in zip(post.mean.cpu().numpy(), problem.counts, strict=True):
        g = softmax(m)
        gradient = oracle.expected_topic_counts(g, problem.topics, c) - c.sum() * g
        assert np.abs(gradient - precision @ (m - problem.loc)).max() < 1e-4


@VARIATIONAL
def test_a_warm_start_without_gain_takes_one_round(device, name) -> None:
    problem = random_problem(30, 60, lengths=(60, 200, 500, 40, 0), scale=10.0)
    best = solve(name, problem, device)
    again = solve(name, problem, device, init=best.mean, tolerance=1e-2)
    assert again.iterations.tolist() == [1] * 5
    assert bool(again.converged.all())
    torch.testing.assert_close(again.objective, best.objective, rtol=0, atol=1e-2)


# Blei–Lafferty and Khan–Bouchard.


@VARIATIONAL
@ANCHORED
def test_no_small_change_of_the_posterior_raises_the_bound(device, name, anchored) -> None:
    problem = random_problem(anchored=anchored)
    post = solve(name, problem, device)
    rng = np.random.default_rng(0)
    rest = (problem.topics, problem.loc, problem.covariance)
    for d, (m, v, c) in enumerate(zip(*arrays(post), problem.counts, strict=True)):
        best = oracle.tangent_elbo(m, v, c, *rest)
        assert post.objective[d].item() == pytest.approx(best, rel=1e-9, abs=1e-9)
        root = np.linalg.cholesky(v)
        for size in (1e-1, 1e-2):
            shift = size * rng.normal(size=m.shape)
            mix = size * rng.normal(size=v.shape)
            if name == "blei-lafferty":
                mix = np.diag(np.diag(mix))
            assert oracle.tangent_elbo(m + root @ shift, v, c, *rest) < best + 1e-10
            changed = (np.eye(len(m)) + mix) @ root
            assert oracle.tangent_elbo(m, changed @ changed.T, c, *rest) < best + 1e-10


@ANCHORED
@DTYPES
def test_khan_bouchard_equals_blei_lafferty_under_diagonal_priors(device, anchored, dtype) -> None:
    problem = random_problem(anchored=anchored, diagonal=True, scale=2.0)
    full, diagonal = (
        solve(name, problem, device, dtype) for name in ("khan-bouchard", "blei-lafferty")
    )
    tolerance = 1e-6 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(full.mean, diagonal.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(full.covariance, diagonal.covariance, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        full.objective, diagonal.objective, rtol=1e-5, atol=1e-3 * tolerance**0.5
    )


@ANCHORED
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("scale", [0.1, 10.0, 1000.0])
def test_a_khan_bouchard_update_meets_its_fixed_point(device, anchored, temperature, scale) -> None:
    """(T·V)⁻¹ = Σ⁻¹ + N diag softmax(m + diag V / 2), from distant starts."""
    lengths = (1, 7, 100, 3000)
    problem = random_problem(lengths=lengths, anchored=anchored, scale=scale)
    batch, space = problem.batch(device), problem.model(device).prior.space(problem.batch(device))
    means = np.random.default_rng(0).normal(scale=5.0, size=(len(lengths), space.dim))
    log_p = torch.full((len(lengths), 4), -np.log(4.0), dtype=torch.float64, device=device)
    whitened = _inverse_root(space, batch.lengths, batch.index, log_p)
    variances = _Full(space, log_p, whitened, temperature, tolerance=1e-12)
    rows = torch.arange(len(lengths), device=device)
    variances.update(rows, batch, space.lift(torch.from_numpy(means).to(device)))
    prior = np.linalg.inv(problem.covariance)
    root = _root(space, variances.whitened)
    found = (root @ root.mT).cpu().numpy()
    for mean, length, covariance in zip(means, lengths, found, strict=True):
        logits = mean + covariance.diagonal() / (2.0 * temperature)
        p = softmax(np.append(logits, 0.0) if anchored else logits)[: space.dim]
        precision = prior + length * np.diag(p)
        np.testing.assert_allclose(covariance @ precision, np.eye(space.dim), atol=1e-5)


# Ascent.


@pytest.mark.slow
@VARIATIONAL
@ANCHORED
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_every_iteration_raises_the_bound(device, name, anchored, scale) -> None:
    problem = random_problem(lengths=(30, 1, 60, 3, 8), anchored=anchored, scale=scale)
    rest = (problem.topics, problem.loc, problem.covariance)
    previous = np.full(5, -np.inf)
    for iterations in (*range(1, 9), 12, 20, 40):
        post = solve(name, problem, device, max_iterations=iterations)
        documents = zip(*arrays(post), problem.counts, strict=True)
        value = np.array([oracle.tangent_elbo(m, v, c, *rest) for m, v, c in documents])
        np.testing.assert_allclose(post.objective.cpu(), value, rtol=1e-8, atol=1e-8)
        assert np.all(value >= previous - 1e-9)
        previous = value


# Deterministic annealing.


@ALL
@ANCHORED
@pytest.mark.parametrize(
    ("temperature", "topic_temperature", "scale"),
    [(0.3, 0.6, 1.0), (0.5, 1.0, 1.0), (1.0, 0.7, 1.0), (1.0, 1.0, 3.0)],
)
def test_fixed_points(device, name, anchored, temperature, topic_temperature, scale) -> None:
    """Stationarity of E_q log p + H(q)/T: n_T − N·p − Σ⁻¹(m − μ) = 0, V⁻¹ = T(Σ⁻¹ + …).

    At T = 1 these are Khan & Bouchard's eqs 34–37, and Blei–Lafferty's are the diagonal of the
    second.
    """
    problem = random_problem(anchored=anchored, scale=scale)
    post = solve(
        name,
        problem,
        device,
        inverse_temperature=temperature,
        inverse_topic_temperature=topic_temperature,
    )
    assert bool(post.converged.all())
    lift, precision = oracle.lift_matrix(4, anchored), np.linalg.inv(problem.covariance)
    for m, v, c in zip(*arrays(post), problem.counts, strict=True):
        # The returned covariance is T times the tempered optimum, comparable with the untempered
        # one.
        tempered = v / temperature
        half = np.diag(lift @ tempered @ lift.T) / 2
        p = softmax(lift @ m + (half if name in ("blei-lafferty", "khan-bouchard") else 0))
        weights = np.exp(temperature * (lift @ m))
        n = oracle.expected_topic_counts(weights, problem.topics**topic_temperature, c)
        gradient = lift.T @ (n - c.sum() * p) - precision @ (m - problem.loc)
        np.testing.assert_allclose(gradient, 0, atol=1e-4)
        expected = temperature * (precision + np.diag(lift.T @ (c.sum() * p)))
        if name == "khan-bouchard":
            np.testing.assert_allclose(np.linalg.inv(tempered), expected, rtol=1e-5, atol=1e-5)
        elif name == "blei-lafferty":
            np.testing.assert_allclose(1 / np.diag(tempered), np.diag(expected), rtol=1e-5)
