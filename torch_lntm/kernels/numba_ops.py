"""Compiled kernels of a CPU: whole visits of chains, expected counts, and keyed noise.

They are written in Numba, which compiles them for this machine at their first use and keeps the
result on disk. :mod:`torch_lntm.kernels.compiled` calls them with PyTorch's tensors.

**Memory.** A visit evaluates the gradient of a document dozens of times. Each evaluation reads the
topics' probabilities of the document's words twice, which is nearly all of the work:

    s_v = φ_v·θ        g = Σ_v (c_v / s_v) φ_v

The kernels therefore take one small block of documents after another, copy their words' rows of the
topics side by side (a few hundred kB, which stay in the cache), and make all transitions of the
block before the next. The products of a block with the map from z to the logits are small matrix
products. Rows are padded to multiples of 8 numbers, so that loops over them are vector
instructions without a remainder.

**Bits.** A document's numbers depend on nothing but the document and its keys, and sums over
documents run in a fixed order. Results therefore have the same bits for every division of the
documents over threads.

**Rounding.** ``_FAST`` lets the compiler reorder sums, which vector instructions need, but not
assume that numbers are finite: a NaN must reach the energy error, where it counts as a divergence.
The elementary functions forbid even reordering, because their last bits come from its order.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

Array = Any

_FAST = {"reassoc", "contract", "arcp", "nsz"}
#: Arrays are views of tensors' memory, so that no reference needs counting.
_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
_kernel = njit(fastmath=_FAST, cache=True, **_OPTIONS)
#: Parts of kernels. Python cannot call them, which saves a third of the time of compiling.
_OPTIONS["no_cpython_wrapper"] = True
_compiled = njit(fastmath=_FAST, **_OPTIONS)
_inlined = njit(fastmath=_FAST, forceinline=True, **_OPTIONS)
_exact = njit(fastmath={"contract"}, **_OPTIONS)

#: Rows of topics and of logits are padded to a multiple of this many numbers.
WIDTH = 8
#: Largest number of documents in a block, and of bytes of its words' rows of the topics. A core's
#: second-level cache holds both.
BLOCK_DOCS, BLOCK_BYTES = 16, 2**18
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

    Rows are padded with zeros to multiples of ``WIDTH``, and their number to a multiple of 4.
    Products of four rows at a time skip the zeros before ``first`` and from ``end`` on, which
    halves the work of a triangular M.

    Attributes:
        loc: ``(1 or num_docs, num_topics)`` logits at z = 0.
        push: M, a row for each topic, and ``push_range`` ``(2, rows / 4)`` with its ranges.
        push_range: See ``push``.
        pull: The transpose of M, a row for each component of x, with its ranges.
        pull_range: See ``pull``.
        scale: ``(num_topics,)``, or empty without e.
        dim: Number of components of z.
        num_laplace: Number of first components of z with density ½ exp(−|z|). All others are
            standard normal.
        gamma: ``(4, num_topics)`` rows α, 1/α, 1/√(1 + α) and log(1 + α) of a
            :class:`~torch_lntm.latents.gamma.GammaSpace`, or ``(4, 0)``. The logits are then its
            x(z), and loc, M and scale are empty.
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


# -- elementary functions --------------------------------------------------------------------------
#
# The library's exp and log take one number at a time. These are polynomials without branches, so
# that loops over them become vector instructions: 0.3 ns a number rather than 2.5.


@_exact
def _exp_single(x):
    """e^x to 1.2e-7 relative, 0 below −87, NaN for NaN; x ≤ 88 (*Cephes, expf*)."""
    lowest = np.float32(-87.0)
    y = x if x > lowest else lowest
    n = np.rint(y * np.float32(1.4426950408889634))
    r = (y - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + (r + np.float32(1.0))
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return p * power if x > lowest else (np.float32(0.0) if x <= lowest else x)


@_exact
def _exp_double(x):
    """e^x to rounding, 0 below −708, NaN for NaN; x ≤ 709. A Taylor series on |r| ≤ ½ log 2."""
    y = x if x > -708.0 else -708.0
    n = np.rint(y * 1.4426950408889634)
    r = (y - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * (r * r) + r
    power = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return p * power + power if x > -708.0 else (0.0 if x <= -708.0 else x)


@_exact
def _log_single(x):
    """Logarithm to rounding, for positive normal x and NaN (*fdlibm, logf*)."""
    bits = np.float32(x).view(np.int32)
    # The mantissa m in [√½, √2) and the exponent k of x = 2^k m.
    shifted = np.int32(bits - 0x3F3504F3)
    k = np.float32(shifted >> 23)
    f = np.int32((shifted & 0x007FFFFF) + 0x3F3504F3).view(np.float32) - np.float32(1.0)
    s = f / (np.float32(2.0) + f)
    z = s * s
    w = z * z
    odd = w * (np.float32(0.40000972152) + w * np.float32(0.24279078841))
    even = z * (np.float32(0.66666662693) + w * np.float32(0.28498786688))
    half = np.float32(0.5) * f * f
    rest = s * (half + (odd + even)) + k * np.float32(9.0580006145e-06)
    value = k * np.float32(6.9313812256e-01) - ((half - rest) - f)
    return value if x == x else x


@_exact
def _log_double(x):
    """Logarithm to rounding, for positive normal x and NaN (*fdlibm, log*)."""
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
    return value if x == x else x


def _exp(x):
    """e^x of a number of either type."""


def _log(x):
    """Logarithm of a number of either type."""


@overload(_exp, inline="always")
def _exp_of(x):
    if x.bitwidth == 32:
        return lambda x: _exp_single(x)
    return lambda x: _exp_double(x)


@overload(_log, inline="always")
def _log_of(x):
    if x.bitwidth == 32:
        return lambda x: _log_single(x)
    return lambda x: _log_double(x)


# -- keyed noise -----------------------------------------------------------------------------------

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_12, _27, _30, _31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@_exact
def _mixed(bits):
    """SplitMix64's output function of unsigned bits; see :mod:`torch_lntm.noise`."""
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    return bits ^ (bits >> _31)


