"""Vectors of eight numbers, their elementary functions, and how kernels are compiled.

The compiler's own vectors take twice as long where rows are short. It may fuse products with sums,
but neither reorder sums, unless a function allows it, nor assume that numbers are finite: a NaN
must reach the energy error, where it counts as a divergence.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, overload, register_model
from numba.np.arrayobj import make_array

from torch_lntm.kernels.caching import kernel as kernel_by

#: Arrays are views of tensors' memory, so that no reference needs counting.
_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
kernel = kernel_by(fastmath={"contract"}, **_OPTIONS)
#: Parts of kernels. Python cannot call them, which saves a third of the time of compiling.
_OPTIONS["no_cpython_wrapper"] = True
inlined = njit(fastmath={"contract"}, forceinline=True, **_OPTIONS)
#: The same for sums in any order, so that they are vectors of partial sums.
inlined_in_any_order = njit(fastmath={"contract", "reassoc"}, forceinline=True, **_OPTIONS)

#: Numbers of a vector. Rows are padded to a multiple of it, a document's words too, and a block has
#: at most as many documents.
WIDTH = 8


class Lanes(types.Type):  # type: ignore[misc]
    """Numba's type of a vector of ``WIDTH`` numbers, which lies in one or two registers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """A vector of LLVM."""

    def __init__(self, manager: Any, lanes: Lanes) -> None:
        item = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(item, WIDTH))


def _place(context, builder, signature, args):
    """Pointer to an array's number at an index i or (i, k), the first two arguments."""
    array = make_array(signature.args[0])(context, builder, args[0])
    if signature.args[1] == types.intp:
        return builder.gep(array.data, [args[1]])
    row, column = (builder.extract_value(args[1], axis) for axis in range(2))
    offset = builder.mul(row, builder.extract_value(array.strides, 0))
    start = builder.ptrtoint(array.data, offset.type)
    start = builder.inttoptr(builder.add(start, offset), array.data.type)
    return builder.gep(start, [column])


def _lanes_of(array, index):
    """Type of an array's lanes, and of an index of one number or two."""
    pair = isinstance(index, types.BaseTuple)
    return Lanes(array.dtype), types.UniTuple(types.intp, 2) if pair else types.intp


def _shuffled(builder, x, y, order):
    """Numbers of two vectors, those of y after those of x, in another order."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), order))


def repeated(builder, x):
    """A vector of the same number."""
    empty = ir.Constant(ir.VectorType(x.type, WIDTH), ir.Undefined)
    first = builder.insert_element(empty, x, ir.Constant(ir.IntType(32), 0))
    return _shuffled(builder, first, first, [0] * WIDTH)


@intrinsic
def load(typing, array, index):
    """Numbers of an array from an index on."""
    lanes, index = _lanes_of(array, index)

    def code(context, builder, signature, args):
        place = _place(context, builder, signature, args)
        vector = context.get_value_type(lanes)
        loaded = builder.load(builder.bitcast(place, vector.as_pointer()))
        loaded.align = array.dtype.bitwidth // 8
        return loaded

    return lanes(array, index), code


@intrinsic
def store(typing, array, index, lanes):
    """Write lanes to an array from an index on."""
    _, index = _lanes_of(array, index)

    def code(context, builder, signature, args):
        place = _place(context, builder, signature, args)
        stored = builder.store(args[2], builder.bitcast(place, args[2].type.as_pointer()))
        stored.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.none(array, index, lanes), code


@intrinsic
def spread(typing, array, index):
    """Lanes of the same number of an array."""
    lanes, index = _lanes_of(array, index)

    def code(context, builder, signature, args):
        return repeated(builder, builder.load(_place(context, builder, signature, args)))

    return lanes(array, index), code


@intrinsic
def lanes_of(typing, x):
    """Lanes of the same number."""

    def code(context, builder, signature, args):
        return repeated(builder, args[0])

    return Lanes(x)(x), code


@intrinsic
def fma(typing, x, y, z):
    """Lanes z + xy, in this order, so that a chain of sums stays one of several."""

    def code(context, builder, signature, args):
        product = builder.fmul(*args[:2], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return x(x, y, z), code


def polynomial(*coefficients):
    """Intrinsic of a polynomial of lanes, from the coefficient of the highest power on."""

    @intrinsic
    def operation(typing, x):
        def code(context, builder, signature, args):
            first, *rest = (ir.Constant(args[0].type, [float(c)] * WIDTH) for c in coefficients)
            for constant in rest:
                product = builder.fmul(first, args[0], flags=("contract",))
                first = builder.fadd(product, constant, flags=("contract",))
            return first

        return x(x), code

    return operation


def _operation(name, docs):
    """Intrinsic of two vectors by LLVM's instruction of a name."""

    @intrinsic
    def operation(typing, x, y):
        def code(context, builder, signature, args):
            return getattr(builder, name)(*args)

        return x(x, y), code

    operation.__doc__ = docs
    return operation


