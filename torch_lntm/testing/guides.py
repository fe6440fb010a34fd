"""check_guide: what engines, evaluators and ``SVI`` rely on of a guide."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.kernels import expected_word_counts
from torch_lntm.posteriors import Posterior
from torch_lntm.testing.checks import ATOL, STANDARD_ERRORS, check, equal
from torch_lntm.testing.programs import latent_sites

#: Draws of a guide whose mean is compared, and the least cosine of two estimates of word counts.
EMISSIONS, LEAST_SIMILARITY = 30, 0.8


def check_guide(guide: Guide[Any], batch: DocumentBatch) -> None:
    """Check what engines, evaluators and ``SVI`` rely on of a guide.

    Args:
        guide: The guide, of a model in float64.
        batch: Documents over the model's vocabulary, at least two of them.

    Raises:
        AssertionError: Something does not hold; the message says what.
    """
    model = guide.model
    batch = model.check_batch(batch)
    posterior = guide.posterior(batch)
    rows, dim = batch.num_docs, model.latent_dim
    for name, shape in (
        ("mean", (rows, dim)),
        ("covariance", (rows, dim, dim)),
        ("variance", (rows, dim)),
        ("converged", (rows,)),
        ("iterations", (rows,)),
        ("objective", (rows,)),
        ("index", (rows,)),
    ):
        value = getattr(posterior, name)
        check(tuple(value.shape) == shape, f"{name} has shape {tuple(value.shape)}, not {shape}")
        if value.is_floating_point():
            check(bool(torch.isfinite(value).all()), f"{name} is not finite")
    check(bool((posterior.index == batch.index).all()), "index is not the batch's")
    equal(posterior.covariance.diagonal(dim1=-2, dim2=-1), posterior.variance, "variance", 1e-6)
    equal(posterior.covariance.double().sum(0), posterior.covariance_sum(), "covariance_sum", 1e-6)
    for name, theta in (
        ("theta_mode", posterior.theta_mode()),
        ("theta_mean", posterior.theta_mean(50)),
        ("theta_samples", posterior.theta_samples(3)),
        ("topic_weights", posterior.topic_weights()),
    ):
        check(bool((theta >= 0).all()), f"{name} has negative entries")
        equal(theta.sum(-1), torch.ones_like(theta[..., 0]), f"{name} adds up to 1", 1e-6)
    again = guide.posterior(batch, posterior.warm_start)
    check(
        int(again.iterations.sum()) <= int(posterior.iterations.sum()),
        "a warm start takes more iterations than none",
    )
    one = batch.select(torch.tensor([1], device=batch.device))
    alone = guide.posterior(one)
    equal(alone.mean, posterior.mean[1:2], "a posterior depends on who shares its batch", 1e-4)
    equal(
        type(alone).theta_samples(alone, 3)[:, 0],
        posterior.theta_samples(3)[:, 1],
        "draws depend on who shares the batch",
        1e-2,
    )
    counts = guide.word_counts(batch, posterior)
    check(bool((counts >= 0).all()), "word_counts has negative entries")
    total = float(guide.as_independent(batch, posterior)[0].counts.sum())
    check(abs(float(counts.sum()) - total) <= 0.2 * total, "word_counts is not of all tokens")
    statistics = model.prior.statistics(posterior, batch)
    check(all(torch.isfinite(x).all() for x in statistics.values()), "statistics are not finite")
    _check_bound(guide, batch, posterior)
    topics = model.topics.probs.detach()
    reference = expected_word_counts(posterior.topic_weights().detach(), topics, batch)
    ours, its = (x.detach().double().flatten() for x in (counts, reference))
    alike = torch.cosine_similarity(ours, its, dim=0)
    check(
        not model.words.independent or float(alike) >= LEAST_SIMILARITY,
        f"word_counts is of other topics than the posterior (similarity {float(alike):.2f})",
    )
    _check_emission(guide, batch, posterior)


def _check_bound(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """The bound is a number for each document, below what no model with these topics can exceed."""
    model, bound = guide.model, guide.bound(batch)
    check(tuple(bound.shape) == (batch.num_docs,), f"bound has shape {tuple(bound.shape)}")
    check(bool(torch.isfinite(bound).all()), "bound is not finite")
    equal(guide.bound(batch, posterior), bound, "bound is not that of the posterior", 1e-4)
    if model.words.independent:
        # Every word by the topic that likes it best.
        best = model.topics.probs.detach().double().amax(0).log()
        most = batch.to_csr().to_dense().double() @ best
        check(bool((bound <= most + ATOL).all()), "bound is above what topics can give at all")


def _check_emission(guide: Guide[Any], batch: DocumentBatch, posterior: Posterior) -> None:
    """The guide emits the posterior at the program's sites, and SVI's loss is a number."""
    model = guide.model
    wanted = {name: site["value"].shape for name, site in latent_sites(model, batch).items()}
    with torch.random.fork_rng(devices=[]):
        trace: Any = poutine.trace(guide).get_trace(batch)
        found = {
            name: site["value"].shape
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not site["is_observed"] and name != "documents"
        }
        # Before the loss, in which Pyro would only warn of a missing site.
        check(found == wanted, f"the guide emits {found}, the model {wanted}")
        torch.manual_seed(0)
        traces: list[Any] = [poutine.trace(guide).get_trace(batch) for _ in range(EMISSIONS)]
        draws = [trace.nodes[model.prior.latent]["value"].detach() for trace in traces]
        distance = (torch.stack(draws).mean(0) - posterior.mean).abs()
        error = (posterior.variance / EMISSIONS).sqrt()
        check(
            bool((distance <= 1.5 * STANDARD_ERRORS * error + 1e-3).all()),
            f"what the guide emits as {model.prior.latent} is not the posterior",
        )
        loss = Trace_ELBO().loss(model, guide, batch)
    check(math.isfinite(loss), f"the loss of SVI is {loss}")
