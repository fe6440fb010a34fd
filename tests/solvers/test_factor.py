"""Solvers of independent factor models against bounds written out and against dense solvers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import factor as oracle
from oracles.factor import FactorProblem, random_factor_problem
from scipy import optimize
from scipy.special import softmax
from support.problems import make_batch

from torch_lntm.latents import NormalSpace
from torch_lntm.noise import document_keys
from torch_lntm.posteriors import FactorPosterior, LowRankPosterior
from torch_lntm.solvers.blei_lafferty import blei_lafferty
from torch_lntm.solvers.bounds import gaussian_bound
from torch_lntm.solvers.factor import factor, update_mean
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.taylor import taylor

SOURCES = pytest.mark.parametrize("source", ["gaussian", "laplace"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])

#: Cost of the dual for a source without data, in nats.
DUAL_COST = math.log(2) + 0.5 - 0.5 * math.log(2 * math.pi)


def arguments(
    problem: FactorProblem,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    **options: float,
) -> tuple[tuple, SolveOptions]:
    """Batch, topics and options of a solver, by default with tight tolerances."""
    topics = torch.from_numpy(problem.topics).to(device, dtype)
    loc = torch.from_numpy(problem.loc).to(device, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    settings = SolveOptions(loc.expand(len(problem.counts), -1), tolerance, 2000)
    return (make_batch(problem.counts, device, dtype), topics), settings._replace(**options)


def solve(
    problem: FactorProblem,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    **options: float,
) -> FactorPosterior:
    data, settings = arguments(problem, device, dtype, **options)
    return factor(*data, problem.space(device, dtype), settings)


def parts(posterior: FactorPosterior) -> list[tuple[np.ndarray, ...]]:
    """Mean and variance of eta, mean and covariance of the sources, of each document."""
    fields = ("mean", "variance", "source_mean", "source_covariance")
    arrays = (getattr(posterior, field).cpu().double().numpy() for field in fields)
    return list(zip(*arrays, strict=True))


# The bound.


@SOURCES
@DTYPES
def test_covariances_of_sources_have_a_lower_factor(device, source, dtype) -> None:
    post = solve(random_factor_problem(source=source), device, dtype)
    tril = post.source_tril
    assert tril.dtype == post.source_std.dtype == post.mean.dtype == dtype
    assert torch.equal(tril, tril.tril())
    assert bool((tril.diagonal(dim1=1, dim2=2) > 0).all())
    torch.testing.assert_close(tril @ tril.mT, post.source_covariance)
    variance = post.source_covariance.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(post.source_std.square(), variance)


@SOURCES
@DTYPES
def test_the_objective_is_the_bound_of_the_posterior(device, source, dtype) -> None:
    """Holds after an early stop too, and for the bound by way of the divergence."""
    problem = random_factor_problem(source=source)
    exact = {"rel": 1e-5, "abs": 1e-4} if dtype == torch.float32 else {"rel": 1e-10, "abs": 1e-10}
    (batch, topics), _ = arguments(problem, device, dtype)
    for rounds in (1, 3, 2000):
        post = solve(problem, device, dtype, max_iterations=rounds)
        divergences = post.kl().tolist()
        bounds = gaussian_bound(batch, topics, post, "tangent").tolist()
        for d, q in enumerate(parts(post)):
            expected = oracle.bound(*q, problem.counts[d], problem)
            assert post.objective[d].item() == pytest.approx(expected, **exact)
            assert bounds[d] == pytest.approx(expected, **exact)
            assert divergences[d] == pytest.approx(oracle.divergence(*q, problem), **exact)


@pytest.mark.slow
@SOURCES
def test_every_round_raises_the_bound(device, source) -> None:
    problem = random_factor_problem(source=source, scale=3.0, lengths=(30, 1, 0, 200, 3, 8))
    values = [solve(problem, device, max_iterations=n).objective for n in range(1, 16)]
    gains = torch.stack(values).diff(dim=0)
    assert gains.min().item() > -1e-10
    assert gains[0].max().item() > 1e-3


@SOURCES
def test_a_warm_start_with_little_gain_takes_one_round(device, source) -> None:
    problem = random_factor_problem(30, 3, 60, lengths=(60, 200, 500, 40, 0), source=source)
    best = solve(problem, device)
    tolerance = 1e-2 if source == "gaussian" else 0.1  # |η| start anew
    data, settings = arguments(problem, device, tolerance=tolerance)
    again = factor(*data, problem.space(device), settings._replace(start=best.mean))
    assert again.iterations.tolist() == [1] * 5
    assert bool(again.converged.all())
    torch.testing.assert_close(again.objective, best.objective, rtol=0, atol=tolerance)


@DTYPES
def test_the_update_of_the_mean_survives_overflow(device, dtype) -> None:
    """u = e^1e8 and n/λ = 1e8, against bisection of eq. 7 in log t."""
    cases = []
    for precision in (1e-4, 1.0, 1e6):
        for n, length in ((1e4, 1e4), (3.0, 1e4), (0.0, 10.0), (0.0, 0.0)):
            for centre in (-30.0, 0.0, 5.0):
                cases.append((n, centre, 2.0, 0.1, precision, length))
    n, centre, log_normaliser, half, precision, lengths = (
        torch.tensor(column, dtype=dtype, device=device) for column in zip(*cases, strict=True)
    )
    got = [
        update_mean(n[i, None, None], centre[i, None, None], log_normaliser[i, None],
                    half[i, None, None], precision[i, None], lengths[i, None]).item()
        for i in range(len(cases))
    ]  # fmt: skip
    for value, (n_k, c, log_xi, h, lam, length) in zip(got, cases, strict=True):

        def slope(x: float, n_k=n_k, c=c, log_xi=log_xi, h=h, lam=lam, length=length) -> float:
            rate = length * np.exp(min(x + h - log_xi, 600))
            return n_k - rate - lam * (x - c)

        expected = optimize.brentq(slope, -1e4, 1e9, xtol=1e-13, rtol=1e-14)
        tolerance = 2e-5 if dtype == torch.float32 else 1e-11
        assert value == pytest.approx(expected, rel=tolerance, abs=tolerance)


@SOURCES
def test_optimum_against_direct_maximisation(device, source) -> None:
    problem = random_factor_problem(4, 2, lengths=(30, 2, 0), source=source)
    post = solve(problem, device)
    rng = np.random.default_rng(0)
    for d, (x, variance, s, covariance) in enumerate(parts(post)):
        lower = np.linalg.cholesky(covariance)
        lower[np.diag_indices(2)] = np.log(np.diag(lower))
        best = np.concatenate([x, np.log(variance), s, lower[np.tril_indices(2)]])

        def loss(parameters: np.ndarray, d: int = d) -> float:
            root = np.zeros((2, 2))
            root[np.tril_indices(2)] = parameters[10:]
            root[np.diag_indices(2)] = np.exp(np.diag(root))
            q = (parameters[:4], np.exp(parameters[4:8]), parameters[8:10], root @ root.T)
            return -oracle.bound(*q, problem.counts[d], problem)

        found = optimize.minimize(loss, best + 0.2 * rng.normal(size=13), method="BFGS")
        assert -found.fun == pytest.approx(post.objective[d].item(), abs=1e-6)
        np.testing.assert_allclose(found.x, best, atol=5e-3)


@SOURCES
def test_without_mixing_the_posterior_is_blei_laffertys(device, source) -> None:
    problem = random_factor_problem(source=source, num_sources=3)
    problem.mixing[:] = 0.0
    post = solve(problem, device)
    data, settings = arguments(problem, device)
    loc = torch.from_numpy(problem.loc).to(device)
    noise = torch.from_numpy(problem.noise_precision).to(device)
    other = blei_lafferty(*data, NormalSpace(loc, noise.rsqrt().diag()), settings)
    torch.testing.assert_close(post.mean, other.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(post.variance, other.variance, rtol=1e-6, atol=1e-6)
    cost = 3 * DUAL_COST if source == "laplace" else 0.0
    torch.testing.assert_close(post.objective, other.objective - cost, rtol=1e-9, atol=1e-9)
    assert pytest.approx(0.27421, abs=1e-5) == DUAL_COST


# Extremes.


@SOURCES
@DTYPES
def test_empty_documents(device, source, dtype) -> None:
    problem = random_factor_problem(source=source, lengths=(0, 30))
    post = solve(problem, device, dtype)
    mean, variance, s, _ = parts(post)[0]
    np.testing.assert_allclose(mean, problem.loc, rtol=1e-6)
    np.testing.assert_allclose(variance, 1 / problem.noise_precision, rtol=1e-6)
    np.testing.assert_allclose(s, 0, atol=1e-7)
    assert post.objective[0].item() < -0.1
    alone = solve(random_factor_problem(source=source, lengths=(0,)), device, dtype)
    assert bool(alone.converged.all())


def extreme_problem(source: str) -> FactorProblem:
    """Noise precisions 1e-4 … 1e6, 200 topics, 50 sources; some documents of one word."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(300, 0.1), 200) + 1e-6
    topics /= topics.sum(1, keepdims=True)
    theta = rng.dirichlet(np.full(200, 0.05), 4)
    counts = [rng.multinomial(n, p @ topics) for n, p in zip((150, 20, 1, 0), theta, strict=True)]
    counts.append(np.where(np.arange(300) == 7, 5000, 0))
    noise = rng.permutation(np.logspace(-4, 6, 200))
    mixing = rng.normal(size=(200, 50)) * np.logspace(-2, 0, 50)
    return FactorProblem(
        np.stack(counts).astype(float), topics, rng.normal(size=200), mixing, noise, source
    )