plus = _operation("fadd", "Lanes x + y.")
times = _operation("fmul", "Lanes xy.")
over = _operation("fdiv", "Lanes x / y.")


@intrinsic
def root(typing, x):
    """Lanes of the square roots."""

    def code(context, builder, signature, args):
        kind, bits = args[0].type, x.dtype.bitwidth
        name = f"llvm.sqrt.v{WIDTH}f{bits}"
        function = get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, args)

    return x(x), code


@intrinsic
def larger(typing, x, y):
    """The larger numbers of x and y, and x where it is NaN."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), args[1], args[0])

    return x(x, y), code


@intrinsic
def where_above(typing, x, most, above, else_):
    """Lanes of ``above`` where x is above ``most`` or NaN, and of ``else_`` where it is not."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<=", *args[:2]), args[3], args[2])

    return x(x, x, x, x), code


@intrinsic
def doubled(typing, x):
    """Lanes in float64."""
    double = Lanes(types.float64)

    def code(context, builder, signature, args):
        vector = context.get_value_type(double)
        return args[0] if args[0].type == vector else builder.fpext(args[0], vector)

    return double(x), code


def _bits(x):
    """Bits of a number and of its mantissa, LLVM's type of lanes of these, and constants of it."""
    bits, mantissa = x.dtype.bitwidth, 23 if x.dtype.bitwidth == 32 else 52
    whole = ir.VectorType(ir.IntType(bits), WIDTH)
    return bits, mantissa, whole, lambda number: ir.Constant(whole, [number] * WIDTH)


#: Bits of √½ in float32 and float64.
_ROOTS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


@intrinsic
def _exponent(typing, x):
    """Whole number k of x = 2ᵏ m with m in [√½, √2), for positive normal x."""
    bits, mantissa, whole, constant = _bits(x)

    def code(context, builder, signature, args):
        shifted = builder.sub(builder.bitcast(args[0], whole), constant(_ROOTS[bits]))
        return builder.sitofp(builder.ashr(shifted, constant(mantissa)), args[0].type)

    return x(x), code


@intrinsic
def _mantissa(typing, x):
    """The number m of :func:`_exponent`."""
    bits, mantissa, whole, constant = _bits(x)

    def code(context, builder, signature, args):
        shifted = builder.sub(builder.bitcast(args[0], whole), constant(_ROOTS[bits]))
        rest = builder.and_(shifted, constant(2**mantissa - 1))
        return builder.bitcast(builder.add(rest, constant(_ROOTS[bits])), args[0].type)

    return x(x), code


@intrinsic
def _power(typing, shifted):
    """2ⁿ, for a whole number n that was added to 1.5 × 2²³, or to 1.5 × 2⁵² in float64."""
    bits, mantissa, whole, constant = _bits(shifted)

    def code(context, builder, signature, args):
        exponent = builder.shl(builder.bitcast(args[0], whole), constant(mantissa))
        one = constant((2 ** (bits - mantissa - 2) - 1) << mantissa)
        return builder.bitcast(builder.add(exponent, one), args[0].type)

    return shifted(shifted), code


def _folded_code(context, builder, signature, args, fold):
    """A vector's numbers folded into one."""
    rest = args[0]
    for half in (4, 2, 1):
        order = [(i + half) % WIDTH for i in range(WIDTH)]
        rest = fold(rest, _shuffled(builder, rest, rest, order))
    return builder.extract_element(rest, ir.Constant(ir.IntType(32), 0))


@intrinsic
def largest(typing, x):
    """The largest number of x."""

    def code(context, builder, signature, args):
        def fold(x, y):
            return builder.select(builder.fcmp_ordered("<", x, y), y, x)

        return _folded_code(context, builder, signature, args, fold)

    return x.dtype(x), code


