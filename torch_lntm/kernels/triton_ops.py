"""Triton kernels of the sparse operation, Hamiltonian transitions and noise; for `fused` alone.

Each program of a kernel works on a single document, whose words it walks through in tiles: it
gathers the rows of the topics by word, forms s and adds to its sums, all in registers. It therefore
writes no table of the size of the stored counts. Programs write to distinct addresses, so that
results are reproducible.

The operations are registered with PyTorch, so that its profiler shows them by name, and have no
derivatives.
"""

# The types of kernels belong to Triton rather than Python.
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

#: Elements per program of an elementwise kernel.
_ELEMENTS = 512
#: Elements of a program's matrix tile: 16 in each of its 128 threads.
_TILE_ELEMENTS = 2048


@triton.jit
def _expected_counts(
    t, k, doc, row_offsets, word_index, counts, words, ratio, num_topics, FLOOR, TILE, VALUE, KEEP
):
    """Log likelihood and topic counts of a document of weights t ``(num_topics,)``, zero-padded.

    The log likelihood is 0 unless VALUE is set. With KEEP, the ratios of the document's counts and
    s are written.
    """
    log_likelihood = tl.full((), 0.0, tl.float64)
    total = tl.zeros_like(t)
    end = tl.load(row_offsets + doc + 1)
    for start in range(tl.load(row_offsets + doc), end, TILE):
        entry = start + tl.arange(0, TILE)
        inside = entry < end
        word = tl.load(word_index + entry, inside, 0)
        count = tl.load(counts + entry, inside, 0.0)
        phi = tl.load(
            words + word[:, None] * num_topics + k[None, :],
            inside[:, None] & (k < num_topics)[None, :],
            0.0,
        )
        s = tl.sum(t[None, :] * phi, 1)
        # Unlike a maximum on hardware, this keeps a NaN.
        s = tl.where(s < FLOOR, FLOOR, s)
        if VALUE:
            log_likelihood += tl.sum((count * tl.log(s)).to(tl.float64), 0)
        part = count / s
        total += tl.sum(part[:, None] * phi, 0)
        if KEEP:
            tl.store(ratio + entry, part, inside)
    return log_likelihood, t * total


@triton.jit
def _product(x, matrix, num_in, num_out, out, TILE):
    """Product ``(num_out,)`` of x ``(num_in,)`` and a matrix ``(num_in, num_out)`` in memory."""
    result = tl.zeros(out.shape, x.dtype)
    for start in range(0, num_in, TILE):
        row = start + tl.arange(0, TILE)
        inside = row < num_in
        part = tl.load(
            matrix + row[:, None] * num_out + out[None, :],
            inside[:, None] & (out < num_out)[None, :],
            0.0,
        )
        result += tl.sum(tl.gather(x, tl.where(inside, row, 0), 0)[:, None] * part, 0)
    return result


@triton.jit
def _expected_counts_kernel(
    weights,
    row_offsets,
    word_index,
    counts,
    words,
    log_likelihood,
    topic_counts,
    ratio,
    num_topics,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    KEEP: tl.constexpr,
):
    doc = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    t = tl.load(weights + doc * num_topics + k, k < num_topics, 0.0)
    value, expected = _expected_counts(
        t,
        k,
        doc,
        row_offsets,
        word_index,
        counts,
        words,
        ratio,
        num_topics,
        FLOOR,
        TILE,
        True,
        KEEP,
    )
    tl.store(log_likelihood + doc, value)
    tl.store(topic_counts + doc * num_topics + k, expected, k < num_topics)


