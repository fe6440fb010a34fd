"""Fused kernels on CUDA, in place of many small ones, where the user asks for them.

The environment variable ``LNTM_TRITON=1`` does. The kernels are written in Triton, which comes with
the CUDA builds of PyTorch; that of PyTorch 2.7 was the first to compile them. Their arithmetic is
tested in Triton's interpreter. They have not run on hardware, so nobody gets them unasked.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError

#: Size of the map from z to logits up to which a whole transition is one launch. Each chain reads
#: the map anew at each step, where a matrix product would read it once for all of them.
MAX_LOADING = 2**14


def is_enabled(tensor: Tensor) -> bool:
    """Whether the user asks for the kernels, for a tensor like this one.

    Raises:
        ConfigError: They are asked for, but Triton is not installed, or the tensor is not on CUDA.
    """
    setting = os.environ.get("LNTM_TRITON", "0")
    if setting in ("", "0"):
        return False
    if setting != "1":
        raise ConfigError(f"LNTM_TRITON is {setting!r}; expected 1, for Triton's kernels, or 0")
    try:
        from torch_lntm.kernels.triton_ops import INTERPRETED
    except ImportError as error:
        raise ConfigError(
            f"LNTM_TRITON=1 asks for Triton's kernels, but Triton cannot be imported ({error}): "
            "install a CUDA build of PyTorch, or unset LNTM_TRITON"
        ) from error
    if not (tensor.is_cuda or INTERPRETED):
        raise ConfigError(
            f"LNTM_TRITON=1 with tensors on {tensor.device}; Triton's kernels take tensors on "
            "CUDA: move model and corpus there, or unset LNTM_TRITON"
        )
    return True


def expected_counts(
    weights: Tensor, words: Tensor, batch: DocumentBatch, floor: float, by_word: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log likelihoods and counts of :mod:`torch_lntm.kernels.mixture`, in one launch or two.

    Args:
        weights: ``(num_docs, num_topics)``.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.
        by_word: Also form the word counts, in the second launch.

    Returns:
        ``(num_docs,)`` float64 nats, ``(num_docs, num_topics)``, and ``(num_words, num_topics)`` or
        None.
    """
    from torch_lntm.kernels import triton_ops

    assert weights.shape == (batch.num_docs, words.shape[1])
    assert words.shape[0] == batch.num_words
    weights = weights.contiguous()
    rows = (batch.row_offsets, batch.word_index, batch.counts)
    log_likelihood, topic_counts, ratio = triton_ops.expected_counts(
        weights, words, *rows, floor, by_word
    )
    if not by_word:
        return log_likelihood, topic_counts, None
    word_counts = triton_ops.word_counts(weights, words, *batch.by_word, ratio)
    return log_likelihood, topic_counts, word_counts


def transition(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    drawn: tuple[Tensor, Tensor, Tensor],
    step_size: Tensor,
    temperature: float | Tensor,
    num_steps: int,
    jitter: float,
    max_error: float,
    loc: Tensor,
    loading: Tensor,
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A transition of all chains in one launch, for standard normal z and affine logits.

    Args:
        state: The fields of an :class:`~torch_lntm.sampling.hmc.HMCState`.
        drawn: Those of a :class:`~torch_lntm.sampling.hmc.Randomness`.
        step_size: ``(num_chains, num_docs)``, or what broadcasts with it.
        temperature: Inverse temperature of the likelihood, likewise.
        num_steps: Leapfrog steps, at least 1.
        jitter: Largest relative change of the step sizes.
        max_error: Energy error above which a trajectory is divergent.
        loc: ``(num_topics,)`` or ``(num_docs, num_topics)`` logits at z = 0.
        loading: ``(dim, num_topics)`` change of the logits with z.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.

    Returns:
        The fields of the new state, and those of an :class:`~torch_lntm.sampling.hmc.HMCInfo`.
    """
    from torch_lntm.kernels import triton_ops

    operation: Any = triton_ops.transition
    position, log_prior = state[:2]
    num_docs, dim = position.shape[1:]
    assert (num_docs, dim) == (batch.num_docs, loading.shape[0])
    assert words.shape == (batch.num_words, loading.shape[1])
    if not isinstance(temperature, Tensor):
        temperature = torch.full_like(log_prior, temperature)
    epsilon, inverse_temperature = (
        x.to(log_prior).expand_as(log_prior) for x in (step_size, temperature)
    )
    tensors = (*state, *drawn, epsilon, inverse_temperature, loc, loading, loading.mT)
    *new, acceptance, accepted, energy_error, divergent = operation(
        *(x.contiguous() for x in tensors),
        batch.row_offsets,
        batch.word_index,
        batch.counts,
        batch.lengths,
        words,
        num_steps,
        jitter,
        max_error,
        floor,
    )
    info = (acceptance, accepted.view(torch.bool), energy_error, divergent.view(torch.bool))
    return tuple(new), info


def mixed(bits: Tensor) -> Tensor:
    """What :mod:`torch_lntm.noise` makes of int64 bits, in one launch."""
    from torch_lntm.kernels import triton_ops

    return triton_ops.mixed(bits.contiguous())


def uniform(key: Tensor, size: int) -> Tensor:
    """:func:`torch_lntm.noise.uniform` in one launch."""
    from torch_lntm.kernels import triton_ops

    return triton_ops.uniform(key.contiguous(), size)


def normal(key: Tensor, size: int) -> Tensor:
    """:func:`torch_lntm.noise.normal` in one launch."""
    from torch_lntm.kernels import triton_ops

    return triton_ops.normal(key.contiguous(), size)
