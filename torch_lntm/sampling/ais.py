"""Annealed importance sampling of the probabilities of many documents at once.

Chains go from the prior to the posterior along p(z)·p(w | z)^t, t rising from 0 to 1 (*Neal 2001*).
With x_i the state after i transitions, the weight of a chain

    log weight = Σ_i (t_{i+1} − t_i) log p(w | x_i)

has E weight = p(w) whatever the transitions, so long as each keeps its target and none depends on
the chain: step sizes come from a run of its own and stand still while weights are made. Chains that
go the same way back from a posterior draw have E 1/weight = 1/p(w) (*Grosse, Ghahramani & Adams
2015*), since transitions of Hamiltonian Monte Carlo are their own reversals.

The coordinates z are those of :mod:`torch_lntm.solvers.hmc`, where the prior is standard normal or
near it, with unit mass. (Measured on 19 articles of NIPS, variance of the log weights × seconds at
500 temperatures: 10 topics 3.8, with a metric of each document and temperature 1.3; 50 topics 38
and 22; at 200 temperatures 38 and 157, for a few chains then lag behind.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor
from torch_lntm.solvers import hmc
from torch_lntm.solvers.gibbs import log_gamma_variates

#: Steepness of the sigmoid schedule (*Wu et al. 2017*).
SIGMOID_REACH = 4.0
#: Power of the power schedule. In a document of N tokens Var log p(w | z) ∝ 1/t² from t ~ 1/N on:
#: temperatures are best spaced in proportion to t (*measured: 3 and 4 do about the same*).
POWER = 3.0
#: Temperatures at which step sizes are tuned; between them log step sizes are linear.
NUM_KNOTS = 10
#: Times that step sizes change at each, and transitions before each change.
TUNING_ROUNDS, TUNING_STEPS = 3, 5
#: The most chains of a document that tuning takes.
TUNING_CHAINS = 8
#: Log step sizes are multiples of this.
RESOLUTION = 1.0 / 16.0
#: Mean acceptance probability that step sizes are tuned to.
TARGET_ACCEPT = 0.8
#: Step sizes are drawn from this much around what they are, lest a trajectory close on itself.
JITTER = 0.2

#: What is folded into a chain's key for each of its uses.
_TUNING, _FORWARD, _REVERSE, POSTERIOR = 0, 1, 2, 3


def make_schedule(schedule: str | Tensor, num_temperatures: int) -> Tensor:
    """Inverse temperatures from 0 to 1.

    Args:
        schedule: ``"power"``, (i/(T−1))³; ``"sigmoid"``, equal steps of σ⁻¹(t) from −4 to 4,
            stretched to reach both ends; ``"linear"``; or the temperatures themselves.
        num_temperatures: T, both ends included; goes unused where they are given.

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
    unit = torch.linspace(0.0, 1.0, num_temperatures, dtype=torch.float64)
    if schedule == "linear":
        return unit
    if schedule == "power":
        return unit.pow(POWER)
    if schedule == "sigmoid":
        values = torch.sigmoid(SIGMOID_REACH * (2.0 * unit - 1.0))
        return (values - values[0]) / (values[-1] - values[0])
    raise ConfigError(
        f"schedule {schedule!r}; expected power, sigmoid, linear or a tensor of temperatures"
    )


