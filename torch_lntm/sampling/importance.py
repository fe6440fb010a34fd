"""Importance sampling: draws of a proposal, the mean of the weights, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

#: Fewest weights a tail can be fitted to: 5 tail weights, a fifth of all (*Vehtari et al. 2024*).
MIN_SAMPLES = 25


class WeightSummary(NamedTuple):
    """What importance weights say, for each document.

    Attributes:
        log_mean: ``(num_docs,)`` log of the mean weight, nats.
        standard_error: ``(num_docs,)`` standard error of ``log_mean`` by the delta method: the
            relative standard error of the mean weight.
        effective_sample_size: ``(num_docs,)`` (Σw)² / Σw², between 1 and the number of draws.
        pareto_k: ``(num_docs,)`` shape of the weights' upper tail.
    """

    log_mean: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor
    pareto_k: Tensor


def draw_noise(
    num_samples: int, dim: int, key: Sequence[int], degrees_of_freedom: float = math.inf
) -> Tensor:
    """Standard normal or Student-t noise of one document, a function of its key alone.

    Drawn on the CPU, so that it is the same whatever the batch and the device.

    Args:
        num_samples: Number of draws.
        dim: Dimension of each.
        key: Nonnegative integers that seed the generator, as (seed, position in the corpus).
        degrees_of_freedom: Of a multivariate Student-t; infinite for a normal.

    Returns:
        ``(num_samples, dim)`` float64.
    """
    rng = np.random.default_rng(list(key))
    noise = rng.standard_normal((num_samples, dim))
    if math.isfinite(degrees_of_freedom):
        half = degrees_of_freedom / 2.0
        noise *= np.sqrt(half / rng.standard_gamma(half, size=(num_samples, 1)))
    return torch.from_numpy(noise)


def noise_log_density(noise: Tensor, degrees_of_freedom: float = math.inf) -> Tensor:
    """Log density ``(...,)`` of what :func:`draw_noise` draws, at noise ``(..., dim)``."""
    dim = noise.shape[-1]
    squared = noise.square().sum(-1)
    if math.isinf(degrees_of_freedom):
        return -0.5 * (squared + dim * math.log(2.0 * math.pi))
    nu = degrees_of_freedom
    constant = (
        math.lgamma((nu + dim) / 2.0) - math.lgamma(nu / 2.0) - 0.5 * dim * math.log(nu * math.pi)
    )
    return constant - 0.5 * (nu + dim) * torch.log1p(squared / nu)


def summarise_weights(log_weights: Tensor) -> WeightSummary:
    """The mean weight of each document, with its error and diagnostics.

    The mean weight is unbiased; its log is biased low, by about half its squared standard error.

    Args:
        log_weights: ``(num_docs, num_samples)`` float64 log importance ratios.

    Returns:
        The :class:`WeightSummary`.
    """
    num_samples = log_weights.shape[1]
    top = log_weights.amax(1, keepdim=True)
    weights = (log_weights - top).exp()
    mean = weights.mean(1)
    return WeightSummary(
        log_mean=mean.log() + top.squeeze(1),
        standard_error=weights.std(1) / (mean * math.sqrt(num_samples)),
        effective_sample_size=weights.sum(1).square() / weights.square().sum(1),
        pareto_k=pareto_k(log_weights),
    )


def pareto_k(log_weights: Tensor) -> Tensor:
    """Shape k̂ of the generalised Pareto distribution fitted to each row's largest weights.

    The weights have finite moments of order below 1/k: under 0.5 the variance is finite, and above
    0.7 the mean weight and its standard error are not to be trusted (*Vehtari et al. 2024*). It is
    fitted to the largest min(S/5, 3√S) of S weights as by *Zhang & Stephens 2009*, with Vehtari et
    al.'s weak prior around 0.5, worth ten weights.

    Args:
        log_weights: ``(num_docs, num_samples)`` logs of the weights, on any scale.

    Returns:
        ``(num_docs,)`` float64; ``-inf`` where the largest weights are all the same (no tail).
    """
    num_samples = log_weights.shape[1]
    if num_samples < MIN_SAMPLES:
        raise ValueError(f"pareto_k needs at least {MIN_SAMPLES} weights, got {num_samples}")
    size = math.ceil(min(num_samples / 5.0, 3.0 * math.sqrt(num_samples)))
    tail = log_weights.double().topk(size + 1).values.flip(1)
    weights = (tail - tail[:, -1:]).exp()
    exceedances = weights[:, 1:] - weights[:, :1]
    largest = exceedances[:, -1]
    spread = largest > 1e-12
    # Relative to the largest; ties at the threshold are moved off 0, where the fit has no value.
    x = exceedances / torch.where(spread, largest, 1.0)[:, None]
    x = x.clamp_min(torch.finfo(x.dtype).eps)
    grid_size = 30 + int(math.sqrt(size))
    steps = torch.arange(1, grid_size + 1, dtype=x.dtype, device=x.device) - 0.5
    quartile = x[:, int(size / 4 + 0.5) - 1, None]
    b = 1.0 + (1.0 - (grid_size / steps).sqrt()) / (3.0 * quartile)
    k = torch.log1p(-b[..., None] * x[:, None, :]).mean(-1)
    # b and k have opposite signs; where both vanish, -b/k tends to 1 over the mean exceedance.
    ratio = torch.where(k == 0, 1.0 / x.mean(1, keepdim=True), -b / k)
    profile = size * (ratio.log() - k - 1.0)
    b_mean = (torch.softmax(profile, 1) * b).sum(1, keepdim=True)
    shape = torch.log1p(-b_mean * x).mean(1)
    shape = (size * shape + 10.0 * 0.5) / (size + 10.0)
    return torch.where(spread, shape, -math.inf)
