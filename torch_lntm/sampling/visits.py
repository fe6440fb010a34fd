"""Visits: some transitions of a batch's chains in one call of a compiled kernel.

The reference makes one transition at a time; see :meth:`Chains.advance` in
:mod:`torch_lntm.inference.chains.chains`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.kernels import fused
from torch_lntm.kernels.mixture import probability_floor
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


def in_one_call(target: DocumentTarget, metric: Metric) -> bool:
    """Whether a compiled kernel can make a visit of these chains."""
    return metric.is_unit and target.form is not None and fused.is_compiled(target.topics)


def visit(
    target: DocumentTarget,
    state: Tensor | hmc.HMCState,
    keys: Tensor,
    step_size: Tensor,
    adaptation: DualAveraging | None,
    schedule: Schedule,
    number: int,
) -> Visit:
    """Make some transitions of every chain, for targets of :func:`in_one_call`.

    Args:
        target: The target.
        state: State of the chains, or only their positions ``(num_chains, num_docs, dim)``.
        keys: ``(num_chains, num_docs)`` keys of the chains' transitions.
        step_size: ``(num_chains, num_docs)`` step size of the next transition.
        adaptation: State of the step sizes' adaptation, or None for constant step sizes.
        schedule: Numbers of the visit.
        number: Number of transitions.
    """
    evaluate = isinstance(state, Tensor)
    if isinstance(state, Tensor):
        unknown = torch.empty_like(step_size)
        state = hmc.HMCState(state, unknown, unknown, torch.empty_like(state))
    new = hmc.HMCState(*map(_copied, state))
    sizes = [_copied(x) for x in (step_size, *(adaptation or ())[:4])]
    assert target.form is not None
    bursts = None
    if not target.words.independent:
        concentration = target.words.compiled_concentration
        terms = target.words.length_term(target.batch.lengths)
        assert concentration is not None
        assert isinstance(terms, Tensor)
        bursts = concentration, terms
    outcome = fused.visit(
        new,
        keys,
        tuple(sizes),
        (
            *(evaluate, *schedule[:4], hmc.MAX_ENERGY_ERROR, schedule.target_accept),
            *(math.log(schedule.longest_step), SHRINKAGE, DELAY, FORGETTING),
        ),
        number,
        target.form,
        target.topics.mT.contiguous(),
        target.batch,
        probability_floor(target.topics.dtype),
        bursts,
    )
    if adaptation is not None:
        num_updates = min(schedule.num_past + number, schedule.warmup_steps)
        adaptation = DualAveraging(
            sizes[1], sizes[2], sizes[3], sizes[4], max(adaptation.num_updates, num_updates)
        )
    *info, step_sizes = (x.unbind() for x in outcome)
    return Visit(new, adaptation, list(map(hmc.HMCInfo, *info)), list(step_sizes))


def _copied(tensor: Tensor) -> Tensor:
    """A contiguous copy, for a kernel to overwrite."""
    return tensor.clone(memory_format=torch.contiguous_format)
