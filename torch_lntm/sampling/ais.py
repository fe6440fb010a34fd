"""Annealed importance sampling of the probabilities of many documents at once.

Chains go from the prior to the posterior along p(z)·p(w | z)^t, t rising from 0 to 1 (*Neal 2001*).
With x_i the state after i transitions, the weight of a chain is

    log weight = Σ_i (t_{i+1} − t_i) log p(w | x_i)

and E weight = p(w) for any transitions, so long as each keeps its target and none depends on the
chain. Step sizes are therefore tuned in a run of their own and stay fixed while weights are made.
Chains that go the same way back from a posterior draw have E 1/weight = 1/p(w) (*Grosse,
Ghahramani & Adams 2015*), because transitions of Hamiltonian Monte Carlo are their own reversals.

The coordinates z are those of a :class:`~torch_lntm.latents.LatentSpace`, in which the prior is
standard normal or close to it, and have unit mass. A Dirichlet prior takes the same path: Gibbs
sampling, which has nothing to tune, moves along p(theta) ∏_w (Σ_k theta_k φ_kw^t)^{n_w}, and for
small t this is largest where a document has one topic alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import ConfigError
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import UnitMetric
from torch_lntm.sampling import hmc
from torch_lntm.sampling.bridge import Bridge

#: Steepness of the sigmoid schedule (*Wu et al. 2017*).
SIGMOID_REACH = 4.0
#: Power of the power schedule. In a document of N tokens, Var log p(w | z) ∝ 1/t² from t ~ 1/N on,
#: so that temperatures are best spaced in proportion to t.
POWER = 3.0
#: Log step sizes are multiples of this.
RESOLUTION = 1.0 / 16.0
#: Mean acceptance probability that step sizes are tuned to.
TARGET_ACCEPT = 0.8
#: Largest relative change of a step size from transition to transition; see :func:`hmc.step`.
JITTER = 0.2

#: What is folded into a chain's key for each of its uses. ``POSTERIOR`` is for the caller, whose
#: :meth:`LatentSpace.locate` of posterior draws needs keys.
_TUNING, _FORWARD, _REVERSE, POSTERIOR = 0, 1, 2, 3


def make_schedule(schedule: str | Tensor, num_temperatures: int) -> Tensor:
    """Inverse temperatures from 0 to 1.

    Args:
        schedule: ``"power"``, (i/(T−1))³; ``"sigmoid"``, equal steps of σ⁻¹(t) from −4 to 4,
            stretched to reach both ends; ``"linear"``; or the temperatures themselves.
        num_temperatures: T, both ends included; unused if the temperatures are given.

    Returns:
        ``(num_temperatures,)`` float64 on the CPU.

    Raises:
        ConfigError: No such schedule, or temperatures that do not rise from 0 to 1.
    """
    if isinstance(schedule, Tensor):
        values = schedule.detach().double().cpu()
        if values.dim() != 1 or len(values) < 3:
            raise ConfigError(
                f"schedule of shape {tuple(values.shape)}; expected at least 3 temperatures"
            )
        if values[0] != 0 or values[-1] != 1 or not bool((values.diff() > 0).all()):
            raise ConfigError(
                f"schedule from {float(values[0])} to {float(values[-1])}; expected temperatures "
                "that rise from 0 to 1, each above the one before"
            )
        return values
    if num_temperatures < 3:
        raise ConfigError(
            f"num_temperatures is {num_temperatures}; expected at least 3: 0, 1 and one between"
        )
    fractions = torch.linspace(0.0, 1.0, num_temperatures, dtype=torch.float64)
    if schedule == "linear":
        return fractions
    if schedule == "power":
        return fractions.pow(POWER)
    if schedule == "sigmoid":
        values = torch.sigmoid(SIGMOID_REACH * (2.0 * fractions - 1.0))
        return (values - values[0]) / (values[-1] - values[0])
    raise ConfigError(
        f"schedule {schedule!r}; expected power, sigmoid, linear or a tensor of temperatures"
    )


# -- transitions ---------------------------------------------------------------------------------


class Tuning(NamedTuple):
    """How step sizes are found before chains make weights.

    Attributes:
        num_knots: Temperatures at which they are found; between them log step sizes are linear.
        num_rounds: Changes at each knot.
        num_transitions: Transitions before each change.
        num_chains: Chains of a document; :func:`tune` uses the keys that it has, if fewer.
        longest: Longest trajectory, step size times steps, that is tried.
    """

    num_knots: int
    num_rounds: int
    num_transitions: int
    num_chains: int
    longest: float = math.inf


#: From the prior, whose path has step sizes of every length.
FROM_PRIOR = Tuning(num_knots=10, num_rounds=3, num_transitions=5, num_chains=8)
#: From a normal approximation, on whose path they hardly change. In u the density is near standard
#: normal: after a quarter of its period a trajectory has nothing left of where it started, and half
#: a period takes it back to the same density.
FROM_NORMAL = Tuning(
    num_knots=4, num_rounds=2, num_transitions=1, num_chains=16, longest=math.pi / 2.0
)
#: Draws of each of these chains at the end of the path, from which the normal gets its moments.
NUM_DRAWS = 12


class Transitions(NamedTuple):
    """The transitions at every temperature, fixed before any chain makes weights.

    Attributes:
        num_steps: Leapfrog steps of each.
        knots: Positions in the schedule where step sizes were tuned, rising.
        log_step_size: ``(num_knots, num_docs)`` float64.
    """

    num_steps: int
    knots: list[int]
    log_step_size: Tensor

    def step_size(self, position: int) -> Tensor:
        """Step sizes ``(num_docs,)`` at a position in the schedule."""
        after = min(bisect_right(self.knots, position), len(self.knots) - 1)
        before = max(after - 1, 0)
        if after == before:
            return self.log_step_size[after].exp()
        share = (position - self.knots[before]) / (self.knots[after] - self.knots[before])
        return self.log_step_size[before].lerp(self.log_step_size[after], min(share, 1.0)).exp()

    def move(
        self,
        key: Tensor,
        target: DocumentTarget,
        state: hmc.HMCState,
        schedule: Sequence[float],
        position: int,
    ) -> tuple[hmc.HMCState, hmc.HMCInfo]:
        """One transition of every chain, which keeps p(z)·p(w | z)^t.

        Args:
            key: ``(num_chains, num_docs)`` keys of this transition.
            target: The target.
            state: Where the chains are.
            schedule: The temperatures t.
            position: Position of this transition in the schedule.
        """
        return hmc.step(
            hmc.draw(key, target),
            target,
            state,
            self.step_size(position),
            UnitMetric(),
            self.num_steps,
            schedule[position],
            jitter=JITTER,
        )


def tune(
    target: DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int
) -> Transitions:
    """Find step sizes of each document, in a run of its own that is thrown away.

    A few chains go through the knots, starting from the prior. At each knot, log step sizes grow
    with the excess of their mean acceptance over 0.8. They change seldom and in whole multiples of
    1/16. If they followed every transition, as in dual averaging, a rounding error would grow to a
    different step size, and a document's result would depend on its batch.

    Args:
        target: The target.
        schedule: Temperatures.
        keys: ``(num_chains, num_docs)`` the chains' keys; tuning uses those of the first few.
        num_steps: Leapfrog steps of a transition.

    Raises:
        NumericalError: A density is not finite where the chains start; names documents.
    """
    keys = noise.fold_in(keys[: FROM_PRIOR.num_chains], _TUNING)
    return _Pilot.run(target, schedule, keys, num_steps, FROM_PRIOR).transitions


def fit(
    bridge: Bridge, schedule: Sequence[float], keys: Tensor, num_steps: int
) -> tuple[Bridge, Transitions]:
    """Fit the normal of a bridge to the posterior, and find step sizes of each document.

    Chains that go through the knots, as those of :func:`tune`, stay at the last one for some draws.
    The normal gets their means and variances, along its own axes, less what chance has in them: a
    document's are shrunk towards those that it had by the share of their distances that the spread
    between chains accounts for. A mode and its curvature, which most normals come from, are off
    where the posterior is skewed, as it is along topics that a document lacks; under few words they
    are right.

    The chains that make weights are others. Given what these ones came to, their weights are
    unbiased whatever the normal.

    Args:
        bridge: The bridge from a first normal.
        schedule: Temperatures.
        keys: ``(num_chains, num_docs)`` the chains' keys; only the first chain's count.
        num_steps: Leapfrog steps of a transition.

    Returns:
        The bridge from the second normal, and the transitions.

    Raises:
        NumericalError: A density is not finite where the chains start; names documents.
    """
    num_chains = FROM_NORMAL.num_chains
    chains = torch.arange(num_chains, device=keys.device)[:, None]
    keys = noise.fold_in(noise.fold_in(keys[:1], _TUNING), chains)
    pilot = _Pilot.run(bridge, schedule, keys, num_steps, FROM_NORMAL)
    state, last = pilot.state, len(schedule) - 2
    total = torch.zeros_like(state.position)
    squares = torch.zeros_like(total)
    for i in range(NUM_DRAWS):
        key = noise.fold_in(keys, pilot.num_transitions + 1 + i)
        state, _ = pilot.transitions.move(key, bridge, state, schedule, last)
        total += state.position / NUM_DRAWS
        squares += state.position.square() / NUM_DRAWS
    mean = total.mean(0)
    variance = squares + mean * (mean - 2.0 * total)
    # The first normal is the standard one.
    spread = 1.0 + _shrunk(variance - 1.0)
    return bridge.moved(_shrunk(total), spread.sqrt()), pilot.transitions


def _shrunk(distance: Tensor) -> Tensor:
    """Means over chains ``(num_docs, dim)``, shrunk towards 0 by the share of chance in each row.

    Args:
        distance: ``(num_chains, num_docs, dim)`` of each chain.
    """
    mean = distance.mean(0)
    squares = (distance - mean).square().sum((0, -1))[:, None]
    chance = squares / (len(distance) * (len(distance) - 1))
    length = mean.square().sum(-1, keepdim=True)
    return mean * (1.0 - chance / length.clamp_min(torch.finfo(mean.dtype).tiny)).clamp_min(0.0)


class _Pilot(NamedTuple):
    """What chains that tuned step sizes came to.

    Attributes:
        transitions: With the step sizes that they found.
        state: Where they ended.
        num_transitions: Transitions that they took, whose numbers went into their keys.
    """

    transitions: Transitions
    state: hmc.HMCState
    num_transitions: int

    @classmethod
    def run(
        cls,
        target: DocumentTarget,
        schedule: Sequence[float],
        keys: Tensor,
        num_steps: int,
        tuning: Tuning,
    ) -> _Pilot:
        """Take chains of keys ``(num_chains, num_docs)`` through the knots."""
        state = hmc.init(target, target.draw_prior(noise.fold_in(keys, 0)))
        # The last transition is at the temperature before 1.
        last, gaps = len(schedule) - 2, tuning.num_knots - 1
        knots = sorted({1 + round(i * (last - 1) / gaps) for i in range(tuning.num_knots)})
        log_longest = math.log(tuning.longest / num_steps)
        log_step_size = torch.full_like(state.log_prior[0], min(math.log(0.5), log_longest))
        tuned: list[Tensor] = []
        transition = 0
        for knot in knots:
            for _ in range(tuning.num_rounds):
                trial = Transitions(num_steps, [knot], log_step_size[None])
                acceptance = torch.zeros_like(log_step_size)
                for _ in range(tuning.num_transitions):
                    transition += 1
                    key = noise.fold_in(keys, transition)
                    state, info = trial.move(key, target, state, schedule, knot)
                    acceptance += info.acceptance.mean(0) / tuning.num_transitions
                proposed = (log_step_size + acceptance - TARGET_ACCEPT).clamp_max(log_longest)
                log_step_size = (proposed / RESOLUTION).round() * RESOLUTION
            tuned.append(log_step_size)
        return cls(Transitions(num_steps, knots, torch.stack(tuned)), state, transition)


# -- annealing -----------------------------------------------------------------------------------


class AnnealedChains(NamedTuple):
    """The results of chains that went from one end of the path to the other.

    Attributes:
        log_weights: ``(num_chains, num_docs)`` float64 nats. Forward, each exponential has
            expectation p(w); in reverse, the exponential of its negative has 1/p(w).
        acceptance: ``(num_chains, num_docs)`` float64 mean acceptance probability.
        moved: ``(num_chains, num_docs)`` bool, at least one transition was accepted.
    """

    log_weights: Tensor
    acceptance: Tensor
    moved: Tensor


def anneal(
    target: DocumentTarget,
    schedule: Sequence[float],
    transitions: Transitions,
    keys: Tensor,
    posterior: Tensor | None = None,
    advance: Callable[[], object] = lambda: None,
) -> AnnealedChains:
    """Take chains from the prior to the posterior, or back.

    Args:
        target: The target.
        schedule: Temperatures from 0 to 1.
        transitions: The transitions, tuned before.
        keys: ``(num_chains, num_docs)`` the chains' keys.
        posterior: ``(num_chains, num_docs, dim)`` draws of z from the posterior itself. The chains
            start there and go back to the prior. By default they start from prior draws and go
            forward.
        advance: Called at every temperature.

    Raises:
        NumericalError: A density is not finite where the chains start; names documents.
    """
    last = len(schedule) - 1
    intervals: Sequence[int] = range(last)
    if posterior is None:
        keys = noise.fold_in(keys, _FORWARD)
        position = target.draw_prior(noise.fold_in(keys, 0))
    else:
        keys, position, intervals = noise.fold_in(keys, _REVERSE), posterior, intervals[::-1]
    state = hmc.init(target, position)
    log_weights = torch.zeros_like(state.log_likelihood)
    acceptance = torch.zeros_like(log_weights)
    moved = torch.zeros_like(log_weights, dtype=torch.bool)
    for i in intervals:
        log_weights += (schedule[i + 1] - schedule[i]) * state.log_likelihood
        # On to the interval's other end.
        following = i + 1 if posterior is None else i
        if 0 < following < last:
            key = noise.fold_in(keys, following)
            state, info = transitions.move(key, target, state, schedule, following)
            acceptance += info.acceptance / (last - 1)
            moved |= info.accepted
        advance()
    return AnnealedChains(log_weights, acceptance, moved)