@pytest.mark.slow
@SOURCES
def test_ill_conditioned_priors_in_single_precision(device, source) -> None:
    problem = extreme_problem(source)
    options = {"tolerance": 1e-3, "max_iterations": 500}
    single = solve(problem, device, torch.float32, **options)
    # A wide prior has many local optima. Double precision starts at the single-precision optimum.
    double = solve(problem, device, start=single.mean.double(), **options)
    cold = solve(problem, device, **options)
    for post in (single, double, cold):
        assert bool(post.converged.all())
        for field in ("mean", "std", "source_mean", "source_tril", "objective"):
            assert bool(getattr(post, field).isfinite().all())
    torch.testing.assert_close(single.objective, double.objective, rtol=1e-4, atol=0.1)
    torch.testing.assert_close(single.theta_mode().double(), double.theta_mode(), rtol=0, atol=0.05)


def test_low_rank_taylor_is_accurate_in_single_precision(device) -> None:
    """The mode equals double precision. The covariance equals dense algebra at this mean."""
    problem = extreme_problem("gaussian")
    options = {"tolerance": 1e-3, "max_iterations": 500}
    data, settings = arguments(problem, device, torch.float32, **options)
    low = taylor(*data, problem.space(device, torch.float32), settings)
    assert bool(low.converged.all())
    data, settings = arguments(problem, device, start=low.mean.double(), **options)
    double = taylor(*data, problem.space(device), settings)
    modes = (post.objective + 0.5 * post.log_det for post in (low, double))
    torch.testing.assert_close(*modes, rtol=1e-5, atol=1e-3)
    root = np.linalg.cholesky(problem.covariance)
    for d, counts in enumerate(problem.counts):
        g = softmax(low.mean[d].double().tolist())
        centred = root - g @ root
        whitened = np.eye(200) + centred.T @ (counts.sum() * g[:, None] * centred)
        covariance = root @ np.linalg.solve(whitened, root.T)
        log_det = np.linalg.slogdet(whitened)[1]
        assert low.log_det[d].item() == pytest.approx(log_det, rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(low.variance[d].tolist(), np.diag(covariance), rtol=1e-3)
        z = np.linalg.solve(root, low.mean[d].double().tolist() - problem.loc)
        kl = 0.5 * (z @ z + log_det + np.trace(np.linalg.inv(whitened)) - 200)
        assert low.kl()[d].item() == pytest.approx(kl, rel=1e-3, abs=1e-3)


# Moments and draws.


@SOURCES
def test_moments(device, source) -> None:
    post = solve(random_factor_problem(source=source), device)
    square, outer = np.zeros(5), np.zeros((5, 5))
    source_sum, eta_source, source_outer = np.zeros(2), np.zeros((5, 2)), np.zeros((2, 2))
    for x, variance, s, covariance in parts(post):
        square += x**2 + variance
        outer += np.outer(x, x) + np.diag(variance)
        source_sum += s
        eta_source += np.outer(x, s)
        source_outer += np.outer(s, s) + covariance
    sums = post.source_sums()
    for found, expected in (
        (post.square_sum(), square),
        (post.outer_sum(), outer),
        (sums.source, source_sum),
        (sums.eta_source, eta_source),
        (sums.outer, source_outer),
    ):
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)
        assert found.dtype == torch.float64


