"""Visits: some transitions of a batch's chains in one call of a compiled kernel.

The reference makes one transition at a time; see :meth:`Chains.advance` in
:mod:`torch_lntm.inference.chains.chains`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric
from torch_lntm.sampling import hmc
from torch_lntm.sampling.step_sizes import DELAY, FORGETTING, SHRINKAGE, DualAveraging


class Schedule(NamedTuple):
    """Numbers that all chains of a visit share.

    Attributes:
        num_past: Transitions before the visit.
        warmup_steps: Transitions that adapt step sizes.
        num_steps: Leapfrog steps of a transition.
        jitter: Largest relative change of a step size.
        target_accept: Mean acceptance probability that the adaptation aims at.
        longest_step: Upper bound on step sizes.
    """

    num_past: int
    warmup_steps: int
    num_steps: int
    jitter: float
    target_accept: float
    longest_step: float


class Visit(NamedTuple):
    """Chains after a visit.

    Attributes:
        state: State of the chains.
        adaptation: State of the step sizes' adaptation; None for constant step sizes.
        outcomes: Diagnostics of each transition.
        step_sizes: Step size after each transition.
    """

    state: hmc.HMCState
    adaptation: DualAveraging | None
    outcomes: list[hmc.HMCInfo]
    step_sizes: list[Tensor]


def visit(
    target: DocumentTarget,
    state: Tensor | hmc.HMCState,
    keys: Tensor,
    step_size: Tensor,
    adaptation: DualAveraging | None,
    schedule: Schedule,
    number: int,
    metric: Metric,
) -> Visit:
    """Make some transitions of every chain, for targets of :func:`hmc.is_compiled`.

    Args:
        target: The target.
        state: State of the chains, or only their positions ``(num_chains, num_docs, dim)``.
        keys: ``(num_chains, num_docs)`` keys of the chains' transitions.
        step_size: ``(num_chains, num_docs)`` step size of the next transition.
        adaptation: State of the step sizes' adaptation, or None for constant step sizes.
        schedule: Numbers of the visit.
        number: Number of transitions.
        metric: W.
    """
    evaluate = isinstance(state, Tensor)
    if isinstance(state, Tensor):
        unknown = torch.empty_like(step_size)
        state = hmc.HMCState(state, unknown, unknown, torch.empty_like(state))
    settings = (
        *(evaluate, *schedule[:4], hmc.MAX_ENERGY_ERROR, schedule.target_accept),
        *(math.log(schedule.longest_step), SHRINKAGE, DELAY, FORGETTING),
    )
    sizes = step_size, *(adaptation or ())[:4]
    new, sizes, outcome = hmc.compiled_steps(
        target, state, (keys,), sizes, settings, number, metric
    )
    if adaptation is not None:
        num_updates = min(schedule.num_past + number, schedule.warmup_steps)
        num_updates = max(adaptation.num_updates, num_updates)
        _, log_step_size, log_average, shortfall, centre = sizes
        adaptation = DualAveraging(log_step_size, log_average, shortfall, centre, num_updates)
    *info, step_sizes = (x.unbind() for x in outcome)
    return Visit(hmc.HMCState(*new), adaptation, list(map(hmc.HMCInfo, *info)), list(step_sizes))
