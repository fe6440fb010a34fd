"""check_prior: a prior's contract with every algorithm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.latents import LatentSpace
from torch_lntm.latents.linalg import contrast_basis
from torch_lntm.models import DirichletTopics, DocumentPrior, TopicModel
from torch_lntm.models.priors.prior import MIN_PROPORTION
from torch_lntm.posteriors import Draws
from torch_lntm.testing.checks import (
    ATOL,
    STANDARD_ERRORS,
    check_m_step,
    check_sums,
    equal,
    finite,
    latent_sites,
    same,
    shaped,
)


def check_prior(prior: DocumentPrior, batch: DocumentBatch, *, exact_m_step: bool = True) -> None:
    """Check that a prior's spaces, statistics and M-step agree with its Pyro program.

    Args:
        prior: The prior. It stays unchanged: a float64 copy is checked.
        batch: Documents, with the covariates of the prior if it has any.
        exact_m_step: Whether the M-step is an exact maximiser. An inexact M-step is left unchecked.

    Raises:
        AssertionError: A check fails. The message names the method.

    Example:
        >>> five, _ = lntm.models.ctm(3, 10).generate([20, 30, 25, 40, 10])
        >>> prior = lntm.models.LogisticNormalPrior(3)
        >>> lntm.testing.check_prior(prior, five.batch(dtype=torch.float64))
    """
    prior = copy.deepcopy(prior).double()
    batch = batch.to(dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    topics = DirichletTopics(
        prior.num_topics, batch.num_words, dtype=torch.float64, generator=generator
    )
    model = TopicModel(prior, topics)
    space = prior.space(batch)
    kinds = f"{type(space).__name__}; expected {prior.space_type.__name__}, as space_type says"
    assert isinstance(space, prior.space_type), f"space() returns a {kinds}"
    _check_space(space, model, batch, "space")
    _check_independence(space, model, batch)
    _check_program_density(space, model, batch)
    _check_gradients(space, model, batch)
    _check_draws(space, model, batch)
    identified = prior.identified(batch)
    _check_space(identified, model, batch, "identified")
    _check_identified_density(identified, model, batch)
    _check_statistics(model, batch, exact_m_step)


# -- the program ---------------------------------------------------------------------------------


def _site_log_prob(model: TopicModel, batch: DocumentBatch, latents: dict[str, Tensor]) -> Tensor:
    """Log density ``(num_docs,)`` of the program's latent sites at given values."""
    conditioned = poutine.condition(model, data=latents)
    trace: Any = poutine.trace(conditioned).get_trace(batch)
    # Not the trace's own log probabilities, which are scaled from the batch to the corpus.
    sites = (trace.nodes[name] for name in latents)
    return torch.stack([site["fn"].log_prob(site["value"]) for site in sites]).sum(0)


def _draw(space: LatentSpace, batch: DocumentBatch, seed: int = 0) -> Tensor:
    """A draw of z ``(num_docs, dim)`` from the prior."""
    return space.draw(noise.document_keys(seed, batch.index, 1))[0].double()


# -- spaces --------------------------------------------------------------------------------------


def _check_space(space: LatentSpace, model: TopicModel, batch: DocumentBatch, name: str) -> None:
    """Shapes, derivatives and selections of a space are right."""
    z = _draw(space, batch)
    rows = batch.num_docs
    shaped(z, (rows, space.dim), f"{name}: a draw")
    same(space.sites[-1], model.prior.latent, f"{name}: the last of sites")
    logits, latents = space.logits(z), space.latents(z)
    shaped(logits, (rows, model.num_topics), f"{name}: logits()")
    same(tuple(latents), space.sites, f"{name}: the sites of latents(), in order")
    theta = model.prior.theta(latents[model.prior.latent])
    equal(torch.softmax(logits, -1), theta, f"{name}: logits() and latents() differ in theta")
    density = space.log_density(z)
    shaped(density, (rows,), f"{name}: log_density()")
    gradient = torch.autograd.functional.jacobian(lambda x: space.log_density(x).sum(), z)
    equal(space.gradient(z), gradient, f"{name}: gradient() is not the gradient of log_density()")
    weights = torch.linspace(-1.0, 1.0, logits.numel(), dtype=z.dtype).view_as(logits)
    pulled = torch.autograd.functional.jacobian(lambda x: (space.logits(x) * weights).sum(), z)
    equal(space.pull(weights, z), pulled, f"{name}: pull() is not the chain rule of logits()")
    if space.form is not None and space.form.is_normal:
        loc, loading = space.form[:2]
        equal(
            loc + z @ loading.double(), logits, f"{name}: form's loc + z @ loading is not logits()"
        )
        equal(space.gradient(z), -z, f"{name}: is_normal, so gradient() must be -z")
    keys = noise.document_keys(1, batch.index, 1)[0]
    at = space.latents(space.place(latents[model.prior.latent], keys))
    placed = model.prior.theta(at[model.prior.latent])
    equal(placed, theta, f"{name}: place() gives the main site another value", 1e-5)
    some = torch.tensor([rows - 1, 0])
    part = space.select(some)
    equal(part.logits(z[some]), logits[some], f"{name}: select() changes logits()")
    equal(part.log_density(z[some]), density[some], f"{name}: select() changes log_density()")


