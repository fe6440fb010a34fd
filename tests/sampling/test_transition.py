"""Fused transitions against separate leapfrog steps, and against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracles.mixture import mixture_log_likelihood_reference
from support.kernels import without_fused_kernels
from support.problems import make_batch, random_problem
from torch import Tensor

import torch_lntm as lntm
from torch_lntm import noise
from torch_lntm.kernels import fused as fused_kernels
from torch_lntm.latents import DocumentTarget, EtaSpace, LatentSpace, NormalSpace
from torch_lntm.latents.factor import GaussianFactorSpace, LaplaceFactorSpace
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc

DTYPES = [torch.float32, torch.float64]
KINDS = ("free", "anchored", "covariates", "sources", "one topic")


def make_space(kind: str, device: torch.device, dtype: torch.dtype) -> LatentSpace:
    """A prior of two documents."""
    rng = np.random.default_rng(0)
    num_topics = 1 if kind == "one topic" else 5
    dim = num_topics - (kind == "anchored")
    shape = (2, dim) if kind == "covariates" else (dim,)
    loc = torch.from_numpy(rng.normal(size=shape)).to(device, dtype)
    mixing = torch.from_numpy(rng.normal(size=(dim, 2)))
    if kind.endswith("sources"):
        kept = LaplaceFactorSpace if kind == "laplace sources" else GaussianFactorSpace
        return kept(loc, mixing.to(device, dtype), torch.full_like(loc, 2.0))
    covariance = mixing @ mixing.mT + torch.eye(dim)
    tril = torch.linalg.cholesky(covariance).to(device)
    return NormalSpace(loc, tril, anchored=kind == "anchored")


def make_start(
    kind: str, device: torch.device, dtype: torch.dtype = torch.float64, num_chains: int = 2
) -> tuple[DocumentTarget, dict[str, Any]]:
    """A target of two documents, one of them empty, and the arguments of a transition."""
    space = make_space(kind, device, dtype)
    problem = random_problem(space.num_topics, 7, (12, 0)) if space.num_topics > 1 else None
    counts = problem.counts if problem else np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    topics = problem.topics if problem else np.array([[0.2, 0.3, 0.5]])
    topics = torch.from_numpy(topics).to(device, dtype)
    target = DocumentTarget(space, topics, make_batch(counts, device, dtype))
    keys = noise.document_keys(0, target.batch.index, num_chains)
    return target, {
        "drawn": hmc.draw(noise.fold_in(keys, 1), target),
        "target": target,
        "state": hmc.evaluate(target, target.draw_prior(noise.fold_in(keys, 0))),
        "step_size": 0.1 + 0.2 * noise.uniform(noise.fold_in(keys, 2), 1).squeeze(-1),
        "metric": Metric(),
        "num_steps": 3,
    }


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_transition_equals_separate_steps(kind, dtype, fused, monkeypatch) -> None:
    _, start = make_start(kind, fused, dtype)
    start |= {"inverse_temperature": 0.6, "jitter": 0.3}
    found = hmc.step(**start)
    without_fused_kernels(monkeypatch)
    expected = hmc.step(**start)
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    for got, one_by_one in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        assert got.dtype == one_by_one.dtype
        torch.testing.assert_close(got, one_by_one, rtol=tolerance, atol=tolerance)


# Triton's interpreter computes with NumPy, which warns of infinite trajectories.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fused_transition_accepts_rejects_and_diverges_like_separate_steps(
    fused: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, start = make_start("free", fused, num_chains=40)
    sizes = torch.linspace(0.5, 2.6, 40, dtype=torch.float64, device=fused)
    sizes[-3:] = torch.tensor([1e3, 1e60, 1e200])
    start["step_size"] = sizes[:, None]
    state, info = hmc.step(**start)
    without_fused_kernels(monkeypatch)
    expected_state, expected = hmc.step(**start)
    assert torch.equal(info.accepted, expected.accepted)
    assert torch.equal(info.divergent, expected.divergent)
    assert 10 < int(info.accepted.sum()) < 70
    assert bool(info.divergent[-3:].all())
    assert not bool(info.divergent[:20].any())
    sound = ~info.divergent
    torch.testing.assert_close(info.acceptance, expected.acceptance)
    torch.testing.assert_close(info.energy_error[sound], expected.energy_error[sound])
    for got, one_by_one in zip(state, expected_state, strict=True):
        torch.testing.assert_close(got, one_by_one)
    for new, old in zip(state, start["state"], strict=True):
        assert torch.equal(new[~info.accepted], old[~info.accepted])


def test_a_fused_transition_equals_steps_with_autograd_gradients(fused: torch.device) -> None:
    """The proposal is always accepted."""
    target, start = make_start("anchored", fused, num_chains=1)
    start["drawn"] = start["drawn"]._replace(
        acceptance_uniform=torch.zeros_like(start["drawn"].acceptance_uniform)
    )
    space = target.space
    assert isinstance(space, EtaSpace)

    def log_likelihood(z: Tensor) -> Tensor:
        eta = space.loc + z @ space.tril.mT
        theta = torch.softmax(torch.cat([eta, torch.zeros_like(eta[:, :1])], -1), -1)
        return mixture_log_likelihood_reference(theta, target.topics, target.batch)

    def slope(z: Tensor) -> Tensor:
        z = z.clone().requires_grad_()
        log_joint = log_likelihood(z).sum() - 0.5 * z.square().sum()
        return torch.autograd.grad(log_joint, z)[0]

    z, r = start["state"].position[0], start["drawn"].momentum[0]
    before = log_likelihood(z) - 0.5 * (z.square() + r.square()).sum(-1)
    epsilon = start["step_size"][0][:, None]
    for _ in range(start["num_steps"]):
        r = r + 0.5 * epsilon * slope(z)
        z = z + epsilon * r
        r = r + 0.5 * epsilon * slope(z)
    end, info = hmc.step(**start)
    after = log_likelihood(z) - 0.5 * (z.square() + r.square()).sum(-1)
    torch.testing.assert_close(info.energy_error[0], before - after)
    torch.testing.assert_close(end.position[0], z)
    torch.testing.assert_close(end.log_prior[0], hmc.evaluate(target, z[None]).log_prior[0])
    torch.testing.assert_close(end.log_likelihood[0], log_likelihood(z))
    torch.testing.assert_close(end.likelihood_gradient[0], slope(z) + z)


@pytest.mark.parametrize("reason", ["laplace sources", "dense metric", "large map", "not asked"])
def test_unsupported_transitions_take_separate_steps(reason, triton, monkeypatch) -> None:
    kind = reason if reason.endswith("sources") else "free"
    target, start = make_start(kind, triton)
    without_fused_kernels(monkeypatch)
    expected = hmc.step(**start)[0].position
    if reason != "not asked":
        monkeypatch.setenv("LNTM_TRITON", "1")
    if reason == "dense metric":
        unit = torch.eye(target.dim, dtype=torch.float64, device=triton)
        start["metric"] = Metric(unit)
    if reason == "large map":
        monkeypatch.setattr(fused_kernels, "MAX_LOADING", 24)
    monkeypatch.delattr(fused_kernels, "transition")
    torch.testing.assert_close(hmc.step(**start)[0].position, expected)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*never moved:torch_lntm.errors.ConvergenceWarning")
def test_monte_carlo_em_with_fused_transitions_gives_equal_fits(triton, monkeypatch) -> None:
    problem = random_problem(3, 12, (20, 9, 15, 12))
    corpus = lntm.Corpus.from_matrix(problem.counts)

    def fit(setting: str) -> lntm.models.TopicModel:
        monkeypatch.setenv("LNTM_TRITON", setting)
        model = problem.model(triton)
        engine = lntm.inference.MonteCarloEM(
            model,
            num_transitions=1,
            num_steps=2,
            max_epochs=3,
            warmup_epochs=1,
            batch_size=2,
            start="model",
            progress=False,
        )
        engine.fit(corpus)
        return model

    calls = []
    transition = fused_kernels.transition
    monkeypatch.setattr(
        fused_kernels, "transition", lambda *args: (calls.append(1), transition(*args))[1]
    )
    one_by_one = fit("0")
    assert not calls
    got = fit("1")
    assert calls
    torch.testing.assert_close(got.topics.probs, one_by_one.topics.probs)
    torch.testing.assert_close(got.prior.loc, one_by_one.prior.loc)
    torch.testing.assert_close(got.prior.covariance, one_by_one.prior.covariance)
