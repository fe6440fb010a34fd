"""Hamiltonian Monte Carlo for the latent variables of many documents at once.

Every document has chains of its own, each with its own acceptance, step size and metric, because
the probability of accepting a whole corpus at once falls to zero as the corpus grows. All chains of
a batch nevertheless move together, as tensors ``(num_chains, num_docs, dim)``.

The position is z, the coordinates of a :class:`~torch_lntm.latents.LatentSpace`. The target density
is p(z)·p(w | z)^T, where T is the inverse temperature of the likelihood. A metric is a factor W of
the inverse mass matrix WWᵀ, and the momentum r is kept in its coordinates, in which it is standard
normal. A leapfrog step is

    r ← r + ½ε Wᵀ∇        z ← z + ε W r        r ← r + ½ε Wᵀ∇

with ∇ in closed form (*Neal 2011, MCMC using Hamiltonian dynamics, §5.2.3 and §5.4.1*). The density
of z may have a kink, as for Laplace sources at 0, but chains remain exact because the step is
reversible and keeps volumes there too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import NumericalError
from torch_lntm.kernels import fused
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric

#: Energy error, in nats, above which a trajectory counts as divergent (*Stan's value*).
MAX_ENERGY_ERROR = 1000.0


class HMCState(NamedTuple):
    """Positions of the chains, with the densities and the gradient there.

    Attributes:
        position: ``(num_chains, num_docs, dim)`` z.
        log_prior: ``(num_chains, num_docs)`` float64 nats.
        log_likelihood: ``(num_chains, num_docs)`` float64 nats.
        likelihood_gradient: ``(num_chains, num_docs, dim)`` gradient of the log likelihood in z.
    """

    position: Tensor
    log_prior: Tensor
    log_likelihood: Tensor
    likelihood_gradient: Tensor


class HMCInfo(NamedTuple):
    """Diagnostics of a transition, each ``(num_chains, num_docs)``.

    Attributes:
        acceptance: Acceptance probability, float64; 0 if divergent.
        accepted: Whether the proposal was accepted, bool.
        energy_error: Energy at the end minus energy at the start, nats, float64.
        divergent: Whether the energy error is above 1000 nats or NaN, bool.
    """

    acceptance: Tensor
    accepted: Tensor
    energy_error: Tensor
    divergent: Tensor


class Randomness(NamedTuple):
    """Random numbers of transitions, all with equal leading axes.

    Attributes:
        momentum: ``(..., num_chains, num_docs, dim)`` standard normal r.
        acceptance_uniform: ``(..., num_chains, num_docs)`` uniform float64. A proposal is accepted
            if this number is below its acceptance probability.
        step_uniform: ``(..., num_chains, num_docs)`` uniform float64, for the jitter of the step
            size.
    """

    momentum: Tensor
    acceptance_uniform: Tensor
    step_uniform: Tensor


def draw(key: Tensor, target: DocumentTarget) -> Randomness:
    """Random numbers of any number of transitions.

    Args:
        key: ``(..., num_chains, num_docs)`` keys of the transitions.
        target: Target of the transitions.
    """
    keys = noise.split(key, 3)
    momentum = noise.normal(keys[0], target.dim).to(target.topics.dtype)
    return Randomness(momentum, *noise.uniform(keys[1:], 1).squeeze(-1))


def evaluate(target: DocumentTarget, position: Tensor) -> HMCState:
    """The state at z ``(num_chains, num_docs, dim)``."""
    return HMCState(position, target.log_prior(position), *target.likelihood(position))


def are_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Whether all values of all tensors are finite: a boolean tensor on their device."""
    # Flags of all values would take much memory, whereas an extreme of values with NaN is itself
    # NaN.
    extremes = [extreme for values in tensors if values.numel() for extreme in values.aminmax()]
    return torch.stack([extreme.isfinite() for extreme in extremes]).all()


def init(target: DocumentTarget, position: Tensor) -> HMCState:
    """The state at starting points z ``(num_chains, num_docs, dim)``, checked to be finite.

    Raises:
        NumericalError: A density or gradient is not finite; names it and the documents.
    """
    state = evaluate(target, position)
    if not bool(are_finite(state)):
        require_finite(target, state)
    return state


def require_finite(target: DocumentTarget, state: HMCState) -> None:
    """Check that a state is finite.

    Raises:
        NumericalError: A density or gradient is not finite; names it and the documents.
    """
    for name, values in zip(HMCState._fields, state, strict=True):
        finite = values.isfinite()
        bad = ~(finite.all(-1) if values.dim() > 2 else finite).all(0)
        if bool(bad.any()):
            documents = target.batch.index[bad].tolist()
            raise NumericalError(
                f"the {name.replace('_', ' ')} of {len(documents)} document(s) is not finite where "
                f"their chains start, first at position {documents[0]}",
                documents,
            )


