"""Fused CUDA kernels, each in place of many small kernels.

They are written in Triton, which is part of the CUDA builds of PyTorch, and need PyTorch 2.7 or
later to compile. Tensors on CUDA use them if Triton works on the machine, which a small kernel
finds out at the first use. The environment variable ``LNTM_TRITON`` overrides this: 0 for PyTorch's
kernels, 1 for fused kernels on CUDA without this trial. Tests check their arithmetic on CUDA
(``pytest --device cuda``), and in Triton's interpreter without a GPU.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError, LNTMWarning, warn

#: Largest size of the map from z to logits for transitions in a single launch. Each chain reads the
#: map again at every step, whereas a matrix product reads it once for all chains.
MAX_LOADING = 2**14


def is_enabled(tensor: Tensor) -> bool:
    """Whether fused kernels compute with a tensor.

    Raises:
        ConfigError: The variable ``LNTM_TRITON`` has another value than 0 or 1.
        ImportError: The variable is 1, and Triton is missing.
    """
    setting = os.environ.get("LNTM_TRITON", "")
    if setting not in ("", "0", "1"):
        raise ConfigError(
            f"LNTM_TRITON is {setting!r}; expected 1 for Triton's kernels, 0 for PyTorch's, or no "
            "value for Triton's where they work"
        )
    if setting != "1":
        return not setting and tensor.is_cuda and _triton_works()
    from torch_lntm.kernels.triton_ops import INTERPRETED

    return tensor.is_cuda or INTERPRETED


@functools.cache
def _triton_works() -> bool:
    """Whether Triton compiles and runs a kernel on this machine, tried once per process.

    Warns:
        LNTMWarning: Triton is missing, too old or fails. The message has its error.
    """
    try:
        import triton

        version = tuple(map(int, triton.__version__.split(".")[:2]))
        # Oldest version of Triton that compiles the kernels.
        if version < (3, 3):
            raise ImportError(f"Triton is {triton.__version__}; expected 3.3 or newer")
        bits = torch.zeros(1, dtype=torch.int64, device="cuda")
        # SplitMix64's output function maps 0 to 0.
        if int(mixed(bits)[0]) != 0:
            raise RuntimeError("a kernel gave a wrong number")
    # Triton raises errors of many types, such as RuntimeError without a C compiler.
    except Exception as error:
        warn(
            f"Triton's fused kernels do not work on this machine ({type(error).__name__}: "
            f"{error}). PyTorch's kernels replace them, and a fit takes about 1.5 times as long. "
            "LNTM_TRITON=0 turns this warning off",
            LNTMWarning,
        )
        return False
    return True


def expected_counts(
    weights: Tensor, words: Tensor, batch: DocumentBatch, floor: float, by_word: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log likelihoods and counts of :mod:`torch_lntm.kernels.mixture`, in 1 or 2 launches.

    Args:
        weights: ``(num_docs, num_topics)``.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.
        by_word: Whether to form the word counts too, in a second launch.

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
    inverse_temperature: float | Tensor,
    num_steps: int,
    jitter: float,
    max_error: float,
    loc: Tensor,
    loading: Tensor,
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Transition of all chains in a single launch, for standard normal z and affine logits.

    Args:
        state: Fields of an :class:`~torch_lntm.sampling.hmc.HMCState`.
        drawn: Fields of a :class:`~torch_lntm.sampling.hmc.Randomness`.
        step_size: Step sizes, broadcastable to ``(num_chains, num_docs)``.
        inverse_temperature: That of the likelihood, a number or a tensor of the same kind.
        num_steps: Leapfrog steps, at least 1.
        jitter: Largest relative change of the step sizes.
        max_error: Largest energy error of a trajectory before it counts as divergent.
        loc: ``(num_topics,)`` or ``(num_docs, num_topics)`` logits at z = 0.
        loading: ``(dim, num_topics)`` change of the logits with z.
        words: ``(num_words, num_topics)`` topics by word, contiguous.
        batch: The documents.
        floor: Least probability of a word.

    Returns:
        Fields of the new state, and fields of an :class:`~torch_lntm.sampling.hmc.HMCInfo`.
    """
    from torch_lntm.kernels import triton_ops

    operation: Any = triton_ops.transition
    position, log_prior = state[:2]
    num_docs, dim = position.shape[1:]
    assert (num_docs, dim) == (batch.num_docs, loading.shape[0])
    assert words.shape == (batch.num_words, loading.shape[1])
    if not isinstance(inverse_temperature, Tensor):
        inverse_temperature = torch.full_like(log_prior, inverse_temperature)
    epsilon, inverse_temperature = (
        x.to(log_prior).expand_as(log_prior) for x in (step_size, inverse_temperature)
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
    """Mixed bits of int64 bits, by the function of :mod:`torch_lntm.noise`, in a single launch."""
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
