"""Hamiltonian Monte Carlo: its gradients, metrics, integrator, exactness and step sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from oracles.factor import random_factor_problem
from oracles.gaussian import log_likelihood
from scipy import stats
from support.problems import make_batch, random_problem
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import NumericalError
from torch_lntm.latents import DocumentTarget, FactorSpace, NormalSpace
from torch_lntm.latents.factor import LaplaceFactorSpace
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc, step_sizes
from torch_lntm.sampling.step_sizes import DualAveraging, find_step_size
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.taylor import taylor

PRIORS = ("free", "anchored", "gaussian sources", "laplace sources")
each_prior = pytest.mark.parametrize("kind", PRIORS)


def make_target(
    kind: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    lengths: tuple[int, ...] = (30, 1, 0, 60, 3),
) -> DocumentTarget:
    """Documents under a prior of each kind."""
    problem: Any
    if "sources" in kind:
        problem = random_factor_problem(lengths=lengths, source=kind.split()[0])
    else:
        problem = random_problem(lengths=lengths, anchored=kind == "anchored")
    topics = torch.from_numpy(problem.topics).to(device, dtype)
    batch = make_batch(problem.counts, device, dtype)
    return DocumentTarget(problem.space(device, dtype), topics, batch)


def some_keys(target: DocumentTarget, seed: int = 0, num_chains: int = 2) -> Tensor:
    return noise.document_keys(seed, target.batch.index, num_chains)


def start(target: DocumentTarget, num_chains: int = 2) -> hmc.HMCState:
    return hmc.init(target, target.draw_prior(some_keys(target, num_chains=num_chains)))


def momenta(target: DocumentTarget) -> Tensor:
    return noise.normal(some_keys(target, 1), target.dim).to(target.topics.dtype)


def make_metric(target: DocumentTarget) -> Metric:
    """A metric of its own for each document."""
    space, batch = target.space, target.batch
    if isinstance(space, FactorSpace):
        metric = space.unit_metric()
        assert metric is not None
        return metric
    assert isinstance(space, NormalSpace)
    options = SolveOptions(space.loc.expand(batch.num_docs, -1), 1e-8, max_iterations=100)
    posterior = laplace(batch, target.topics, space, options)
    return posterior.metric()


# -- target and metrics --------------------------------------------------------------------------


def reference_log_joint(target: DocumentTarget, z: np.ndarray, document: int) -> np.ndarray:
    """Log prior and log likelihood of one document at z ``(dim,)``, in NumPy."""
    space = target.space
    loc = space.centre.cpu().numpy().astype(float)
    laws = [stats.norm] * len(z)
    if isinstance(space, FactorSpace):
        size = space.num_sources
        eta = loc + space.mixing.cpu().numpy() @ z[:size]
        eta = eta + z[size:] / np.sqrt(space.noise_precision.cpu().numpy())
        if isinstance(space, LaplaceFactorSpace):
            laws[:size] = [stats.laplace] * size
    else:
        assert isinstance(space, NormalSpace)
        eta = loc + space.tril.cpu().numpy() @ z
    if len(eta) < space.num_topics:
        eta = np.append(eta, 0.0)
    log_prior = sum(law.logpdf(x) for law, x in zip(laws, z, strict=True))
    counts = target.batch.to_csr().to_dense()[document].cpu().numpy()
    return np.array([log_prior, log_likelihood(eta, target.topics.cpu().numpy(), counts)])


@pytest.mark.slow
@each_prior
def test_density_and_gradient_equal_their_formulas(kind: str, device: torch.device) -> None:
    target = make_target(kind, device)
    z = target.draw_prior(some_keys(target, num_chains=3))
    state = hmc.evaluate(target, z)
    gradient = target.prior_gradient(z)
    torch.testing.assert_close(target.likelihood_gradient(z), state.likelihood_gradient)
    h = 1e-5
    for chain in range(3):
        for document in range(target.batch.num_docs):
            point = z[chain, document].cpu().numpy()
            expected = reference_log_joint(target, point, document)
            assert float(state.log_prior[chain, document]) == pytest.approx(expected[0])
            assert float(state.log_likelihood[chain, document]) == pytest.approx(expected[1])
            slopes = [
                reference_log_joint(target, point + h * e, document)
                - reference_log_joint(target, point - h * e, document)
                for e in np.eye(target.dim)
            ]
            got = torch.stack([gradient, state.likelihood_gradient], -1)[chain, document]
            np.testing.assert_allclose(
                got.cpu().numpy(), np.stack(slopes) / (2 * h), rtol=1e-5, atol=1e-6
            )


@each_prior
def test_prior_draws_have_the_priors_distribution(kind: str, device: torch.device) -> None:
    target = make_target(kind, device)
    index = torch.arange(3000, device=device)
    z = target.draw_prior(noise.document_keys(0, index, 1))[0].cpu().numpy()
    # At most 7 coordinates in each of 4 priors at 1e-6: false-failure rate 3e-5.
    for entry, values in enumerate(z.T):
        laplacian = kind == "laplace sources" and entry < target.space.num_sources
        assert stats.kstest(values, "laplace" if laplacian else "norm").pvalue > 1e-6
    # Coordinates are independent, and so are their sizes: 91 correlations at 6 standard deviations
    # each, in 4 priors, give 1e-6.
    correlation = np.corrcoef(np.hstack([z, np.abs(z)]).T)
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 6 / np.sqrt(len(z))


def dense(metric: Metric, num_docs: int, dim: int, device: torch.device) -> Tensor:
    """W ``(num_docs, dim, dim)``, checked against its transpose."""
    eye = torch.eye(dim, dtype=torch.float64, device=device)[:, None, :].expand(-1, num_docs, -1)
    factor = metric.push(eye).permute(1, 2, 0)
    torch.testing.assert_close(metric.pull(eye).permute(1, 0, 2), factor)
    return factor


@pytest.mark.parametrize("kind", ["free", "anchored"])
@pytest.mark.parametrize("solve", [taylor, laplace])
def test_posterior_metrics_equal_the_posteriors_covariance(kind, solve, device) -> None:
    target = make_target(kind, device)
    space, batch = target.space, target.batch
    assert isinstance(space, NormalSpace)
    loc = space.loc.expand(batch.num_docs, -1)
    posterior = solve(  # type: ignore[operator]
        batch, target.topics, space, SolveOptions(loc, 1e-8, max_iterations=100)
    )
    factor = dense(posterior.metric(), batch.num_docs, target.dim, device)
    factor = space.tril @ factor
    torch.testing.assert_close(factor @ factor.mT, posterior.covariance)


@each_prior
def test_the_metric_of_eta_gives_eta_unit_mass(kind: str, device: torch.device) -> None:
    target = make_target(kind, device)
    space = target.space
    metric = space.unit_metric()
    assert metric is not None
    factor = dense(metric, 1, target.dim, device)[0]
    latents = space.latents(factor.mT)
    latents["eta"] = latents["eta"] - space.centre
    eye = torch.eye(target.dim, dtype=torch.float64, device=device)
    torch.testing.assert_close(torch.cat(list(latents.values()), 1), eye)


# -- trajectories --------------------------------------------------------------------------------


@each_prior
def test_a_trajectory_returns_when_its_momentum_is_flipped(kind: str, device: torch.device) -> None:
    target = make_target(kind, device)
    state, momentum, metric = start(target), momenta(target), make_metric(target)
    step_size = torch.full_like(state.log_prior, 0.3)
    end, final = hmc.leapfrog(target, state, momentum, step_size, metric, 8)
    assert bool(((end.position - state.position).norm(dim=-1) > 0.1).all())
    back, reverse = hmc.leapfrog(target, end, -final, step_size, metric, 8)
    torch.testing.assert_close(back.position, state.position, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(reverse, -momentum, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", PRIORS[:3])
def test_the_energy_error_is_of_second_order(kind: str, device: torch.device) -> None:
    target = make_target(kind, device)
    state, momentum, metric = start(target), momenta(target), make_metric(target)
    before = hmc.energy(state, momentum)
    errors = []
    for halvings in range(4):
        step_size = torch.full_like(before, 0.05 / 2**halvings)
        end = hmc.leapfrog(target, state, momentum, step_size, metric, 10 * 2**halvings)
        errors.append((hmc.energy(*end) - before).abs().sum())
    for coarse, fine in pairwise(errors):
        assert float(coarse / fine) == pytest.approx(4.0, rel=0.05)


@each_prior
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_draws_stay_exact(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """The truth behind simulated words is a posterior draw; so is it after transitions."""
    num_docs = 4000
    few = make_target(kind, device, dtype)
    keys = noise.document_keys(5, torch.arange(num_docs, device=device), 1)
    truth = few.draw_prior(noise.fold_in(keys, 0))
    theta = few.theta(truth)[0].double().cpu().numpy()
    rng = np.random.default_rng(0)
    words = theta @ few.topics.double().cpu().numpy()
    lengths = rng.integers(0, 15, num_docs)
    probabilities = words / words.sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, probabilities, strict=True)])
    batch = make_batch(counts, device, dtype)
    target = DocumentTarget(few.space, few.topics, batch)
    metric = Metric()
    state = first = hmc.init(target, truth)
    # Large steps, so that the test covers the correction of their errors by rejections.
    step_size = torch.full_like(state.log_prior, 0.9)
    rate = 0.0
    for t in range(6):
        key = noise.fold_in(noise.fold_in(keys, 1), t)
        state, info = hmc.step(hmc.draw(key, target), target, state, step_size, metric, 3)
        rate += float(info.accepted.double().mean()) / 6
    assert 0.2 < rate < 0.9
    assert float((state.position - truth).norm(dim=-1).mean()) > 0.5
    # Up to 7 coordinates and 2 paired means of 8 cases, each at 1e-6: false-failure rate 7e-5.
    for entry, values in enumerate(state.position[0].double().cpu().numpy().T):
        laplacian = kind == "laplace sources" and entry < target.space.num_sources
        assert stats.kstest(values, "laplace" if laplacian else "norm").pvalue > 1e-6
    for name in ("log_prior", "log_likelihood"):
        change = (getattr(state, name) - getattr(first, name))[0].cpu().numpy()
        assert stats.ttest_1samp(change, 0.0).pvalue > 1e-6, name


@each_prior
def test_tempering_is_a_power_of_the_likelihood(kind: str, device: torch.device) -> None:
    """T and counts T times as large are the same target."""
    target = make_target(kind, device)
    metric = make_metric(target)
    step_size = torch.full((2, target.batch.num_docs), 0.2, dtype=torch.float64, device=device)
    key, state = some_keys(target, 4), start(target)
    for heat in (0.25, 0.7):
        got, info = hmc.step(
            hmc.draw(key, target), target, state, step_size, metric, 5, inverse_temperature=heat
        )
        batch = replace(target.batch, counts=target.batch.counts * heat)
        powered = DocumentTarget(target.space, target.topics, batch)
        expected, other = hmc.step(
            hmc.draw(key, powered),
            powered,
            hmc.init(powered, state.position),
            step_size,
            metric,
            5,
        )
        torch.testing.assert_close(got.position, expected.position)
        torch.testing.assert_close(info.energy_error, other.energy_error)
        assert bool((info.acceptance < 1).any(1).all())


def test_a_divergent_trajectory_is_rejected(device: torch.device) -> None:
    target = make_target("free", device)
    state = start(target, 3)
    size = torch.tensor([0.1, 1e3, 1e200], dtype=torch.float64, device=device)
    step_size = size[:, None].expand_as(state.log_prior)
    drawn = hmc.draw(some_keys(target, 2, 3), target)
    new, info = hmc.step(drawn, target, state, step_size, Metric(), 4)
    assert not bool(info.divergent[0].any())
    assert bool(info.divergent[1:].all())
    assert not bool(info.accepted[1:].any())
    assert bool((info.acceptance[1:] == 0).all())
    assert bool(info.energy_error[2].isnan().any())
    for before, after in zip(state, new, strict=True):
        assert torch.equal(before[1:], after[1:])
        assert bool(after.isfinite().all())


@pytest.mark.parametrize(
    ("broken", "named"), [("position", "position"), ("topics", "log likelihood")]
)
def test_a_nonfinite_start_names_the_documents(broken, named, device) -> None:
    target = make_target("free", device)
    batch = replace(target.batch, index=target.batch.index + 100)
    position = target.draw_prior(some_keys(target))
    topics = target.topics.clone()
    if broken == "position":
        position[1, 3, 0] = torch.nan
        documents: tuple[int, ...] = (103,)
    else:
        word = int(target.batch.word_index[target.batch.row_offsets[1]])
        topics[0, word] = torch.nan
        counts = target.batch.to_csr().to_dense()
        documents = tuple((100 + counts[:, word].nonzero().squeeze(-1)).tolist())
    with pytest.raises(NumericalError, match=named) as error:
        hmc.init(replace(target, batch=batch, topics=topics), position)
    assert error.value.documents == documents


# -- step sizes ----------------------------------------------------------------------------------


def test_dual_averaging_equals_the_papers_formulas(device: torch.device) -> None:
    """Hoffman & Gelman 2014, algorithm 5, a chain at a time."""
    rng = np.random.default_rng(0)
    acceptance = rng.uniform(size=(30, 2, 3))
    first = rng.uniform(0.1, 2.0, (2, 3))
    adaptation = DualAveraging.start(torch.from_numpy(first).to(device))
    for values in acceptance:
        adaptation = adaptation.update(torch.from_numpy(values).to(device), 0.65)
    for chain in range(2):
        for document in range(3):
            mu = np.log(10 * first[chain, document])
            h, log_bar = 0.0, 0.0
            for m, alpha in enumerate(acceptance[:, chain, document], start=1):
                h = (1 - 1 / (m + 10)) * h + (0.65 - alpha) / (m + 10)
                log_step = mu - np.sqrt(m) / 0.05 * h
                log_bar = m**-0.75 * log_step + (1 - m**-0.75) * log_bar
            assert float(adaptation.log_step_size[chain, document]) == pytest.approx(log_step)
            assert float(adaptation.log_average[chain, document]) == pytest.approx(log_bar)


def test_first_step_sizes_follow_the_scale_of_each_document(device: torch.device) -> None:
    """Standard normal targets in coordinates 1, 64 and 1/64 times as wide."""
    target = make_target("free", device, lengths=(0, 0, 0))
    scale = torch.tensor([1.0, 1 / 64, 64.0], dtype=torch.float64, device=device)
    eye = torch.eye(target.dim, dtype=torch.float64, device=device)
    metric = Metric(scale[:, None, None] * eye)
    state = start(target, 50)
    found = find_step_size(some_keys(target, 3, 50), target, state, metric)
    relative = (found * scale).log2()
    # Leapfrogs of a standard normal are unstable from step size 2, and good below 1/2.
    assert bool((relative >= -2).all())
    assert bool((relative <= 3).all())


def test_a_chain_keeps_its_step_size_after_crossing_the_threshold(monkeypatch) -> None:
    """Its acceptance at later keys is ignored while the search of other chains continues."""
    script = iter(
        torch.tensor([[[a, b]]])
        for a, b in ((0.9, 0.1), (0.9, 0.2), (0.5, 0.3), (0.95, 0.4), (0.95, 0.9), (0.9, 0.1))
    )
    tried = []

    def step(random: Any, target: Any, state: Any, step_size: torch.Tensor, *rest: Any) -> Any:
        tried.append(step_size.flatten().tolist())
        return state, SimpleNamespace(acceptance=next(script)[0])

    monkeypatch.setattr(step_sizes.hmc, "step", step)
    monkeypatch.setattr(step_sizes.hmc, "draw", lambda key, target: None)
    monkeypatch.setattr(step_sizes.hmc, "is_compiled", lambda target: False)
    state: Any = SimpleNamespace(log_prior=torch.zeros(1, 2, dtype=torch.float64))
    nothing: Any = None
    keys = torch.zeros(1, 2, dtype=torch.int64)
    found = step_sizes.find_step_size(keys, nothing, state, nothing)
    # Doubled until acceptance falls below the threshold, or halved until it exceeds the threshold.
    assert found.tolist() == [[4.0, 1 / 16]]
    assert tried[:3] == [[1.0, 1.0], [2.0, 0.5], [4.0, 0.25]]
    assert len(tried) == 5