def leapfrog(
    target: DocumentTarget,
    state: HMCState,
    momentum: Tensor,
    step_size: Tensor,
    metric: Metric,
    num_steps: int,
    inverse_temperature: float = 1.0,
) -> tuple[HMCState, Tensor]:
    """Follow the Hamiltonian flow for some steps.

    Args:
        target: The target.
        state: Start of the trajectory.
        momentum: ``(num_chains, num_docs, dim)`` r.
        step_size: ``(num_chains, num_docs)`` ε.
        metric: W.
        num_steps: Steps, at least 1.
        inverse_temperature: Inverse temperature T of the likelihood.

    Returns:
        State and momentum at the end. The density is computed at the end only.
    """
    z, r = state.position, momentum
    epsilon = step_size.to(z.dtype)[..., None]

    def kick(r: Tensor, likelihood_gradient: Tensor, share: float = 1.0) -> Tensor:
        prior_gradient = target.prior_gradient(z)
        gradient = torch.add(prior_gradient, likelihood_gradient, alpha=inverse_temperature)
        return torch.addcmul(r, epsilon, metric.pull(gradient), value=share)

    r = kick(r, state.likelihood_gradient, 0.5)
    for _ in range(num_steps - 1):
        z = torch.addcmul(z, epsilon, metric.push(r))
        r = kick(r, target.likelihood_gradient(z))
    z = torch.addcmul(z, epsilon, metric.push(r))
    end = evaluate(target, z)
    return end, kick(r, end.likelihood_gradient, 0.5)


def energy(state: HMCState, momentum: Tensor, inverse_temperature: float = 1.0) -> Tensor:
    """The Hamiltonian ``(num_chains, num_docs)`` float64 nats: −log target + ½|r|²."""
    potential = -state.log_prior - inverse_temperature * state.log_likelihood
    return potential + 0.5 * momentum.double().square().sum(-1)


def is_compiled(target: DocumentTarget) -> bool:
    """Whether compiled kernels make the transitions of a target."""
    return fused.is_compiled(target.topics) and target.form is not None


def _suits_triton(target: DocumentTarget, metric: Metric) -> bool:
    """Whether a target has independent tokens, and affine logits of a normal z of unit mass."""
    form = target.form
    small = form is not None and form.is_normal and form.loading.numel() <= fused.MAX_LOADING
    return small and metric.is_unit and target.words.independent


def compiled_steps(
    target: DocumentTarget,
    state: HMCState,
    drawn: tuple[Tensor, ...],
    step_sizes: tuple[Tensor, ...],
    settings: tuple[Any, ...],
    number: int,
    metric: Metric,
    inverse_temperature: float = 1.0,
    with_counts: bool = False,
) -> tuple[tuple[Tensor, ...], ...]:
    """Some transitions of a target that :func:`is_compiled`; see :func:`fused.visit`."""
    assert target.form is not None
    return fused.visit(
        state,
        drawn,
        step_sizes,
        settings,
        number,
        target.form,
        target.topics.mT.contiguous(),
        target.batch,
        probability_floor(target.topics.dtype),
        target.bursts,
        inverse_temperature,
        metric.factor,
        with_counts,
    )


def step(
    drawn: Randomness,
    target: DocumentTarget,
    state: HMCState,
    step_size: Tensor,
    metric: Metric,
    num_steps: int,
    inverse_temperature: float = 1.0,
    jitter: float = 0.0,
) -> tuple[HMCState, HMCInfo]:
    """One transition of every chain: a fresh momentum, a trajectory, its acceptance.

    Args:
        drawn: Random numbers of the transition.
        target: The target.
        state: Present state of the chains.
        step_size: ε, broadcastable to ``(num_chains, num_docs)``.
        metric: W.
        num_steps: Leapfrog steps.
        inverse_temperature: Inverse temperature T of the likelihood.
        jitter: Largest relative change of the step sizes, in [0, 1). Step sizes are drawn uniformly
            around ``step_size``, so that trajectories of varying length do not return to their
            starts periodically.

    Returns:
        The new state, and diagnostics. The host does not wait for the device.
    """
    if is_compiled(target):
        sizes = (step_size.to(state.log_prior).expand_as(state.log_prior),)
        settings = False, 0, 0, num_steps, jitter, MAX_ENERGY_ERROR, 0.0, math.inf, 1.0, 1.0, 1.0
        numbers = tuple(x[None] for x in drawn)
        new, _, outcome, _ = compiled_steps(
            target, state, numbers, sizes, settings, 1, metric, inverse_temperature
        )
        return HMCState(*new), HMCInfo(*(x[0] for x in outcome[:4]))
    if fused.kind(state.position) == "triton" and _suits_triton(target, metric):
        assert target.form is not None
        new, info = fused.transition(
            state,
            drawn,
            step_size,
            inverse_temperature,
            num_steps,
            jitter,
            MAX_ENERGY_ERROR,
            *target.form[:2],
            target.topics.mT.contiguous(),
            target.batch,
            probability_floor(target.topics.dtype),
        )
        return HMCState(*new), HMCInfo(*info)
    momentum, acceptance_uniform, step_uniform = drawn
    step_size = step_size * (1.0 + jitter * (2.0 * step_uniform - 1.0))
    end, final = leapfrog(
        target, state, momentum, step_size, metric, num_steps, inverse_temperature
    )
    error = energy(end, final, inverse_temperature) - energy(state, momentum, inverse_temperature)
    # Written so that a NaN counts as divergent.
    divergent = ~((error > -math.inf) & (error <= MAX_ENERGY_ERROR))
    acceptance = torch.where(divergent, 0.0, (-error).clamp_max(0.0).exp())
    accepted = acceptance_uniform < acceptance

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(accepted[..., None] if new.dim() > 2 else accepted, new, old)

    return (HMCState(*map(choose, end, state)), HMCInfo(acceptance, accepted, error, divergent))
