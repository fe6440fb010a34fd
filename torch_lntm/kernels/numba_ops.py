"""Compiled kernels of a CPU: whole visits of chains, expected counts, and keyed noise.

They are written in Numba, which compiles them for this machine at their first use and keeps the
result on disk. :mod:`torch_lntm.kernels.compiled` calls them with PyTorch's tensors.

**Memory.** A visit evaluates the gradient of a document dozens of times. Each evaluation reads the
topics' probabilities of the document's words twice, which is nearly all of the work:

    s_v = φ_v·θ        g = Σ_v (c_v / s_v) φ_v

The kernels therefore take one block of up to 8 documents after another, copy their words' rows of
the topics side by side (a few hundred kB, which stay in the cache), and make all transitions of the
block before the next. The products of a block with the map from z to the logits are products of
small matrices.

**Vectors.** Rows are padded to multiples of 8 numbers, and the loops that take most of the time are
written with vectors of 8 numbers, :class:`Lanes`. The compiler's own vectors take twice as long
there, since they expect longer rows.

**Bits.** A document's numbers depend on nothing but the document and its keys, and sums over
documents run in a fixed order. Results therefore have the same bits for every division of the
documents over threads.

**Rounding.** The compiler may fuse products with sums, but neither reorder sums, unless a function
allows it, nor assume that numbers are finite: a NaN must reach the energy error, where it counts as
a divergence.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, models, overload, register_model
from numba.np.arrayobj import make_array

from torch_lntm.kernels.caching import kernel

Array = Any

#: Arrays are views of tensors' memory, so that no reference needs counting.
_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
_kernel = kernel(fastmath={"contract"}, **_OPTIONS)
#: Parts of kernels. Python cannot call them, which saves a third of the time of compiling.
_OPTIONS["no_cpython_wrapper"] = True
_compiled = njit(fastmath={"contract"}, forceinline=True, **_OPTIONS)
#: The same for sums in any order, so that they are vectors of partial sums.
_summed = njit(fastmath={"contract", "reassoc"}, forceinline=True, **_OPTIONS)

#: Numbers of a vector. Rows are padded to a multiple of it, a document's words too, and a block has
#: at most as many documents.
WIDTH = 8
#: Largest number of bytes of a block's rows of the topics, for a core's second-level cache.
BLOCK_BYTES = 2**18
#: Logit of the padding, whose exponential is 0 beside any other.
_NOWHERE = -1e30
_TAU = 2.0 * math.pi
_TINY = float(np.finfo(np.float64).tiny)
#: Scale c in log σ(cz), as in :mod:`torch_lntm.latents.gamma`.
_UNIT_LOGISTIC = math.pi / math.sqrt(3.0)


class Documents(NamedTuple):
    """Words of documents, and the topics.

    Attributes:
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64.
        counts: ``(nnz,)``.
        lengths: ``(num_docs,)`` tokens.
        words: ``(num_words, num_topics)`` topics by word.
        length_terms: ``(num_docs,)`` float64 nats of a Dirichlet-multinomial likelihood; empty
            otherwise.
        concentration: That of a Dirichlet-multinomial, for whole counts; infinite for independent
            draws.
        floor: Least probability of a word.
    """

    row_offsets: Array
    word_index: Array
    counts: Array
    lengths: Array
    words: Array
    length_terms: Array
    concentration: float
    floor: float


class Map(NamedTuple):
    """Logits as a function of z = (x, e): loc + Mx + scale · e, where e may be missing.

    Rows are padded with zeros to multiples of ``WIDTH``. Products skip the zeros above and below
    the others in ``WIDTH`` columns at a time, which halves the work of a triangular M.

    Attributes:
        loc: ``(1 or num_docs, num_topics)`` logits at z = 0.
        push: The transpose of M, a row for each component of x.
        push_range: ``(2, columns / WIDTH)`` int64 first row and end of what is not 0.
        pull: M, a row for each topic.
        pull_range: As ``push_range``.
        scale: ``(width,)`` padded with zeros, or empty without e.
        dim: Number of components of z.
        num_laplace: Number of first components of z with density ½ exp(−|z|). All others are
            standard normal.
        gamma: ``(5, width)`` rows α, 1/α, 1/√(1 + α), log(1 + α) and 1 of a
            :class:`~torch_lntm.latents.gamma.GammaSpace`, with 0 as the last in the padding; or
            ``(5, 0)``. The logits are then its x(z), and loc, M and scale are empty.
        exact: ``gamma`` in float64.
        log_normaliser: Constant of the log density of z, in nats.
    """

    loc: Array
    push: Array
    push_range: Array
    pull: Array
    pull_range: Array
    scale: Array
    dim: int
    num_laplace: int
    gamma: Array
    exact: Array
    log_normaliser: float


class State(NamedTuple):
    """State of chains, overwritten; ``num_rows`` is num_chains × num_docs, chain by chain.

    Attributes:
        position: ``(num_rows, dim)`` z.
        log_prior: ``(num_rows,)`` float64 nats.
        log_likelihood: ``(num_rows,)`` float64 nats.
        gradient: ``(num_rows, dim)`` gradient of the log likelihood in z.
    """

    position: Array
    log_prior: Array
    log_likelihood: Array
    gradient: Array


class Randomness(NamedTuple):
    """Random numbers of transitions, or the keys that they are drawn by.

    Attributes:
        keys: ``(num_rows,)`` int64 keys of the chains, or empty.
        momentum: ``(num_transitions, num_rows, dim)``, or empty with keys.
        acceptance_uniform: ``(num_transitions, num_rows)`` float64, or empty with keys.
        step_uniform: ``(num_transitions, num_rows)`` float64, or empty with keys.
    """

    keys: Array
    momentum: Array
    acceptance_uniform: Array
    step_uniform: Array


class Adaptation(NamedTuple):
    """Step sizes of chains and the state of their dual averaging, overwritten; all float64.

    Attributes:
        step_size: ``(num_rows,)`` of the next transition.
        log_step_size: ``(num_rows,)``, or empty for constant step sizes.
        log_average: ``(num_rows,)``, or empty.
        shortfall: ``(num_rows,)``, or empty.
        centre: ``(num_rows,)``, or empty. Not overwritten.
    """

    step_size: Array
    log_step_size: Array
    log_average: Array
    shortfall: Array
    centre: Array


class Settings(NamedTuple):
    """Numbers that all chains of a visit share.

    Attributes:
        evaluate: Whether densities and gradients at the start have yet to be computed.
        num_past: Transitions before this visit.
        warmup_steps: Transitions that adapt step sizes.
        num_steps: Leapfrog steps of a transition.
        jitter: Largest relative change of a step size.
        max_error: Energy error above which a transition is divergent, nats.
        target_accept: Acceptance probability that the adaptation aims at.
        log_longest: Logarithm of the upper bound on step sizes.
        shrinkage: γ of dual averaging.
        delay: t₀ of dual averaging.
        forgetting: κ of dual averaging.
    """

    evaluate: bool
    num_past: int
    warmup_steps: int
    num_steps: int
    jitter: float
    max_error: float
    target_accept: float
    log_longest: float
    shrinkage: float
    delay: float
    forgetting: float


class Outcome(NamedTuple):
    """Diagnostics of each transition, ``(num_transitions, num_rows)`` each, overwritten.

    Attributes:
        acceptance: Acceptance probability, float64.
        accepted: Whether the proposal was accepted, bool.
        energy_error: Nats, float64.
        divergent: Bool.
        step_size: Step size of the next transition, float64.
    """

    acceptance: Array
    accepted: Array
    energy_error: Array
    divergent: Array
    step_size: Array


class Counts(NamedTuple):
    """What the expected counts at the chains' last positions are made of, overwritten.

    Attributes:
        theta: ``(num_rows, num_topics)`` proportions, or no rows if they are not asked for.
        ratio: ``(num_chains, nnz)`` counts divided by the words' probabilities s.
    """

    theta: Array
    ratio: Array


# -- vectors ---------------------------------------------------------------------------------------


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


def _repeated(builder, x):
    """A vector of the same number."""
    empty = ir.Constant(ir.VectorType(x.type, WIDTH), ir.Undefined)
    first = builder.insert_element(empty, x, ir.Constant(ir.IntType(32), 0))
    return _shuffled(builder, first, first, [0] * WIDTH)


@intrinsic
def _load(typing, array, index):
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
def _store(typing, array, index, lanes):
    """Write lanes to an array from an index on."""
    _, index = _lanes_of(array, index)

    def code(context, builder, signature, args):
        place = _place(context, builder, signature, args)
        stored = builder.store(args[2], builder.bitcast(place, args[2].type.as_pointer()))
        stored.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.none(array, index, lanes), code


@intrinsic
def _spread(typing, array, index):
    """Lanes of the same number of an array."""
    lanes, index = _lanes_of(array, index)

    def code(context, builder, signature, args):
        return _repeated(builder, builder.load(_place(context, builder, signature, args)))

    return lanes(array, index), code


@intrinsic
def _lanes(typing, x):
    """Lanes of the same number."""

    def code(context, builder, signature, args):
        return _repeated(builder, args[0])

    return Lanes(x)(x), code


@intrinsic
def _fma(typing, x, y, z):
    """Lanes z + xy, in this order, so that a chain of sums stays one of several."""

    def code(context, builder, signature, args):
        product = builder.fmul(*args[:2], flags=("contract",))
        return builder.fadd(product, args[2], flags=("contract",))

    return x(x, y, z), code


@intrinsic
def _total(typing, x, y):
    """Lanes x + y."""

    def code(context, builder, signature, args):
        return builder.fadd(*args)

    return x(x, y), code


@intrinsic
def _product_of(typing, x, y):
    """Lanes xy."""

    def code(context, builder, signature, args):
        return builder.fmul(*args)

    return x(x, y), code


@intrinsic
def _quotient(typing, x, y):
    """Lanes x / y."""

    def code(context, builder, signature, args):
        return builder.fdiv(*args)

    return x(x, y), code


@intrinsic
def _larger(typing, x, y):
    """The larger numbers of x and y, and x where it is NaN."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), args[1], args[0])

    return x(x, y), code


