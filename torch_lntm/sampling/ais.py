"""Annealed importance sampling of the probabilities of many documents at once.

Chains go from the prior to the posterior along p(z)·p(w | z)^t, with t rising from 0 to 1 (*Neal
2001*). With x_i the state after i transitions, the weight of a chain is

    log weight = Σ_i (t_{i+1} − t_i) log p(w | x_i)

and E weight = p(w). This holds if every transition leaves its target invariant and was chosen
independently of the chain, which is why step sizes are tuned in a separate run and fixed for the
weighted chains. Chains may also go back from a posterior draw to the prior. Then E 1/weight =
1/p(w) (*Grosse, Ghahramani & Adams 2015*), because transitions of Hamiltonian Monte Carlo are their
own reversals.

The coordinates z are those of a :class:`~torch_lntm.latents.LatentSpace`, in which the prior is
standard normal or nearly so and the mass matrix is I. A Dirichlet prior takes the same path. Gibbs
sampling would need no tuning, but it would move along p(theta) ∏_w (Σ_k theta_k φ_kw^t)^{n_w}, a
density that for small t is largest at documents of a single topic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc
from torch_lntm.sampling.bridge import Bridge

#: Log step sizes are multiples of this number.
RESOLUTION = 1.0 / 16.0

#: Numbers folded into a chain's key, a separate number for each use. ``POSTERIOR`` is for the
#: caller: :meth:`LatentSpace.locate` of posterior draws needs keys.
_TUNING, _FORWARD, _REVERSE, POSTERIOR = 0, 1, 2, 3


def make_schedule(num_temperatures: int, from_prior: bool) -> list[float]:
    """Inverse temperatures from 0 to 1, both included.

    Args:
        num_temperatures: T, at least 3.
        from_prior: Whether the path starts from the prior, for (i/(T−1))³. A path from a normal
            approximation has equal steps of σ⁻¹(t) from −4 to 4, stretched to reach 0 and 1 (*Wu et
            al. 2017*).

    Example:
        >>> from torch_lntm.sampling import ais
        >>> ais.make_schedule(3, from_prior=True)
        [0.0, 0.125, 1.0]
    """
    fractions = torch.linspace(0.0, 1.0, num_temperatures, dtype=torch.float64)
    if from_prior:
        # In a document of N tokens, Var log p(w | z) ∝ 1/t² for t above about 1/N, so distances
        # between temperatures are best in proportion to t, as a high power gives them.
        return fractions.pow(3.0).tolist()
    values = torch.sigmoid(4.0 * (2.0 * fractions - 1.0))
    return ((values - values[0]) / (values[-1] - values[0])).tolist()


# -- transitions ---------------------------------------------------------------------------------


class Tuning(NamedTuple):
    """Settings of the search for step sizes, before the weighted chains.

    Attributes:
        num_knots: Temperatures with a tuned step size. Between two knots, log step sizes are
            linear.
        num_rounds: Changes of the step size at each knot.
        num_transitions: Transitions before each change.
        num_chains: Chains of a document. :func:`tune` uses fewer if it has fewer keys.
        longest: Longest trajectory, step size times steps.
    """

    num_knots: int
    num_rounds: int
    num_transitions: int
    num_chains: int
    longest: float = math.inf


#: Tuning on the path from the prior, along which step sizes vary widely.
FROM_PRIOR = Tuning(num_knots=10, num_rounds=3, num_transitions=5, num_chains=8)
#: Tuning on the path from a normal approximation, along which step sizes hardly change because the
#: density of u is near standard normal. A trajectory forgets its start after a quarter of the
#: period, and returns to the starting density after half a period.
FROM_NORMAL = Tuning(
    num_knots=4, num_rounds=2, num_transitions=1, num_chains=16, longest=math.pi / 2.0
)
#: Draws of each chain at the end of the path, for the moments of the normal.
NUM_DRAWS = 12


class Transitions(NamedTuple):
    """Transitions at every temperature, fixed before the weighted chains start.

    Attributes:
        num_steps: Leapfrog steps of each transition.
        knots: Positions in the schedule of the tuned step sizes, rising.
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
        """One transition of every chain, with invariant density p(z)·p(w | z)^t.

        Args:
            key: ``(num_chains, num_docs)`` keys of this transition.
            target: The target.
            state: Present state of the chains.
            schedule: The temperatures t.
            position: Position of this transition in the schedule.
        """
        return hmc.step(
            hmc.draw(key, target),
            target,
            state,
            self.step_size(position),
            Metric(),
            self.num_steps,
            schedule[position],
            # Largest relative change of a step size between transitions; see :func:`hmc.step`.
            jitter=0.2,
        )


def tune(
    target: DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int
) -> Transitions:
    """Find step sizes of each document, in a separate run.

    A few chains start from the prior and go through the knots. At each knot, log step sizes grow
    with the excess of their mean acceptance over 0.8. They change rarely, and by multiples of 1/16,
    because if they changed at every transition, as in dual averaging, a rounding error would grow
    into a different step size and a document's result would depend on its batch.

    Args:
        target: The target.
        schedule: Temperatures.
        keys: ``(num_chains, num_docs)`` keys of the chains. Tuning uses the keys of the first few.
        num_steps: Leapfrog steps of a transition.

    Raises:
        NumericalError: A density is not finite at the start of a chain; names documents.
    """
    keys = noise.fold_in(keys[: FROM_PRIOR.num_chains], _TUNING)
    return _through_knots(target, schedule, keys, num_steps, FROM_PRIOR)[0]


