"""Fused kernels on CUDA, in place of many small ones, where the user asks for them.

The environment variable ``LNTM_TRITON=1`` does. The kernels are written in Triton, which comes with
the CUDA builds of PyTorch; that of PyTorch 2.7 was the first to compile them. Their arithmetic is
tested in Triton's interpreter. They have not run on hardware, so nobody gets them unasked.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError

#: Size of the map from z to logits up to which a whole trajectory is one launch. Each chain reads
#: the map anew at each step, where a matrix product would read it once for all of them.
MAX_LOADING = 2**14


class TrajectoryEnd(NamedTuple):
    """Where leapfrog steps end.

    Attributes:
        position: ``(num_chains, num_docs, dim)`` z.
        momentum: ``(num_chains, num_docs, dim)`` r.
        log_likelihood: ``(num_chains, num_docs)`` float64 nats.
        likelihood_gradient: ``(num_chains, num_docs, dim)``, of the log likelihood in z.
    """

    position: Tensor
    momentum: Tensor
    log_likelihood: Tensor
    likelihood_gradient: Tensor


def asked_for(tensor: Tensor) -> bool:
    """Whether the user asks for the kernels, for a tensor like this one.

    Raises:
        ConfigError: They are asked for, but Triton is not installed, or the tensor is not on CUDA.
    """
    asked = os.environ.get("LNTM_TRITON", "0")
    if asked in ("", "0"):
        return False
    if asked != "1":
        raise ConfigError(f"LNTM_TRITON is {asked!r}; expected 1, for Triton's kernels, or 0")
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
    weights: Tensor, words: Tensor, batch: DocumentBatch, floor: float
) -> tuple[Tensor, Tensor]:
    """Log likelihoods and topic counts of :mod:`torch_lntm.kernels.mixture`, in one launch.

    Args:
        weights: ``(num_docs, num_topics)``.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.

    Returns:
        ``(num_docs,)`` float64 nats and ``(num_docs, num_topics)``.
    """
    from torch_lntm.kernels import triton_ops

    assert weights.shape == (batch.num_docs, words.shape[1])
    assert words.shape[0] == batch.num_words
    return triton_ops.expected_counts(
        weights.contiguous(), words, batch.row_offsets, batch.word_index, batch.counts, floor
    )


def trajectory(
    position: Tensor,
    momentum: Tensor,
    likelihood_gradient: Tensor,
    step_size: Tensor,
    temperature: float | Tensor,
    num_steps: int,
    loc: Tensor,
    loading: Tensor,
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
) -> TrajectoryEnd:
    """All leapfrog steps of all chains in one launch, for standard normal z and affine logits.

    Args:
        position: ``(num_chains, num_docs, dim)`` z.
        momentum: ``(num_chains, num_docs, dim)`` r, in the metric I.
        likelihood_gradient: ``(num_chains, num_docs, dim)`` of the log likelihood at ``position``.
        step_size: ``(num_chains, num_docs)``.
        temperature: Inverse temperature of the likelihood, a number or ``(num_chains, num_docs)``.
        num_steps: Leapfrog steps, at least 1.
        loc: ``(num_topics,)`` or ``(num_docs, num_topics)`` logits at z = 0.
        loading: ``(dim, num_topics)`` change of the logits with z.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.

    Returns:
        The :class:`TrajectoryEnd`.
    """
    from torch_lntm.kernels import triton_ops

    num_chains, num_docs, dim = position.shape
    assert (num_docs, dim) == (batch.num_docs, loading.shape[0])
    assert words.shape == (batch.num_words, loading.shape[1])
    if not isinstance(temperature, Tensor):
        temperature = torch.full_like(step_size, temperature)
    epsilon, heat = (
        x.to(position.dtype).expand(num_chains, num_docs).contiguous()
        for x in (step_size, temperature)
    )
    return TrajectoryEnd(
        *triton_ops.trajectory(
            position.contiguous(),
            momentum.contiguous(),
            likelihood_gradient.contiguous(),
            epsilon,
            heat,
            loc.contiguous(),
            loading.contiguous(),
            loading.mT.contiguous(),
            batch.row_offsets,
            batch.word_index,
            batch.counts,
            batch.lengths,
            words,
            num_steps,
            floor,
        )
    )