@intrinsic
def _where_above(typing, x, most, above, else_):
    """Lanes of ``above`` where x is above ``most`` or NaN, and of ``else_`` where it is not."""

    def code(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<=", *args[:2]), args[3], args[2])

    return x(x, x, x, x), code


@intrinsic
def _doubled(typing, x):
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
def _largest(typing, x):
    """The largest number of x."""

    def code(context, builder, signature, args):
        def fold(x, y):
            return builder.select(builder.fcmp_ordered("<", x, y), y, x)

        return _folded_code(context, builder, signature, args, fold)

    return x.dtype(x), code


@intrinsic
def _sum(typing, x):
    """The sum of the numbers of x."""

    def code(context, builder, signature, args):
        return _folded_code(context, builder, signature, args, builder.fadd)

    return x.dtype(x), code


#: Order in which pairs of vectors become one with sums of 2, 4 and 8 numbers of each. The other
#: terms of these sums are 1, 2 and 4 places further on.
_PAIRS = (0, 8, 2, 10, 4, 12, 6, 14), (0, 1, 8, 9, 4, 5, 12, 13), (0, 1, 2, 3, 8, 9, 10, 11)


@intrinsic
def _sums(typing, a, b, c, d, e, f, g, h):
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


@_compiled
def _exp_single(x):
    """e^x to 1.2e-7 relative, 0 from −87 down, NaN for NaN; x ≤ 88 (*Cephes, expf*)."""
    lowest, shift = _lanes(np.float32(-87.0)), np.float32(12582912.0)
    y = _larger(x, lowest)
    shifted = _fma(y, _lanes(np.float32(1.4426950408889634)), _lanes(shift))
    n = _total(shifted, _lanes(-shift))
    r = _fma(n, _lanes(np.float32(-0.693359375)), y)
    r = _fma(n, _lanes(np.float32(2.12194440e-4)), r)
    one = _lanes(np.float32(1.0))
    p = _fma(_lanes(np.float32(1.9875691500e-4)), r, _lanes(np.float32(1.3981999507e-3)))
    p = _fma(p, r, _lanes(np.float32(8.3334519073e-3)))
    p = _fma(p, r, _lanes(np.float32(4.1665795894e-2)))
    p = _fma(p, r, _lanes(np.float32(1.6666665459e-1)))
    p = _fma(p, r, _lanes(np.float32(5.0000001201e-1)))
    p = _fma(_fma(p, r, one), r, one)
    return _where_above(x, lowest, _product_of(p, _power(shifted)), _lanes(np.float32(0.0)))


@_compiled
def _exp_double(x):
    """e^x to rounding, 0 from −708 down, NaN for NaN; x ≤ 709. A Taylor series on |r| ≤ ½ log 2."""
    lowest, shift = _lanes(-708.0), 6755399441055744.0
    y = _larger(x, lowest)
    shifted = _fma(y, _lanes(1.4426950408889634), _lanes(shift))
    n = _total(shifted, _lanes(-shift))
    r = _fma(n, _lanes(-6.93147180369123816490e-01), y)
    r = _fma(n, _lanes(-1.90821492927058770002e-10), r)
    one = _lanes(1.0)
    p = _fma(_lanes(1.0 / 6227020800.0), r, _lanes(1.0 / 479001600.0))
    p = _fma(p, r, _lanes(1.0 / 39916800.0))
    p = _fma(p, r, _lanes(1.0 / 3628800.0))
    p = _fma(p, r, _lanes(1.0 / 362880.0))
    p = _fma(p, r, _lanes(1.0 / 40320.0))
    p = _fma(p, r, _lanes(1.0 / 5040.0))
    p = _fma(p, r, _lanes(1.0 / 720.0))
    p = _fma(p, r, _lanes(1.0 / 120.0))
    p = _fma(p, r, _lanes(1.0 / 24.0))
    p = _fma(p, r, _lanes(1.0 / 6.0))
    p = _fma(p, r, _lanes(0.5))
    p = _fma(_fma(p, r, one), r, one)
    return _where_above(x, lowest, _product_of(p, _power(shifted)), _lanes(0.0))


@_compiled
def _log_single(x):
    """Logarithm to rounding, for positive normal x, ∞ and NaN (*fdlibm, logf*)."""
    k, m = _exponent(x), _mantissa(x)
    f = _total(m, _lanes(np.float32(-1.0)))
    s = _quotient(f, _total(_lanes(np.float32(2.0)), f))
    z = _product_of(s, s)
    rest = _fma(_lanes(np.float32(0.24279078841)), z, _lanes(np.float32(0.28498786688)))
    rest = _fma(rest, z, _lanes(np.float32(0.40000972152)))
    rest = _product_of(_fma(rest, z, _lanes(np.float32(0.66666662693))), z)
    half = _product_of(_product_of(_lanes(np.float32(0.5)), f), f)
    rest = _fma(s, _total(half, rest), _product_of(k, _lanes(np.float32(9.0580006145e-06))))
    minus = _lanes(np.float32(-1.0))
    value = _total(f, _fma(minus, half, rest))
    value = _fma(k, _lanes(np.float32(6.9313812256e-01)), value)
    return _where_above(x, _lanes(np.float32(3.4028235e38)), x, value)


@_compiled
def _log_lanes_double(x):
    """:func:`_log_double` of lanes."""
    k, m = _exponent(x), _mantissa(x)
    f = _total(m, _lanes(-1.0))
    s = _quotient(f, _total(_lanes(2.0), f))
    z = _product_of(s, s)
    rest = _fma(_lanes(1.479819860511658591e-01), z, _lanes(1.531383769920937332e-01))
    rest = _fma(rest, z, _lanes(1.818357216161805012e-01))
    rest = _fma(rest, z, _lanes(2.222219843214978396e-01))
    rest = _fma(rest, z, _lanes(2.857142874366239149e-01))
    rest = _fma(rest, z, _lanes(3.999999999940941908e-01))
    rest = _product_of(_fma(rest, z, _lanes(6.666666666666735130e-01)), z)
    half = _product_of(_product_of(_lanes(0.5), f), f)
    rest = _fma(s, _total(half, rest), _product_of(k, _lanes(1.90821492927058770002e-10)))
    value = _total(f, _fma(_lanes(-1.0), half, rest))
    value = _fma(k, _lanes(6.93147180369123816490e-01), value)
    return _where_above(x, _lanes(1.7976931348623157e308), x, value)


@_compiled
def _log_double(x):
    """Logarithm to rounding, for positive normal x, ∞ and NaN (*fdlibm, log*)."""
    bits = np.float64(x).view(np.int64)
    shifted = bits - 0x3FE6A09E667F3BCD
    k = np.float64(shifted >> 52)
    f = np.int64((shifted & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (
        3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01)
    )
    even = z * (
        6.666666666666735130e-01
        + w
        * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    rest = s * (half + (odd + even)) + k * 1.90821492927058770002e-10
    value = k * 6.93147180369123816490e-01 - ((half - rest) - f)
    return value if x < math.inf else x


def _exp(x):
    """e^x of lanes of either type."""


def _log(x):
    """Logarithm of lanes of either type."""


@overload(_exp, inline="always")
def _exp_of(x):
    single = x.dtype.bitwidth == 32
    return (lambda x: _exp_single(x)) if single else (lambda x: _exp_double(x))


@overload(_log, inline="always")
def _log_of(x):
    single = x.dtype.bitwidth == 32
    return (lambda x: _log_single(x)) if single else (lambda x: _log_lanes_double(x))


# -- keyed noise -----------------------------------------------------------------------------------

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_12, _27, _30, _31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@_compiled
def _mixed(bits):
    """SplitMix64's output function of unsigned bits; see :mod:`torch_lntm.noise`."""
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    return bits ^ (bits >> _31)


@_compiled
def _folded(key, number):
    """New key of a key and a number, as :func:`torch_lntm.noise.fold_in`."""
    return _mixed(key + np.uint64(number + 1) * _INCREMENT)


@_compiled
def _uniform(key, number):
    """Uniform number of a key at an index, to the bit that of :func:`torch_lntm.noise.uniform`."""
    return (np.float64(np.int64(_folded(key, number) >> _12)) + 0.5) * 2.220446049250313e-16


@_compiled
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


@_compiled
def _fill_normal(key, size, into):
    """Write standard normal numbers of a key into the first ``size`` places, by Box and Muller.

    The first half of the numbers are cosines, and the second half are sines.
    """
    half = (size + 1) // 2
    for i in range(size // 2):
        radius = math.sqrt(-2.0 * _log_double(_uniform(key, i)))
        cosine, sine = _circle(_uniform(key, half + i))
        into[i] = radius * cosine
        into[half + i] = radius * sine
    if size % 2:
        radius = math.sqrt(-2.0 * _log_double(_uniform(key, half - 1)))
        into[half - 1] = radius * _circle(_uniform(key, size))[0]


@_kernel
def mixed(bits, result):
    """Mixed bits of ``(n,)`` int64 bits."""
    for i in range(len(bits)):
        result[i] = np.int64(_mixed(np.uint64(bits[i])))


@_kernel
def uniform(keys, numbers):
    """Uniform numbers ``(n, size)`` of ``(n,)`` int64 keys."""
    for row in range(len(keys)):
        key = np.uint64(keys[row])
        for i in range(numbers.shape[1]):
            numbers[row, i] = _uniform(key, i)


@_kernel
def normal(keys, numbers):
    """Standard normal numbers ``(n, size)`` of ``(n,)`` int64 keys."""
    for row in range(len(keys)):
        _fill_normal(np.uint64(keys[row]), numbers.shape[1], numbers[row])


# -- products of a block ---------------------------------------------------------------------------


@_compiled
def _product(x, matrix, ranges, result):
    """Products x · matrix of ``WIDTH`` rows.

    Args:
        x: ``(WIDTH, >= rows of the matrix)``.
        matrix: ``(rows, columns)``, with padded columns.
        ranges: ``(2, columns / WIDTH)`` rows outside of which these columns are 0.
        result: ``(WIDTH, >= columns)``, overwritten.
    """
    none = _lanes(x.dtype.type(0))
    for tile in range(ranges.shape[1]):
        k = WIDTH * tile
        a = b = c = d = e = f = g = h = none
        for j in range(ranges[0, tile], ranges[1, tile]):
            row = _load(matrix, (j, k))
            a, b = _fma(_spread(x, (0, j)), row, a), _fma(_spread(x, (1, j)), row, b)
            c, d = _fma(_spread(x, (2, j)), row, c), _fma(_spread(x, (3, j)), row, d)
            e, f = _fma(_spread(x, (4, j)), row, e), _fma(_spread(x, (5, j)), row, f)
            g, h = _fma(_spread(x, (6, j)), row, g), _fma(_spread(x, (7, j)), row, h)
        _store(result, (0, k), a)
        _store(result, (1, k), b)
        _store(result, (2, k), c)
        _store(result, (3, k), d)
        _store(result, (4, k), e)
        _store(result, (5, k), f)
        _store(result, (6, k), g)
        _store(result, (7, k), h)


@_summed
def _slope(count, s, concentration):
    """Derivative of a Dirichlet-multinomial's term in s: a (ψ(c + a s) − ψ(a s))."""
    rate, total = concentration * np.float64(s), 0.0
    for i in range(np.int64(count)):
        total += concentration / (rate + i)
    return total


@_compiled
def _words_pass(block, documents, first, end, row):
    """Probabilities s of a document's words, c / s, and slope g = Σ_v (c_v / s_v) φ_v.

    For a Dirichlet-multinomial, :func:`_slope` takes the place of c / s.

    Args:
        block: :class:`Block`; its ``s``, ``ratio`` and ``slope`` are overwritten.
        documents: :class:`Documents`.
        first: First of the document's words in the block.
        end: End of the words.
        row: Row of theta and of the slope.
    """
    rows, theta, gradient = block.words, block.theta, block.slope
    counts, s, ratio = block.counts, block.s, block.ratio
    width, a, cast = rows.shape[1], documents.concentration, theta.dtype.type
    none, floor = _lanes(cast(0)), _lanes(cast(documents.floor))
    for i in range(first, end, WIDTH):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = none
        for k in range(0, width, WIDTH):
            t = _load(theta, (row, k))
            s0, s1 = _fma(_load(rows, (i, k)), t, s0), _fma(_load(rows, (i + 1, k)), t, s1)
            s2, s3 = _fma(_load(rows, (i + 2, k)), t, s2), _fma(_load(rows, (i + 3, k)), t, s3)
            s4, s5 = _fma(_load(rows, (i + 4, k)), t, s4), _fma(_load(rows, (i + 5, k)), t, s5)
            s6, s7 = _fma(_load(rows, (i + 6, k)), t, s6), _fma(_load(rows, (i + 7, k)), t, s7)
        # A NaN stays.
        probability = _larger(_sums(s0, s1, s2, s3, s4, s5, s6, s7), floor)
        _store(s, i, probability)
        _store(ratio, i, _quotient(_load(counts, i), probability))
    if a < math.inf:
        for i in range(first, end):
            ratio[i] = cast(_slope(counts[i], s[i], a))
    for k in range(0, width, WIDTH):
        _store(gradient, (row, k), none)
    for i in range(first, end, WIDTH):
        r0, r1, r2, r3 = (
            _spread(ratio, i),
            _spread(ratio, i + 1),
            _spread(ratio, i + 2),
            _spread(ratio, i + 3),
        )
        r4, r5, r6, r7 = (
            _spread(ratio, i + 4),
            _spread(ratio, i + 5),
            _spread(ratio, i + 6),
            _spread(ratio, i + 7),
        )
        for k in range(0, width, WIDTH):
            # Two chains of sums, which the processor makes at the same time.
            x, y = _load(gradient, (row, k)), none
            x, y = _fma(_load(rows, (i, k)), r0, x), _fma(_load(rows, (i + 4, k)), r4, y)
            x, y = _fma(_load(rows, (i + 1, k)), r1, x), _fma(_load(rows, (i + 5, k)), r5, y)
            x, y = _fma(_load(rows, (i + 2, k)), r2, x), _fma(_load(rows, (i + 6, k)), r6, y)
            x, y = _fma(_load(rows, (i + 3, k)), r3, x), _fma(_load(rows, (i + 7, k)), r7, y)
            _store(gradient, (row, k), _total(x, y))


@_summed
def _log_likelihood(counts, s, first, end, concentration):
    """Σ_v c_v log s_v, or Σ_v log Γ(c_v + a s_v) / Γ(a s_v); summed in float64."""
    total = 0.0
    if concentration < math.inf:
        for i in range(first, end):
            rate = concentration * np.float64(s[i])
            for j in range(np.int64(counts[i])):
                total += math.log(rate + j)
        return total
    terms, rest = _lanes(0.0), first + (end - first) // WIDTH * WIDTH
    for i in range(first, rest, WIDTH):
        terms = _total(terms, _doubled(_product_of(_load(counts, i), _log(_load(s, i)))))
    for i in range(rest, end):
        total += counts[i] * _log_double(np.float64(s[i]))
    return total + _sum(terms)


@_compiled
def _softmax_(logits, row):
    """Softmax of a row of padded logits, in place."""
    width = logits.shape[1]
    most = _load(logits, (row, 0))
    for k in range(WIDTH, width, WIDTH):
        most = _larger(most, _load(logits, (row, k)))
    one = logits.dtype.type(1)
    lowest, total = _lanes(-_largest(most)), _lanes(one - one)
    for k in range(0, width, WIDTH):
        e = _exp(_total(_load(logits, (row, k)), lowest))
        _store(logits, (row, k), e)
        total = _total(total, e)
    inverse = _lanes(one / _sum(total))
    for k in range(0, width, WIDTH):
        _store(logits, (row, k), _product_of(_load(logits, (row, k)), inverse))


@_compiled
def _square(x, row):
    """Square norm of a padded row, in float64."""
    total = _lanes(0.0)
    for k in range(0, x.shape[1], WIDTH):
        wide = _doubled(_load(x, (row, k)))
        total = _fma(wide, wide, total)
    return _sum(total)


# -- blocks of documents ---------------------------------------------------------------------------


class Block(NamedTuple):
    """Work space of one thread for a block of documents; rows are chains of documents.

    Rows of z, and of what is alike, have zeros behind their ``dim`` numbers.

    Attributes:
        words: ``(.., width)`` rows of the topics of all words of the block.
        counts: Counts of these words.
        s: Probabilities of these words.
        ratio: Their counts divided by these.
        begin: First of the words of a row.
        end: End of the words of a row.
        row: Number of a row in the state of all chains.
        loc: ``(rows, width)`` logits at z = 0.
        theta: ``(rows, width)`` logits, and then proportions.
        slope: ``(rows, width)`` gradients in the logits.
        z: ``(rows, depth)`` proposals.
        r: ``(rows, depth)`` momenta.
        g: ``(rows, depth)`` gradients of the log likelihood at the proposals.
        h: ``(rows, depth)`` gradients of the log prior at the proposals.
        position: ``(rows, depth)`` z of the chains.
        gradient: ``(rows, depth)`` gradients of the log likelihood there.
        prior: ``(rows,)`` float64 log density of the prior there.
        likelihood: ``(rows,)`` float64 log likelihood there.
        bend: ``(depth,)`` derivatives x′(z) of a document's logits, for Dirichlet priors.
        draws: ``(dim,)`` float64 normal numbers.
        epsilon: ``(rows,)`` step sizes, in the type of z.
        weight: ``(rows,)`` inverse temperatures, in the type of z.
        value: ``(rows,)`` float64 log likelihood at the proposals.
        kinetic: ``(rows,)`` float64 |r|² at the start.
        chance: ``(rows,)`` float64 uniform numbers for the acceptance.
    """

    words: Array
    counts: Array
    s: Array
    ratio: Array
    begin: Array
    end: Array
    row: Array
    loc: Array
    theta: Array
    slope: Array
    z: Array
    r: Array
    g: Array
    h: Array
    position: Array
    gradient: Array
    prior: Array
    likelihood: Array
    bend: Array
    draws: Array
    epsilon: Array
    weight: Array
    value: Array
    kinetic: Array
    chance: Array


def new_block(num_topics: int, dim: int, num_words: int, dtype: Any) -> Block:
    """Work space for blocks of at most ``num_words`` padded words."""
    # The last numbers of z, one for each topic in a factor space, are read with their padding.
    width, depth, rows = padded(num_topics), padded(max(dim, 1)) + WIDTH, WIDTH

    def zeros(*shape: int, dtype: Any = dtype) -> Array:
        return np.zeros(shape, dtype)

    return Block(
        words=zeros(num_words, width),
        counts=zeros(num_words),
        s=zeros(num_words),
        ratio=zeros(num_words),
        begin=zeros(rows, dtype=np.int64),
        end=zeros(rows, dtype=np.int64),
        row=zeros(rows, dtype=np.int64),
        loc=np.full((rows, width), _NOWHERE, dtype),
        theta=zeros(rows, width),
        slope=zeros(rows, width),
        z=zeros(rows, depth),
        r=zeros(rows, depth),
        g=zeros(rows, depth),
        h=zeros(rows, depth),
        position=zeros(rows, depth),
        gradient=zeros(rows, depth),
        prior=zeros(rows, dtype=np.float64),
        likelihood=zeros(rows, dtype=np.float64),
        bend=zeros(depth),
        draws=zeros(dim, dtype=np.float64),
        epsilon=zeros(rows),
        weight=zeros(rows),
        value=zeros(rows, dtype=np.float64),
        kinetic=zeros(rows, dtype=np.float64),
        chance=zeros(rows, dtype=np.float64),
    )


def padded(size: int) -> int:
    """A size rounded up to a multiple of ``WIDTH``."""
    return -(-size // WIDTH) * WIDTH


@_kernel
def divide(row_offsets, num_chains, most_words, offsets):
    """Divide the chains of documents into blocks.

    Items are numbered document by document, so that the chains of a document share its words.

    Args:
        row_offsets: ``(num_docs + 1,)`` int64.
        num_chains: Number of chains of each document.
        most_words: Largest number of words of a block of several documents.
        offsets: ``(num_docs * num_chains + 1,)`` int64. Receives the offsets of the blocks in the
            items.

    Returns:
        Number of blocks, and the largest number of padded words of a block.
    """
    num_docs = len(row_offsets) - 1
    num_blocks, longest, size, first = 0, 0, 0, 0
    for item in range(num_docs * num_chains):
        doc = item // num_chains
        own = (row_offsets[doc + 1] - row_offsets[doc] + WIDTH - 1) // WIDTH * WIDTH
        is_new = item % num_chains == 0
        if item > first and (item - first == WIDTH or size + is_new * own > most_words):
            num_blocks += 1
            offsets[num_blocks] = first = item
            size, is_new = 0, True
        size += is_new * own
        longest = max(longest, size)
    num_items = num_docs * num_chains
    if num_items:
        num_blocks += 1
    offsets[0], offsets[num_blocks] = 0, num_items
    return num_blocks, longest


@_compiled
def _fill(block, documents, num_chains, loc, first, end):
    """Copy the words of the items ``first:end`` into a block, and their logits at z = 0."""
    num_docs, num_topics = len(documents.lengths), documents.words.shape[1]
    at, last, begin = 0, -1, 0
    for item in range(first, end):
        doc = item // num_chains
        if doc != last:
            begin = at
            for entry in range(documents.row_offsets[doc], documents.row_offsets[doc + 1]):
                source, target = documents.words[documents.word_index[entry]], block.words[at]
                for k in range(num_topics):
                    target[k] = source[k]
                block.counts[at] = documents.counts[entry]
                at += 1
            while at % WIDTH:
                block.words[at, :] = 0
                block.counts[at] = 0
                at += 1
            last = doc
        i = item - first
        block.begin[i], block.end[i] = begin, at
        block.row[i] = (item % num_chains) * num_docs + doc
        if len(loc):
            mean = loc[0 if len(loc) == 1 else doc]
            for k in range(len(mean)):
                block.loc[i, k] = mean[k]


# -- priors ----------------------------------------------------------------------------------------


@_compiled
def _log_gamma(z, gamma, k):
    """Value, slope and curvature at z of :class:`~torch_lntm.latents.gamma.GammaSpace`'s x."""
    cast = gamma.dtype.type
    none, one, minus = _lanes(cast(0)), _lanes(cast(1)), _lanes(cast(-1))
    unit = _lanes(cast(_UNIT_LOGISTIC))
    inverse, slope, constant = _load(gamma, (1, k)), _load(gamma, (2, k)), _load(gamma, (3, k))
    scaled = _product_of(unit, z)
    opposite = _product_of(minus, scaled)
    # e^−|cz|, and with it log σ(cz) = min(cz, 0) − log(1 + e^−|cz|) and σ(−cz).
    tail = _exp(_product_of(minus, _larger(scaled, opposite)))
    log_sigmoid = _product_of(minus, _total(_larger(opposite, none), _log(_total(one, tail))))
    below = _quotient(_where_above(scaled, none, tail, one), _total(one, tail))
    steep = _product_of(unit, inverse)
    curvature = _product_of(_product_of(unit, steep), _product_of(below, _total(below, minus)))
    return (
        _fma(inverse, log_sigmoid, _fma(slope, z, constant)),
        _fma(steep, below, slope),
        curvature,
    )


@_compiled
def _prior_gradient(chart, block, i):
    """Gradient h of the log prior at z; for Dirichlet priors also the slopes of the logits."""
    z, h = block.z, block.h
    if chart.gamma.shape[1]:
        # e^x stays finite, and the energy of a chain so far out is large enough to be rejected.
        minus, most = _lanes(z.dtype.type(-1)), _lanes(z.dtype.type(-80))
        for k in range(0, chart.gamma.shape[1], WIDTH):
            value, slope, curvature = _log_gamma(_load(z, (i, k)), chart.gamma, k)
            x = _exp(_product_of(minus, _larger(_product_of(minus, value), most)))
            excess = _fma(minus, x, _load(chart.gamma, (0, k)))
            gradient = _fma(excess, slope, _quotient(curvature, slope))
            _store(h, (i, k), _product_of(_load(chart.gamma, (4, k)), gradient))
            _store(block.bend, k, slope)
        return
    minus = _lanes(z.dtype.type(-1))
    for k in range(0, z.shape[1], WIDTH):
        _store(h, (i, k), _product_of(minus, _load(z, (i, k))))
    for k in range(chart.num_laplace):
        h[i, k] = np.sign(-z[i, k])


@_compiled
def _log_prior(chart, z, i):
    """Log density of a row of z, nats, in float64."""
    if chart.gamma.shape[1]:
        double, terms, minus = chart.exact, _lanes(0.0), _lanes(-1.0)
        for k in range(0, double.shape[1], WIDTH):
            value, slope, _ = _log_gamma(_doubled(_load(z, (i, k))), double, k)
            x = _exp(_product_of(minus, _larger(_product_of(minus, value), _lanes(-700.0))))
            term = _fma(_load(double, (0, k)), value, _total(_log(slope), _product_of(minus, x)))
            terms = _fma(_load(double, (4, k)), term, terms)
        return _sum(terms) - chart.log_normaliser
    total = -0.5 * _square(z, i)
    for k in range(chart.num_laplace):
        x = np.float64(z[i, k])
        total += 0.5 * x * x - abs(x)
    return total - chart.log_normaliser


@_compiled
def _logits(chart, block, i):
    """Complete the products of a row of z with M to its logits."""
    logits = block.theta
    if chart.gamma.shape[1]:
        nowhere = logits.dtype.type(_NOWHERE)
        for k in range(0, logits.shape[1], WIDTH):
            value = _log_gamma(_load(block.z, (i, k)), chart.gamma, k)[0]
            inside = _load(chart.gamma, (4, k))
            outside = _fma(_lanes(-nowhere), inside, _lanes(nowhere))
            _store(logits, (i, k), _fma(inside, value, outside))
        return
    offset = len(chart.push)
    for k in range(0, logits.shape[1], WIDTH):
        x = _total(_load(logits, (i, k)), _load(block.loc, (i, k)))
        if k < len(chart.scale):
            x = _fma(_load(chart.scale, k), _load(block.z, (i, offset + k)), x)
        _store(logits, (i, k), x)


@_compiled
def _write_counts(block, documents, counts, i):
    """Write a row's proportions, and its words' counts divided by their probabilities."""
    num_docs, row, begin = len(documents.lengths), block.row[i], block.begin[i]
    chain, doc = row // num_docs, row % num_docs
    for k in range(counts.theta.shape[1]):
        counts.theta[row, k] = block.theta[i, k]
    first = documents.row_offsets[doc]
    for j in range(documents.row_offsets[doc + 1] - first):
        counts.ratio[chain, first + j] = block.ratio[begin + j]


@_compiled
def _evaluate(block, documents, chart, num_rows, with_value, counts, with_counts):
    """Gradients of log likelihood and log prior at the block's z, and what is asked for."""
    num_docs, a = len(documents.lengths), documents.concentration
    cast, theta, slope = block.z.dtype.type, block.theta, block.slope
    width = theta.shape[1]
    _product(block.z, chart.push, chart.push_range, theta)
    for i in range(num_rows):
        doc, begin, end = block.row[i] % num_docs, block.begin[i], block.end[i]
        _logits(chart, block, i)
        _softmax_(theta, i)
        _words_pass(block, documents, begin, end, i)
        if with_counts:
            _write_counts(block, documents, counts, i)
        total = _lanes(cast(0))
        for k in range(0, width, WIDTH):
            g = _product_of(_load(slope, (i, k)), _load(theta, (i, k)))
            _store(slope, (i, k), g)
            total = _total(total, g)
        lost = -documents.lengths[doc]
        if a < math.inf:
            lost = -_sum(total)
        for k in range(0, width, WIDTH):
            g = _fma(_lanes(lost), _load(theta, (i, k)), _load(slope, (i, k)))
            _store(slope, (i, k), g)
        if with_value:
            block.value[i] = _log_likelihood(block.counts, block.s, begin, end, a)
            if a < math.inf:
                block.value[i] += documents.length_terms[doc]
    _product(slope, chart.pull, chart.pull_range, block.g)
    offset = len(chart.push)
    for i in range(num_rows):
        _prior_gradient(chart, block, i)
        for k in range(0, len(chart.scale), WIDTH):
            g = _product_of(_load(chart.scale, k), _load(slope, (i, k)))
            _store(block.g, (i, offset + k), g)
        for k in range(0, chart.gamma.shape[1], WIDTH):
            _store(block.g, (i, k), _product_of(_load(block.bend, k), _load(slope, (i, k))))


# -- visits of chains ------------------------------------------------------------------------------


@_compiled
def _read(numbers, row, into, i):
    """Copy a row of numbers into a padded row of a block."""
    for k in range(numbers.shape[1]):
        into[i, k] = numbers[row, k]


@_compiled
def _start(block, state, temperature, num_rows):
    """Read the state of the chains of a block."""
    for i in range(num_rows):
        row = block.row[i]
        block.weight[i] = temperature[row]
        block.prior[i], block.likelihood[i] = state.log_prior[row], state.log_likelihood[row]
        _read(state.position, row, block.position, i)
        _read(state.gradient, row, block.gradient, i)


@_compiled
def _finish(block, state, num_rows):
    """Write the state of the chains of a block."""
    for i in range(num_rows):
        row = block.row[i]
        state.log_prior[row], state.log_likelihood[row] = block.prior[i], block.likelihood[i]
        for k in range(state.position.shape[1]):
            state.position[row, k], state.gradient[row, k] = (
                block.position[i, k],
                block.gradient[i, k],
            )


@_compiled
def _keep(block, i, prior):
    """Make a proposal the state of its chain."""
    for k in range(0, block.z.shape[1], WIDTH):
        _store(block.position, (i, k), _load(block.z, (i, k)))
        _store(block.gradient, (i, k), _load(block.g, (i, k)))
    block.prior[i], block.likelihood[i] = prior, block.value[i]


@_compiled
def _draw(block, drawn, settings, step_size, dim, number, i):
    """Momentum and step size of a row's transition; returns its uniform number for acceptance.

    The keys are those of :func:`torch_lntm.sampling.hmc.draw`: number 0 of a transition's key is
    for the momentum, 1 for the acceptance and 2 for the jitter.
    """
    row, r = block.row[i], block.r
    # A divergence may have left NaN in the padding.
    for k in range(dim, r.shape[1]):
        r[i, k] = 0
    if len(drawn.keys):
        key = _folded(np.uint64(drawn.keys[row]), settings.num_past + number)
        _fill_normal(_folded(key, 0), dim, block.draws)
        for k in range(dim):
            r[i, k] = block.draws[k]
        chance, shift = _uniform(_folded(key, 1), 0), _uniform(_folded(key, 2), 0)
    else:
        _read(drawn.momentum[number], row, r, i)
        chance = drawn.acceptance_uniform[number, row]
        shift = drawn.step_uniform[number, row]
    block.epsilon[i] = step_size * (1.0 + settings.jitter * (2.0 * shift - 1.0))
    block.kinetic[i] = _square(block.r, i)
    return chance


@_summed
def _kick_and_drift_by(metric, block, i, kick, drift):
    """As :func:`_kick_and_drift`, with a metric W ``(dim, dim)``: r + Wᵀ(…) and z + W r."""
    z, r, g, h = block.z[i], block.r[i], block.g[i], block.h[i]
    for j in range(len(metric)):
        row, pull = metric[j], kick * (block.weight[i] * g[j] + h[j])
        for k in range(len(row)):
            r[k] += pull * row[k]
    for j in range(len(metric)):
        row, push = metric[j], z.dtype.type(0)
        for k in range(len(row)):
            push += row[k] * r[k]
        z[j] += drift * push


@_compiled
def _kick_and_drift(block, factor, num_docs, i, kick, drift):
    """Add kick ε × the gradient of the log density to r, and then drift ε r to z."""
    kick, drift = kick * block.epsilon[i], drift * block.epsilon[i]
    if factor.shape[1]:
        metric = factor[0 if len(factor) == 1 else block.row[i] % num_docs]
        _kick_and_drift_by(metric, block, i, kick, drift)
        return
    weight, kicks, drifts = _lanes(block.weight[i]), _lanes(kick), _lanes(drift)
    for k in range(0, block.z.shape[1], WIDTH):
        g = _fma(weight, _load(block.g, (i, k)), _load(block.h, (i, k)))
        r = _fma(kicks, g, _load(block.r, (i, k)))
        _store(block.r, (i, k), r)
        _store(block.z, (i, k), _fma(drifts, r, _load(block.z, (i, k))))


@_compiled
def _adapt(adaptation, settings, row, number, acceptance):
    """Step size after a transition, as :class:`~torch_lntm.sampling.step_sizes.DualAveraging`."""
    count = settings.num_past + number + 1
    if count > settings.warmup_steps or len(adaptation.log_step_size) == 0:
        return adaptation.step_size[row]
    delayed = (count + settings.delay) / math.sqrt(count)
    centre = adaptation.centre[row]
    least = (centre - settings.log_longest) * settings.shrinkage * delayed
    shortfall = max(adaptation.shortfall[row] + (settings.target_accept - acceptance), least)
    log_step_size = centre - shortfall / (settings.shrinkage * delayed)
    weight = count**-settings.forgetting
    log_average = weight * log_step_size + (1.0 - weight) * adaptation.log_average[row]
    adaptation.shortfall[row] = shortfall
    adaptation.log_step_size[row] = log_step_size
    adaptation.log_average[row] = log_average
    adaptation.step_size[row] = math.exp(
        log_average if count == settings.warmup_steps else log_step_size
    )
    return adaptation.step_size[row]


@_compiled
def _judge(block, prior, settings, outcome, weight, number, i):
    """Acceptance probability of a row's proposal, and whether it is accepted."""
    start = -block.prior[i] - weight * block.likelihood[i] + 0.5 * block.kinetic[i]
    error = (-prior - weight * block.value[i] + 0.5 * _square(block.r, i)) - start
    # Written so that a NaN counts as divergent.
    valid = error > -math.inf and error <= settings.max_error
    acceptance = math.exp(min(-error, 0.0)) if valid else 0.0
    accepted = block.chance[i] < acceptance
    row = block.row[i]
    outcome.acceptance[number, row], outcome.energy_error[number, row] = acceptance, error
    outcome.accepted[number, row], outcome.divergent[number, row] = accepted, not valid
    return acceptance, accepted


@_compiled
def _begin(block, chart, drawn, factor, num_docs, adaptation, settings, number, num_rows, moves):
    """Start proposals at the chains' states, with the first half of a step if they move."""
    for i in range(num_rows):
        for k in range(0, block.z.shape[1], WIDTH):
            _store(block.z, (i, k), _load(block.position, (i, k)))
            _store(block.g, (i, k), _load(block.gradient, (i, k)))
        if moves:
            step_size = adaptation.step_size[block.row[i]]
            block.chance[i] = _draw(block, drawn, settings, step_size, chart.dim, number, i)
            _prior_gradient(chart, block, i)
            cast = block.z.dtype.type
            _kick_and_drift(block, factor, num_docs, i, cast(0.5), cast(1))


@_kernel
def visit(
    block,
    documents,
    chart,
    state,
    drawn,
    temperature,
    factor,
    adaptation,
    settings,
    outcome,
    counts,
    offsets,
    first,
    end,
):
    """Move the chains of the blocks ``first:end`` by some transitions.

    Args:
        block: Work space.
        documents: :class:`Documents`.
        chart: :class:`Map` from z to the logits.
        state: :class:`State`, overwritten.
        drawn: :class:`Randomness`.
        temperature: ``(num_rows,)`` float64 inverse temperatures of the likelihood.
        factor: ``(num_docs, dim, dim)`` W of the chains' metric, or ``(1, dim, dim)`` for all
            documents; ``(1, 0, 0)`` for W = I.
        adaptation: :class:`Adaptation`, overwritten.
        settings: :class:`Settings`.
        outcome: :class:`Outcome`, overwritten.
        counts: :class:`Counts`, overwritten.
        offsets: Offsets of the blocks in the items, from :func:`divide`.
        first: First block.
        end: End of the blocks.
    """
    num_docs, cast = len(documents.lengths), block.z.dtype.type
    num_chains = len(state.log_prior) // max(1, num_docs)
    num_transitions, num_counts = outcome.acceptance.shape[0], min(1, len(counts.theta))
    for b in range(first, end):
        num_rows = offsets[b + 1] - offsets[b]
        _fill(block, documents, num_chains, chart.loc, offsets[b], offsets[b + 1])
        _start(block, state, temperature, num_rows)
        # Transition −1 only evaluates the states, and the last one writes their counts. The code of
        # all functions is copied to where they are called, so the evaluation stands here once.
        for number in range(-1 if settings.evaluate else 0, num_transitions + num_counts):
            moves = number >= 0 and number < num_transitions
            args = chart, drawn, factor, num_docs, adaptation, settings, number, num_rows, moves
            _begin(block, *args)
            num_steps = settings.num_steps if moves else 1
            for step in range(num_steps):
                last = step == num_steps - 1
                with_counts = number == num_transitions
                _evaluate(block, documents, chart, num_rows, last, counts, with_counts)
                kick, drift = (cast(0.5), cast(0)) if last else (cast(1), cast(1))
                for i in range(num_rows if moves else 0):
                    _kick_and_drift(block, factor, num_docs, i, kick, drift)
            for i in range(num_rows):
                row, prior = block.row[i], _log_prior(chart, block.z, i)
                accepted = number < 0
                if moves:
                    weight = temperature[row]
                    chance, accepted = _judge(block, prior, settings, outcome, weight, number, i)
                    step_size = _adapt(adaptation, settings, row, number, chance)
                    outcome.step_size[number, row] = step_size
                if accepted:
                    _keep(block, i, prior)
        _finish(block, state, num_rows)


# -- topics of tokens ------------------------------------------------------------------------------


@_kernel
def draw_topics(
    weights, words, order, doc_index, word_offsets, tokens, uniforms, sums, counts, first, end
):
    """Draw the topics of all tokens of the words ``first:end``, and count them.

    Args:
        weights: ``(num_docs, num_topics)`` proportions of the documents.
        words: ``(num_words, num_topics)`` topics by word.
        order: As for :func:`word_counts`, as are ``doc_index`` and ``word_offsets``.
        doc_index: See ``order``.
        word_offsets: See ``order``.
        tokens: ``(nnz + 1,)`` int64 offsets of the entries' tokens in ``uniforms``.
        uniforms: ``(num_tokens,)`` uniform numbers, one for each draw.
        sums: ``(num_topics,)`` work space.
        counts: ``(num_words, num_topics)`` float64, overwritten.
        first: First word.
        end: End of the words.
    """
    last = len(sums) - 1
    for word in range(first, end):
        phi, own = words[word], counts[word]
        for k in range(len(sums)):
            own[k] = 0.0
        for at in range(word_offsets[word], word_offsets[word + 1]):
            entry, t, total = order[at], weights[doc_index[at]], 0.0
            for k in range(len(sums)):
                total += t[k] * phi[k]
                sums[k] = total
            for token in range(tokens[entry], tokens[entry + 1]):
                k, u = 0, uniforms[token] * total
                while k < last and sums[k] < u:
                    k += 1
                own[k] += 1.0


# -- expected counts -------------------------------------------------------------------------------


@_summed
def _count_topics(words, index, counts, floor, t, s, g):
    """Probabilities s of a document's words, and Σ_v (c_v / s_v) φ_v, four words at a time."""
    zero, last = g.dtype.type(0), len(index) - 1
    for k in range(len(g)):
        g[k] = zero
    for i in range(0, len(index), 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        p0, p1, p2, p3 = words[index[i]], words[index[i1]], words[index[i2]], words[index[i3]]
        s0 = s1 = s2 = s3 = zero
        for k in range(len(g)):
            s0 += p0[k] * t[k]
            s1 += p1[k] * t[k]
            s2 += p2[k] * t[k]
            s3 += p3[k] * t[k]
        # Unlike a maximum, this keeps a NaN.
        s0, s1 = floor if s0 < floor else s0, floor if s1 < floor else s1
        s2, s3 = floor if s2 < floor else s2, floor if s3 < floor else s3
        s[i], s[i1], s[i2], s[i3] = s0, s1, s2, s3
        r0, r1 = counts[i] / s0, counts[i1] / s1 if i1 > i else zero
        r2, r3 = counts[i2] / s2 if i2 > i1 else zero, counts[i3] / s3 if i3 > i2 else zero
        for k in range(len(g)):
            g[k] += r0 * p0[k] + r1 * p1[k] + r2 * p2[k] + r3 * p3[k]
    for k in range(len(g)):
        g[k] *= t[k]


@_kernel
def expected_counts(
    weights,
    words,
    row_offsets,
    word_index,
    counts,
    floor,
    log_likelihood,
    topic_counts,
    s,
    first,
    end,
):
    """Log likelihoods and expected counts of the documents ``first:end`` at weights t.

    It reads the rows of the topics where they are, because it reads them only once.

    Args:
        weights: ``(num_docs, num_topics)`` t.
        words: ``(num_words, num_topics)`` topics by word.
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64.
        counts: ``(nnz,)``.
        floor: Least probability of a word.
        log_likelihood: ``(num_docs,)`` float64, overwritten.
        topic_counts: ``(num_docs, num_topics)``, overwritten.
        s: ``(nnz,)`` probabilities of the words, overwritten.
        first: First document.
        end: End of the documents.
    """
    least = words.dtype.type(floor)
    for doc in range(first, end):
        i, j = row_offsets[doc], row_offsets[doc + 1]
        t, g = weights[doc], topic_counts[doc]
        _count_topics(words, word_index[i:j], counts[i:j], least, t, s[i:j], g)
        log_likelihood[doc] = _log_likelihood(counts, s, i, j, math.inf)


@_compiled
def _word_sums(weights, order, doc_index, ratio, at, stop, sums):
    """Sums Σ_d t_d c_dv / s_dv of the entries ``at:stop`` of a word."""
    zero = sums.dtype.type(0)
    for k in range(len(sums)):
        sums[k] = zero
    while at + 4 <= stop:
        t0, t1 = weights[doc_index[at]], weights[doc_index[at + 1]]
        t2, t3 = weights[doc_index[at + 2]], weights[doc_index[at + 3]]
        r0, r1 = ratio[order[at]], ratio[order[at + 1]]
        r2, r3 = ratio[order[at + 2]], ratio[order[at + 3]]
        for k in range(len(sums)):
            sums[k] += r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k]
        at += 4
    for entry in range(at, stop):
        t, r = weights[doc_index[entry]], ratio[order[entry]]
        for k in range(len(sums)):
            sums[k] += r * t[k]


@_kernel
def word_counts(weights, words, order, doc_index, word_offsets, ratio, result, first, end):
    """Expected tokens of the words ``first:end`` in each topic.

    Args:
        weights: ``(num_docs, num_topics)`` t.
        words: ``(num_words, num_topics)`` topics by word.
        order: ``(nnz,)`` int64 entries, word by word, with ascending documents.
        doc_index: ``(nnz,)`` int64 documents of these entries.
        word_offsets: ``(num_words + 1,)`` int64.
        ratio: ``(nnz,)`` counts divided by s.
        result: ``(num_words, num_topics)``, overwritten.
        first: First word.
        end: End of the words.
    """
    for word in range(first, end):
        own, phi = result[word], words[word]
        at, stop = word_offsets[word], word_offsets[word + 1]
        _word_sums(weights, order, doc_index, ratio, at, stop, own)
        if at < stop:
            for k in range(len(own)):
                own[k] *= phi[k]


# -- steps of a start ------------------------------------------------------------------------------


class Running(NamedTuple):
    """Topics of a start: φ_v = factor · row_v + shift, a row of running word counts each.

    Words with keywords have probabilities of their own, which are at least ``floor``:
    φ_v = allowed_v · (factor · row_v + shift + extra_v).

    Attributes:
        rows: ``(num_words, num_topics)``, overwritten.
        factor: ``(num_topics,)``.
        shift: ``(num_topics,)``.
        place: ``(num_words,)`` int64 row of a word in ``extra`` and ``allowed``, 0 for words
            without keywords; or empty.
        extra: ``(n, num_topics)``.
        allowed: ``(n, num_topics)``.
        floor: Least probability of a word.
    """

    rows: Array
    factor: Array
    shift: Array
    place: Array
    extra: Array
    allowed: Array
    floor: float


class Step(NamedTuple):
    """Documents of a step, and what it makes of them.

    Attributes:
        words: ``(n,)`` int64 positions of the words of all documents.
        row_offsets: ``(num_docs + 1,)`` int64.
        word_index: ``(nnz,)`` int64 positions in ``words``.
        counts: ``(nnz,)``.
        order: ``(nnz,)`` int64 entries, word by word, with ascending documents.
        doc_index: ``(nnz,)`` int64 documents of these entries.
        word_offsets: ``(n + 1,)`` int64.
        index: ``(num_docs,)`` int64 rows of the documents in ``table``.
        table: Proportions ``(.., num_topics)`` of all documents, updated.
        theta: ``(num_docs, num_topics)`` proportions before the last update, overwritten.
        tokens: ``(num_docs, num_topics)`` expected tokens at ``theta``, overwritten.
        ratio: ``(nnz,)`` counts divided by the words' probabilities at ``theta``, overwritten.
        value: ``(num_docs,)`` float64 log likelihood at ``theta``, overwritten.
    """

    words: Array
    row_offsets: Array
    word_index: Array
    counts: Array
    order: Array
    doc_index: Array
    word_offsets: Array
    index: Array
    table: Array
    theta: Array
    tokens: Array
    ratio: Array
    value: Array


class Pad(NamedTuple):
    """Work space of one thread for a document, with the names of :class:`Block`.

    Attributes:
        words: ``(height, width)`` rows of a document's words; see :func:`_copy_row`.
        counts: Counts of these words.
        s: Their probabilities.
        ratio: Counts divided by the probabilities.
        theta: ``(1, width)``.
        slope: ``(1, width)``.
        concentration: As for :class:`Documents`; infinite.
        floor: As for :class:`Documents`.
    """

    words: Array
    counts: Array
    s: Array
    ratio: Array
    theta: Array
    slope: Array
    concentration: float
    floor: float


def new_pad(num_topics: int, longest: int, floor: float, dtype: Any) -> Pad:
    """Work space for documents of at most ``longest`` different words."""
    width, height = padded(num_topics + 1), padded(longest)
    shapes = (height, width), height, height, height, (1, width), (1, width)
    return Pad(*(np.zeros(shape, dtype) for shape in shapes), math.inf, floor)


@_compiled
def _copy_row(running, word, into):
    """Write the row of a word, and 1 behind it; for words with keywords, a row for φ_v and 0.

    Then t · (row, 1) is φ_v · θ for t = (factor · θ, shift · θ), so that rows need not be scaled.
    """
    row, num_topics = running.rows[word], len(running.factor)
    for k in range(num_topics):
        into[k] = row[k]
    into[num_topics] = 1
    if len(running.place) and running.place[word]:
        into[num_topics] = 0
        factor, shift, at = running.factor, running.shift, running.place[word]
        floor = into.dtype.type(running.floor)
        for k in range(num_topics):
            value = factor[k] * row[k] + shift[k] + running.extra[at, k]
            value *= running.allowed[at, k]
            into[k] = (floor if value < floor else value) / factor[k]


@_compiled
def _copy_document(pad, running, step, doc):
    """Copy a document's words, and return their number with padding."""
    begin, at = step.row_offsets[doc], 0
    for entry in range(begin, step.row_offsets[doc + 1]):
        _copy_row(running, step.words[step.word_index[entry]], pad.words[at])
        pad.counts[at] = step.counts[entry]
        at += 1
    while at % WIDTH:
        pad.words[at, :] = 0
        pad.counts[at] = 0
        at += 1
    return at


@_summed
def _dot(x, y):
    """Σ_k x_k y_k. Loops that also write add in another order where arrays are neighbours."""
    total = x.dtype.type(0)
    for k in range(len(x)):
        total += x[k] * y[k]
    return total


@_summed
def _sum_of(x):
    """Σ_k x_k, as :func:`_dot`."""
    total = x.dtype.type(0)
    for k in range(len(x)):
        total += x[k]
    return total


@_compiled
def _scaled_theta(running, theta, t):
    """Write (factor · θ, shift · θ), which goes with the rows of :func:`_copy_row`."""
    for k in range(len(theta)):
        t[k] = running.factor[k] * theta[k]
    t[len(theta)] = _dot(running.shift, theta)


@_compiled
def _updated_theta(running, theta, g, tokens, pseudo, new):
    """Write each topic's tokens at θ, and new proportions, from the slope g in these rows."""
    rest = g[len(theta)]
    for k in range(len(theta)):
        tokens[k] = theta[k] * (running.factor[k] * g[k] + running.shift[k] * rest)
        new[k] = tokens[k] + pseudo
    total = _sum_of(new)
    for k in range(len(theta)):
        new[k] /= total


@_kernel
def start_documents(pad, running, step, sweeps, concentration, first, end):
    """Update the proportions of the documents ``first:end`` of a step.

    An update is θ ← (tokens + concentration) / its sum. The word counts belong to the proportions
    before the last update.

    Args:
        pad: Work space.
        running: :class:`Running`.
        step: :class:`Step`.
        sweeps: Number of updates, at least 1.
        concentration: Pseudo-tokens of each topic.
        first: First document.
        end: End of the documents.
    """
    t, g = pad.theta[0], pad.slope[0]
    pseudo = t.dtype.type(concentration)
    for doc in range(first, end):
        stop = _copy_document(pad, running, step, doc)
        own, new = step.theta[doc], step.table[step.index[doc]]
        for _ in range(sweeps):
            for k in range(len(own)):
                own[k] = new[k]
            _scaled_theta(running, own, t)
            _words_pass(pad, pad, 0, stop, 0)
            _updated_theta(running, own, g, step.tokens[doc], pseudo, new)
        step.value[doc] = _log_likelihood(pad.counts, pad.s, 0, stop, math.inf)
        begin = step.row_offsets[doc]
        for entry in range(begin, step.row_offsets[doc + 1]):
            step.ratio[entry] = pad.ratio[entry - begin]


@_kernel
def start_words(sums, running, step, weight, first, end):
    """Add ``weight`` times the word counts of a step to the rows of its words ``first:end``.

    ``sums`` ``(num_topics,)`` is overwritten.
    """
    factor, shift = running.factor, running.shift
    weight, floor = sums.dtype.type(weight), sums.dtype.type(running.floor)
    for i in range(first, end):
        word, at, stop = step.words[i], step.word_offsets[i], step.word_offsets[i + 1]
        _word_sums(step.theta, step.order, step.doc_index, step.ratio, at, stop, sums)
        own = running.rows[word]
        if len(running.place) and running.place[word]:
            at = running.place[word]
            extra, allowed = running.extra[at], running.allowed[at]
            for k in range(len(sums)):
                phi = (factor[k] * own[k] + shift[k] + extra[k]) * allowed[k]
                own[k] += weight * (floor if phi < floor else phi) * sums[k]
        else:
            for k in range(len(sums)):
                own[k] += weight * (factor[k] * own[k] + shift[k]) * sums[k]


# -- pairs of topics -------------------------------------------------------------------------------


@_summed
def _entropy(a, b):
    """N log N − Σ_v n_v log n_v for n = a + b."""
    total, inner = 0.0, 0.0
    for v in range(len(a)):
        x = np.float64(a[v] + b[v])
        total += x
        inner += x * _log_double(x if x > _TINY else _TINY)
    return total * math.log(max(total, _TINY)) - inner


@_summed
def _overlap(a, b):
    """Σ_d a_d b_d / (a_d + b_d)."""
    total = 0.0
    for d in range(len(a)):
        x, y = np.float64(a[d]), np.float64(b[d])
        total += x * y / (x + y if x + y > _TINY else _TINY)
    return total


@_kernel
def pair_entropies(counts, first, second, result, begin, end):
    """N log N − Σ_v n_v log n_v of the sums n of the pairs ``begin:end`` of rows.

    Args:
        counts: ``(num_rows, num_columns)`` float32, nonnegative.
        first: ``(n,)`` int64 rows.
        second: ``(n,)`` int64 rows.
        result: ``(n,)`` float64, overwritten.
        begin: First pair.
        end: End of the pairs.
    """
    for i in range(begin, end):
        result[i] = _entropy(counts[first[i]], counts[second[i]])


@_kernel
def pair_overlaps(counts, first, second, result, begin, end):
    """Sums Σ_d n_d m_d / (n_d + m_d) of pairs of rows, as :func:`pair_entropies`."""
    for i in range(begin, end):
        result[i] = _overlap(counts[first[i]], counts[second[i]])