@intrinsic
def sum_lanes(typing, x):
    """The sum of the numbers of x."""

    def code(context, builder, signature, args):
        return _folded_code(context, builder, signature, args, builder.fadd)

    return x.dtype(x), code


#: Order in which pairs of vectors become one with sums of 2, 4 and 8 numbers of each. The other
#: terms of these sums are 1, 2 and 4 places further on.
_PAIRS = (0, 8, 2, 10, 4, 12, 6, 14), (0, 1, 8, 9, 4, 5, 12, 13), (0, 1, 2, 3, 8, 9, 10, 11)


@intrinsic
def sums_of_eight(typing, a, b, c, d, e, f, g, h):
    """Lanes of the sums of eight vectors."""

    def code(context, builder, signature, args):
        rest = list(args)
        for number, order in enumerate(_PAIRS):
            others = [i + 2**number for i in order]
            rest = [
                builder.fadd(_shuffled(builder, *pair, order), _shuffled(builder, *pair, others))
                for pair in zip(rest[::2], rest[1::2], strict=True)
            ]
        return rest[0]

    return a(a, b, c, d, e, f, g, h), code


# -- elementary functions --------------------------------------------------------------------------
#
# The library's exp and log take one number at a time. These are polynomials without branches, on
# whole vectors: 0.3 ns a number rather than 2.5.


def _exponential(kind, series, lowest, shift, high, low):
    """e^x of lanes, 0 from ``lowest`` down, NaN for NaN; ``high + low`` is log 2."""

    @inlined
    def exp(x):
        least, one = lanes_of(kind(lowest)), lanes_of(kind(1.0))
        y = larger(x, least)
        shifted = fma(y, lanes_of(kind(1.4426950408889634)), lanes_of(kind(shift)))
        n = plus(shifted, lanes_of(kind(-shift)))
        r = fma(n, lanes_of(kind(-low)), fma(n, lanes_of(kind(-high)), y))
        p = fma(fma(series(r), r, one), r, one)
        return where_above(x, least, times(p, _power(shifted)), lanes_of(kind(0.0)))

    return exp


def _logarithm(kind, series, largest, high, low):
    """Logarithm of lanes to rounding, for positive normal x, ∞ and NaN (*fdlibm*)."""

    @inlined
    def log(x):
        k, m = _exponent(x), _mantissa(x)
        f = plus(m, lanes_of(kind(-1.0)))
        s = over(f, plus(lanes_of(kind(2.0)), f))
        z, half = times(s, s), times(times(lanes_of(kind(0.5)), f), f)
        rest = plus(half, times(series(z), z))
        rest = fma(s, rest, times(k, lanes_of(kind(low))))
        value = plus(f, fma(lanes_of(kind(-1.0)), half, rest))
        value = fma(k, lanes_of(kind(high)), value)
        return where_above(x, lanes_of(kind(largest)), x, value)

    return log


_LOG_2, _REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SERIES = polynomial(
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1),
    5.0000001201e-1,
)
#: To 1.2e-7 relative, for x ≤ 88 (*Cephes, expf*).
_exp_single = _exponential(np.float32, _SERIES, -87.0, 12582912.0, 0.693359375, -2.12194440e-4)
_SERIES = polynomial(*(1.0 / math.factorial(n) for n in range(13, 1, -1)))
#: To rounding, for x ≤ 709. A Taylor series on |r| ≤ ½ log 2.
_exp_double = _exponential(np.float64, _SERIES, -708.0, 6755399441055744.0, _LOG_2, _REST)
_SERIES = polynomial(0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)
_log_single = _logarithm(np.float32, _SERIES, 3.4028235e38, 6.9313812256e-01, 9.0580006145e-06)
_SERIES = polynomial(
    *(1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01),
    *(2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01),
    6.666666666666735130e-01,
)
_log_double = _logarithm(np.float64, _SERIES, 1.7976931348623157e308, _LOG_2, _REST)


def exp(x):
    """e^x of lanes of either type."""


def log(x):
    """Logarithm of lanes of either type."""


@overload(exp, inline="always")
def _exp_of(x):
    single = x.dtype.bitwidth == 32
    return (lambda x: _exp_single(x)) if single else (lambda x: _exp_double(x))


@overload(log, inline="always")
def _log_of(x):
    single = x.dtype.bitwidth == 32
    return (lambda x: _log_single(x)) if single else (lambda x: _log_double(x))
