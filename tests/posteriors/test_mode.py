"""Modes without covariances, and moments with covariances from a sample of documents."""

from __future__ import annotations

import pytest
import torch
from support.pairs import make_counts, make_model
from support.problems import make_batch

from torch_lntm.guides import make_guide
from torch_lntm.posteriors import ModePosterior, NormalPosterior
from torch_lntm.posteriors.normal import SampledMoments


@pytest.mark.parametrize("family", ["ctm", "lntm", "iftm(source='gaussian')"])
@pytest.mark.parametrize("name", ["taylor", "laplace"])
def test_means_match_the_posterior(family, name, device) -> None:
    guide = make_guide(name, make_model(family).to(device))
    batch = make_batch(make_counts(), device)
    posterior, means = guide.posterior(batch), guide.posterior(batch, covariances=False)
    assert isinstance(means, ModePosterior)
    torch.testing.assert_close(means.mean, posterior.mean, rtol=0, atol=0)
    assert torch.equal(means.converged, posterior.converged)
    assert torch.equal(means.index, posterior.index)
    torch.testing.assert_close(means.theta_mode(), posterior.theta_mode())
    torch.testing.assert_close(means.topic_weights(0.5), posterior.topic_weights(0.5))
    assert guide.separates_means == (family != "iftm(source='gaussian')")


def test_a_mode_has_zero_covariance() -> None:
    guide = make_guide("taylor", make_model("ctm"))
    batch = make_batch(make_counts())
    modes = guide.posterior(batch, covariances=False)
    dim = modes.mean.shape[1]
    assert torch.equal(modes.samples(3), modes.mean.expand(3, -1, -1))
    assert modes.covariance.shape == (batch.num_docs, dim, dim)
    for spread in (modes.covariance, modes.variance, modes.covariance_sum()):
        assert not bool(spread.any())
    expected = modes.mean.double().mT @ modes.mean.double()
    torch.testing.assert_close(modes.outer_sum(), expected)
    torch.testing.assert_close(modes.expected_log_theta(), modes.theta_mode().double().log())


@pytest.mark.parametrize("name", ["blei-lafferty", "khan-bouchard"])
def test_means_that_need_covariances_include_them(name) -> None:
    guide = make_guide(name, make_model("ctm"))
    assert not guide.separates_means
    means = guide.posterior(make_batch(make_counts()), covariances=False)
    assert isinstance(means, NormalPosterior)


@pytest.mark.parametrize("name", ["taylor", "laplace"])
def test_samples_over_all_documents_average_to_the_moments(name, device) -> None:
    guide = make_guide(name, make_model("ctm").to(device), tolerance=1e-9)
    batch = make_batch(make_counts(), device)
    posterior, modes = guide.posterior(batch), guide.posterior(batch, covariances=False)
    covariance, objective = 0.0, 0.0
    for turn in range(2):
        rows = torch.arange(turn, batch.num_docs, 2, device=device)
        # From the prior mean, as for all documents: each converges independently.
        moments = SampledMoments(modes, 2.0)
        for part in rows.split(2):
            moments.add(guide.posterior(batch.select(part)), part)
        assert moments.num_docs == batch.num_docs
        covariance = covariance + 0.5 * moments.covariance_sum()
        objective += 0.5 * float(moments.objective())
    torch.testing.assert_close(covariance, posterior.covariance_sum(), rtol=1e-5, atol=1e-7)
    assert objective == pytest.approx(float(posterior.objective.sum()), rel=1e-6)


def test_an_empty_sample_is_allowed() -> None:
    guide = make_guide("taylor", make_model("ctm"))
    batch = make_batch(make_counts())
    modes, rows = guide.posterior(batch, covariances=False), torch.zeros(0, dtype=torch.int64)
    moments = SampledMoments(modes, 8.0)
    moments.add(guide.posterior(batch.select(rows), modes.mean[rows]), rows)
    assert not bool(moments.covariance_sum().any())
    assert float(moments.objective()) == pytest.approx(float(modes.objective.sum()))