def _check_independence(space: LatentSpace, model: TopicModel, batch: DocumentBatch) -> None:
    """The prior of a document is the same in every batch."""
    z = _draw(space, batch)
    for row in torch.arange(batch.num_docs).split(1):
        alone, together = model.prior.space(batch.select(row)), space.select(row)
        message = "space(): a document's prior depends on the other documents of its batch"
        equal(alone.logits(z[row]), together.logits(z[row]), message)
        equal(alone.log_density(z[row]), together.log_density(z[row]), message)


def _check_gradients(space: LatentSpace, model: TopicModel, batch: DocumentBatch) -> None:
    """The program's density has a gradient in every parameter it depends on, as SVI needs it."""
    latents = space.latents(_draw(space, batch))
    learned = {n: p for n, p in model.prior.named_parameters() if p.requires_grad}
    density = _site_log_prob(model, batch, latents).sum()
    found: Any = [None] * len(learned)
    if density.requires_grad:
        found = torch.autograd.grad(density, [*learned.values()], allow_unused=True)
    for name, gradient in zip(learned, found, strict=True):
        if gradient is None:
            other = copy.deepcopy(model)
            with torch.no_grad():
                dict(other.prior.named_parameters())[name].add_(0.1)
            moved = _site_log_prob(other, batch, latents).sum()
            remedy = "do not detach it in the program, or freeze it by requires_grad_(False)"
            message = f"the program's density depends on {name}, but has no gradient; {remedy}"
            equal(moved, density, message)


def _by_document(
    function: Callable[[LatentSpace, Tensor], Tensor], space: LatentSpace, z: Tensor
) -> Tensor:
    """Jacobians ``(num_docs, out, dim)`` of a function of each document's z."""
    jacobian = torch.autograd.functional.jacobian(lambda x: function(space, x).sum(0), z)
    return jacobian.transpose(0, 1)


def _check_program_density(space: LatentSpace, model: TopicModel, batch: DocumentBatch) -> None:
    """log_density() minus the Jacobian of bijective sites is the program's density."""
    z = _draw(space, batch)
    latents = space.latents(z)
    emitted = latent_sites(model, batch)
    same({*emitted}, {*space.sites}, "the program's sites, which are those of space()")
    if model.prior.latent == "theta" or sum(x.shape[-1] for x in latents.values()) != space.dim:
        return
    equal(space.locate(latents), z, "locate() is not the inverse of latents()")

    def sites(part: LatentSpace, x: Tensor) -> Tensor:
        return torch.cat(list(part.latents(x).values()), -1)

    jacobian = torch.linalg.slogdet(_by_document(sites, space, z)).logabsdet
    equal(
        space.log_density(z) - jacobian,
        _site_log_prob(model, batch, latents),
        "log_density() minus the Jacobian of latents() is not the program's density",
    )


def _check_identified_density(space: LatentSpace, model: TopicModel, batch: DocumentBatch) -> None:
    """An identified space has the program's density, with all other directions integrated out."""
    z = _draw(space, batch)
    latents = space.latents(z)
    if model.prior.latent == "theta":
        # A density on the simplex is in its first K - 1 coordinates.
        jacobian = _by_document(lambda part, x: part.latents(x)["theta"][..., :-1], space, z)
        actual = space.log_density(z) - torch.linalg.slogdet(jacobian).logabsdet
        expected = _site_log_prob(model, batch, latents)
    else:
        actual, expected = _affine_densities(space, model, batch, z)
    equal(actual, expected, "identified(): log_density() is not the program's", 1e-5)


