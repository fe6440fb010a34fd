"""Random numbers as functions of keys: the same in every batch and, up to rounding, every device.

A key is a 64-bit integer. :func:`document_keys` makes a key for every chain or draw of every
document, from a seed and the document's position in the corpus. :func:`fold_in` makes new keys from
old keys. There is no generator with a state. The random numbers of a document therefore do not
depend on its batch or on the number of documents.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lntm.kernels import fused

# SplitMix64's increment and multipliers (Steele, Lea & Flood 2014), as signed integers.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
#: Bound on the attempts of a rejection sampler that accepts at least 95 %. In practice all attempts
#: fail only for a shape of NaN; the variate is then NaN.
_ATTEMPTS = 64


def _in_one_launch(key: Tensor) -> bool:
    """Whether to use fused kernels. Keys on a CPU never use Triton's interpreter."""
    return fused.kind(key) is not None if key.is_cuda else fused.is_compiled(key)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Logical right shift of signed integers, because torch's own shift is arithmetic."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's output function: a bijection of 64-bit integers that mixes all bits."""
    if _in_one_launch(bits):
        return fused.mixed(bits)
    bits = (bits ^ _shifted(bits, 30)) * _MULTIPLIERS[0]
    bits = (bits ^ _shifted(bits, 27)) * _MULTIPLIERS[1]
    return bits ^ _shifted(bits, 31)


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """New keys from keys and integers.

    Use each key for one purpose, to make new keys or to draw: both read the same bits.

    Args:
        key: ``(...,)`` int64.
        data: Nonnegative integers, broadcast with ``key``.
    """
    step = (data + 1) * _INCREMENT
    if isinstance(step, int):
        step = (step + 2**63) % 2**64 - 2**63  # wraps around, as tensors do
    return _mixed(key + step)


def split(key: Tensor, number: int) -> Tensor:
    """Keys ``(number, ...)`` by :func:`fold_in` of the numbers from 0 to ``number - 1``."""
    data = torch.arange(number, device=key.device)
    return fold_in(key, data.view(-1, *[1] * key.dim()))


def document_keys(seed: int, index: Tensor, num_draws: int) -> Tensor:
    """Keys ``(num_draws, num_docs)`` for every chain or draw of every document.

    Args:
        seed: Any integer.
        index: ``(num_docs,)`` int64 positions of the documents in their corpus.
        num_draws: Number of chains or draws.
    """
    root = torch.full_like(index, seed % 2**63)
    draws = torch.arange(num_draws, device=index.device)[:, None]
    return fold_in(fold_in(root, index)[None], draws)


def uniform(key: Tensor, size: int) -> Tensor:
    """Uniform numbers in (0, 1) ``(..., size)`` float64 of keys ``(...,)``."""
    if _in_one_launch(key):
        return fused.uniform(key, size)
    bits = fold_in(key[..., None], torch.arange(size, device=key.device))
    return (_shifted(bits, 12).double() + 0.5) * 2.0**-52  # of the 52 highest bits


def normal(key: Tensor, size: int) -> Tensor:
    """Standard normal numbers ``(..., size)`` float64 of keys ``(...,)``, by Box and Muller."""
    if _in_one_launch(key):
        return fused.normal(key, size)
    radius, angle = uniform(key, 2 * math.ceil(size / 2)).chunk(2, -1)
    radius, angle = (-2.0 * radius.log()).sqrt(), 2.0 * math.pi * angle
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :size]


def laplace(key: Tensor, size: int) -> Tensor:
    """Numbers of density ½ exp(−|x|) ``(..., size)`` float64 of keys ``(...,)``, by inversion."""
    centred = uniform(key, size) - 0.5
    return -centred.sign() * torch.log1p(-2.0 * centred.abs())


def log_gamma(key: Tensor, shapes: Tensor) -> Tensor:
    """Logarithms of gamma variates. They stay finite where variates of small shape underflow.

    The rejection sampler of *Marsaglia & Tsang 2000* with shape a + 1 accepts at least 95 %, and
    G(a) = G(a + 1) U^(1/a) in distribution.

    Args:
        key: ``(...,)`` keys.
        shapes: ``(..., size)`` float64 a.

    Returns:
        ``(..., size)`` float64.
    """
    size = shapes.shape[-1]
    d = shapes + 2.0 / 3.0
    result = torch.full_like(d, torch.nan)
    for attempt in range(1, _ATTEMPTS):
        attempt_key = fold_in(key, attempt)
        x = normal(fold_in(attempt_key, 0), size)
        v = (1.0 + x / (3.0 * d.sqrt())).pow(3)
        log_v = v.clamp_min(torch.finfo(v.dtype).tiny).log()
        log_u = uniform(fold_in(attempt_key, 1), size).log()
        accepted = (v > 0) & (log_u < 0.5 * x.square() + d * (1.0 - v + log_v))
        result = torch.where(result.isnan() & accepted, d.log() + log_v, result)
        if not bool(result.isnan().any()):
            break
    return result + uniform(fold_in(key, 0), size).log() / shapes
