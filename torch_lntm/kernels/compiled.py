"""Compiled kernels on a CPU for PyTorch's tensors, in several threads.

The functions have the names and arguments of those in :mod:`torch_lntm.kernels.triton_ops`, whose
place they take on a CPU, and :func:`visit` makes all transitions of a visit in one call. The
kernels themselves are in :mod:`torch_lntm.kernels.numba_ops`, and
:mod:`torch_lntm.kernels.threads` divides their documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.kernels import numba_ops as ops
from torch_lntm.kernels.threads import share

_TAU = 2.0 * math.pi


# -- arguments -------------------------------------------------------------------------------------


def _array(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor as a contiguous array."""
    return tensor.detach().contiguous().numpy()


def _documents(
    tensors: Iterable[Tensor], floor: float, bursts: tuple[float, Tensor] | None = None
) -> ops.Documents:
    """Documents, from the first five fields of :class:`numba_ops.Documents` as tensors."""
    row_offsets, word_index, counts, lengths, words = map(_array, tensors)
    concentration, terms = (math.inf, np.empty(0)) if bursts is None else bursts
    terms = _array(terms) if isinstance(terms, Tensor) else terms
    return ops.Documents(
        row_offsets, word_index, counts, lengths, words, terms, concentration, floor
    )


def _padded(matrix: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A matrix with rows as :class:`numba_ops.Map` has them, and their ranges."""
    rows, columns = (
        -(-size // unit) * unit for size, unit in zip(matrix.shape, (4, 8), strict=True)
    )
    result = np.zeros((rows, columns), matrix.dtype)
    result[: matrix.shape[0], : matrix.shape[1]] = matrix
    # Columns of zeros in a group of 4 rows are left out at both ends, in multiples of the width.
    used = (result.reshape(rows // 4, 4, -1, ops.WIDTH) != 0).any((1, 3)) if result.size else None
    if used is None:
        return result, np.zeros((2, rows // 4), np.int64)
    first = np.where(used.any(1), used.argmax(1), 0)
    end = np.where(used.any(1), used.shape[1] - used[:, ::-1].argmax(1), 0)
    return result, ops.WIDTH * np.stack([first, end]).astype(np.int64)


def _chart(
    loc: Tensor, loading: Tensor, num_laplace: int = 0, concentration: Tensor | None = None
) -> ops.Map:
    """Map of z to logits, from the fields of a :class:`~torch_lntm.latents.space.SpaceForm`.

    If the loading has more rows than columns and the last ones are diagonal, as in factor spaces,
    only their diagonal is kept.
    """
    matrix, num_topics = _array(loading), loading.shape[1]
    noise = matrix[-num_topics:]
    scale = noise.diagonal()
    if len(matrix) > num_topics and np.count_nonzero(noise) == np.count_nonzero(scale):
        matrix = matrix[:-num_topics]
    else:
        scale = scale[:0]
    push, pull = _padded(np.ascontiguousarray(matrix.T)), _padded(matrix)
    dim, exact = len(loading), np.empty((4, 0))
    log_normaliser = num_laplace * math.log(2.0) + 0.5 * (dim - num_laplace) * math.log(_TAU)
    if concentration is not None:
        alpha = concentration.double()
        dim, log_normaliser = len(alpha), float(torch.lgamma(alpha).sum())
        rows = alpha, 1.0 / alpha, (1.0 + alpha).rsqrt(), torch.log1p(alpha)
        exact = _array(torch.stack(rows))
    return ops.Map(
        *(_array(loc.reshape(-1, num_topics)), *push, *pull, scale.copy(), dim, num_laplace),
        *(exact.astype(matrix.dtype), exact, log_normaliser),
    )


class _Blocks:
    """Division of the chains of documents into blocks; see :func:`numba_ops.divide`.

    Args:
        documents: The documents.
        num_chains: Number of chains of each document.
        dim: Dimension of z.
    """

    def __init__(self, documents: ops.Documents, num_chains: int, dim: int) -> None:
        words, row_offsets = documents.words, documents.row_offsets
        num_topics = words.shape[1]
        most_words = ops.BLOCK_BYTES // (ops.padded(num_topics) * words.itemsize)
        self.offsets = np.empty((len(row_offsets) - 1) * num_chains + 1, np.int64)
        self.number, longest = ops.divide(row_offsets, num_chains, most_words, self.offsets)
        self._sizes = num_topics, dim, longest, words.dtype

    def work_space(self) -> ops.Block:
        """Work space for one thread."""
        return ops.new_block(*self._sizes)


# -- operations ------------------------------------------------------------------------------------


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
    topic_counts = torch.empty_like(weights)
    ratio = weights.new_empty(len(counts) if keep else 0)
    lengths = weights.new_empty(len(weights))  # not read
    tensors = row_offsets, word_index, counts, lengths, words
    documents = _documents(tensors, floor)
    blocks = _Blocks(documents, 1, 0)
    results = (_array(log_likelihood), _array(topic_counts), _array(ratio))
    args = documents, _array(weights), *results, blocks.offsets

    def work(first: int, end: int) -> None:
        ops.expected_counts(blocks.work_space(), *args, first, end)

    share(work, blocks.number, len(counts) * weights.shape[1])
    return log_likelihood, topic_counts, ratio


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

    share(work, len(words), ratio.numel() * words.shape[1])
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
    topics = ops.Running(*map(_array, tensors), floor)
    num_topics, dtype = len(topics.factor), topics.rows.dtype
    arrays = list(map(_array, documents))
    num_docs, nnz = len(arrays[1]) - 1, len(arrays[2])
    theta, tokens = np.empty((2, num_docs, num_topics), dtype)
    step = ops.Step(*arrays, theta, tokens, np.empty(nnz, dtype), np.empty(num_docs))
    longest = int(np.diff(step.row_offsets).max(initial=0))

    def visit(first: int, end: int) -> None:
        pad = ops.new_pad(num_topics, longest, floor, dtype)
        ops.start_documents(pad, topics, step, sweeps, concentration, first, end)

    def add(first: int, end: int) -> None:
        ops.start_words(np.empty(num_topics, dtype), topics, step, weight, first, end)

    share(visit, num_docs, 2 * sweeps * nnz * num_topics)
    share(add, len(step.words), nnz * num_topics)
    return float(step.value.sum()), torch.from_numpy(tokens.sum(0, dtype=np.float64))


def pair_entropies(counts: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Entropies ``(n,)`` of the sums of two rows."""
    return _of_pairs(ops.pair_entropies, counts, first, second)


def pair_overlaps(counts: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Overlaps ``(n,)`` of two rows."""
    return _of_pairs(ops.pair_overlaps, counts, first, second)


def _of_pairs(kernel: Any, *tensors: Tensor) -> Tensor:
    result = torch.empty(len(tensors[1]), dtype=torch.float64)
    args = *map(_array, tensors), result.numpy()
    # A logarithm or a division takes ten times as long as a multiplication.
    effort = 10 * len(result) * tensors[0].shape[1]
    share(lambda first, end: kernel(*args, first, end), len(result), effort)
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
    return _numbers(ops.normal, keys, size)


def _numbers(kernel: Any, keys: Tensor, size: int) -> Tensor:
    result = torch.empty(*keys.shape, size, dtype=torch.float64)
    kernel(_array(keys).reshape(-1), _array(result).reshape(keys.numel(), size))
    return result


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
) -> tuple[Tensor, ...]:
    """Fields of the new HMCState and of the HMCInfo of a transition."""
    state = position.clone(), log_prior.clone(), log_likelihood.clone(), gradient.clone()
    drawn = step_size.new_empty(0, dtype=torch.int64), momentum, acceptance_uniform, step_uniform
    settings = False, 0, 0, num_steps, jitter, max_error, 0.0, math.inf, 1.0, 1.0, 1.0
    outcome = visit(
        (row_offsets, word_index, counts, lengths, words, floor),
        (loc, push),
        state,
        (drawn[0], *(x[None] for x in drawn[1:])),
        (step_size,),
        settings,
        1,
        temperature,
    )
    acceptance, accepted, energy_error, divergent, _ = (x[0] for x in outcome)
    return *state, acceptance, accepted, energy_error, divergent


def drawn_by(keys: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Fields of :class:`numba_ops.Randomness` for numbers that the kernel draws by keys."""
    none = torch.empty(0, 0, dtype=torch.float64)
    return keys, torch.empty(0, 0, 0, dtype=dtype), none, none


def visit(
    documents: tuple[Any, ...],
    form: tuple[Any, ...],
    state: tuple[Tensor, ...],
    drawn: tuple[Tensor, ...],
    adaptation: tuple[Tensor, ...],
    settings: tuple[Any, ...],
    number: int,
    temperature: Tensor | None = None,
    bursts: tuple[float, Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Move chains by some transitions.

    Args:
        documents: Fields of :class:`numba_ops.Documents`, as tensors.
        form: Fields of a :class:`~torch_lntm.latents.space.SpaceForm`.
        state: Fields of an HMCState ``(num_chains, num_docs, ...)``, contiguous and overwritten.
        drawn: Fields of :class:`numba_ops.Randomness`, with an axis of chains and one of documents
            in place of the axis of rows.
        adaptation: Fields of :class:`numba_ops.Adaptation` ``(num_chains, num_docs)``, or only the
            first; contiguous and overwritten.
        settings: Fields of :class:`numba_ops.Settings`.
        number: Number of transitions.
        temperature: ``(num_chains, num_docs)`` float64 inverse temperatures. Defaults to 1.
        bursts: Concentration and length terms ``(num_docs,)`` of a Dirichlet-multinomial
            likelihood. None for independent draws.

    Returns:
        Fields of :class:`numba_ops.Outcome`, ``(number, num_chains, num_docs)`` each.
    """
    num_chains, num_docs, dim = state[0].shape
    rows = num_chains * num_docs
    types = torch.float64, torch.bool, torch.float64, torch.bool, torch.float64
    outcome = tuple(torch.empty(number, num_chains, num_docs, dtype=dtype) for dtype in types)
    if not rows:
        return outcome
    *tensors, floor = documents
    held = _documents(tensors, floor, bursts)
    keys, momentum, *uniforms = map(_array, drawn)
    if not len(keys):
        momentum = momentum.reshape(number, rows, dim)
        uniforms = [x.reshape(number, rows) for x in uniforms]
    sizes = [_array(x).reshape(rows) for x in adaptation]
    sizes += [np.empty(0)] * (5 - len(sizes))
    blocks = _Blocks(held, num_chains, dim)
    args = (
        held,
        _chart(*form),
        ops.State(*(_array(x).reshape(rows, *x.shape[2:]) for x in state)),
        ops.Randomness(keys.reshape(-1), momentum, *uniforms),
        np.ones(rows) if temperature is None else _array(temperature).reshape(rows),
        ops.Adaptation(*sizes),
        ops.Settings(*settings),
        ops.Outcome(*(x.numpy().reshape(number, rows) for x in outcome)),
        blocks.offsets,
    )

    def work(first: int, end: int) -> None:
        ops.visit(blocks.work_space(), *args, first, end)

    passes = args[6].num_steps * number * (len(held.counts) * num_chains + rows * dim)
    share(work, blocks.number, passes * held.words.shape[1])
    return outcome
