"""Keyed noise; see :mod:`torch_lntm.noise`."""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np

from torch_lntm.kernels.numba_ops.vectors import inlined, kernel, log_double

_TAU = 2.0 * math.pi
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_12, _27, _30, _31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@inlined
def _mixed(bits):
    """SplitMix64's output function of unsigned bits; see :mod:`torch_lntm.noise`."""
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    return bits ^ (bits >> _31)


@inlined
def folded(key, number):
    """New key of a key and a number, as :func:`torch_lntm.noise.fold_in`."""
    return _mixed(key + np.uint64(number + 1) * _INCREMENT)


@inlined
def uniform_number(key, number):
    """Uniform number of a key at an index, to the bit that of :func:`torch_lntm.noise.uniform`."""
    return (np.float64(np.int64(folded(key, number) >> _12)) + 0.5) * 2.220446049250313e-16


@inlined
def _circle(turn):
    """Cosine and sine of 2π × turn for a turn in (0, 1), to 1e-15.

    The nearest quarter turn is taken off exactly, and Taylor series give the rest, at most π/4.
    """
    quarter = np.rint(4.0 * turn)
    x = _TAU * (turn - 0.25 * quarter)
    w = x * x
    s = -1.0 / 1307674368000.0
    s = s * w + 1.0 / 6227020800.0
    s = s * w - 1.0 / 39916800.0
    s = s * w + 1.0 / 362880.0
    s = s * w - 1.0 / 5040.0
    s = s * w + 1.0 / 120.0
    s = s * w - 1.0 / 6.0
    s = s * w * x + x
    c = 1.0 / 20922789888000.0
    c = c * w - 1.0 / 87178291200.0
    c = c * w + 1.0 / 479001600.0
    c = c * w - 1.0 / 3628800.0
    c = c * w + 1.0 / 40320.0
    c = c * w - 1.0 / 720.0
    c = c * w + 1.0 / 24.0
    c = (c * w - 0.5) * w + 1.0
    number = np.int64(quarter)
    cosine, sine = (s, c) if number & 1 else (c, s)
    # The signs of the quadrants 0 to 3 are + − − + for the cosine and + + − − for the sine.
    cosine = -cosine if (number + 1) & 2 else cosine
    sine = -sine if number & 2 else sine
    return cosine, sine


@inlined
def fill_normal(key, size, into):
    """Write standard normal numbers of a key into the first ``size`` places, by Box and Muller.

    The first half of the numbers are cosines, and the second half are sines.
    """
    half = (size + 1) // 2
    for i in range(size // 2):
        radius = math.sqrt(-2.0 * log_double(uniform_number(key, i)))
        cosine, sine = _circle(uniform_number(key, half + i))
        into[i] = radius * cosine
        into[half + i] = radius * sine
    if size % 2:
        radius = math.sqrt(-2.0 * log_double(uniform_number(key, half - 1)))
        into[half - 1] = radius * _circle(uniform_number(key, size))[0]


@kernel
def mixed(bits, result):
    """Mixed bits of ``(n,)`` int64 bits."""
    for i in range(len(bits)):
        result[i] = np.int64(_mixed(np.uint64(bits[i])))


@kernel
def uniform(keys, numbers):
    """Uniform numbers ``(n, size)`` of ``(n,)`` int64 keys."""
    for row in range(len(keys)):
        key = np.uint64(keys[row])
        for i in range(numbers.shape[1]):
            numbers[row, i] = uniform_number(key, i)


@kernel
def normal(keys, numbers):
    """Standard normal numbers ``(n, size)`` of ``(n,)`` int64 keys."""
    for row in range(len(keys)):
        fill_normal(np.uint64(keys[row]), numbers.shape[1], numbers[row])