@_exact
def _folded(key, number):
    """New key of a key and a number, as :func:`torch_lntm.noise.fold_in`."""
    return _mixed(key + np.uint64(number + 1) * _INCREMENT)


@_exact
def _uniform(key, number):
    """Uniform number of a key at an index, to the bit that of :func:`torch_lntm.noise.uniform`."""
    return (np.float64(np.int64(_folded(key, number) >> _12)) + 0.5) * 2.220446049250313e-16


@_exact
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


@_exact
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
def _product(x, matrix, ranges, num_rows, result):
    """Products x · matrixᵀ ``(num_rows, rows of the matrix)`` of padded rows.

    Tiles of 4 rows of x and 4 of the matrix have their 16 sums in registers, so that a number read
    is used four times.

    Args:
        x: ``(>= num_rows, columns of the matrix)``.
        matrix: Rows in a multiple of 4.
        ranges: ``(2, rows / 4)`` columns outside of which 4 rows of the matrix are 0.
        num_rows: Multiple of 4.
        result: Overwritten.
    """
    zero = x.dtype.type(0)
    for tile in range(matrix.shape[0] // 4):
        k = 4 * tile
        m0, m1, m2, m3 = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
        # An unsigned index cannot count from the end, and needs no check for that.
        first, end = np.uint64(ranges[0, tile]), np.uint64(ranges[1, tile])
        for row in range(0, num_rows, 4):
            x0, x1, x2, x3 = x[row], x[row + 1], x[row + 2], x[row + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = zero
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = zero
            for j in range(first, end):
                y0, y1, y2, y3 = m0[j], m1[j], m2[j], m3[j]
                b0, b1, b2, b3 = x0[j], x1[j], x2[j], x3[j]
                a00, a01, a02, a03 = a00 + b0 * y0, a01 + b0 * y1, a02 + b0 * y2, a03 + b0 * y3
                a10, a11, a12, a13 = a10 + b1 * y0, a11 + b1 * y1, a12 + b1 * y2, a13 + b1 * y3
                a20, a21, a22, a23 = a20 + b2 * y0, a21 + b2 * y1, a22 + b2 * y2, a23 + b2 * y3
                a30, a31, a32, a33 = a30 + b3 * y0, a31 + b3 * y1, a32 + b3 * y2, a33 + b3 * y3
            r0, r1, r2, r3 = result[row], result[row + 1], result[row + 2], result[row + 3]
            r0[k], r0[k + 1], r0[k + 2], r0[k + 3] = a00, a01, a02, a03
            r1[k], r1[k + 1], r1[k + 2], r1[k + 3] = a10, a11, a12, a13
            r2[k], r2[k + 1], r2[k + 2], r2[k + 3] = a20, a21, a22, a23
            r3[k], r3[k + 1], r3[k + 2], r3[k + 3] = a30, a31, a32, a33


@_compiled
def _slope(count, s, concentration):
    """Derivative of a Dirichlet-multinomial's term in s: a (ψ(c + a s) − ψ(a s))."""
    rate, total = concentration * np.float64(s), 0.0
    for i in range(np.int64(count)):
        total += concentration / (rate + i)
    return total


@_compiled
def _words_pass(rows, counts, first, end, documents, theta, s, gradient):
    """Probabilities s of a document's words, and Σ_v (c_v / s_v) φ_v, in one pass.

    For a Dirichlet-multinomial, :func:`_slope` takes the place of c / s.

    Four words at a time, whose rows are still in the first-level cache when they are used again.

    Args:
        rows: ``(.., width)`` rows φ_v of the words; the document's are ``first:end``, a multiple
            of 4. Padding has the count 0 and zeros.
        counts: Counts c of the rows.
        first: First row.
        end: End of the rows.
        documents: :class:`Documents`.
        theta: ``(width,)``.
        s: Overwritten from ``first`` to ``end``.
        gradient: ``(width,)``, overwritten.
    """
    width, a, cast = len(theta), documents.concentration, theta.dtype.type
    bursty, zero, floor = a < math.inf, cast(0), cast(documents.floor)
    for k in range(width):
        gradient[k] = zero
    for i in range(first, end, 4):
        p0, p1, p2, p3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        s0 = s1 = s2 = s3 = zero
        for k in range(width):
            t = theta[k]
            s0 += p0[k] * t
            s1 += p1[k] * t
            s2 += p2[k] * t
            s3 += p3[k] * t
        # Unlike a maximum, this keeps a NaN.
        s0 = floor if s0 < floor else s0
        s1 = floor if s1 < floor else s1
        s2 = floor if s2 < floor else s2
        s3 = floor if s3 < floor else s3
        s[i], s[i + 1], s[i + 2], s[i + 3] = s0, s1, s2, s3
        c0, c1, c2, c3 = counts[i], counts[i + 1], counts[i + 2], counts[i + 3]
        if bursty:
            r0, r1 = cast(_slope(c0, s0, a)), cast(_slope(c1, s1, a))
            r2, r3 = cast(_slope(c2, s2, a)), cast(_slope(c3, s3, a))
        else:
            r0, r1, r2, r3 = c0 / s0, c1 / s1, c2 / s2, c3 / s3
        for k in range(width):
            gradient[k] += r0 * p0[k] + r1 * p1[k] + r2 * p2[k] + r3 * p3[k]


@_compiled
def _log_likelihood(counts, s, first, end, concentration):
    """Σ_v c_v log s_v, or Σ_v log Γ(c_v + a s_v) / Γ(a s_v); summed in float64."""
    total = 0.0
    if concentration < math.inf:
        for i in range(first, end):
            rate = concentration * np.float64(s[i])
            for j in range(np.int64(counts[i])):
                total += math.log(rate + j)
        return total
    counts, s = counts[first:end], s[first:end]
    for i in range(len(s)):
        total += np.float64(counts[i] * _log(s[i]))
    return total


@_compiled
def _softmax_(logits):
    """Softmax of padded logits, in place."""
    most = logits[0]
    for x in logits:
        most = x if x > most else most
    total = logits.dtype.type(0)
    for k in range(len(logits)):
        e = _exp(logits[k] - most)
        logits[k] = e
        total += e
    inverse = logits.dtype.type(1) / total
    for k in range(len(logits)):
        logits[k] *= inverse


@_compiled
def _square(x):
    """|x|² in float64."""
    total = 0.0
    for i in range(len(x)):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


# -- blocks of documents ---------------------------------------------------------------------------


class Block(NamedTuple):
    """Work space of one thread for a block of documents; rows are chains of documents.

    Attributes:
        words: ``(.., width)`` rows of the topics of all words of the block.
        counts: Counts of these words.
        s: Probabilities of these words.
        begin: First of the words of a row.
        end: End of the words of a row.
        row: Number of a row in the state of all chains.
        theta: ``(rows, width)`` logits, and then proportions.
        slope: ``(rows, width)`` gradients in the logits.
        z: ``(rows, padded dim)`` proposals.
        r: ``(rows, padded dim)`` momenta.
        g: ``(rows, padded dim)`` gradients of the log likelihood at the proposals.
        h: ``(rows, padded dim)`` gradients of the log prior at the proposals.
        bend: ``(padded dim,)`` derivatives x′(z) of a document's logits, for Dirichlet priors.
        draws: ``(dim,)`` float64 normal numbers.
        epsilon: ``(rows,)`` step sizes, in the type of z.
        value: ``(rows,)`` float64 log likelihood at the proposals.
        kinetic: ``(rows,)`` float64 |r|² at the start.
        chance: ``(rows,)`` float64 uniform numbers for the acceptance.
    """

    words: Array
    counts: Array
    s: Array
    begin: Array
    end: Array
    row: Array
    theta: Array
    slope: Array
    z: Array
    r: Array
    g: Array
    h: Array
    bend: Array
    draws: Array
    epsilon: Array
    value: Array
    kinetic: Array
    chance: Array


def new_block(num_topics: int, dim: int, num_words: int, dtype: Any) -> Block:
    """Work space for blocks of at most ``num_words`` padded words."""
    width, depth, rows = padded(num_topics), padded(max(dim, 1)), BLOCK_DOCS

    def zeros(*shape: int, dtype: Any = dtype) -> Array:
        return np.zeros(shape, dtype)

    return Block(
        words=zeros(num_words, width),
        counts=zeros(num_words),
        s=zeros(num_words),
        begin=zeros(rows, dtype=np.int64),
        end=zeros(rows, dtype=np.int64),
        row=zeros(rows, dtype=np.int64),
        theta=zeros(rows, width),
        slope=zeros(rows, width),
        z=zeros(rows, depth),
        r=zeros(rows, depth),
        g=zeros(rows, depth),
        h=zeros(rows, depth),
        bend=zeros(depth),
        draws=zeros(dim, dtype=np.float64),
        epsilon=zeros(rows),
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
        own = (row_offsets[doc + 1] - row_offsets[doc] + 3) // 4 * 4
        is_new = item % num_chains == 0
        if item > first and (item - first == BLOCK_DOCS or size + is_new * own > most_words):
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
def _load(block, documents, num_chains, first, end):
    """Copy the words of the items ``first:end`` into a block."""
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
            while at % 4:
                block.words[at, :] = 0
                block.counts[at] = 0
                at += 1
            last = doc
        i = item - first
        block.begin[i], block.end[i] = begin, at
        block.row[i] = (item % num_chains) * num_docs + doc


# -- priors ----------------------------------------------------------------------------------------


@_compiled
def _log_gamma(z, gamma, k):
    """Value, slope and curvature of :class:`~torch_lntm.latents.gamma.GammaSpace`'s x at z."""
    one = gamma.dtype.type(1)
    unit = gamma.dtype.type(_UNIT_LOGISTIC)
    inverse, slope, constant = gamma[1, k], gamma[2, k], gamma[3, k]
    scaled = unit * z
    tail = _exp(-abs(scaled))
    log_sigmoid = (scaled if scaled < 0 else one - one) - _log(one + tail)
    below = (tail if scaled > 0 else one) / (one + tail)
    steep = unit * inverse
    return (
        inverse * log_sigmoid + slope * z + constant,
        steep * below + slope,
        unit * steep * below * (below - one),
    )


@_compiled
def _prior_gradient(chart, z, h, bend):
    """Gradient h of the log prior at z; for Dirichlet priors also the slopes of the logits."""
    if chart.gamma.shape[1]:
        # e^x stays finite, and the energy of a chain so far out is large enough to be rejected.
        most = z.dtype.type(80)
        for k in range(chart.dim):
            value, slope, curvature = _log_gamma(z[k], chart.gamma, k)
            excess = chart.gamma[0, k] - _exp(value if value < most else most)
            h[k] = excess * slope + curvature / slope
            bend[k] = slope
        return
    for k in range(len(z)):
        h[k] = -z[k]
    for k in range(chart.num_laplace):
        h[k] = np.sign(-z[k])


@_compiled
def _log_prior(chart, z):
    """Log density of z, nats, in float64."""
    if chart.gamma.shape[1]:
        double, total = chart.exact, 0.0
        for k in range(len(z)):
            value, slope, _ = _log_gamma(np.float64(z[k]), double, k)
            total += double[0, k] * value - math.exp(value) + math.log(slope)
        return total - chart.log_normaliser
    size, total = chart.num_laplace, 0.0
    for k in range(size):
        total += abs(np.float64(z[k]))
    return -0.5 * _square(z[size:]) - total - chart.log_normaliser


@_compiled
def _logits(chart, z, mean, num_topics, logits):
    """Complete the products of a row of z with M to its logits, with padding."""
    scale = chart.scale
    offset = chart.dim - num_topics
    if chart.gamma.shape[1]:
        for k in range(num_topics):
            logits[k] = _log_gamma(z[k], chart.gamma, k)[0]
    else:
        for k in range(num_topics):
            logits[k] += mean[k]
        for k in range(len(scale)):
            logits[k] += scale[k] * z[offset + k]
    for k in range(num_topics, len(logits)):
        logits[k] = _NOWHERE


@_compiled
def _evaluate(block, documents, chart, num_rows, with_value):
    """Gradients of log likelihood and log prior at the block's z, and the value if asked."""
    num_topics, num_docs = documents.words.shape[1], len(documents.lengths)
    a, shared = documents.concentration, chart.loc.shape[0] == 1
    rows = (num_rows + 3) // 4 * 4
    theta, slope, z = block.theta, block.slope, block.z
    _product(z, chart.push, chart.push_range, rows, theta)
    for i in range(num_rows):
        doc, begin, end = block.row[i] % num_docs, block.begin[i], block.end[i]
        own, g = theta[i], slope[i]
        _logits(chart, z[i], chart.loc[0 if shared else doc], num_topics, own)
        _softmax_(own)
        _words_pass(block.words, block.counts, begin, end, documents, own, block.s, g)
        tokens = documents.lengths[doc]
        for k in range(len(own)):
            g[k] *= own[k]
        if a < math.inf:
            tokens = g.sum()
        for k in range(len(own)):
            g[k] -= tokens * own[k]
        if with_value:
            block.value[i] = _log_likelihood(block.counts, block.s, begin, end, a)
            if a < math.inf:
                block.value[i] += documents.length_terms[doc]
    _product(slope, chart.pull, chart.pull_range, rows, block.g)
    offset = chart.dim - num_topics
    for i in range(num_rows):
        _prior_gradient(chart, z[i], block.h[i], block.bend)
        for k in range(len(chart.scale)):
            block.g[i, offset + k] = chart.scale[k] * slope[i, k]
        for k in range(chart.gamma.shape[1]):
            block.g[i, k] = block.bend[k] * slope[i, k]


# -- visits of chains ------------------------------------------------------------------------------


@_compiled
def _start(block, documents, chart, state, num_rows):
    """Densities and gradients where the chains of a block start."""
    for i in range(num_rows):
        position = state.position[block.row[i]]
        for k in range(len(position)):
            block.z[i, k] = position[k]
    _evaluate(block, documents, chart, num_rows, True)
    for i in range(num_rows):
        row = block.row[i]
        state.log_prior[row] = _log_prior(chart, state.position[row])
        state.log_likelihood[row] = block.value[i]
        gradient = state.gradient[row]
        for k in range(len(gradient)):
            gradient[k] = block.g[i, k]


@_compiled
def _draw(block, drawn, settings, step_size, dim, number, i):
    """Momentum and step size of a row's transition; returns its uniform number for acceptance.

    The keys are those of :func:`torch_lntm.sampling.hmc.draw`: number 0 of a transition's key is
    for the momentum, 1 for the acceptance and 2 for the jitter.
    """
    row, r = block.row[i], block.r[i]
    if len(drawn.keys):
        key = _folded(np.uint64(drawn.keys[row]), settings.num_past + number)
        _fill_normal(_folded(key, 0), dim, block.draws)
        for k in range(dim):
            r[k] = block.draws[k]
        chance, shift = _uniform(_folded(key, 1), 0), _uniform(_folded(key, 2), 0)
    else:
        momentum = drawn.momentum[number, row]
        for k in range(dim):
            r[k] = momentum[k]
        chance = drawn.acceptance_uniform[number, row]
        shift = drawn.step_uniform[number, row]
    block.epsilon[i] = step_size * (1.0 + settings.jitter * (2.0 * shift - 1.0))
    block.kinetic[i] = _square(r[:dim])
    return chance


@_compiled
def _kick_and_drift(z, r, g, h, epsilon, share, weight, drift):
    """Set r to r + share ε (weight · g + h), and then z to z + drift ε r."""
    for k in range(len(z)):
        new = r[k] + share * epsilon * (weight * g[k] + h[k])
        r[k] = new
        z[k] += drift * epsilon * new


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
def _judge(block, chart, state, settings, outcome, weight, chance, number, i):
    """Accept or reject the proposal of a row, and return its acceptance probability."""
    row, dim = block.row[i], state.position.shape[1]
    z, r = block.z[i, :dim], block.r[i, :dim]
    prior, value = _log_prior(chart, z), block.value[i]
    start = -state.log_prior[row] - weight * state.log_likelihood[row] + 0.5 * block.kinetic[i]
    error = (-prior - weight * value + 0.5 * _square(r)) - start
    # Written so that a NaN counts as divergent.
    valid = error > -math.inf and error <= settings.max_error
    acceptance = math.exp(min(-error, 0.0)) if valid else 0.0
    accepted = chance < acceptance
    if accepted:
        position, gradient = state.position[row], state.gradient[row]
        for k in range(dim):
            position[k] = z[k]
            gradient[k] = block.g[i, k]
        state.log_prior[row], state.log_likelihood[row] = prior, value
    outcome.acceptance[number, row], outcome.energy_error[number, row] = acceptance, error
    outcome.accepted[number, row], outcome.divergent[number, row] = accepted, not valid
    return acceptance


@_compiled
def _transition(
    block,
    documents,
    chart,
    state,
    drawn,
    temperature,
    adaptation,
    settings,
    outcome,
    number,
    num_rows,
):
    """One transition of the chains of a block; see :func:`torch_lntm.sampling.hmc.step`."""
    dim, dtype = chart.dim, block.z.dtype.type
    half, whole = dtype(0.5), dtype(1.0)
    for i in range(num_rows):
        row, z, g = block.row[i], block.z[i], block.g[i]
        block.chance[i] = _draw(block, drawn, settings, adaptation.step_size[row], dim, number, i)
        position, gradient = state.position[row], state.gradient[row]
        for k in range(dim):
            z[k], g[k] = position[k], gradient[k]
        weight = dtype(temperature[row])
        h = block.h[i]
        _prior_gradient(chart, z, h, block.bend)
        _kick_and_drift(z, block.r[i], g, h, block.epsilon[i], half, weight, whole)
    for step in range(settings.num_steps):
        last = step == settings.num_steps - 1
        _evaluate(block, documents, chart, num_rows, last)
        share, drift = (half, dtype(0.0)) if last else (whole, whole)
        for i in range(num_rows):
            weight = dtype(temperature[block.row[i]])
            z, r, g, h = block.z[i], block.r[i], block.g[i], block.h[i]
            _kick_and_drift(z, r, g, h, block.epsilon[i], share, weight, drift)
    for i in range(num_rows):
        row = block.row[i]
        acceptance = _judge(
            block,
            chart,
            state,
            settings,
            outcome,
            temperature[row],
            block.chance[i],
            number,
            i,
        )
        outcome.step_size[number, row] = _adapt(adaptation, settings, row, number, acceptance)


@_kernel
def visit(
    block,
    documents,
    chart,
    state,
    drawn,
    temperature,
    adaptation,
    settings,
    outcome,
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
        adaptation: :class:`Adaptation`, overwritten.
        settings: :class:`Settings`.
        outcome: :class:`Outcome`, overwritten.
        offsets: Offsets of the blocks in the items, from :func:`divide`.
        first: First block.
        end: End of the blocks.
    """
    num_chains = len(state.log_prior) // max(1, len(documents.lengths))
    for b in range(first, end):
        num_rows = offsets[b + 1] - offsets[b]
        _load(block, documents, num_chains, offsets[b], offsets[b + 1])
        if settings.evaluate:
            _start(block, documents, chart, state, num_rows)
        for number in range(outcome.acceptance.shape[0]):
            _transition(
                block,
                documents,
                chart,
                state,
                drawn,
                temperature,
                adaptation,
                settings,
                outcome,
                number,
                num_rows,
            )


# -- expected counts -------------------------------------------------------------------------------


@_kernel
def expected_counts(
    block,
    documents,
    weights,
    log_likelihood,
    topic_counts,
    ratio,
    offsets,
    first,
    end,
):
    """Expected counts of the blocks ``first:end`` at weights t.

    Args:
        block: Work space.
        documents: :class:`Documents`.
        weights: ``(num_docs, num_topics)`` t.
        log_likelihood: ``(num_docs,)`` float64, overwritten.
        topic_counts: ``(num_docs, num_topics)``, overwritten.
        ratio: ``(nnz,)`` counts divided by s, overwritten; or empty.
        offsets: As for :func:`visit`, with one chain.
        first: First block.
        end: End of the blocks.
    """
    num_topics = weights.shape[1]
    t, g = block.theta[0], block.slope[0]
    for b in range(first, end):
        _load(block, documents, 1, offsets[b], offsets[b + 1])
        for doc in range(offsets[b], offsets[b + 1]):
            i = doc - offsets[b]
            begin, stop = block.begin[i], block.end[i]
            own, counts = weights[doc], topic_counts[doc]
            for k in range(num_topics):
                t[k] = own[k]
            _words_pass(block.words, block.counts, begin, stop, documents, t, block.s, g)
            for k in range(num_topics):
                counts[k] = t[k] * g[k]
            log_likelihood[doc] = _log_likelihood(block.counts, block.s, begin, stop, math.inf)
            if len(ratio):
                entry = documents.row_offsets[doc]
                for j in range(documents.row_offsets[doc + 1] - entry):
                    ratio[entry + j] = block.counts[begin + j] / block.s[begin + j]


@_inlined
def _last_rows(weights, order, doc_index, ratio, at, stop):
    """Rows t and numbers c / s of the last one to four entries ``at:stop`` of a word."""
    last = stop - 1
    i1, i2, i3 = min(at + 1, last), min(at + 2, last), min(at + 3, last)
    zero = ratio.dtype.type(0)
    return (
        weights[doc_index[at]],
        weights[doc_index[i1]],
        weights[doc_index[i2]],
        weights[doc_index[i3]],
        ratio[order[at]],
        ratio[order[i1]] if at + 1 < stop else zero,
        ratio[order[i2]] if at + 2 < stop else zero,
        ratio[order[i3]] if at + 3 < stop else zero,
    )


@_inlined
def _first_sums(weights, order, doc_index, ratio, at, stop, sums):
    """Sums Σ_d t_d c_dv / s_dv of a word's entries, except for the last one to four.

    Returns:
        First of the last entries.
    """
    for k in range(len(sums)):
        sums[k] = 0
    while at + 4 < stop:
        t0, t1, t2, t3, r0, r1, r2, r3 = _last_rows(weights, order, doc_index, ratio, at, stop)
        for k in range(len(sums)):
            sums[k] += r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k]
        at += 4
    return at


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
        at = _first_sums(weights, order, doc_index, ratio, at, stop, own)
        if at == stop:
            continue
        t0, t1, t2, t3, r0, r1, r2, r3 = _last_rows(weights, order, doc_index, ratio, at, stop)
        for k in range(len(own)):
            own[k] = phi[k] * (own[k] + r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k])


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
    """Work space of one thread for a document.

    Attributes:
        rows: ``(height, width)`` rows of a document's words; see :func:`_place`.
        counts: Counts of these words.
        s: Their probabilities.
        t: ``(width,)``.
        g: ``(width,)``.
        concentration: As for :class:`Documents`; infinite.
        floor: As for :class:`Documents`.
    """

    rows: Array
    counts: Array
    s: Array
    t: Array
    g: Array
    concentration: float
    floor: float


def new_pad(num_topics: int, longest: int, floor: float, dtype: Any) -> Pad:
    """Work space for documents of at most ``longest`` different words."""
    width, height = padded(num_topics + 1), -(-longest // 4) * 4
    shapes = (height, width), height, height, width, width
    return Pad(*(np.zeros(shape, dtype) for shape in shapes), math.inf, floor)


@_inlined
def _place(running, word, into):
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
def _load_document(pad, running, step, doc):
    """Copy a document's words, and return their number, rounded up to a multiple of 4."""
    begin, at = step.row_offsets[doc], 0
    for entry in range(begin, step.row_offsets[doc + 1]):
        _place(running, step.words[step.word_index[entry]], pad.rows[at])
        pad.counts[at] = step.counts[entry]
        at += 1
    while at % 4:
        pad.rows[at, :] = 0
        pad.counts[at] = 0
        at += 1
    return at


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
    dtype, t, g = pad.t.dtype.type, pad.t, pad.g
    factor, shift, num_topics = running.factor, running.shift, len(running.factor)
    pseudo = dtype(concentration)
    for doc in range(first, end):
        stop = _load_document(pad, running, step, doc)
        own, new, tokens = step.theta[doc], step.table[step.index[doc]], step.tokens[doc]
        for _ in range(sweeps):
            rest = dtype(0)
            for k in range(num_topics):
                own[k] = new[k]
                t[k] = factor[k] * own[k]
                rest += shift[k] * own[k]
            t[num_topics] = rest
            _words_pass(pad.rows, pad.counts, 0, stop, pad, t, pad.s, g)
            total, rest = dtype(0), g[num_topics]
            for k in range(num_topics):
                tokens[k] = own[k] * (factor[k] * g[k] + shift[k] * rest)
                new[k] = tokens[k] + pseudo
                total += new[k]
            for k in range(num_topics):
                new[k] /= total
        step.value[doc] = _log_likelihood(pad.counts, pad.s, 0, stop, math.inf)
        begin = step.row_offsets[doc]
        for entry in range(begin, step.row_offsets[doc + 1]):
            step.ratio[entry] = pad.counts[entry - begin] / pad.s[entry - begin]


@_kernel
def start_words(sums, running, step, weight, first, end):
    """Add ``weight`` times the word counts of a step to the rows of its words ``first:end``.

    ``sums`` ``(num_topics,)`` is overwritten.
    """
    factor, shift, num_topics = running.factor, running.shift, len(running.factor)
    weight, floor = sums.dtype.type(weight), sums.dtype.type(running.floor)
    args = step.theta, step.order, step.doc_index, step.ratio
    for i in range(first, end):
        at, stop = step.word_offsets[i], step.word_offsets[i + 1]
        if at == stop:
            continue
        own = running.rows[step.words[i]]
        place = running.place[step.words[i]] if len(running.place) else 0
        at = _first_sums(*args, at, stop, sums)
        t0, t1, t2, t3, r0, r1, r2, r3 = _last_rows(*args, at, stop)
        if place:
            extra, allowed = running.extra[place], running.allowed[place]
            for k in range(num_topics):
                value = (factor[k] * own[k] + shift[k] + extra[k]) * allowed[k]
                value = floor if value < floor else value
                both = sums[k] + r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k]
                own[k] += weight * value * both
        else:
            for k in range(num_topics):
                both = sums[k] + r0 * t0[k] + r1 * t1[k] + r2 * t2[k] + r3 * t3[k]
                own[k] += weight * (factor[k] * own[k] + shift[k]) * both


# -- pairs of topics -------------------------------------------------------------------------------


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
        a, b = counts[first[i]], counts[second[i]]
        total, inner = 0.0, 0.0
        for v in range(len(a)):
            x = np.float64(a[v] + b[v])
            total += x
            inner += x * _log_double(x if x > _TINY else _TINY)
        result[i] = total * math.log(max(total, _TINY)) - inner


@_kernel
def pair_overlaps(counts, first, second, result, begin, end):
    """Sums Σ_d n_d m_d / (n_d + m_d) of pairs of rows, as :func:`pair_entropies`."""
    for i in range(begin, end):
        a, b = counts[first[i]], counts[second[i]]
        total = 0.0
        for d in range(len(a)):
            x, y = np.float64(a[d]), np.float64(b[d])
            total += x * y / (x + y if x + y > _TINY else _TINY)
        result[i] = total