def _affine_densities(
    space: LatentSpace, model: TopicModel, batch: DocumentBatch, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Log densities of the logits' contrasts and of further sites: by ``space``, and by space().

    The density of space(), which has been compared with the program's, is integrated over the
    remaining directions. That is exact if its logarithm is quadratic in them, as for a normal eta.
    """
    basis = contrast_basis(model.num_topics).to(z)

    def identified(part: LatentSpace, x: Tensor) -> Tensor:
        sites = [part.latents(x)[name] for name in space.sites[:-1]]
        return torch.cat([*sites, part.logits(x) @ basis.mT], -1)

    jacobian = torch.linalg.slogdet(_by_document(identified, space, z)).logabsdet
    whole = model.prior.space(batch)
    point = _draw(whole, batch)
    forward = _by_document(identified, whole, point)
    # The point with equal identified values, and the directions in which these stay equal.
    missing = identified(space, z) - identified(whole, point)
    point = point + (torch.linalg.pinv(forward) @ missing[..., None]).squeeze(-1)
    null = torch.linalg.svd(forward, full_matrices=True).Vh[:, forward.shape[1] :]
    slope = null @ whole.gradient(point)[..., None]
    bend = -null @ _by_document(lambda part, x: part.gradient(x), whole, point) @ null.mT
    squares = (slope.mT @ torch.linalg.solve(bend, slope)).sum((1, 2))
    volume = torch.linalg.slogdet(bend).logabsdet
    volume = volume + torch.linalg.slogdet(forward @ forward.mT).logabsdet
    constant = null.shape[1] * math.log(2.0 * math.pi)
    expected = whole.log_density(point) + 0.5 * (squares + constant - volume)
    return space.log_density(z) - jacobian, expected


def _check_draws(space: LatentSpace, model: TopicModel, batch: DocumentBatch) -> None:
    """Draws of the space have the mean and the spread of the program's."""
    num_draws = 4000
    keys = noise.document_keys(2, batch.index, num_draws)
    space_draws = space.latents(space.draw(keys).double())
    with pyro.plate("draws", num_draws, dim=-2), torch.random.fork_rng():
        torch.manual_seed(0)
        trace: Any = poutine.trace(poutine.block(model, hide=["counts"])).get_trace(batch)
    for site in space.sites:
        program_draws = trace.nodes[site]["value"].detach()
        for name, f in (("means", lambda x: x), ("squares", torch.square)):
            first, second = f(space_draws[site]), f(program_draws)
            error = ((first.var(0) + second.var(0)) / num_draws).sqrt()
            distance = (first.mean(0) - second.mean(0)).abs()
            assert (distance <= STANDARD_ERRORS * error + ATOL).all(), (
                f"draw() and the program differ in the {name} of {site}, by up to "
                f"{float((distance / (error + ATOL)).max()):.1f} standard errors"
            )


# -- statistics ----------------------------------------------------------------------------------


def _check_statistics(model: TopicModel, batch: DocumentBatch, exact_m_step: bool) -> None:
    """Statistics add up over documents, and M-steps keep or raise their objective."""
    prior, space = model.prior, model.prior.space(batch)
    z, other = (_draw(space, batch, seed) for seed in (0, 1))

    def statistics(rows: Tensor, *draws: Tensor) -> dict[str, Tensor]:
        """Sums over some documents, each with draws of equal weights."""
        part, at = space.select(rows), torch.stack([draw[rows] for draw in draws])
        weights = torch.full(at.shape[:2], 1 / len(draws), dtype=torch.float64)
        return prior.statistics(
            Draws(part.latents(at), part.logits(at), weights), batch.select(rows)
        )

    rows = torch.arange(batch.num_docs)
    sums = statistics(rows, z)
    check_sums(sums, [statistics(part, z) for part in rows.split(max(1, batch.num_docs // 2))])
    # Statistics are linear in the draws' weights. They cannot be taken at the means alone, because
    # that would leave out the posterior covariances.
    of_other, average = statistics(rows, other), statistics(rows, z, other)
    for name in average.keys() - set(prior.posterior_statistics):
        mean = (sums[name] + of_other[name]) / 2
        equal(average[name], mean, f"the statistic {name} is not the expectation over single draws")
    _check_start(model, batch, torch.softmax(space.logits(z), -1))
    if exact_m_step:
        at = space.latents(z)

        def density() -> Tensor:
            return _site_log_prob(model, batch, at).sum() + prior.log_prior()

        slack = 1e-6 * abs(float(density().detach()))
        check_m_step(prior, density, lambda: prior.m_step(float(batch.num_docs), **sums), slack)


@torch.no_grad()
def _check_start(model: TopicModel, batch: DocumentBatch, theta: Tensor) -> None:
    """Starts reproduce their proportions and leave finite parameters."""
    prior = copy.deepcopy(model.prior)
    theta = theta.clamp_min(10 * MIN_PROPORTION)
    theta = theta / theta.sum(-1, keepdim=True)
    latents = prior.start_latents(theta)
    equal(prior.theta(latents), theta, "start_latents() gives another theta")
    weights = torch.ones(1, batch.num_docs, dtype=torch.float64)
    moments = Draws({prior.latent: latents[None]}, theta.log()[None], weights)
    prior.start(float(batch.num_docs), **prior.statistics(moments, batch))
    prior.inflate_covariance()
    finite(dict(prior.named_parameters()), "start() and inflate_covariance() leave")
