"""Importance sampling: draws of a proposal, the mean of the weights, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.kernels import INDEPENDENT, Cells, CountLikelihood, log_likelihood_at
from torch_lntm.latents.proposals import Proposal

#: Fewest weights a tail can be fitted to: 5 tail weights, a fifth of all (*Vehtari et al. 2024*).
MIN_SAMPLES = 25


class WeightSummary(NamedTuple):
    """What the weights of some draws or chains say, for each document.

    Attributes:
        log_mean: ``(num_docs,)`` log of the mean weight, nats.
        standard_error: ``(num_docs,)`` standard error of ``log_mean`` by the delta method: the
            relative standard error of the mean weight.
        effective_sample_size: ``(num_docs,)`` (Σw)² / Σw², between 1 and the number of weights.
    """

    log_mean: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor


def log_weights(
    proposal: Proposal,
    words: Tensor,
    cells: Cells,
    num_samples: int,
    key: Sequence[int],
    likelihood: CountLikelihood = INDEPENDENT,
) -> Tensor:
    """Log p(document, z) − log q(z) at draws z of a proposal q.

    Args:
        proposal: The proposal, for one document.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        cells: Their counts.
        num_samples: Number of draws.
        key: Nonnegative integers that the draws are a function of.
        likelihood: The distribution of the counts. Defaults to independent draws.

    Returns:
        ``(num_samples,)`` float64 nats.
    """
    z, log_q = proposal.draw(num_samples, key)
    logits = proposal.space.logits(z[:, None]).squeeze(1)
    log_prior = proposal.space.log_density(z[:, None]).squeeze(1)
    return log_likelihood_at(logits, words, cells, likelihood) + log_prior - log_q


def summarise_weights(log_weights: Tensor, axis: int) -> WeightSummary:
    """The mean weight of each document, with its error and diagnostics.

    The mean weight is unbiased; its log is biased low, by about half its squared standard error.

    Args:
        log_weights: Float64 log importance ratios of documents, and of their draws or chains.
        axis: The axis of the draws or chains.

    Returns:
        The :class:`WeightSummary`.
    """
    num_samples = log_weights.shape[axis]
    top = log_weights.amax(axis, keepdim=True)
    weights = (log_weights - top).exp()
    mean = weights.mean(axis)
    return WeightSummary(
        log_mean=mean.log() + top.squeeze(axis),
        standard_error=weights.std(axis) / (mean * math.sqrt(num_samples)),
        effective_sample_size=weights.sum(axis).square() / weights.square().sum(axis),
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
