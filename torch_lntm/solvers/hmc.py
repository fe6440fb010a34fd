"""Hamiltonian Monte Carlo for the latent variables of many documents at once.

Every document has chains of its own: its own acceptance, step size and metric. All of them move
together, as tensors ``(num_chains, num_docs, dim)`` over one batch whose rows are repeated chain by
chain. (One acceptance for a whole corpus falls to zero as the corpus grows.)

The position is z, the whitened coordinates of the solvers: eta = μ + Lz, z standard normal; under a
factor prior z = (s, e), eta = μ + A s + Λ^{-½}e, with s Laplace or standard normal. The target is
p(z)·p(w | z)^T, T the inverse temperature of the likelihood. A metric is a factor W of the inverse
mass matrix WWᵀ. The momentum r is kept in the coordinates W makes, where it is standard normal:

    r ← r + ½ε Wᵀ∇        z ← z + ε W r        r ← r + ½ε Wᵀ∇

with ∇ in closed form (*Neal 2011, MCMC using Hamiltonian dynamics, §5.2.3 and §5.4.1*). At −|s| of
Laplace sources ∇ jumps: the step stays reversible and keeps volumes, so the chains stay exact.

Nothing here draws from a generator: noise is a function of a key, as 64-bit integers of which
every chain of every document has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.kernels import expected_counts, expected_topic_counts
from torch_lntm.solvers.factor import FactorPrior
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior, inverse_cholesky

#: Energy error, nats, above which a trajectory has left the target (*Stan's value*).
MAX_ENERGY_ERROR = 1000.0
#: Doublings or halvings of the search for a first step size.
MAX_DOUBLINGS = 30
#: γ, t₀ and κ of dual averaging (*Hoffman & Gelman 2014, §3.2.1*).
SHRINKAGE, DELAY, FORGETTING = 0.05, 10.0, 0.75

# -- noise ---------------------------------------------------------------------------------------

# SplitMix64's increment and multipliers (Steele, Lea & Flood 2014), as signed integers.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Logical right shift, which torch's of signed integers is not."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's output function: a bijection of 64 bits, each of which changes all others."""
    bits = (bits ^ _shifted(bits, 30)) * _MULTIPLIERS[0]
    bits = (bits ^ _shifted(bits, 27)) * _MULTIPLIERS[1]
    return bits ^ _shifted(bits, 31)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """New keys from keys and integers; the same on every device.

    A key is either folded into or drawn from, never both: they read the same bits.

    Args:
        key: ``(...,)`` int64.
        data: Nonnegative integers, broadcast with ``key``.
    """
    # The product wraps around: it must not be one of Python's integers.
    step = data if isinstance(data, Tensor) else torch.full_like(key[..., :1], data)
    return _mixed(key + (step + 1) * _INCREMENT)


def chain_keys(seed: int, index: Tensor, num_chains: int) -> Tensor:
    """A key for every chain of every document ``(num_chains, num_docs)``.

    Args:
        seed: Any integer.
        index: ``(num_docs,)`` what documents are known by: their corpus positions.
        num_chains: Number of chains.
    """
    root = torch.full_like(index, seed % 2**63)
    chains = torch.arange(num_chains, device=index.device)[:, None]
    return fold_in(fold_in(root, index)[None], chains)


def _uniform_of_bits(bits: Tensor) -> Tensor:
    """Float64 in (0, 1), from the 52 highest bits: neither end can be reached."""
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52


def draw_uniform(key: Tensor, size: int) -> Tensor:
    """Uniform numbers in (0, 1) ``(..., size)`` float64 of keys ``(...,)``."""
    return _uniform_of_bits(fold_in(key[..., None], torch.arange(size, device=key.device)))


def draw_normal(key: Tensor, size: int) -> Tensor:
    """Standard normal numbers ``(..., size)`` float64 of keys ``(...,)``, by Box and Muller."""
    radius, angle = draw_uniform(key, 2 * math.ceil(size / 2)).chunk(2, -1)
    radius, angle = (-2.0 * radius.log()).sqrt(), 2.0 * math.pi * angle
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :size]


