"""Keyed noise; see :mod:`torch_lntm.noise`."""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from torch_lntm.kernels.numba_ops.vectors import *

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


#: (sin x − x) / x³ and cos x in x², by Taylor's series.
_SINE = polynomial(*((-1.0) ** n / math.factorial(2 * n + 1) for n in range(7, 0, -1)))
_COSINE = polynomial(*((-1.0) ** n / math.factorial(2 * n) for n in range(8, -1, -1)))


@intrinsic
def _uniform_lanes(typing, key, number):
    """Lanes of :func:`uniform_number` at eight indices from a number on."""
    double = Lanes(types.float64)

    def code(context, builder, signature, args):
        bits, one = ir.VectorType(ir.IntType(64), WIDTH), context.get_value_type(double)

        def of(value):
            return ir.Constant(bits, [int(value)] * WIDTH)

        steps = ir.Constant(bits, list(range(1, WIDTH + 1)))
        steps = builder.add(repeated(builder, args[1]), steps)
        mixed = builder.add(repeated(builder, args[0]), builder.mul(steps, of(_INCREMENT)))
        for shift, factor in ((_30, _FIRST), (_27, _SECOND)):
            mixed = builder.xor(mixed, builder.lshr(mixed, of(shift)))
            mixed = builder.mul(mixed, of(factor))
        mixed = builder.lshr(builder.xor(mixed, builder.lshr(mixed, of(_31))), of(_12))
        # The bits of 2⁵² + n for n below 2⁵² have those of n at their end.
        whole = builder.bitcast(builder.or_(mixed, of(0x433 << 52)), one)
        whole = builder.fadd(whole, ir.Constant(one, [0.5 - 2.0**52] * WIDTH))
        return builder.fmul(whole, ir.Constant(one, [2.0**-52] * WIDTH))

    return double(key, number), code


@intrinsic
def _turned(typing, sine, cosine, quarter):
    """Lanes of the sine of an angle plus some quarter turns, from its sine and cosine.

    The number of quarter turns was added to 1.5 × 2⁵², so that it is at the end of the bits.
    """

    def code(context, builder, signature, args):
        bits = ir.VectorType(ir.IntType(64), WIDTH)
        one, two, most = (ir.Constant(bits, [value] * WIDTH) for value in (1, 2, 62))
        number = builder.bitcast(args[2], bits)
        is_odd = builder.icmp_unsigned("==", builder.and_(number, one), one)
        value = builder.bitcast(builder.select(is_odd, args[1], args[0]), bits)
        sign = builder.shl(builder.and_(number, two), most)
        return builder.bitcast(builder.xor(value, sign), args[0].type)

    return sine(sine, cosine, quarter), code


@inlined
def _circle(turn):
    """Lanes of the cosine and sine of 2π × turn for turns in (0, 1), to 1e-15.

    The nearest quarter turn is taken off exactly, and Taylor series give the rest, at most π/4.
    """
    shift = 6755399441055744.0
    quarter = fma(lanes_of(4.0), turn, lanes_of(shift))
    x = fma(lanes_of(-0.25), plus(quarter, lanes_of(-shift)), turn)
    x = times(lanes_of(_TAU), x)
    w, one = times(x, x), lanes_of(1.0)
    s = fma(times(_SINE(w), w), x, x)
    c = _COSINE(w)
    return _turned(s, c, plus(quarter, one)), _turned(s, c, quarter)


@inlined
def fill_normal(key, space, into):
    """Write standard normal numbers of a key, by Box and Muller.

    The first half of the numbers are cosines, and the second half are sines.

    Args:
        key: The key.
        space: At least ``into`` and 16 more numbers, overwritten.
        into: The numbers, overwritten.
    """
    half = (len(into) + 1) // 2
    sines = (half + WIDTH - 1) // WIDTH * WIDTH
    for i in range(0, half, WIDTH):
        radius = root(times(lanes_of(-2.0), log(_uniform_lanes(key, i))))
        cosine, sine = _circle(_uniform_lanes(key, half + i))
        store(space, i, times(radius, cosine))
        store(space, sines + i, times(radius, sine))
    for k in range(half):
        into[k] = space[k]
    for k in range(half, len(into)):
        into[k] = space[sines - half + k]


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
def normal(keys, numbers, space):
    """Standard normal numbers ``(n, size)`` of ``(n,)`` int64 keys; space as above."""
    for row in range(len(keys)):
        fill_normal(np.uint64(keys[row]), space, numbers[row])
