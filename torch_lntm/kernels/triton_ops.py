"""Triton kernels of the sparse operation and of Hamiltonian trajectories; loaded by `fused` alone.

A document is one program of a kernel. It walks through the document's words in tiles: it gathers
the rows of the topics by word, forms s, and adds to its sums, all in registers. Nothing of the size
of the stored counts is written. No two programs write to one place, so results are reproducible.

The operations are registered with PyTorch: its profiler knows them by name. They have no
derivatives.
"""

# The types of kernels are Triton's, not Python's.
# mypy: disable-error-code="no-untyped-def"

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

#: Numbers that a program holds of one tile of a matrix: 16 in each of its 128 threads.
_TILE_ELEMENTS = 2048


@triton.jit
def _expected_counts(t, k, doc, row_offsets, word_index, counts, words, num_topics, FLOOR, TILE):
    """Log likelihood and topic counts of a document of weights t (num_topics,), zero beyond it."""
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
        s = tl.maximum(tl.sum(t[None, :] * phi, 1), FLOOR)
        log_likelihood += tl.sum((count * tl.log(s)).to(tl.float64), 0)
        total += tl.sum((count / s)[:, None] * phi, 0)
    return log_likelihood, t * total


@triton.jit
def _product(x, matrix, num_in, num_out, out, TILE):
    """Products x M (num_out,) of x (num_in,) with a matrix (num_in, num_out) in memory."""
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
    num_topics,
    FLOOR: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    doc = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    t = tl.load(weights + doc * num_topics + k, k < num_topics, 0.0)
    value, expected = _expected_counts(
        t, k, doc, row_offsets, word_index, counts, words, num_topics, FLOOR, TILE
    )
    tl.store(log_likelihood + doc, value)
    tl.store(topic_counts + doc * num_topics + k, expected, k < num_topics)


@triton.jit
def _trajectory_kernel(
    position,
    momentum,
    gradient,
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
    end_position,
    end_momentum,
    log_likelihood,
    end_gradient,
    num_docs,
    num_topics,
    dim,
    num_steps,
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
    z = tl.load(position + here, i < dim, 0.0)
    r = tl.load(momentum + here, i < dim, 0.0)
    g = tl.load(gradient + here, i < dim, 0.0)
    epsilon = tl.load(step_size + chain)
    heat = tl.load(temperature + chain)
    length = tl.load(lengths + doc)
    mean = tl.load(loc + doc * loc_stride + k, k < num_topics, float("-inf"))

    value = tl.full((), 0.0, tl.float64)
    r += 0.5 * epsilon * (heat * g - z)
    for step in range(num_steps):
        z += epsilon * r
        logits = mean + _product(z, push, dim, num_topics, k, TILE)
        theta = tl.exp(logits - tl.max(logits, 0))
        theta /= tl.sum(theta, 0)
        value, expected = _expected_counts(
            theta, k, doc, row_offsets, word_index, counts, words, num_topics, FLOOR, TILE
        )
        g = _product(expected - length * theta, pull, num_topics, dim, i, TILE_Z)
        share = tl.where(step == num_steps - 1, 0.5, 1.0).to(z.dtype)
        r += share * epsilon * (heat * g - z)

    tl.store(end_position + here, z, i < dim)
    tl.store(end_momentum + here, r, i < dim)
    tl.store(log_likelihood + chain, value)
    tl.store(end_gradient + here, g, i < dim)


#: Whether Triton's interpreter runs the kernels, on tensors of any device.
INTERPRETED = not isinstance(_trajectory_kernel, triton.JITFunction)

_OPERATIONS = torch.library.Library("torch_lntm", "DEF")


def _operation(function: F) -> F:
    """The function as an operation of PyTorch's, without derivatives."""
    name = function.__name__

    @wraps(function)
    def on_its_device(tensor: Tensor, *others: Any) -> Any:
        with torch.cuda.device_of(tensor):
            return function(tensor, *others)

    _OPERATIONS.define(name + torch.library.infer_schema(function, mutates_args=()))
    _OPERATIONS.impl(name, on_its_device, "CompositeExplicitAutograd")
    return getattr(torch.ops.torch_lntm, name)


def _blocks(size: int) -> tuple[int, int]:
    """The power of two that holds a row, and the rows of a tile."""
    block = triton.next_power_of_2(size)
    return block, max(1, _TILE_ELEMENTS // block)


def _warps(size: int) -> int:
    """Warps of a program whose rows have some size."""
    return min(16, max(4, triton.next_power_of_2(size) // 256))


@_operation
def expected_counts(
    weights: Tensor,
    words: Tensor,
    row_offsets: Tensor,
    word_index: Tensor,
    counts: Tensor,
    floor: float,
) -> tuple[Tensor, Tensor]:
    """Log likelihood ``(num_docs,)`` and topic counts ``(num_docs, num_topics)``; one launch."""
    num_docs, num_topics = weights.shape
    log_likelihood = weights.new_empty(num_docs, dtype=torch.float64)
    topic_counts = torch.empty_like(weights)
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
            num_topics,
            FLOOR=floor,
            BLOCK=block,
            TILE=tile,
            num_warps=_warps(num_topics),
        )
    return log_likelihood, topic_counts


@_operation
def trajectory(
    position: Tensor,
    momentum: Tensor,
    gradient: Tensor,
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
    floor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Position, momentum, log likelihood and its gradient at the end; one launch."""
    num_chains, num_docs, dim = position.shape
    end_position, end_momentum, end_gradient = (torch.empty_like(position) for _ in range(3))
    log_likelihood = position.new_empty(num_chains, num_docs, dtype=torch.float64)
    block_z, tile_z = _blocks(dim)
    block, tile = _blocks(loc.shape[-1])
    if num_chains * num_docs:
        _trajectory_kernel[(num_chains * num_docs,)](
            position,
            momentum,
            gradient,
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
            end_position,
            end_momentum,
            log_likelihood,
            end_gradient,
            num_docs,
            loc.shape[-1],
            dim,
            num_steps,
            FLOOR=floor,
            BLOCK_Z=block_z,
            BLOCK=block,
            TILE_Z=tile_z,
            TILE=tile,
            num_warps=_warps(max(dim, loc.shape[-1])),
        )
    return end_position, end_momentum, log_likelihood, end_gradient
