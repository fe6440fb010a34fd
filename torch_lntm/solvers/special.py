"""Special functions that PyTorch lacks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Arguments above this limit use 3 terms of ω's expansion at infinity, exact to working precision.
OMEGA_LARGE = 1e6


def wright_omega(x: Tensor) -> Tensor:
    """The Wright omega function of real arguments: the ω > 0 with ω + log ω = x; without gradient.

    It equals W(eˣ), but eˣ is never formed, so that the relative error is at the level of rounding
    for every finite x. From a piecewise start, Fritsch–Shafer–Crowley steps converge with order 4.

    Args:
        x: Any shape, floating point. -inf gives 0 and inf gives inf.

    Returns:
        Tensor in the shape of ``x``. ω underflows to 0 only if eˣ does.

    Example:
        >>> from torch_lntm.solvers.special import wright_omega
        >>> wright_omega(torch.tensor([1.0, 1.0 + torch.e]))
        tensor([1.0000, 2.7183])
    """
    # eˣ underflows far above the lower limit. Clamping keeps the residual from being ∞ − ∞.
    y = x.clamp(0.25 * torch.finfo(x.dtype).min, OMEGA_LARGE)
    large = y.clamp_min(1.0)
    log_large = large.log()
    log_omega = torch.where(
        y > 1.0,
        (large - log_large + log_large / large).log(),
        torch.where(y < -2.0, y - y.clamp_max(0.0).exp(), 2.0 * (y - 1.0) / 3.0),
    )
    # Two Fritsch–Shafer–Crowley steps reduce errors of 0.2 to rounding.
    for _ in range(2):
        omega = log_omega.exp()
        residual = y - omega - log_omega
        one = 1.0 + omega
        a = 2.0 * one * (one + 2.0 / 3.0 * residual)
        # The lower limit keeps log1p finite if a step overshoots.
        log_omega = log_omega + torch.log1p(
            (residual / one * (a - residual) / (a - 2.0 * residual)).clamp_min(
                -1.0 + torch.finfo(x.dtype).eps
            )
        )
    # ω − x is negligible for infinite x.
    log_x = x.clamp(OMEGA_LARGE, torch.finfo(x.dtype).max).log()
    return torch.where(x > OMEGA_LARGE, x - log_x + log_x / x, log_omega.exp())


def inverse_mean_root(precision: Tensor, log_rate: Tensor, exponent: float) -> Tensor:
    """The x > 0 with 1/x = precision + rate × exp(exponent × x), elementwise; without gradient.

    The root gives the variance updates of Blei–Lafferty and Khan–Bouchard at fixed ζ or ξ (*Khan &
    Bouchard 2009, eq. 36 with one unknown*). Halley's method finds the root of

        h(y) = log(precision × x + rate × x exp(exponent × x)),      y = log x

    which bends only as far as the exponential grows. The start is the smaller of two upper bounds,
    the roots without the growth of the exponential and without the precision. The latter root is
    ω(t)/exponent, t = log(exponent/rate). ω(t) is at most eᵗ, and for t > 1 at most t − log t +
    1.59 log t / t (*Hoorfar & Hassani 2008, theorem 2.7*).

    Args:
        precision: Positive, broadcastable to the shape of ``log_rate``.
        log_rate: Log of the rate; -inf for a rate of 0. (The rate itself underflows for wide x.)
        exponent: Positive.

    Returns:
        x, in the shape of ``log_rate``.
    """
    t = (math.log(exponent) - log_rate).clamp_max(0.25 * torch.finfo(log_rate.dtype).max)
    large = t.clamp_min(1.0)
    log_t = large.log()
    log_growth = torch.minimum(t, (large - log_t + 1.59 * log_t / large).log())
    bound = -torch.logaddexp(precision.log(), log_rate)
    y = torch.minimum(bound, log_growth - math.log(exponent))
    for _ in range(4):
        x = y.exp()
        growth = exponent * x
        exponential = (growth + log_rate).add_(y).exp_()
        total = exponential.addcmul(precision, x)
        # First h, h' − 1 and h'', then h'.
        value = total.log()
        rise = exponential.div_(total).mul_(growth)
        bend = growth.sub_(rise).add_(1.0).mul_(rise)
        slope = rise.add_(1.0)
        y -= (value * slope).div_(slope.square().sub_(value.mul_(bend).mul_(0.5)))
    return y.exp_()


def log_mean_rate(logits: Tensor, half_variance: Tensor, lengths: Tensor) -> Tensor:
    """Log of (N/ξ) exp(m_k), ξ = Σ_k exp(m_k + V_kk/2), for each document and topic.

    Args:
        logits: ``(num_docs, num_topics)`` m.
        half_variance: ``(num_docs, num_topics)`` V_kk / 2.
        lengths: ``(num_docs,)`` tokens N.

    Returns:
        ``(num_docs, num_topics)``; -inf for an empty document.
    """
    normaliser = torch.logsumexp(logits + half_variance, -1)
    return logits + (lengths.log() - normaliser)[:, None]