@pytest.mark.parametrize("name", ["factor", "low-rank", "dense"])
def test_draws_have_the_posteriors_moments(device, name) -> None:
    problem = random_factor_problem(lengths=(30, 0, 5))
    data, settings = arguments(problem, device)
    space = problem.space(device)
    if name == "dense":
        post = taylor(*data, space.marginal(), settings)
    else:
        post = (factor if name == "factor" else taylor)(*data, space, settings)
    num_draws = 20_000
    samples = post.samples(num_draws, seed=0)
    # Theta up to the shift that softmax drops.
    log_theta = post.theta_samples(num_draws, seed=1).log()
    assert log_theta.shape == (num_draws, 3, 5)
    key = document_keys(2, post.index, num_draws)
    draws = post.draw(key)
    assert draws.dtype == torch.float64
    torch.testing.assert_close(
        draws[:, 1:], post.draw(key[:, 1:], slice(1, None)), rtol=0, atol=1e-12
    )
    centre = torch.eye(5, dtype=torch.float64, device=device) - 0.2
    for values in (samples @ centre, log_theta @ centre, draws @ centre):
        covariance = centre @ post.covariance @ centre
        mean = post.mean @ centre
        gap = values - mean
        second = torch.einsum("sdj,sdk->djk", gap, gap) / num_draws
        variance = covariance.diagonal(dim1=1, dim2=2)
        # Normal: sd of the mean V/S, of second moments (V_jj V_kk + V_jk²)/S. At 6 sd over
        # 3 × (15 + 45) numbers the false-failure rate is 4e-7.
        assert bool((gap.mean(0).abs() < 6 * (variance / num_draws).sqrt()).all())
        spread = variance[:, :, None] * variance[:, None, :] + covariance.square()
        assert bool(((second - covariance).abs() < 6 * (spread / num_draws).sqrt()).all())


