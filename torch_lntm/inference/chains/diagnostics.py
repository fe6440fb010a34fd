"""Diagnostics of Markov chains: effective sample sizes and normal scores of ranks."""

from __future__ import annotations

import math

import torch
from pyro.ops.stats import autocovariance
from torch import Tensor


def effective_sample_size(draws: Tensor) -> Tensor:
    """Effective sample size of split chains, by Geyer's initial monotone sequence.

    The estimate is that of Pyro and Stan (*Vehtari et al. 2021, §3.2*) for chains split in halves.
    Memory is linear in the number of draws, whereas Pyro's function needs its square. The estimate
    also stays positive for alternating chains, for which Pyro's may be negative.

    Args:
        draws: ``(num_chains, num_draws, ...)``, at least 4 samples.

    Returns:
        ``(...)``. It is at most n·log₁₀ n for n draws, and n if all draws are equal.
    """
    half = draws.shape[1] // 2
    split = torch.cat([draws[:, :half], draws[:, -half:]])
    total = 2 * draws.shape[0] * half
    within = split.var(1).mean(0)
    spread = (half - 1) / half * within + split.mean(1).var(0)
    covariance = autocovariance(split, dim=1).mean(0)
    correlation = 1.0 - (within - covariance) / torch.where(spread > 0, spread, 1.0)
    correlation[0] = 1.0
    pairs = correlation[: half // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    pairs[1:] = pairs[1:].clamp_min(0.0)
    time = 2.0 * pairs.cummin(0).values.sum(0) - 1.0
    shortest = 1.0 / math.log10(total)
    return torch.where(spread > 0, total / time.clamp_min(shortest), float(total))


def normal_scores(draws: Tensor) -> Tensor:
    """Normal scores of the draws' ranks among all chains (*Vehtari et al. 2021, eq. 14*).

    Args:
        draws: ``(num_chains, num_draws, ...)``.

    Returns:
        Scores in the shape of the draws.
    """
    flat = draws.flatten(0, 1)
    # Rejections repeat draws. Equal draws have equal average ranks if ranked from both ends.
    average = 0.5 * (_ranks(flat) + _ranks(flat.flip(0)).flip(0)).double()
    return torch.special.ndtri((average + 0.625) / (len(flat) + 0.25)).view_as(draws)


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the first axis, from 0. Equal values rank in order of appearance."""
    return values.argsort(dim=0, stable=True).argsort(0)
