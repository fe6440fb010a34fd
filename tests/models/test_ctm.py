"""The correlated topic model: one density from all interfaces, and closed-form M-steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import log_softmax, softmax
from support.problems import random_problem

from torch_lntm.errors import ConfigError
from torch_lntm.models import ctm

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("anchored", [False, True])
def test_the_priors_of_the_parameters_are_dirichlet_and_inverse_wishart(anchored) -> None:
    """The density is known up to a constant, so two settings of the parameters are compared."""
    options = {"topic_smoothing": 0.3, "pseudo_documents": 11.0, "pseudo_variance": 0.7}
    settings = [random_problem(anchored=anchored, seed=s) for s in (1, 2)]
    dim = len(settings[0].loc)
    values, expected = [], []
    for problem in settings:
        values.append(problem.model(**options).log_prior().item())
        # Differences between independent components and the last share the variance of the last.
        wishart = stats.invwishart(11.0 - dim - 1, 11.0 * 0.7 * (np.eye(dim) + anchored))
        topics = [stats.dirichlet(np.full(15, 1.3)).logpdf(row) for row in problem.topics]
        expected.append(wishart.logpdf(problem.covariance) + sum(topics))
    assert values[0] - values[1] == pytest.approx(expected[0] - expected[1], rel=1e-9)
    assert problem.model(topic_smoothing=0, pseudo_documents=0).log_prior().item() == 0


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("anchored", [False, True])
def test_parameters_can_be_set_and_read_back(device, anchored, dtype) -> None:
    problem = random_problem(anchored=anchored)
    words = [f"w{v}" for v in range(15)]
    model = problem.model(device, dtype, vocabulary=words)
    assert (model.num_topics, model.num_words, model.latent_dim) == (4, 15, 4 - anchored)
    assert model.dtype == (torch.float64 if dtype == "float64" else dtype)
    assert model.vocabulary == tuple(words)
    for got, given in (
        (model.topics.probs, problem.topics),
        (model.prior.loc, problem.loc),
        (model.prior.covariance, problem.covariance),
        (model.prior.scale_tril, np.linalg.cholesky(problem.covariance)),
    ):
        np.testing.assert_allclose(got.tolist(), given, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_probability_becomes_the_smallest_probability(dtype) -> None:
    topics = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    model = ctm(2, 3, topics=topics, dtype=dtype)
    assert bool((model.topics.probs > 0).all())
    assert bool(model.log_prior().isfinite())
    model.topics.smoothing = 0.0
    model.topics.m_step(torch.tensor([[2.0, 0, 1], [5000, 0, 0]]))
    assert bool(model.topics.logits.isfinite().all())
    torch.testing.assert_close(model.topics.probs.sum(1), torch.ones(2, dtype=dtype))


def test_a_refused_parameter_leaves_the_model_unchanged() -> None:
    model = random_problem().model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ConfigError):
        model.prior.set_(covariance=-torch.eye(4))
    with pytest.raises(ConfigError):
        model.topics.set_(torch.zeros(4, 15))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("weight", [0.0, 9.0])
@pytest.mark.parametrize("anchored", [False, True])
def test_the_m_step_of_the_prior_maximises_the_penalised_expected_log_density(
    anchored, weight
) -> None:
    num_docs = 6
    problem = random_problem(3, anchored=anchored)
    model = problem.model(pseudo_documents=weight, pseudo_variance=0.6)
    dim = model.latent_dim
    rng = np.random.default_rng(0)
    means = rng.normal(size=(num_docs, dim)) * 2 + 1
    roots = rng.normal(size=(num_docs, dim, dim))
    covariances = roots @ roots.mT
    lower = np.tril_indices(dim)

    def loss(x: np.ndarray) -> float:
        loc, tril = x[:dim], np.zeros((dim, dim))
        tril[lower] = x[dim:]
        sigma = tril @ tril.T + 1e-12 * np.eye(dim)
        precision, log_det = np.linalg.inv(sigma), np.linalg.slogdet(sigma)[1]
        total = -0.5 * weight * (log_det + 0.6 * np.trace(precision @ (np.eye(dim) + anchored)))
        for m, v in zip(means, covariances, strict=True):
            gap = m - loc
            total -= 0.5 * (log_det + gap @ precision @ gap + np.trace(precision @ v))
        return -total

    start = np.concatenate([np.zeros(dim), np.eye(dim)[lower]])
    best = optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
    tril = np.zeros((dim, dim))
    tril[lower] = best.x[dim:]
    outer = means.T @ means + covariances.sum(0)
    model.prior.m_step(
        num_docs, latent_sum=torch.from_numpy(means.sum(0)), latent_outer=torch.from_numpy(outer)
    )
    np.testing.assert_allclose(model.prior.loc.tolist(), best.x[:dim], atol=1e-4)
    np.testing.assert_allclose(model.prior.covariance.tolist(), tril @ tril.T, atol=1e-3)
    assert (
        loss(
            np.concatenate(
                [model.prior.loc.tolist(), model.prior.scale_tril.detach().numpy()[lower]]
            )
        )
        <= best.fun + 1e-9
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_the_m_step_of_the_topics_maximises_the_penalised_expected_log_likelihood(
    smoothing,
) -> None:
    rng = np.random.default_rng(1)
    counts = rng.gamma(1.0, size=(2, 5)) * 10
    model = ctm(2, 5, topic_smoothing=smoothing, dtype="float64")

    def loss(logits: np.ndarray) -> float:
        return -float(((counts + smoothing) * log_softmax(logits.reshape(2, 5), axis=1)).sum())

    best = optimize.minimize(loss, np.zeros(10), method="BFGS", options={"gtol": 1e-7})
    model.topics.m_step(torch.from_numpy(counts))
    np.testing.assert_allclose(
        model.topics.probs.tolist(), softmax(best.x.reshape(2, 5), axis=1), atol=1e-6
    )


def test_m_steps_without_data_keep_the_parameters() -> None:
    model = random_problem().model(topic_smoothing=0.0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.prior.m_step(0, latent_sum=torch.zeros(4), latent_outer=torch.zeros(4, 4))
    counts = torch.ones(4, 15, dtype=torch.float64)
    counts[2] = 0
    model.topics.m_step(counts)
    assert torch.equal(model.prior.loc, before["prior.loc"])
    assert torch.equal(model.prior.unconstrained_tril, before["prior.unconstrained_tril"])
    kept = torch.softmax(before["topics.logits"], 0)[:, 2]
    torch.testing.assert_close(model.topics.probs[2], kept)
    torch.testing.assert_close(model.topics.probs[0], torch.full((15,), 1 / 15).double())


def test_topic_correlation_is_equal_in_both_parameterisations() -> None:
    problem = random_problem(4)
    shared = problem.covariance + 50.0
    difference = np.hstack([np.eye(3), -np.ones((3, 1))])
    centre = np.eye(4) - 0.25
    centred = centre @ problem.covariance @ centre
    sd = np.sqrt(np.diag(centred))
    for covariance, anchored in (
        (problem.covariance, False),
        (shared, False),
        (difference @ problem.covariance @ difference.T, True),
    ):
        model = ctm(
            4, 5, anchored=anchored, covariance=torch.from_numpy(covariance), dtype="float64"
        )
        got = model.topic_correlation().numpy()
        np.testing.assert_allclose(got, centred / np.outer(sd, sd), atol=1e-9)
        np.testing.assert_allclose(model.prior.contrast_covariance().sum(0), 0, atol=1e-9)


def test_the_default_prior_of_theta_is_equal_in_both_parameterisations() -> None:
    free, anchored = ctm(4, 6), ctm(4, 6, anchored=True)
    torch.testing.assert_close(
        free.prior.contrast_covariance(), anchored.prior.contrast_covariance()
    )