# -- targets -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaddedTarget(hmc.DocumentTarget):
    """A target whose words are padded to those of the longest document.

    Every chain of a document meets the same words: dense products then, which in float64 and with
    16 chains took a tenth of the time of the sparse ones. Memory is that of
    ``num_docs × longest × (num_topics + num_chains)`` numbers, so batches are to be small and of
    documents of similar size.
    """

    @cached_property
    def _words(self) -> tuple[Tensor, Tensor]:
        """Probabilities ``(num_docs, longest, num_topics)`` and counts ``(num_docs, longest)``."""
        batch = self.batch
        sizes = batch.row_offsets.diff()
        position = torch.arange(int(sizes.max()), device=batch.device)
        inside = position < sizes[:, None]
        entry = torch.where(inside, batch.row_offsets[:-1, None] + position, 0)
        words = self.topics.mT[batch.word_index[entry]]
        # Padding has probability 1 under every topic, and count 0.
        return words.where(inside[..., None], 1.0), batch.counts[entry] * inside

    def _mixture(self, theta: Tensor) -> Tensor:
        """Probabilities of the words ``(num_docs, num_chains, longest)``, floored."""
        s = theta.transpose(0, 1) @ self._words[0].mT
        return s.clamp_min_(probability_floor(s.dtype))

    def likelihood(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`torch_lntm.solvers.hmc.DocumentTarget.likelihood`."""
        theta = self.theta(z)
        s = self._mixture(theta)
        gradient = self._pull(z, self._in_logits(theta, s))
        return (s.log_() * self._words[1][:, None]).sum(-1).double().mT, gradient

    def likelihood_gradient(self, z: Tensor) -> Tensor:
        """See :meth:`torch_lntm.solvers.hmc.DocumentTarget.likelihood_gradient`."""
        theta = self.theta(z)
        return self._pull(z, self._in_logits(theta, self._mixture(theta)))

    def _in_logits(self, theta: Tensor, s: Tensor) -> Tensor:
        """Gradient in the logits ``(num_chains, num_docs, num_topics)``."""
        words, counts = self._words
        slopes = (counts[:, None] / s @ words).transpose(0, 1)
        return theta * slopes - self.batch.lengths[:, None] * theta

    def _pull(self, z: Tensor, in_logits: Tensor) -> Tensor:
        """Gradient in z ``(num_chains, num_docs, dim)``."""
        return self.prior.pull(in_logits)


class LogGamma(NamedTuple):
    """Logs of gamma variates as a function of z, each of the shape of z.

    Attributes:
        value: x(z).
        slope: x′(z), positive.
        curvature: x″(z).
    """

    value: Tensor
    slope: Tensor
    curvature: Tensor


@dataclass(frozen=True, eq=False)
class GammaCoordinates:
    """The Dirichlet prior in coordinates in which it is smooth and near standard normal.

    theta = softmax(x), x_k the log of a Gamma(α_k) variate, is Dirichlet(α). Under small α the
    variates' logs have a tail of length 1/α to the left of a steep wall, which

        x(z) = log Φ(z)/α + z/√(1 + α) + log(1 + α)

    evens out: as α → 0 the tail is that of log U/α, U uniform, which the first term makes normal;
    as α → ∞ x is normal around log α with variance 1/α, to which the others tend. The density of z
    is exact whatever x(z).

    Attributes:
        concentration: ``(num_topics,)`` float64 α.
    """

    concentration: Tensor

    @property
    def dim(self) -> int:
        """Number of topics."""
        return len(self.concentration)

    def log_gamma(self, z: Tensor) -> LogGamma:
        """The function x of z ``(..., num_topics)``, with derivatives."""
        alpha = self.concentration
        log_cdf = torch.special.log_ndtr(z)
        ratio = torch.exp(-0.5 * (z.square() + math.log(2.0 * math.pi)) - log_cdf)
        slope = (1.0 + alpha).rsqrt()
        return LogGamma(
            log_cdf / alpha + slope * z + torch.log1p(alpha),
            ratio / alpha + slope,
            -ratio * (z + ratio) / alpha,
        )

    def unwhiten(self, z: Tensor) -> Tensor:
        """Logs of gamma variates ``(..., num_topics)`` of z."""
        return self.log_gamma(z).value

    def whiten(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`unwhiten`, by bisection."""
        # log Φ(−50) is −1254: no log of a uniform number.
        low, high = torch.full_like(x, -50.0), torch.full_like(x, 50.0)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.unwhiten(middle) < x
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    def lift(self, x: Tensor) -> Tensor:
        """Logits of x: itself."""
        return x

    def draw(self, key: Tensor) -> Tensor:
        """Prior draws of z ``(..., num_topics)`` of keys ``(...,)``."""
        shapes = self.concentration.expand(*key.shape, self.dim)
        return self.whiten(log_gamma_variates(key, shapes))

    def draw_given(self, theta: Tensor, key: Tensor) -> Tensor:
        """Draws of z that have these proportions.

        The variates' sum, Gamma(Σα), is independent of them. A proportion too small for its dtype
        is drawn from below the smallest number, where its law is a power.

        Args:
            theta: ``(..., num_topics)``.
            key: ``(...,)`` keys.

        Returns:
            ``(..., num_topics)`` float64.
        """
        smallest = torch.finfo(theta.dtype).tiny
        shape = self.concentration.sum().expand(*key.shape, 1)
        total = log_gamma_variates(hmc.fold_in(key, 0), shape)
        beyond = hmc.draw_uniform(hmc.fold_in(key, 1), self.dim).log() / self.concentration
        log_theta = theta.double().clamp_min(smallest).log()
        log_theta = torch.where(theta > smallest, log_theta, log_theta + beyond)
        return self.whiten(log_theta + total)


@dataclass(frozen=True, eq=False)
class DirichletTarget(PaddedTarget):
    """A target whose theta has a Dirichlet prior; ``prior`` is the coordinates.

    Why not Gibbs sampling, which has nothing to tune: its draws given the tokens' topics keep
    p(theta) ∏_w (Σ_k theta_k φ_kw^t)^{n_w}, and for small t this is largest where there is one
    topic alone. (Measured on 19 articles of NIPS with 10 topics and 200 temperatures: log weights
    have variances of thousands, on the path here of 7.)
    """

    prior: GammaCoordinates  # type: ignore[assignment]

    def log_prior(self, z: Tensor) -> Tensor:
        """See :meth:`torch_lntm.solvers.hmc.DocumentTarget.log_prior`."""
        x = self.prior.log_gamma(z)
        return (self.prior.concentration * x.value - x.value.exp() + x.slope.log()).sum(-1)

    def prior_gradient(self, z: Tensor) -> Tensor:
        """See :meth:`torch_lntm.solvers.hmc.DocumentTarget.prior_gradient`."""
        x = self.prior.log_gamma(z)
        return (self.prior.concentration - x.value.exp()) * x.slope + x.curvature / x.slope

    def draw_prior(self, key: Tensor) -> Tensor:
        """See :meth:`torch_lntm.solvers.hmc.DocumentTarget.draw_prior`."""
        return self.prior.draw(key)

    def _pull(self, z: Tensor, in_logits: Tensor) -> Tensor:
        return self.prior.log_gamma(z).slope * in_logits


# -- transitions ---------------------------------------------------------------------------------


class Transitions(NamedTuple):
    """Transitions of every temperature, which no chain that makes weights can change.

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
        target: hmc.DocumentTarget,
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
            position: That of this transition.
        """
        step_size = hmc.jittered(key, self.step_size(position), JITTER)
        metric = hmc.UnitMetric()
        return hmc.step(key, target, state, step_size, metric, self.num_steps, schedule[position])


def tune(
    target: hmc.DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int
) -> Transitions:
    """Find step sizes of each document, in a run of its own that is thrown away.

    A few chains go through the knots from the prior on; at each, log step sizes grow with the
    excess of their mean acceptance over 0.8. They change seldom and in whole multiples of 1/16:
    where they follow every transition, as in dual averaging, a rounding error grows to another step
    size, and a document's result would depend on its batch.

    Args:
        target: The target.
        schedule: Temperatures.
        keys: ``(num_chains, num_docs)`` the chains' keys.
        num_steps: Leapfrog steps of a transition.

    Raises:
        NumericalError: A density is not finite where the chains start; names documents.
    """
    target = replace(target, num_chains=min(target.num_chains, TUNING_CHAINS))
    keys = hmc.fold_in(keys[: target.num_chains], _TUNING)
    state = hmc.init(target, target.draw_prior(hmc.fold_in(keys, 0)))
    # The last transition is at the temperature before 1.
    last = len(schedule) - 2
    knots = sorted({1 + round(i * (last - 1) / (NUM_KNOTS - 1)) for i in range(NUM_KNOTS)})
    log_step_size = torch.full_like(state.log_prior[0], math.log(0.5))
    tuned: list[Tensor] = []
    transition = 0
    for knot in knots:
        for _ in range(TUNING_ROUNDS):
            trial = Transitions(num_steps, [knot], log_step_size[None])
            acceptance = torch.zeros_like(log_step_size)
            for _ in range(TUNING_STEPS):
                transition += 1
                key = hmc.fold_in(keys, transition)
                state, info = trial.move(key, target, state, schedule, knot)
                acceptance += info.acceptance.mean(0) / TUNING_STEPS
            change = acceptance - TARGET_ACCEPT
            log_step_size = ((log_step_size + change) / RESOLUTION).round() * RESOLUTION
        tuned.append(log_step_size)
    return Transitions(num_steps, knots, torch.stack(tuned))


# -- annealing -----------------------------------------------------------------------------------


class AnnealedChains(NamedTuple):
    """What chains from one end of the path to the other leave.

    Attributes:
        log_weights: ``(num_chains, num_docs)`` float64 nats. Forward, each exponential has
            expectation p(w); in reverse, the exponential of its negative has 1/p(w).
        acceptance: ``(num_chains, num_docs)`` float64 mean acceptance probability.
        moved: ``(num_chains, num_docs)`` bool, a transition was accepted.
    """

    log_weights: Tensor
    acceptance: Tensor
    moved: Tensor


def anneal(
    target: hmc.DocumentTarget,
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
        posterior: ``(num_chains, num_docs, dim)`` draws of z from the posterior itself, to start
            from and go back; prior draws by default, to go forward.
        advance: Called at every temperature.

    Raises:
        NumericalError: A density is not finite where the chains start; names documents.
    """
    last = len(schedule) - 1
    intervals: Sequence[int] = range(last)
    if posterior is None:
        keys = hmc.fold_in(keys, _FORWARD)
        position = target.draw_prior(hmc.fold_in(keys, 0))
    else:
        keys, position, intervals = hmc.fold_in(keys, _REVERSE), posterior, intervals[::-1]
    state = hmc.init(target, position)
    log_weights = torch.zeros_like(state.log_likelihood)
    acceptance = torch.zeros_like(log_weights)
    moved = torch.zeros_like(log_weights, dtype=torch.bool)
    for i in intervals:
        log_weights += (schedule[i + 1] - schedule[i]) * state.log_likelihood
        # On to the interval's other end.
        following = i + 1 if posterior is None else i
        if 0 < following < last:
            key = hmc.fold_in(keys, following)
            state, info = transitions.move(key, target, state, schedule, following)
            acceptance += info.acceptance / (last - 1)
            moved |= info.accepted
        advance()
    return AnnealedChains(log_weights, acceptance, moved)
