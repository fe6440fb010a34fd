"""Compiled kernels on a CPU for PyTorch's tensors, in several threads.

The functions have the names and arguments of those in :mod:`torch_lntm.kernels.triton_ops`, whose
place they take on a CPU, and :func:`visit` makes all transitions of a visit in one call. The
kernels themselves are in :mod:`torch_lntm.kernels.numba_ops`, and
:mod:`torch_lntm.kernels.threads` divides their documents.
"""

from __future__ import annotations

import math
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.kernels import numba_ops as ops
from torch_lntm.kernels.threads import share

_TAU = 2.0 * math.pi
#: Work spaces of each thread, with their sizes, by the kernels that use them.
_spaces = local()
#: Largest number of probabilities in a work space that a thread keeps.
MOST_KEPT = 2**20


# -- arguments -------------------------------------------------------------------------------------


def _array(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor as a contiguous array."""
    return tensor.detach().contiguous().numpy()


def _padded(matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A matrix with columns as :class:`numba_ops.Map` has them, and the ranges of its rows."""
    rows, columns = matrix.shape
    result = np.zeros((rows, ops.padded(columns)), matrix.dtype)
    result[:, :columns] = matrix
    used = (result.reshape(rows, result.shape[1] // ops.WIDTH, ops.WIDTH) != 0).any(2)
    if not rows:
        return result, np.zeros((2, used.shape[1]), np.int64)
    end = np.where(used.any(0), rows - used[::-1].argmax(0), 0)
    return result, np.stack([used.argmax(0), end])


def _chart(
    loc: Tensor, loading: Tensor, num_laplace: int = 0, concentration: Tensor | None = None
) -> ops.Map:
    """Map of z to logits, from the fields of a :class:`~torch_lntm.latents.space.SpaceForm`.

    If the loading has more rows than columns and the last ones are diagonal, as in factor spaces,
    only their diagonal is kept.
    """
    matrix, num_topics = _array(loading), loading.shape[1]
    noise = matrix[-num_topics:]
    # Of another type, as a view that cannot be written, it would compile all kernels again.
    scale = noise.diagonal().copy()
    if len(matrix) > num_topics and np.count_nonzero(noise) == np.count_nonzero(scale):
        matrix = matrix[:-num_topics]
        scale = np.pad(scale, (0, ops.padded(num_topics) - num_topics))
    else:
        scale = scale[:0]
    push, pull = _padded(matrix), _padded(matrix.T)
    dim, exact = len(loading), np.empty((5, 0))
    log_normaliser = num_laplace * math.log(2.0) + 0.5 * (dim - num_laplace) * math.log(_TAU)
    if concentration is not None:
        alpha = concentration.double()
        dim, log_normaliser = len(alpha), float(torch.lgamma(alpha).sum())
        rows = alpha, 1.0 / alpha, (1.0 + alpha).rsqrt(), torch.log1p(alpha), alpha.new_ones(dim)
        exact = np.ones((5, ops.padded(dim)))
        exact[:, :dim], exact[4, dim:] = _array(torch.stack(rows)), 0.0
    return ops.Map(
        *(_array(loc.reshape(-1, num_topics)), *push, *pull, scale, dim, num_laplace),
        *(exact.astype(matrix.dtype), exact, log_normaliser),
    )


def _space(kernel: str, make: Any, num_words: int, num_topics: int, *rest: Any) -> Any:
    """Work space of this thread for a kernel, which it keeps for the next call.

    New memory takes longer than some kernels, because the system clears it at the first use.

    Args:
        kernel: Name of the kernel.
        make: Function that makes the space from the other arguments.
        num_words: Number of words. A space for more serves as well.
        num_topics: Number of topics.
        *rest: Further arguments.
    """
    spaces, sizes = vars(_spaces), (num_topics, *rest)
    if num_words * num_topics > MOST_KEPT:
        return make(num_words, *sizes)
    if kernel not in spaces or spaces[kernel][0] < num_words or spaces[kernel][1] != sizes:
        spaces[kernel] = num_words, sizes, make(num_words, *sizes)
    return spaces[kernel][2]


# -- operations ------------------------------------------------------------------------------------


def read(entries: Any, rows: NDArray[Any], num_words: int, dtype: torch.dtype) -> Any:
    """Tensors, lengths and order by word of a batch, from arguments of :func:`numba_ops.read`."""
    nnz = int((entries[0][rows + 1] - entries[0][rows]).sum())
    whole, real = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=dtype)
    made = [whole.new_empty(len(rows) + 1), whole.new_empty(nnz), real.new_empty(nnz)]
    made += [real.new_empty(len(rows)), *whole.new_empty(2, nnz), whole.new_empty(num_words + 2)]
    if not ops.read(entries, rows, tuple(map(_array, made))):
        raise ConfigError(f"a word of the documents is outside of the vocabulary of {num_words}")
    return made[:3], made[3], (*made[4:6], made[6][:-1])


def expected_counts(
    weights: Tensor,
    words: Tensor,
    row_offsets: Tensor,
    word_index: Tensor,
    counts: Tensor,
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log likelihood ``(num_docs,)`` and topic counts ``(num_docs, num_topics)``.

    The third result holds the ratios ``(nnz,)`` of counts and s if ``keep`` is set.
    """
    log_likelihood = weights.new_empty(len(weights), dtype=torch.float64)
    results = log_likelihood, torch.empty_like(weights), torch.empty_like(counts)
    tensors = weights, words, row_offsets, word_index, counts, *results
    args, num_topics = tuple(map(_array, tensors)), words.shape[1]
    longest = int(np.diff(args[2]).max(initial=0))

    def work(first: int, end: int) -> None:
        pad = _space("counts", ops.new_pad, longest, num_topics, floor, args[1].dtype)
        ops.expected_counts(pad, *args, first, end)

    share(work, len(weights), len(counts) * num_topics)
    return *results[:2], results[2] if keep else results[2][:0]


def word_counts(
    weights: Tensor,
    words: Tensor,
    order: Tensor,
    doc_index: Tensor,
    word_offsets: Tensor,
    ratio: Tensor,
) -> Tensor:
    """Word counts ``(num_words, num_topics)`` from the ratios of counts and s."""
    result = torch.empty_like(words)
    tensors = weights, words, order, doc_index, word_offsets, ratio
    args = *map(_array, tensors), _array(result)

    def work(first: int, end: int) -> None:
        ops.word_counts(*args, first, end)

    # Each row comes from anywhere in the memory.
    share(work, len(words), 3 * (ratio.numel() + len(words)) * words.shape[1])
    return result


def start_step(
    running: tuple[Any, ...],
    documents: tuple[Tensor, ...],
    sweeps: int,
    concentration: float,
    weight: float,
) -> tuple[float, Tensor]:
    """A step of a start.

    Args:
        running: Fields of :class:`numba_ops.Running`, as tensors. The rows are overwritten.
        documents: Fields of :class:`numba_ops.Step` up to ``table``, as tensors.
        sweeps: Number of updates of the proportions.
        concentration: Pseudo-tokens of each topic.
        weight: Factor of the word counts that are added to the rows.

    Returns:
        Log likelihood, and expected tokens ``(num_topics,)`` of the topics in float64.
    """
    *tensors, floor = running
    topics = ops.Running._make([*map(_array, tensors), floor])
    num_topics, dtype = len(topics.factor), topics.rows.dtype
    arrays = list(map(_array, documents))
    num_docs, nnz = len(arrays[1]) - 1, len(arrays[2])
    theta, tokens = np.empty((2, num_docs, num_topics), dtype)
    step = ops.Step._make([*arrays, theta, tokens, np.empty(nnz, dtype), np.empty(num_docs)])
    longest = int(np.diff(step.row_offsets).max(initial=0))

    def visit(first: int, end: int) -> None:
        pad = _space("start", ops.new_pad, longest, num_topics, floor, dtype)
        ops.start_documents(pad, topics, step, sweeps, concentration, first, end)

    def add(first: int, end: int) -> None:
        ops.start_words(np.empty(num_topics, dtype), topics, step, weight, first, end)

    share(visit, num_docs, 2 * sweeps * nnz * num_topics)
    share(add, len(step.words), 3 * (nnz + len(step.words)) * num_topics)
    return float(step.value.sum()), torch.from_numpy(tokens.sum(0, dtype=np.float64))


def draw_topics(
    weights: Tensor,
    words: Tensor,
    order: Tensor,
    doc_index: Tensor,
    word_offsets: Tensor,
    tokens: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Topics of tokens, counted: ``(num_words, num_topics)``; see :func:`fused.draw_topics`."""
    offsets = torch.cat([tokens.new_zeros(1), tokens.cumsum(0)])
    result = torch.empty_like(words)
    tensors = weights, words, order, doc_index, word_offsets, offsets, uniforms
    args = tuple(map(_array, tensors))

    def work(first: int, end: int) -> None:
        ops.draw_topics(*args, np.empty(words.shape[1]), result.numpy(), first, end)

    share(work, len(words), (len(tokens) + len(uniforms)) * words.shape[1])
    return result


def mixed(bits: Tensor) -> Tensor:
    """SplitMix64's output function of int64 bits."""
    result = torch.empty_like(bits)
    ops.mixed(_array(bits).reshape(-1), _array(result).reshape(-1))
    return result


def uniform(keys: Tensor, size: int) -> Tensor:
    """Uniform numbers ``(..., size)`` of keys ``(...,)``."""
    return _numbers(ops.uniform, keys, size)


def normal(keys: Tensor, size: int) -> Tensor:
    """Standard normal numbers ``(..., size)`` of keys ``(...,)``."""
    return _numbers(ops.normal, keys, size, np.empty(size + 2 * ops.WIDTH))


def _numbers(kernel: Any, keys: Tensor, size: int, *space: NDArray[Any]) -> Tensor:
    result = keys.new_empty(*keys.shape, size, dtype=torch.float64)
    kernel(_array(keys).reshape(-1), _array(result).reshape(keys.numel(), size), *space)
    return result


def visit(
    documents: tuple[Any, ...],
    form: tuple[Any, ...],
    state: tuple[Tensor, ...],
    drawn: tuple[Tensor, ...],
    adaptation: tuple[Tensor, ...],
    settings: tuple[Any, ...],
    number: int,
    bursts: tuple[float, Tensor] | None,
    temperature: float,
    factor: Tensor | None,
    with_counts: bool,
) -> tuple[tuple[Tensor, ...], ...]:
    """Move chains by some transitions.

    Args:
        documents: First five fields of :class:`numba_ops.Documents` as tensors, and the floor.
        form: Fields of a :class:`~torch_lntm.latents.space.SpaceForm`.
        state: Fields of an HMCState ``(num_chains, num_docs, ...)``.
        drawn: Only the first field of :class:`numba_ops.Randomness`, or all others. Axes of chains
            and of documents are in place of the axis of rows.
        adaptation: Fields of :class:`numba_ops.Adaptation` ``(num_chains, num_docs)``, or only the
            first.
        settings: Fields of :class:`numba_ops.Settings`.
        number: Number of transitions.
        bursts: Concentration and length terms ``(num_docs,)`` of a Dirichlet-multinomial
            likelihood. None for independent draws.
        temperature: Inverse temperature of the likelihood.
        factor: As for :class:`~torch_lntm.latents.metrics.Metric`.
        with_counts: Whether to make the last tensors of the results. They are empty otherwise.

    Returns:
        ``state`` and ``adaptation`` after the transitions, the fields of
        :class:`numba_ops.Outcome`, ``(number, num_chains, num_docs)`` each, and those of
        :class:`numba_ops.Counts`, ``(num_chains, num_docs, num_topics)`` and
        ``(num_chains, nnz)``.
    """
    num_chains, num_docs, dim = state[0].shape
    words, num_counts = documents[4], num_chains if with_counts else 0
    theta = words.new_empty(num_counts, num_docs, words.shape[1])
    ratio = words.new_empty(num_counts, len(documents[1]))
    rows = num_chains * num_docs
    state, adaptation = (
        tuple(x.clone(memory_format=torch.contiguous_format) for x in tensors)
        for tensors in (state, adaptation)
    )
    types = torch.float64, torch.bool, torch.float64, torch.bool, torch.float64
    outcome = tuple(words.new_empty(number, num_chains, num_docs, dtype=x) for x in types)
    if not rows:
        return state, adaptation, outcome, (theta, ratio)
    *tensors, floor = documents
    concentration, terms = bursts or (math.inf, words.new_empty(0, dtype=torch.float64))
    held = ops.Documents._make([*map(_array, (*tensors, terms)), concentration, floor])
    sizes = [_array(x).reshape(rows) for x in adaptation]
    sizes += [np.empty(0)] * (5 - len(sizes))
    metric = state[0].new_empty(0, 0) if factor is None else factor.to(state[0].dtype)
    most_words = ops.BLOCK_BYTES // (ops.padded(words.shape[1]) * words.element_size())
    offsets = np.empty(rows + 1, np.int64)
    num_blocks, longest = ops.divide(held.row_offsets, num_chains, most_words, offsets)
    space = max(longest, most_words), words.shape[1], dim, held.words.dtype
    # A whole number, such as a jitter of 0, would compile all kernels again.
    last = map(float, settings[4:])
    settings = ops.Settings(settings[0] or with_counts, *settings[1:4], *last)
    args = (
        held,
        _chart(*form),
        ops.State(*(_array(x).reshape(rows, *x.shape[2:]) for x in state)),
        _randomness(drawn, rows, state[0].dtype),
        float(temperature),
        _array(metric if metric.dim() == 3 else metric[None]),
        ops.Adaptation(*sizes),
        settings,
        ops.Outcome(*(x.numpy().reshape(number, rows) for x in outcome)),
        ops.Counts(theta.numpy().reshape(-1, words.shape[1]), ratio.numpy()),
        offsets,
    )

    def work(first: int, end: int) -> None:
        ops.visit(_space("visit", ops.new_block, *space), *args, first, end)

    effort = (len(held.counts) * num_chains + rows * dim) * held.words.shape[1]
    share(work, num_blocks, settings.num_steps * number * effort)
    return state, adaptation, outcome, (theta, ratio)


def _randomness(drawn: tuple[Tensor, ...], rows: int, dtype: torch.dtype) -> ops.Randomness:
    """Random numbers of transitions, or their keys, from the tensors of :func:`visit`."""
    if len(drawn) == 1:
        none = np.empty((0, 0))
        momentum = _array(drawn[0].new_empty(0, 0, 0, dtype=dtype))
        return ops.Randomness(_array(drawn[0]).reshape(rows), momentum, none, none)
    numbers = (_array(x).reshape(len(x), rows, *x.shape[3:]) for x in drawn)
    return ops.Randomness(np.empty(0, np.int64), *numbers)