def test_sources_given_eta_are_exact(device) -> None:
    """Against conditioning the joint normal of sources and eta."""
    problem = random_factor_problem()
    eta = torch.randn(3, 2, 5, dtype=torch.float64, device=device)
    mean, tril = problem.space(device).source_posterior(eta)
    gain = problem.mixing.T @ np.linalg.inv(problem.covariance)
    expected = (eta.cpu().numpy() - problem.loc) @ gain.T
    np.testing.assert_allclose(mean.cpu().numpy(), expected, rtol=1e-10)
    covariance = np.eye(2) - gain @ problem.mixing
    np.testing.assert_allclose((tril @ tril.mT).cpu().numpy(), covariance, rtol=1e-10)
    assert torch.equal(tril, tril.tril())


# Taylor and Laplace under the marginal space.


@pytest.mark.parametrize("precision", [1.0, 1e-4, 1e6])
def test_prior_coordinates(device, precision) -> None:
    problem = random_factor_problem()
    problem.noise_precision *= precision
    space = problem.space(device)
    dense = space.marginal()
    covariance = (dense.tril @ dense.tril.mT).cpu().numpy()
    np.testing.assert_allclose(covariance, problem.covariance, rtol=1e-12, atol=1e-12)
    assert space.log_det.item() == pytest.approx(np.linalg.slogdet(problem.covariance)[1])
    eta = torch.randn(4, 5, dtype=torch.float64, device=device)
    z = space.whiten(eta)
    torch.testing.assert_close(space.unwhiten(z), eta, rtol=1e-9, atol=1e-9)
    # The shortest z has the length of the dense prior's z.
    length = dense.whiten(eta).square().sum(-1)
    torch.testing.assert_close(z.square().sum(-1), length, rtol=1e-8, atol=1e-8)
    g = torch.randn(4, 5, dtype=torch.float64, device=device)
    w = torch.randn(4, 7, dtype=torch.float64, device=device)
    torch.testing.assert_close((space.pull(g) * w).sum(-1), (g * space.push(w)).sum(-1))


@pytest.mark.parametrize("spread", [1.0, 1e3])
def test_low_rank_taylor_equals_dense_taylor(device, spread) -> None:
    problem = random_factor_problem(lengths=(30, 1, 0, 60, 3))
    problem.noise_precision[::2] *= spread
    problem.noise_precision[1::2] /= spread
    data, settings = arguments(problem, device)
    space = problem.space(device)
    low, dense = (taylor(*data, p, settings) for p in (space, space.marginal()))
    assert isinstance(low, LowRankPosterior)
    assert low.loading.shape == (5, 5, 3)
    close = {"rtol": 1e-6, "atol": 1e-7}
    for got, expected in (
        (low.mean, dense.mean),
        (low.covariance, dense.covariance),
        (low.scale_tril, dense.scale_tril),
        (low.variance, dense.variance),
        (low.covariance_sum(), dense.covariance.sum(0)),
        (low.objective, dense.objective),
        (low.kl(), dense.kl()),
    ):
        torch.testing.assert_close(got, expected, **close)
    assert low.source_sums() is None
    torch.testing.assert_close(low.square_sum(), dense.outer_sum().diagonal(), **close)
    # An empty document keeps the space.
    np.testing.assert_allclose(low.covariance[2].tolist(), problem.covariance, rtol=1e-9)
    assert low.kl()[2].item() == pytest.approx(0, abs=1e-9)
    assert low.objective[2].item() == pytest.approx(0, abs=1e-9)


def test_laplace_under_a_factor_prior_equals_dense_laplace(device) -> None:
    problem = random_factor_problem(lengths=(30, 1, 0, 60, 3))
    data, settings = arguments(problem, device)
    space = problem.space(device)
    got, expected = (laplace(*data, p, settings) for p in (space, space.marginal()))
    for field in ("mean", "covariance", "objective"):
        torch.testing.assert_close(
            getattr(got, field), getattr(expected, field), rtol=1e-6, atol=1e-7
        )
    torch.testing.assert_close(got.kl(), expected.kl(), rtol=1e-6, atol=1e-7)
    assert torch.equal(got.space.tril, space.marginal().tril)
