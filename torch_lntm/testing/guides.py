"""check_guide: a guide's contract with engines, evaluators and ``SVI``."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.kernels.mixture import expected_word_counts
from torch_lntm.posteriors import Posterior
from torch_lntm.testing.checks import ATOL, STANDARD_ERRORS, equal, finite, latent_sites, shaped

#: Number of draws from the guide in the comparison of means, and smallest cosine similarity of two
#: estimates of word counts.
EMISSIONS, LEAST_SIMILARITY = 30, 0.8


def check_guide(guide: Guide[Any], batch: DocumentBatch) -> None:
    """Check a guide's contract with engines, evaluators and ``SVI``.

    Args:
        guide: The guide, of a model in float64.
        batch: At least two documents over the model's vocabulary.

    Raises:
        AssertionError: A check fails. The message names the method.

    Example:
        >>> small = lntm.models.ctm(3, 10, dtype="float64")
        >>> documents = small.generate([20, 30, 25, 40, 10])[0].batch()
        >>> lntm.testing.check_guide(lntm.guides.TaylorGuide(small), documents)
    """
    model = guide.model
    batch = model.check_batch(batch)
    posterior = guide.posterior(batch)
    _check_shapes(posterior, batch, model.latent_dim)
    _check_theta(posterior)
    _check_independence(guide, batch, posterior)
    statistics = model.prior.statistics(posterior, batch)
    finite(statistics, "statistics of the posterior have")
    _check_bound(guide, batch, posterior)
    _check_word_counts(guide, batch, posterior)
    _check_emission(guide, batch, posterior)


def _check_shapes(posterior: Posterior, batch: DocumentBatch, dim: int) -> None:
    """Tensors of the posterior have their shapes, and are finite."""
    of_document = {"mean": (dim,), "covariance": (dim, dim), "variance": (dim,)}
    of_document |= dict.fromkeys(("converged", "iterations", "objective", "index"), ())
    for name, rest in of_document.items():
        value = getattr(posterior, name)
        shaped(value, (batch.num_docs, *rest), f"{name} of the posterior")
        finite({name: value}, "the posterior has")
    equal(posterior.index, batch.index, "index is not the batch's")
    variance, sums = posterior.covariance.diagonal(dim1=-2, dim2=-1), posterior.covariance.sum(0)
    equal(posterior.variance, variance, "variance is not the diagonal of covariance", 1e-6)
    equal(posterior.covariance_sum(), sums, "covariance_sum() is not the sum of covariance", 1e-6)


def _check_theta(posterior: Posterior) -> None:
    """Topic proportions are nonnegative and sum to 1."""
    for name, theta in (
        ("theta_mode", posterior.theta_mode()),
        ("theta_mean", posterior.theta_mean(50)),
        ("theta_samples", posterior.theta_samples(3)),
        ("topic_weights", posterior.topic_weights()),
    ):
        assert (theta >= 0).all(), f"{name} has negative entries"
        equal(theta.sum(-1), torch.ones_like(theta[..., 0]), f"{name} must sum to 1", 1e-6)


def _check_independence(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """Posteriors and draws depend on the document only, and warm starts add no iterations."""
    again = guide.posterior(batch, posterior.warm_start)
    warm, cold = int(again.iterations.sum()), int(posterior.iterations.sum())
    assert warm <= cold, f"a warm start takes {warm} iterations; expected at most {cold}: use init"
    single = batch.select(torch.tensor([1], device=batch.device))
    alone = guide.posterior(single)
    equal(alone.mean, posterior.mean[1:2], "a posterior depends on its batch's documents", 1e-4)
    draws, expected = alone.theta_samples(3)[:, 0], posterior.theta_samples(3)[:, 1]
    equal(draws, expected, "draws depend on the other documents of the batch", 1e-2)


def _check_word_counts(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """Word counts cover all tokens, and resemble those at the posterior's topic weights."""
    model, counts = guide.model, guide.word_counts(batch, posterior)
    assert (counts >= 0).all(), "word_counts has negative entries"
    total = float(guide.as_independent(batch, posterior)[0].counts.sum())
    found = f"word_counts() has {float(counts.sum()):.6g} tokens; expected {total:.6g}"
    assert abs(float(counts.sum()) - total) <= 0.2 * total, found
    topics = model.topics.probs.detach()
    reference = expected_word_counts(posterior.topic_weights().detach(), topics, batch)
    first, second = (x.detach().double().flatten() for x in (counts, reference))
    similarity = float(torch.cosine_similarity(first, second, dim=0))
    assert not model.words.independent or similarity >= LEAST_SIMILARITY, (
        f"word_counts differs from the posterior's topic weights (similarity {similarity:.2f})"
    )


def _check_bound(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """The bound is a finite number for each document, at most the largest possible likelihood."""
    model, bound = guide.model, guide.bound(batch)
    shaped(bound, (batch.num_docs,), "bound()")
    finite({"a document": bound}, "bound() has")
    equal(guide.bound(batch, posterior), bound, "bound differs at the given posterior", 1e-4)
    if model.words.independent:
        # The likelihood is largest if every word comes from the topic that gives it the most.
        best = model.topics.probs.detach().double().amax(0).log()
        most = batch.to_csr().to_dense().double() @ best
        assert (bound <= most + ATOL).all(), (
            "bound is above the likelihood under the best topic of every word, by "
            f"{float((bound - most).max()):.6g} nats; expected a lower bound of the log likelihood"
        )


def _check_emission(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """The guide emits the posterior at the program's sites, and SVI's loss is finite."""
    model = guide.model
    expected = {name: site["value"].shape for name, site in latent_sites(model, batch).items()}
    with torch.random.fork_rng(devices=[]):
        trace: Any = poutine.trace(guide).get_trace(batch)
        emitted = {
            name: site["value"].shape
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not site["is_observed"] and name != "documents"
        }
        # Checked before the loss: Pyro would only warn about a missing site.
        assert emitted == expected, f"the guide emits {emitted}; expected the model's {expected}"
        torch.manual_seed(0)
        traces: list[Any] = [poutine.trace(guide).get_trace(batch) for _ in range(EMISSIONS)]
        draws = [trace.nodes[model.prior.latent]["value"].detach() for trace in traces]
        distance = (torch.stack(draws).mean(0) - posterior.mean).abs()
        error = (posterior.variance / EMISSIONS).sqrt()
        assert (distance <= 1.5 * STANDARD_ERRORS * error + 1e-3).all(), (
            f"the site that the guide emits as {model.prior.latent} is not the posterior"
        )
        loss = Trace_ELBO().loss(model, guide, batch)
    assert math.isfinite(loss), f"the loss of SVI is {loss}; expected a finite number"
