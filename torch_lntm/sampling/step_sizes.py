"""Step sizes of Hamiltonian Monte Carlo: the first values, and their adaptation in warm-up."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc

#: γ, t₀ and κ of dual averaging (*Hoffman & Gelman 2014, §3.2.1*).
CONSTANTS = SHRINKAGE, DELAY, FORGETTING = 0.05, 10.0, 0.75


def find_step_size(
    key: Tensor, target: DocumentTarget, state: hmc.HMCState, metric: Metric
) -> Tensor:
    """First step sizes: doubled or halved from 1 until a step's acceptance crosses 0.8.

    *Hoffman & Gelman 2014, algorithm 4*, for every chain of every document.

    Args:
        key: ``(num_chains, num_docs)`` keys of the search.
        target: The target.
        state: Present state of the chains.
        metric: W.

    Returns:
        ``(num_chains, num_docs)`` float64.
    """
    step_size = torch.ones_like(state.log_prior)

    def acceptable(attempt: int) -> Tensor:
        drawn = hmc.draw(noise.fold_in(key, attempt), target)
        info = hmc.step(drawn, target, state, step_size, metric, 1)[1]
        return info.acceptance > 0.8

    grow = acceptable(0)
    searching = torch.ones_like(grow)
    for attempt in range(1, 31):
        step_size = torch.where(searching, step_size * torch.where(grow, 2.0, 0.5), step_size)
        searching &= acceptable(attempt) == grow
        # Whether all chains have crossed it is not asked before the third attempt,
        # because the host waits for a GPU to answer, and the answer is rarely yes.
        if attempt >= 3 and not bool(searching.any()):
            break
    return step_size


class DualAveraging(NamedTuple):
    """Adaptation of step sizes to a mean acceptance probability (*Hoffman & Gelman 2014, eq. 6*).

    Attributes:
        log_step_size: ``(num_chains, num_docs)`` float64, for the next transition.
        log_average: ``(num_chains, num_docs)`` float64, the value after adaptation.
        shortfall: ``(num_chains, num_docs)`` float64 Σ (target − acceptance).
        centre: ``(num_chains, num_docs)`` float64 value towards which log step sizes are shrunk.
        num_updates: Transitions so far.
    """

    log_step_size: Tensor
    log_average: Tensor
    shortfall: Tensor
    centre: Tensor
    num_updates: int = 0

    @classmethod
    def start(cls, step_size: Tensor) -> DualAveraging:
        """First state, at given step sizes.

        Adaptation shrinks them towards 10 times the first size, since larger steps are cheaper.
        """
        log_step_size, zero = step_size.log(), torch.zeros_like(step_size)
        return cls(log_step_size, zero, zero, log_step_size + math.log(10.0))

    def update(self, acceptance: Tensor, target: float, longest: float = math.inf) -> DualAveraging:
        """The state after another transition.

        Args:
            acceptance: ``(num_chains, num_docs)`` acceptance probabilities of the transition.
            target: Mean acceptance probability to reach.
            longest: Upper bound on the step size. At the bound, acceptance above the target is not
                accumulated, so that a drop in acceptance can shorten the step at once.
        """
        count = self.num_updates + 1
        # Shortfall at which the step size reaches ``longest``.
        least = (self.centre - math.log(longest)) * SHRINKAGE * (count + DELAY) / math.sqrt(count)
        shortfall = torch.maximum(self.shortfall + (target - acceptance), least)
        drift = math.sqrt(count) / SHRINKAGE * shortfall / (count + DELAY)
        log_step_size = self.centre - drift
        weight = count**-FORGETTING
        log_average = weight * log_step_size + (1.0 - weight) * self.log_average
        return DualAveraging(log_step_size, log_average, shortfall, self.centre, count)