# -- the target ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DocumentTarget:
    """Log prior and log likelihood of the z of each document, in several chains.

    Attributes:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        prior: Prior of eta, and of its sources if it has some.
        num_chains: Chains of each document.
    """

    batch: DocumentBatch
    topics: Tensor
    prior: GaussianPrior | FactorPrior
    num_chains: int = 1

    @property
    def num_sources(self) -> int:
        """Entries of z that are sources, the first ones."""
        return self.prior.num_sources if isinstance(self.prior, FactorPrior) else 0

    @property
    def dim(self) -> int:
        """Dimension of z."""
        return self.num_sources + self.prior.dim

    @cached_property
    def _rows(self) -> DocumentBatch:
        """All documents once for each chain, chain by chain."""
        batch, chains = self.batch, self.num_chains
        if chains == 1:
            return batch
        shifts = batch.nnz * torch.arange(chains, device=batch.device)[:, None]
        offsets = (batch.row_offsets[:-1] + shifts).flatten()
        return replace(
            batch,
            row_offsets=torch.cat([offsets, offsets.new_full((1,), chains * batch.nnz)]),
            word_index=batch.word_index.repeat(chains),
            counts=batch.counts.repeat(chains),
            index=batch.index.repeat(chains),
        )

    @property
    def _laplace(self) -> bool:
        return isinstance(self.prior, FactorPrior) and self.prior.source == "laplace"

    def log_prior(self, z: Tensor) -> Tensor:
        """Log density of z up to a constant, ``(num_chains, num_docs)`` float64 nats."""
        z = z.double()
        if not self._laplace:
            return -0.5 * z.square().sum(-1)
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return -source.abs().sum(-1) - 0.5 * noise.square().sum(-1)

    def prior_gradient(self, z: Tensor) -> Tensor:
        """Its gradient in z, ``(num_chains, num_docs, dim)``."""
        if not self._laplace:
            return -z
        source, noise = z[..., : self.num_sources], z[..., self.num_sources :]
        return -torch.cat([source.sign(), noise], -1)

    def draw_prior(self, key: Tensor) -> Tensor:
        """Prior draws of z ``(num_chains, num_docs, dim)`` of keys ``(num_chains, num_docs)``."""
        z = draw_normal(fold_in(key, 0), self.dim)
        if self._laplace:
            centred = draw_uniform(fold_in(key, 1), self.num_sources) - 0.5
            z[..., : self.num_sources] = -centred.sign() * torch.log1p(-2.0 * centred.abs())
        return z.to(self.topics.dtype)

    def theta(self, z: Tensor) -> Tensor:
        """Topic proportions ``(num_chains, num_docs, num_topics)``."""
        return torch.softmax(self.prior.lift(self.prior.unwhiten(z)), -1)

    def likelihood(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log p(w | z) ``(num_chains, num_docs)`` float64 nats and its gradient in z."""
        theta = self.theta(z)
        counts = expected_counts(theta.flatten(0, 1), self.topics, self._rows)
        gradient = self._gradient(theta, counts.topic_counts)
        return counts.log_likelihood.view(theta.shape[:2]), gradient

    def likelihood_gradient(self, z: Tensor) -> Tensor:
        """The gradient alone ``(num_chains, num_docs, dim)``, which costs less."""
        theta = self.theta(z)
        counts = expected_topic_counts(theta.flatten(0, 1), self.topics, self._rows)
        return self._gradient(theta, counts)

    def _gradient(self, theta: Tensor, topic_counts: Tensor) -> Tensor:
        in_logits = topic_counts.view_as(theta) - self.batch.lengths[:, None] * theta
        return self.prior.pull(in_logits)


# -- metrics -------------------------------------------------------------------------------------


class Metric(Protocol):
    """A factor W of the inverse mass matrix WWᵀ of z, of each document or of all."""

    def push(self, momentum: Tensor) -> Tensor:
        """W r ``(num_chains, num_docs, dim)``, the velocity of z."""

    def pull(self, gradient: Tensor) -> Tensor:
        """Wᵀ∇ ``(num_chains, num_docs, dim)``."""


class UnitMetric:
    """W = I: the metric of the whitened prior."""

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        return momentum

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        return gradient


@dataclass(frozen=True, eq=False)
class DenseMetric:
    """W as matrices.

    Attributes:
        factor: ``(dim, dim)`` W of all documents, or ``(num_docs, dim, dim)``.
    """

    factor: Tensor

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        if self.factor.dim() == 2:
            return momentum @ self.factor.mT
        return torch.einsum("dij,cdj->cdi", self.factor, momentum)

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        if self.factor.dim() == 2:
            return gradient @ self.factor
        return torch.einsum("dij,cdi->cdj", self.factor, gradient)


@dataclass(frozen=True, eq=False)
class FactorMetric:
    """The posterior covariance WWᵀ of z = (s, e) if p(w | eta) were normal in eta.

    With the information diag w − wwᵀ/N of Taylor's posterior, w = N·theta, and sources of
    precision 1/|η|; the symbols are those of :func:`torch_lntm.solvers.taylor.woodbury`. Given s,
    eta has covariance diag d + uuᵀ/Σr = D^½(I + vvᵀ)D^½, whose root is D^½(I + c vvᵀ) with
    c = 1/(1 + sqrt(1 + |v|²)), and e changes with s by −λ_k^½ u_k (a_k − ā). So

        s = R r_s,    e = −Λ^½ diag(u)(A − 1ā)s + (ΛD)^½(I + c vvᵀ) r_e

    at a cost of num_topics × num_sources, none of it with a matrix of that size per document.

    Attributes:
        mixing: ``(num_topics, num_sources)`` A, which all documents share.
        average: ``(num_docs, num_sources)`` ā.
        root: ``(num_docs, num_sources, num_sources)`` R.
        slope: ``(num_docs, num_topics)`` −λ^½u.
        std: ``(num_docs, num_topics)`` (λd)^½.
        direction: ``(num_docs, num_topics)`` c^½ v.
    """

    mixing: Tensor
    average: Tensor
    root: Tensor
    slope: Tensor
    std: Tensor
    direction: Tensor

    def push(self, momentum: Tensor) -> Tensor:
        """See :meth:`Metric.push`."""
        num_sources = self.mixing.shape[1]
        noise = momentum[..., num_sources:]
        source = torch.einsum("dij,cdj->cdi", self.root, momentum[..., :num_sources])
        centred = source @ self.mixing.mT - (source * self.average).sum(-1, keepdim=True)
        noise = noise + self.direction * (self.direction * noise).sum(-1, keepdim=True)
        return torch.cat([source, self.slope * centred + self.std * noise], -1)

    def pull(self, gradient: Tensor) -> Tensor:
        """See :meth:`Metric.pull`."""
        num_sources = self.mixing.shape[1]
        noise = gradient[..., num_sources:]
        sloped = self.slope * noise
        source = gradient[..., :num_sources] + sloped @ self.mixing
        source = source - self.average * sloped.sum(-1, keepdim=True)
        noise = self.std * noise
        noise = noise + self.direction * (self.direction * noise).sum(-1, keepdim=True)
        return torch.cat([torch.einsum("dij,cdi->cdj", self.root, source), noise], -1)


def eta_metric(prior: GaussianPrior | FactorPrior) -> DenseMetric:
    """The metric in which eta itself, and any sources, have unit mass."""
    if isinstance(prior, FactorPrior):
        size = prior.num_sources
        factor = torch.eye(size + prior.dim, dtype=torch.float64, device=prior.loc.device)
        factor[size:, :size] = -prior.mixing.double() / prior.noise_std[:, None]
        factor[size:, size:] = prior.noise_std.reciprocal().diag_embed()
    else:
        eye = torch.eye(prior.dim, dtype=torch.float64, device=prior.loc.device)
        factor = torch.linalg.solve_triangular(prior.tril, eye, upper=False)
    return DenseMetric(factor.to(prior.loc.dtype))


def posterior_metric(posterior: GaussianPosterior) -> DenseMetric:
    """The metric of full-covariance posteriors, W the factor of the covariance of z."""
    # z = Xᵀr with its coordinates in reverse order.
    assert posterior.whitened is not None
    return DenseMetric(posterior.whitened.mT.flip(1).contiguous())


def factor_metric(
    prior: FactorPrior, weights: Tensor, source_scale: Tensor, index: Tensor
) -> FactorMetric:
    """The metric of documents under a factor prior.

    Args:
        prior: The prior.
        weights: ``(num_docs, num_topics)`` w = N·theta; zeros for an empty document.
        source_scale: ``(num_docs, num_sources)`` |η|^½, ones for Gaussian sources.
        index: ``(num_docs,)`` corpus positions, to name documents in an error.

    Raises:
        NumericalError: The precision of some documents' sources is not positive definite.
    """
    w, precision, mixing = (x.double() for x in (weights, prior.noise_precision, prior.mixing))
    scale = source_scale.double()
    diagonal = 1.0 / (precision + w)
    r = precision * w * diagonal
    total = r.sum(-1, keepdim=True)
    total = torch.where(total > 0, total, 1.0)
    average = r @ mixing / total
    centred = (mixing - average[:, None, :]) * scale[:, None, :]
    information = (centred.mT @ (r[..., None] * centred)).flip(1, 2)
    information.diagonal(dim1=-2, dim2=-1).add_(1.0)
    root = scale[..., None] * inverse_cholesky(information, index).mT.flip(1, 2)
    v = w * (diagonal / total).sqrt()
    c = 1.0 / (1.0 + (1.0 + v.square().sum(-1, keepdim=True)).sqrt())
    dtype = weights.dtype
    return FactorMetric(
        mixing=prior.mixing,
        average=average.to(dtype),
        root=root.to(dtype),
        slope=(-precision.sqrt() * w * diagonal).to(dtype),
        std=(precision * diagonal).sqrt().to(dtype),
        direction=(c.sqrt() * v).to(dtype),
    )


# -- transitions ---------------------------------------------------------------------------------


class HMCState(NamedTuple):
    """Where the chains are.

    Attributes:
        position: ``(num_chains, num_docs, dim)`` z.
        log_prior: ``(num_chains, num_docs)`` float64 nats, up to a constant.
        log_likelihood: ``(num_chains, num_docs)`` float64 nats.
        likelihood_gradient: ``(num_chains, num_docs, dim)``, of the log likelihood in z.
    """

    position: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    likelihood_gradient: Tensor


class HMCInfo(NamedTuple):
    """What a transition did, each ``(num_chains, num_docs)``.

    Attributes:
        acceptance: Acceptance probability, float64; 0 if divergent.
        accepted: The proposal was taken, bool.
        energy_error: Energy at the end less that at the start, nats, float64.
        divergent: The energy error is above 1000 nats or not a number, bool.
    """

    acceptance: Tensor
    accepted: Tensor
    energy_error: Tensor
    divergent: Tensor


def evaluate(target: DocumentTarget, position: Tensor) -> HMCState:
    """The state at z ``(num_chains, num_docs, dim)``."""
    return HMCState(position, target.log_prior(position), *target.likelihood(position))


def init(target: DocumentTarget, position: Tensor) -> HMCState:
    """The state at z ``(num_chains, num_docs, dim)``, where chains can start.

    Raises:
        NumericalError: Something is not finite there; names it and the documents.
    """
    state = evaluate(target, position)
    for name, values in zip(HMCState._fields, state, strict=True):
        finite = (
            torch.isfinite(values).flatten(2).all(-1) if values.dim() > 2 else values.isfinite()
        )
        bad = ~finite.all(0)
        if bool(bad.any()):
            documents = target.batch.index[bad].tolist()
            raise NumericalError(
                f"the {name.replace('_', ' ')} of {len(documents)} document(s) is not finite where "
                f"their chains start, first at position {documents[0]}",
                documents,
            )
    return state


def leapfrog(
    target: DocumentTarget,
    state: HMCState,
    momentum: Tensor,
    step_size: Tensor,
    metric: Metric,
    num_steps: int,
    temperature: float | Tensor = 1.0,
) -> tuple[HMCState, Tensor]:
    """Follow the Hamiltonian flow for some steps.

    Args:
        target: The target.
        state: Where to start.
        momentum: ``(num_chains, num_docs, dim)`` r.
        step_size: ``(num_chains, num_docs)`` ε.
        metric: W.
        num_steps: Steps, at least 1.
        temperature: T, a number or ``(num_chains, num_docs)``.

    Returns:
        The state and momentum at the end. Only there is the density computed.
    """
    z, r = state.position, momentum
    epsilon = step_size.to(z.dtype)[..., None]
    heat = temperature.to(z.dtype)[..., None] if isinstance(temperature, Tensor) else temperature

    def kick(likelihood_gradient: Tensor) -> Tensor:
        return epsilon * metric.pull(target.prior_gradient(z) + heat * likelihood_gradient)

    r = r + 0.5 * kick(state.likelihood_gradient)
    for _ in range(num_steps - 1):
        z = z + epsilon * metric.push(r)
        r = r + kick(target.likelihood_gradient(z))
    z = z + epsilon * metric.push(r)
    end = evaluate(target, z)
    return end, r + 0.5 * kick(end.likelihood_gradient)


def energy(state: HMCState, momentum: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """The Hamiltonian ``(num_chains, num_docs)`` float64 nats: −log target + ½|r|²."""
    potential = -state.log_prior - temperature * state.log_likelihood
    return potential + 0.5 * momentum.double().square().sum(-1)


def step(
    key: Tensor,
    target: DocumentTarget,
    state: HMCState,
    step_size: Tensor,
    metric: Metric,
    num_steps: int,
    temperature: float | Tensor = 1.0,
) -> tuple[HMCState, HMCInfo]:
    """One transition of every chain: a fresh momentum, a trajectory, its acceptance.

    Args:
        key: ``(num_chains, num_docs)`` keys of this transition.
        target: The target.
        state: Where the chains are.
        step_size: ``(num_chains, num_docs)`` ε.
        metric: W.
        num_steps: Leapfrog steps.
        temperature: T, a number or ``(num_chains, num_docs)``.

    Returns:
        Where they are now, and what happened. Nothing waits for the device.
    """
    momentum = draw_normal(fold_in(key, 0), target.dim).to(state.position.dtype)
    end, final = leapfrog(target, state, momentum, step_size, metric, num_steps, temperature)
    error = energy(end, final, temperature) - energy(state, momentum, temperature)
    divergent = ~(error.isfinite() & (error <= MAX_ENERGY_ERROR))
    acceptance = torch.where(divergent, 0.0, (-error).clamp_max(0.0).exp())
    accepted = draw_uniform(fold_in(key, 1), 1).squeeze(-1) < acceptance

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(accepted[..., None] if new.dim() > 2 else accepted, new, old)

    return (
        HMCState(*map(choose, end, state)),
        HMCInfo(acceptance, accepted, error, divergent),
    )


# -- step sizes ----------------------------------------------------------------------------------


def jittered(key: Tensor, step_size: Tensor, jitter: float) -> Tensor:
    """Step sizes of one transition, uniform within a part of what they are.

    Lest trajectories close on themselves.

    Args:
        key: ``(num_chains, num_docs)`` keys of the transition, as :func:`step` takes them.
        step_size: Step sizes, broadcast with ``key``.
        jitter: The part, in [0, 1).

    Returns:
        ``(num_chains, num_docs)`` float64.
    """
    # The transition itself folds in 0 and 1.
    wobble = 2.0 * draw_uniform(fold_in(key, 2), 1).squeeze(-1) - 1.0
    return step_size * (1.0 + jitter * wobble)


def find_step_size(
    key: Tensor, target: DocumentTarget, state: HMCState, metric: Metric, threshold: float = 0.8
) -> Tensor:
    """First step sizes: doubled or halved from 1 until one step's acceptance crosses a threshold.

    *Hoffman & Gelman 2014, algorithm 4*, for every chain of every document.

    Args:
        key: ``(num_chains, num_docs)`` keys of the search.
        target: The target.
        state: Where the chains are.
        metric: W.
        threshold: Acceptance probability to cross.

    Returns:
        ``(num_chains, num_docs)`` float64.
    """
    step_size = torch.ones_like(state.log_prior)

    def acceptable(attempt: int) -> Tensor:
        info = step(fold_in(key, attempt), target, state, step_size, metric, 1)[1]
        return info.acceptance > threshold

    grow = acceptable(0)
    searching = torch.ones_like(grow)
    for attempt in range(1, MAX_DOUBLINGS + 1):
        step_size = torch.where(searching, step_size * torch.where(grow, 2.0, 0.5), step_size)
        searching &= acceptable(attempt) == grow
        if not bool(searching.any()):
            break
    return step_size


class DualAveraging(NamedTuple):
    """Step sizes on their way to a mean acceptance probability (*Hoffman & Gelman 2014, eq. 6*).

    Attributes:
        log_step_size: ``(num_chains, num_docs)`` float64, of the next transition.
        log_average: ``(num_chains, num_docs)`` float64, what to freeze at.
        shortfall: ``(num_chains, num_docs)`` float64 Σ (target − acceptance).
        centre: ``(num_chains, num_docs)`` float64, what log step sizes are shrunk towards.
        num_updates: Transitions seen.
    """

    log_step_size: Tensor
    log_average: Tensor
    shortfall: Tensor
    centre: Tensor
    num_updates: int = 0

    @classmethod
    def start(cls, step_size: Tensor) -> DualAveraging:
        """From first step sizes; the centre is ten times them, for larger ones are cheaper."""
        log_step_size, zero = step_size.log(), torch.zeros_like(step_size)
        return cls(log_step_size, zero, zero, log_step_size + math.log(10.0))

    def update(self, acceptance: Tensor, target: float, longest: float = math.inf) -> DualAveraging:
        """After a transition with these acceptance probabilities ``(num_chains, num_docs)``.

        Args:
            acceptance: The probabilities.
            target: What their mean is to be.
            longest: The step sizes' upper bound, at which acceptance above the target no longer
                adds up: should steps have to be shorter later, there is nothing to make good for.
        """
        count = self.num_updates + 1
        least = (self.centre - math.log(longest)) * SHRINKAGE * (count + DELAY) / math.sqrt(count)
        shortfall = torch.maximum(self.shortfall + (target - acceptance), least)
        drift = math.sqrt(count) / SHRINKAGE * shortfall / (count + DELAY)
        log_step_size = self.centre - drift
        weight = count**-FORGETTING
        log_average = weight * log_step_size + (1.0 - weight) * self.log_average
        return DualAveraging(log_step_size, log_average, shortfall, self.centre, count)