@triton.jit
def _word_counts_kernel(
    weights,
    order,
    doc_index,
    word_offsets,
    ratio,
    words,
    word_counts,
    num_topics,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Counts of a word, from the weights of its documents."""
    word = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), weights.dtype.element_ty)
    end = tl.load(word_offsets + word + 1)
    for start in range(tl.load(word_offsets + word), end, TILE):
        position_in_word = start + tl.arange(0, TILE)
        inside = position_in_word < end
        doc = tl.load(doc_index + position_in_word, inside, 0)
        part = tl.load(ratio + tl.load(order + position_in_word, inside, 0), inside, 0.0)
        t = tl.load(
            weights + doc[:, None] * num_topics + k[None, :],
            inside[:, None] & (k < num_topics)[None, :],
            0.0,
        )
        total += tl.sum(part[:, None] * t, 0)
    here = word * num_topics + k
    tl.store(word_counts + here, total * tl.load(words + here, k < num_topics, 0.0), k < num_topics)


@triton.jit
def _transition_kernel(
    position,
    log_prior,
    log_likelihood,
    gradient,
    momentum,
    acceptance_uniform,
    step_uniform,
    step_size,
    temperature,
    loc,
    loc_stride,
    push,
    pull,
    row_offsets,
    word_index,
    counts,
    lengths,
    words,
    new_position,
    new_log_prior,
    new_log_likelihood,
    new_gradient,
    acceptance,
    accepted,
    energy_error,
    divergent,
    num_docs,
    num_topics,
    dim,
    num_steps,
    JITTER: tl.constexpr,
    MAX_ERROR: tl.constexpr,
    FLOOR: tl.constexpr,
    BLOCK_Z: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_Z: tl.constexpr,
    TILE: tl.constexpr,
):
    chain = tl.program_id(0).to(tl.int64)
    doc = chain % num_docs
    k = tl.arange(0, BLOCK)
    i = tl.arange(0, BLOCK_Z)
    here = chain * dim + i
    start_z = tl.load(position + here, i < dim, 0.0)
    start_r = tl.load(momentum + here, i < dim, 0.0)
    start_g = tl.load(gradient + here, i < dim, 0.0)
    prior = tl.load(log_prior + chain)
    value = tl.load(log_likelihood + chain)
    inverse_temperature = tl.load(temperature + chain)
    length = tl.load(lengths + doc)
    mean = tl.load(loc + doc * loc_stride + k, k < num_topics, float("-inf"))
    size = tl.load(step_size + chain) * (1.0 + JITTER * (2.0 * tl.load(step_uniform + chain) - 1.0))

    z, g, end_value = start_z, start_g, value
    epsilon, likelihood_weight = size.to(z.dtype), inverse_temperature.to(z.dtype)
    r = start_r + 0.5 * epsilon * (likelihood_weight * g - z)
    for last in tl.static_range(2):
        # All steps but the last, and the last step, which needs the log likelihood too.
        for _ in range(1 if last else num_steps - 1):
            z += epsilon * r
            logits = mean + _product(z, push, dim, num_topics, k, TILE)
            theta = tl.exp(logits - tl.max(logits, 0))
            theta /= tl.sum(theta, 0)
            end_value, expected = _expected_counts(
                theta,
                k,
                doc,
                row_offsets,
                word_index,
                counts,
                words,
                counts,
                num_topics,
                FLOOR,
                TILE,
                last,
                False,
            )
            g = _product(expected - length * theta, pull, num_topics, dim, i, TILE_Z)
            r += (0.5 if last else 1.0) * epsilon * (likelihood_weight * g - z)

    # z is standard normal, which gives the change of its log density and the kinetic energy.
    end_prior = prior + 0.5 * (_square(start_z) - _square(z))
    kinetic = 0.5 * (_square(r) - _square(start_r))
    error = (prior - end_prior) + inverse_temperature * (value - end_value) + kinetic
    valid = (error > float("-inf")) & (error <= MAX_ERROR)
    probability = tl.where(valid, tl.exp(tl.minimum(-error, 0.0)), 0.0)
    accept = tl.load(acceptance_uniform + chain) < probability
    tl.store(new_position + here, tl.where(accept, z, start_z), i < dim)
    tl.store(new_gradient + here, tl.where(accept, g, start_g), i < dim)
    tl.store(new_log_prior + chain, tl.where(accept, end_prior, prior))
    tl.store(new_log_likelihood + chain, tl.where(accept, end_value, value))
    tl.store(acceptance + chain, probability)
    tl.store(energy_error + chain, error)
    tl.store(accepted + chain, accept.to(tl.int8))
    tl.store(divergent + chain, (valid == 0).to(tl.int8))


@triton.jit
def _square(x):
    """|x|² in double precision."""
    wide = x.to(tl.float64)
    return tl.sum(wide * wide, 0)


@triton.jit
def _mixed(bits):
    """SplitMix64's output function of unsigned bits; see :mod:`torch_lntm.noise`."""
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _uniform(key, number):
    """Uniform number of a key at an index."""
    bits = _mixed(key + (number + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    return ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _mixed_kernel(bits, mixed, number, BLOCK: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(bits + here, here < number, 0).to(tl.uint64, bitcast=True)
    tl.store(mixed + here, _mixed(value).to(tl.int64, bitcast=True), here < number)


@triton.jit
def _uniform_kernel(keys, numbers, number, size, BLOCK: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + here // size, here < number, 0).to(tl.uint64, bitcast=True)
    tl.store(numbers + here, _uniform(key, here % size), here < number)


@triton.jit
def _normal_kernel(keys, numbers, number, size, BLOCK: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + here // size, here < number, 0).to(tl.uint64, bitcast=True)
    half = (size + 1) // 2
    column = here % size
    first = column < half
    pair = tl.where(first, column, column - half)
    radius = tl.sqrt(-2.0 * tl.log(_uniform(key, pair)))
    angle = 6.283185307179586 * _uniform(key, half + pair)
    tl.store(numbers + here, radius * tl.where(first, tl.cos(angle), tl.sin(angle)), here < number)


#: Whether Triton's interpreter runs the kernels, on tensors of any device.
INTERPRETED = not isinstance(_transition_kernel, triton.JITFunction)

_OPERATIONS = torch.library.Library("torch_lntm", "DEF")


def _operation(function: F) -> F:
    """Register a function of contiguous tensors as a PyTorch operation without derivatives."""
    name = function.__name__

    @wraps(function)
    def on_its_device(tensor: Tensor, *others: Any) -> Any:
        with torch.cuda.device_of(tensor):
            return function(tensor, *others)

    _OPERATIONS.define(name + torch.library.infer_schema(function, mutates_args=()))
    _OPERATIONS.impl(name, on_its_device, "CompositeExplicitAutograd")
    return getattr(torch.ops.torch_lntm, name)


def _blocks(size: int, elements: int = _TILE_ELEMENTS) -> tuple[int, int]:
    """Power of two of a row's block, and number of rows of a tile of ``elements`` numbers."""
    block = triton.next_power_of_2(size)
    return block, max(1, elements // block)


def _warps(size: int) -> int:
    """Warps of a program with rows of length ``size``."""
    return min(16, max(4, triton.next_power_of_2(size) // 256))


@_operation
def expected_counts(
    weights: Tensor,
    words: Tensor,
    row_offsets: Tensor,
    word_index: Tensor,
    counts: Tensor,
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log likelihood ``(num_docs,)`` and topic counts ``(num_docs, num_topics)``; a single launch.

    The third result holds the ratios ``(nnz,)`` of counts and s if ``keep`` is set.
    """
    num_docs, num_topics = weights.shape
    log_likelihood = weights.new_empty(num_docs, dtype=torch.float64)
    topic_counts = torch.empty_like(weights)
    ratio = weights.new_empty(len(counts) if keep else 0)
    block, tile = _blocks(num_topics)
    if num_docs:
        _expected_counts_kernel[(num_docs,)](
            weights,
            row_offsets,
            word_index,
            counts,
            words,
            log_likelihood,
            topic_counts,
            ratio,
            num_topics,
            FLOOR=floor,
            BLOCK=block,
            TILE=tile,
            KEEP=keep,
            num_warps=_warps(num_topics),
        )
    return log_likelihood, topic_counts, ratio


@_operation
def word_counts(
    weights: Tensor,
    words: Tensor,
    order: Tensor,
    doc_index: Tensor,
    word_offsets: Tensor,
    ratio: Tensor,
) -> Tensor:
    """Word counts ``(num_words, num_topics)`` from the ratios of counts and s; a single launch."""
    num_words, num_topics = words.shape
    result = torch.empty_like(words)
    block, tile = _blocks(num_topics)
    if num_words:
        _word_counts_kernel[(num_words,)](
            weights,
            order,
            doc_index,
            word_offsets,
            ratio,
            words,
            result,
            num_topics,
            BLOCK=block,
            TILE=tile,
            num_warps=_warps(num_topics),
        )
    return result


@_operation
def transition(
    position: Tensor,
    log_prior: Tensor,
    log_likelihood: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    acceptance_uniform: Tensor,
    step_uniform: Tensor,
    step_size: Tensor,
    temperature: Tensor,
    loc: Tensor,
    push: Tensor,
    pull: Tensor,
    row_offsets: Tensor,
    word_index: Tensor,
    counts: Tensor,
    lengths: Tensor,
    words: Tensor,
    num_steps: int,
    jitter: float,
    max_error: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fields of the new HMCState and of the HMCInfo of a transition; a single launch."""
    num_chains, num_docs, dim = position.shape
    new_position, new_gradient = torch.empty_like(position), torch.empty_like(position)
    new_log_prior, new_log_likelihood, acceptance, energy_error = (
        torch.empty_like(log_prior) for _ in range(4)
    )
    accepted, divergent = (torch.empty_like(log_prior, dtype=torch.int8) for _ in range(2))
    # Many chains fill the processors with small programs, whereas few chains need large ones. The
    # number at which they change was chosen on an H200.
    many = num_chains * num_docs >= 2048
    elements = _TILE_ELEMENTS // 2 if many else _TILE_ELEMENTS
    block_z, tile_z = _blocks(dim, elements)
    block, tile = _blocks(loc.shape[-1], elements)
    num_warps = _warps(max(dim, loc.shape[-1]))
    num_warps = num_warps // 2 if many else 2 * num_warps
    if num_chains * num_docs:
        _transition_kernel[(num_chains * num_docs,)](
            position,
            log_prior,
            log_likelihood,
            gradient,
            momentum,
            acceptance_uniform,
            step_uniform,
            step_size,
            temperature,
            loc,
            loc.shape[-1] if loc.dim() == 2 else 0,
            push,
            pull,
            row_offsets,
            word_index,
            counts,
            lengths,
            words,
            new_position,
            new_log_prior,
            new_log_likelihood,
            new_gradient,
            acceptance,
            accepted,
            energy_error,
            divergent,
            num_docs,
            loc.shape[-1],
            dim,
            num_steps,
            JITTER=jitter,
            MAX_ERROR=max_error,
            FLOOR=floor,
            BLOCK_Z=block_z,
            BLOCK=block,
            TILE_Z=tile_z,
            TILE=tile,
            num_warps=num_warps,
        )
    return (
        *(new_position, new_log_prior, new_log_likelihood, new_gradient),
        *(acceptance, accepted, energy_error, divergent),
    )


@_operation
def mixed(bits: Tensor) -> Tensor:
    """SplitMix64's output function of int64 bits; one launch."""
    result = torch.empty_like(bits)
    if number := bits.numel():
        _mixed_kernel[_grid(number)](bits, result, number, BLOCK=_ELEMENTS)
    return result


@_operation
def uniform(keys: Tensor, size: int) -> Tensor:
    """Uniform numbers ``(..., size)`` of keys ``(...,)``; one launch."""
    return _numbers(_uniform_kernel, keys, size)


@_operation
def normal(keys: Tensor, size: int) -> Tensor:
    """Standard normal numbers ``(..., size)`` of keys ``(...,)``; one launch."""
    return _numbers(_normal_kernel, keys, size)


def _numbers(kernel: Any, keys: Tensor, size: int) -> Tensor:
    result = torch.empty(*keys.shape, size, dtype=torch.float64, device=keys.device)
    if number := result.numel():
        kernel[_grid(number)](keys, result, number, size, BLOCK=_ELEMENTS)
    return result


def _grid(number: int) -> tuple[int]:
    return (triton.cdiv(number, _ELEMENTS),)
