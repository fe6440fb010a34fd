"""Step sizes of Hamiltonian Monte Carlo: a first guess, and its adaptation in warm-up."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc

#: Doublings or halvings of the search for a first step size.
MAX_DOUBLINGS = 30
#: Attempts before anyone asks whether all chains have crossed the threshold.
FEWEST_ATTEMPTS = 3
#: γ, t₀ and κ of dual averaging (*Hoffman & Gelman 2014, §3.2.1*).
SHRINKAGE, DELAY, FORGETTING = 0.05, 10.0, 0.75


def find_step_size(
    key: Tensor, target: DocumentTarget, state: hmc.HMCState, metric: Metric, threshold: float = 0.8
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
        drawn = hmc.draw(noise.fold_in(key, attempt), target)
        info = hmc.step(drawn, target, state, step_size, metric, 1)[1]
        return info.acceptance > threshold

    grow = acceptable(0)
    searching = torch.ones_like(grow)
    for attempt in range(1, MAX_DOUBLINGS + 1):
        step_size = torch.where(searching, step_size * torch.where(grow, 2.0, 0.5), step_size)
        searching &= acceptable(attempt) == grow
        # The host waits for a GPU when it asks, and the first attempts are hardly ever all.
        if attempt >= FEWEST_ATTEMPTS and not bool(searching.any()):
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
        """Start from first step sizes; shrinks towards ten times these, as larger are cheaper."""
        log_step_size, zero = step_size.log(), torch.zeros_like(step_size)
        return cls(log_step_size, zero, zero, log_step_size + math.log(10.0))

    def update(self, acceptance: Tensor, target: float, longest: float = math.inf) -> DualAveraging:
        """The state after one more transition.

        Args:
            acceptance: ``(num_chains, num_docs)`` its acceptance probabilities.
            target: Mean acceptance probability to reach.
            longest: Upper bound on the step size. While the step size is at the bound, acceptance
                above the target is not accumulated, so adaptation can shorten the step at once
                when acceptance drops.
        """
        count = self.num_updates + 1
        least = (self.centre - math.log(longest)) * SHRINKAGE * (count + DELAY) / math.sqrt(count)
        shortfall = torch.maximum(self.shortfall + (target - acceptance), least)
        drift = math.sqrt(count) / SHRINKAGE * shortfall / (count + DELAY)
        log_step_size = self.centre - drift
        weight = count**-FORGETTING
        log_average = weight * log_step_size + (1.0 - weight) * self.log_average
        return DualAveraging(log_step_size, log_average, shortfall, self.centre, count)
