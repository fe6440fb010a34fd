"""The independent factor topic model: its density, its M-step, and its conventions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from support.pairs import make_model, prior_draws, start_prior

from torch_lntm.models import TopicModel, iftm

SOURCES = pytest.mark.parametrize("source", ["gaussian", "laplace"])


def family(source: str) -> str:
    return f"iftm(source={source!r})"


def arrays(model: TopicModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """loc, A and the noise's precision."""
    prior = model.prior
    return tuple(  # type: ignore[return-value]
        x.detach().cpu().numpy().copy() for x in (prior.loc, prior.mixing, prior.noise_precision)
    )


@SOURCES
def test_draws_have_the_prior_distribution(device, source) -> None:
    model = make_model(family(source)).to(device)
    num_docs = 20_000
    latents, again = (prior_draws(model, num_docs, device) for _ in range(2))
    loc, mixing, precision = arrays(model)
    s, eta = (latents[name].detach().cpu().numpy() for name in ("source", "eta"))
    assert all(torch.equal(latents[name], again[name]) for name in latents)
    of_sources = stats.norm if source == "gaussian" else stats.laplace
    # Six Kolmogorov–Smirnov tests: false-failure rate 6e-6.
    for column in s.T:
        assert stats.kstest(column, of_sources.cdf).pvalue > 1e-6
    noise = (eta - loc - s @ mixing.T) * np.sqrt(precision)
    for column in noise.T:
        assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-6
    covariance = model.prior.covariance.detach().cpu().numpy()
    np.testing.assert_allclose(
        covariance, mixing @ mixing.T * of_sources.var() + np.diag(1 / precision)
    )


@SOURCES
@pytest.mark.parametrize("weight", [0.0, 9.0])
def test_the_m_step_maximises_the_penalised_expected_log_density(source, weight) -> None:
    """*eqs 15–17*, with their missing middle term, against a numerical maximiser."""
    num_docs, num_topics, num_sources = 7, 3, 2
    model = iftm(
        num_topics, 4, num_sources, source=source, dtype="float64",
        pseudo_documents=weight, pseudo_variance=0.6,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(num_docs, num_topics)), rng.normal(size=(num_docs, num_sources))
    x_variance = rng.gamma(2.0, size=(num_docs, num_topics))
    roots = rng.normal(size=(num_docs, num_sources, num_sources))
    s_covariance = roots @ roots.mT
    spread = 1.0 if source == "gaussian" else 2.0

    def loss(parameters: np.ndarray) -> float:
        a = parameters[: num_topics * num_sources].reshape(num_topics, num_sources)
        loc, log_precision = parameters[num_topics * num_sources :].reshape(2, num_topics)
        precision = np.exp(log_precision)
        residual = (x - s @ a.T - loc) ** 2 + x_variance
        residual += np.einsum("kl,dlm,km->dk", a, s_covariance, a)
        total = 0.5 * (num_docs * log_precision.sum() - (precision * residual).sum())
        penalty = log_precision - precision * (0.6 + spread * (a**2).sum(1))
        return -total - 0.5 * weight * penalty.sum()

    start = rng.normal(size=num_topics * (num_sources + 2))
    best = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-8})
    sums = {
        "eta_sum": x.sum(0),
        "eta_square": (x**2 + x_variance).sum(0),
        "source_sum": s.sum(0),
        "eta_source": x.T @ s,
        "source_outer": s.T @ s + s_covariance.sum(0),
    }
    model.prior.m_step(num_docs, **{name: torch.from_numpy(v) for name, v in sums.items()})
    loc, mixing, precision = arrays(model)
    found = np.concatenate([mixing.ravel(), loc, np.log(precision)])
    np.testing.assert_allclose(found, best.x, atol=2e-5)
    assert loss(found) <= best.fun + 1e-9
    # The M-step's penalty is log_prior, up to a constant.
    before = model.prior.log_prior().item()
    with torch.no_grad():
        model.prior.mixing.mul_(2.0)
    change = -0.5 * weight * spread * float((precision * 3 * (mixing**2).sum(1)).sum())
    assert model.prior.log_prior().item() - before == pytest.approx(change, abs=1e-12)