def fit(
    bridge: Bridge, schedule: Sequence[float], keys: Tensor, num_steps: int
) -> tuple[Bridge, Transitions]:
    """Fit the normal of a bridge to the posterior, and find step sizes of each document.

    Chains go through the knots, as in :func:`tune`, and then take some draws at the last knot. The
    new normal has the means and variances of these draws, along the axes of the old normal. To
    reduce noise, a document's means and variances are shrunk towards the old values, by an amount
    that follows from the spread between chains. Most normals come from a mode and its curvature.
    These are accurate if the document has few words, but not for skewed posteriors, as along topics
    without tokens in the document.

    The weighted chains are separate from these, so that given the tuning chains their weights are
    unbiased for any normal.

    Args:
        bridge: The bridge from a first normal.
        schedule: Temperatures.
        keys: ``(num_chains, num_docs)`` keys of the chains. Only the first row is used.
        num_steps: Leapfrog steps of a transition.

    Returns:
        The bridge from the second normal, and the transitions.

    Raises:
        NumericalError: A density is not finite at the start of a chain; names documents.
    """
    chains = torch.arange(FROM_NORMAL.num_chains, device=keys.device)[:, None]
    keys = noise.fold_in(noise.fold_in(keys[:1], _TUNING), chains)
    transitions, state, number = _through_knots(bridge, schedule, keys, num_steps, FROM_NORMAL)
    last, total = len(schedule) - 2, torch.zeros_like(state.position)
    squares = torch.zeros_like(total)
    for i in range(NUM_DRAWS):
        key = noise.fold_in(keys, number + 1 + i)
        state, _ = transitions.move(key, bridge, state, schedule, last)
        total += state.position / NUM_DRAWS
        squares += state.position.square() / NUM_DRAWS
    mean = total.mean(0)
    variance = squares + mean * (mean - 2.0 * total)
    # The first normal has mean 0 and variance 1 in u.
    spread = 1.0 + _shrunk(variance - 1.0)
    return bridge.moved(_shrunk(total), spread.sqrt()), transitions


def _shrunk(distance: Tensor) -> Tensor:
    """Means over chains ``(num_docs, dim)``, shrunk towards 0 by the share of noise in each row.

    Args:
        distance: ``(num_chains, num_docs, dim)`` values of each chain.
    """
    mean = distance.mean(0)
    squares = (distance - mean).square().sum((0, -1))[:, None]
    chance = squares / (len(distance) * (len(distance) - 1))
    length = mean.square().sum(-1, keepdim=True)
    return mean * (1.0 - chance / length.clamp_min(torch.finfo(mean.dtype).tiny)).clamp_min(0.0)


def _through_knots(
    target: DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int, tuning: Tuning
) -> tuple[Transitions, hmc.HMCState, int]:
    """Take chains with keys ``(num_chains, num_docs)`` through the knots.

    Returns:
        Transitions with the tuned step sizes, the last state of the chains, and the number of their
        transitions, each of which was folded into the keys.
    """
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
            # The aim is a mean acceptance probability of 0.8.
            proposed = (log_step_size + acceptance - 0.8).clamp_max(log_longest)
            log_step_size = (proposed / RESOLUTION).round() * RESOLUTION
        tuned.append(log_step_size)
    return Transitions(num_steps, knots, torch.stack(tuned)), state, transition


# -- annealing -----------------------------------------------------------------------------------


class AnnealedChains(NamedTuple):
    """Results of chains along the whole path.

    Attributes:
        log_weights: ``(num_chains, num_docs)`` float64 nats. Forward, the exponential of each has
            expectation p(w). In reverse, the exponential of its negative has expectation 1/p(w).
        acceptance: ``(num_chains, num_docs)`` float64 mean acceptance probability.
        moved: ``(num_chains, num_docs)`` bool, whether at least one transition was accepted.
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
        transitions: Tuned transitions.
        keys: ``(num_chains, num_docs)`` keys of the chains.
        posterior: ``(num_chains, num_docs, dim)`` exact posterior draws of z, from which the chains
            go back to the prior. By default they start from prior draws and go forward.
        advance: Function to call at every temperature.

    Raises:
        NumericalError: A density is not finite at the start of a chain; names documents.

    Example:
        >>> from torch_lntm import noise
        >>> from torch_lntm.sampling import ais
        >>> target, keys = model.bind(batch), noise.document_keys(0, batch.index, 4)
        >>> schedule = ais.make_schedule(20, from_prior=True)
        >>> transitions = ais.tune(target, schedule, keys, num_steps=4)
        >>> ais.anneal(target, schedule, transitions, keys).log_weights.shape
        torch.Size([4, 5])
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
        # Position at the other end of the interval.
        following = i + 1 if posterior is None else i
        if 0 < following < last:
            key = noise.fold_in(keys, following)
            state, info = transitions.move(key, target, state, schedule, following)
            acceptance += info.acceptance / (last - 1)
            moved |= info.accepted
        advance()
    return AnnealedChains(log_weights, acceptance, moved)
