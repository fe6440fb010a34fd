"""Importance sampling: weights of draws from a proposal, their mean, and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.kernels.likelihood import INDEPENDENT, Cells, CountLikelihood, log_likelihood_at
from torch_lntm.latents.identified import Proposal

#: Fewest weights for the fit of a tail: 5 tail weights, a fifth of all (*Vehtari et al. 2024*).
MIN_SAMPLES = 25


class WeightSummary(NamedTuple):
    """Mean weight of draws or chains for each document, with its error.

    Attributes:
        log_mean: ``(num_docs,)`` log of the mean weight, nats.
        standard_error: ``(num_docs,)`` standard error of ``log_mean`` by the delta method, i.e. the
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
    num_draws: int,
    key: Sequence[int],
    likelihood: CountLikelihood = INDEPENDENT,
) -> Tensor:
    """Log weights log p(document, z) − log q(z) at draws z of a proposal q.

    Args:
        proposal: The proposal, for a single document.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        cells: Counts of these words.
        num_draws: Number of draws.
        key: Nonnegative integers. The draws are a function of the key.
        likelihood: Distribution of the counts. Defaults to independent draws.

    Returns:
        ``(num_draws,)`` float64 nats.
    """
    z, log_q = proposal.draw(num_draws, key)
    logits = proposal.space.logits(z[:, None]).squeeze(1)
    log_prior = proposal.space.log_density(z[:, None]).squeeze(1)
    return log_likelihood_at(logits, words, cells, likelihood) + log_prior - log_q


def summarise_weights(log_weights: Tensor, axis: int) -> WeightSummary:
    """Mean weight of each document, with its error and effective sample size.

    The mean weight is unbiased, but its log is biased low by about half its squared standard error.

    Args:
        log_weights: Float64 log importance ratios of documents, and of their draws or chains.
        axis: Axis of the draws or chains.

    Returns:
        The :class:`WeightSummary`.

    Example:
        >>> from torch_lntm.sampling.importance import summarise_weights
        >>> summary = summarise_weights(torch.zeros(2, 100), axis=1)
        >>> summary.log_mean.tolist(), summary.effective_sample_size.tolist()
        ([0.0, 0.0], [100.0, 100.0])
    """
    num_draws = log_weights.shape[axis]
    top = log_weights.amax(axis, keepdim=True)
    weights = (log_weights - top).exp()
    mean = weights.mean(axis)
    return WeightSummary(
        log_mean=mean.log() + top.squeeze(axis),
        standard_error=weights.std(axis) / (mean * math.sqrt(num_draws)),
        effective_sample_size=weights.sum(axis).square() / weights.square().sum(axis),
    )


def pareto_k(log_weights: Tensor) -> Tensor:
    """Shape k̂ of the generalised Pareto distribution fitted to each row's largest weights.

    The weights have finite moments of order below 1/k, so that their variance is finite below k =
    0.5. Above k = 0.7 the mean weight and its standard error are unreliable (*Vehtari et al.
    2024*). The fit uses the largest min(S/5, 3√S) of S weights, by the method of *Zhang & Stephens
    2009*. The weak prior of Vehtari et al. around 0.5 counts as 10 weights.

    Args:
        log_weights: ``(num_docs, num_draws)`` logs of the weights, up to a constant per row.

    Returns:
        ``(num_docs,)`` float64; ``-inf`` if the largest weights are all equal (no tail).

    Raises:
        ValueError: There are fewer than 25 weights.

    Example:
        >>> from torch_lntm.sampling.importance import pareto_k
        >>> pareto_k(torch.zeros(3, 100)).tolist()
        [-inf, -inf, -inf]
    """
    num_draws = log_weights.shape[1]
    if num_draws < MIN_SAMPLES:
        raise ValueError(f"pareto_k needs at least {MIN_SAMPLES} weights, got {num_draws}")
    size = math.ceil(min(num_draws / 5.0, 3.0 * math.sqrt(num_draws)))
    tail = log_weights.double().topk(size + 1).values.flip(1)
    weights = (tail - tail[:, -1:]).exp()
    exceedances = weights[:, 1:] - weights[:, :1]
    largest = exceedances[:, -1]
    spread = largest > 1e-12
    # Relative to the largest. Ties at the threshold are moved off 0, where the fit is undefined.
    x = exceedances / torch.where(spread, largest, 1.0)[:, None]
    x = x.clamp_min(torch.finfo(x.dtype).eps)
    grid_size = 30 + int(math.sqrt(size))
    steps = torch.arange(1, grid_size + 1, dtype=x.dtype, device=x.device) - 0.5
    quartile = x[:, int(size / 4 + 0.5) - 1, None]
    # Zhang & Stephens: the mean of b over a grid, weighted by the profile likelihood.
    b = 1.0 + (1.0 - (grid_size / steps).sqrt()) / (3.0 * quartile)
    k = torch.log1p(-b[..., None] * x[:, None, :]).mean(-1)
    # b and k have opposite signs. As both go to 0, -b/k tends to 1 over the mean exceedance.
    ratio = torch.where(k == 0, 1.0 / x.mean(1, keepdim=True), -b / k)
    profile = size * (ratio.log() - k - 1.0)
    b_mean = (torch.softmax(profile, 1) * b).sum(1, keepdim=True)
    shape = torch.log1p(-b_mean * x).mean(1)
    shape = (size * shape + 10.0 * 0.5) / (size + 10.0)
    return torch.where(spread, shape, -math.inf)