def test_moments_of_eta_determine_moments_of_gaussian_sources() -> None:
    """Monte Carlo over eta, then the exact conditional of the sources given each eta."""
    model = make_model(family("gaussian"))
    other = make_model(family("gaussian"))
    loc, mixing, precision = arrays(model)
    rng = np.random.default_rng(2)
    eta = rng.normal(size=(50, 4)) * 2
    joint = np.block([[mixing @ mixing.T + np.diag(1 / precision), mixing], [mixing.T, np.eye(2)]])
    gain = joint[4:, :4] @ np.linalg.inv(joint[:4, :4])
    covariance = joint[4:, 4:] - gain @ joint[:4, 4:]
    s = (eta - loc) @ gain.T
    sums = {
        "eta_sum": eta.sum(0),
        "eta_square": (eta**2).sum(0),
        "source_sum": s.sum(0),
        "eta_source": eta.T @ s,
        "source_outer": s.T @ s + 50 * covariance,
    }
    model.prior.m_step(50, **{name: torch.from_numpy(v) for name, v in sums.items()})
    other.prior.m_step(
        50, latent_sum=torch.from_numpy(eta.sum(0)), latent_outer=torch.from_numpy(eta.T @ eta)
    )
    for a, b in zip(arrays(model), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


@SOURCES
def test_canonicalising_keeps_the_distribution_of_theta(source) -> None:
    model = iftm(8, 5, 3, source=source, dtype="float64", seed=4)
    prior = model.prior
    with torch.no_grad():
        prior.mixing.mul_(torch.tensor([1.0, 30.0, -8.0])).add_(0.3)
    before, columns = prior.covariance.clone(), prior.mixing.detach().clone()
    prior.canonicalise_()
    torch.testing.assert_close(prior.covariance, before)
    centred = prior.centred_mixing()
    norms = centred.norm(dim=0)
    assert bool((norms[:-1] > norms[1:]).all())
    assert bool((centred.gather(0, centred.abs().argmax(0, keepdim=True)) > 0).all())
    if source == "gaussian":
        gram = centred.mT @ centred
        torch.testing.assert_close(gram, gram.diagonal().diag())
    else:
        for column in prior.mixing.mT:
            gap = torch.minimum(
                (columns - column[:, None]).abs().sum(0), (columns + column[:, None]).abs().sum(0)
            )
            assert gap.min() < 1e-12
    again = prior.mixing.detach().clone()
    prior.canonicalise_()
    torch.testing.assert_close(prior.mixing.detach(), again)


@SOURCES
def test_a_start_matches_the_moments_of_its_proportions(source) -> None:
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(6, 2))
    eta = rng.normal(size=(4000, 2)) @ mixing.T + 0.3 * rng.normal(size=(4000, 6))
    theta = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    model = iftm(6, 5, 2, source=source, dtype="float64")
    latent = start_prior(model, torch.from_numpy(theta))
    assert latent.shape == (4000, 6)
    centred = np.log(np.maximum(theta, 1e-4))
    centred -= centred.mean(1, keepdims=True)
    np.testing.assert_allclose(latent.numpy(), centred)
    np.testing.assert_allclose(model.prior.loc.tolist(), centred.mean(0), atol=1e-12)
    # The start adds 0.1 to the variance of the noise.
    expected = np.cov(centred.T, bias=True)
    np.testing.assert_allclose(
        np.diag(model.prior.covariance.detach().numpy()), np.diag(expected) + 0.1, rtol=0.05
    )
    np.testing.assert_allclose(model.prior.covariance.detach().numpy(), expected, atol=0.2)


def test_the_contrast_covariance_is_the_centred_covariance() -> None:
    for source in ("gaussian", "laplace"):
        prior = make_model(family(source)).prior
        centre = np.eye(4) - 0.25
        expected = centre @ prior.covariance.detach().numpy() @ centre
        np.testing.assert_allclose(prior.contrast_covariance().numpy(), expected, atol=1e-12)


def test_the_default_number_of_sources() -> None:
    assert iftm(10, 7).prior.num_sources == 2
    assert iftm(2, 7).prior.num_sources == 1
