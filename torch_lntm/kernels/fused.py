"""Fused kernels, each in place of many small kernels: Triton's on CUDA and Numba's on a CPU.

Triton is part of the CUDA builds of PyTorch, and needs PyTorch 2.7 or later to compile. Tensors on
CUDA use its kernels if Triton works on the machine, which a small kernel finds out at the first
use. The environment variable ``LNTM_TRITON`` overrides this: 0 for PyTorch's kernels, 1 for fused
kernels on CUDA without this trial. Tests check their arithmetic on CUDA (``pytest --device cuda``),
and in Triton's interpreter without a GPU.

Numba is the extra ``fast`` of this package. Tensors on a CPU use its kernels if it is installed;
``LNTM_COMPILED`` is 0 for PyTorch's kernels, and 1 for compiled kernels or an error.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, LNTMWarning, warn
from torch_lntm.kernels.threads import kernels_only

P = ParamSpec("P")
R = TypeVar("R")
#: Largest size of the map from z to logits for transitions in a single launch on a GPU. Each chain
#: reads the map again at every step, whereas a matrix product reads it once for all chains.
MAX_LOADING = 2**14
#: Advice of :func:`advice` that this process has not given yet.
_ADVICE = iter(["pip install numba makes fits like this one faster, on every core of a CPU"])


def kind(tensor: Tensor) -> Literal["numba", "triton"] | None:
    """Kind of the fused kernels that compute with a tensor; None for PyTorch's operations.

    Triton's interpreter, which is for tests, has precedence on a CPU.

    Raises:
        ConfigError: The variable ``LNTM_COMPILED`` or ``LNTM_TRITON`` has another value than 0 or
            1, or ``LNTM_COMPILED`` is 1 and Numba is missing or does not work.
        ImportError: ``LNTM_TRITON`` is 1, and Triton is missing.

    Warns:
        LNTMWarning: Numba or Triton is there but does not work. The message has its error.
    """
    setting = os.environ.get("LNTM_TRITON", "")
    may_compile = setting != "1" and tensor.device.type == "cpu"
    if may_compile and _has_numba(os.environ.get("LNTM_COMPILED", "")):
        return "numba"
    if setting not in ("", "0", "1"):
        raise ConfigError(
            f"LNTM_TRITON is {setting!r}; expected 1 for Triton's kernels, 0 for PyTorch's, or no "
            "value for Triton's where they work"
        )
    if setting != "1":
        return "triton" if not setting and tensor.is_cuda and _triton_works() else None
    from torch_lntm.kernels.triton_ops import INTERPRETED

    return "triton" if tensor.is_cuda or INTERPRETED else None


def is_compiled(tensor: Tensor) -> bool:
    """Whether Numba's kernels compute with a tensor; see :func:`kind`."""
    return kind(tensor) == "numba"


def with_threads(tensor: Tensor) -> AbstractContextManager[None]:
    """Context of :func:`~torch_lntm.kernels.threads.kernels_only` if Numba's kernels compute."""
    return kernels_only() if is_compiled(tensor) else nullcontext()


def threaded(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a function of a model, or of an object with one, for :func:`with_threads`."""

    @functools.wraps(function)
    def with_model(*args: P.args, **options: P.kwargs) -> R:
        first: Any = args[0] if args else options["model"]
        model = getattr(first, "model", first)
        with with_threads(model.topics.probs):
            return function(*args, **options)

    return with_model


@functools.cache
def _has_numba(setting: str) -> bool:
    """Whether Numba's kernels are there and not switched off by ``LNTM_COMPILED``."""
    if setting not in ("", "0", "1"):
        raise ConfigError(
            f"LNTM_COMPILED is {setting!r}; expected 1 for compiled kernels, 0 for PyTorch's, or "
            "no value for compiled ones where Numba is installed"
        )
    if setting == "0":
        return False
    try:
        from torch_lntm.kernels import compiled

        # SplitMix64's output function maps 0 to 0.
        if int(compiled.mixed(torch.zeros(1, dtype=torch.int64))[0]) != 0:
            raise RuntimeError("a kernel gave a wrong number")
    # An installation that is damaged or too old raises errors of many types.
    except Exception as error:
        if setting == "1":
            raise ConfigError(
                "LNTM_COMPILED=1 asks for compiled kernels, but Numba does not work "
                f"({type(error).__name__}: {error}): pip install numba, or unset LNTM_COMPILED"
            ) from error
        if find_spec("numba") is not None:
            warn(
                f"Numba does not work here ({type(error).__name__}: {error}). PyTorch's kernels "
                "replace the compiled ones, and fits on a CPU take longer. LNTM_COMPILED=0 turns "
                "this warning off",
                LNTMWarning,
            )
        return False
    return True


def advice(tensor: Tensor) -> str | None:
    """What to install for faster fits with tensors like this one, at the first call of a process.

    Returns:
        A line of text; None if nothing is missing.
    """
    if tensor.device.type != "cpu" or os.environ.get("LNTM_COMPILED") == "0" or kind(tensor):
        return None
    return next(_ADVICE, None) if find_spec("numba") is None else None


def _operations(tensor: Tensor) -> Any:
    """Module with the fused kernels for a tensor."""
    if is_compiled(tensor):
        from torch_lntm.kernels import compiled

        return compiled
    from torch_lntm.kernels import triton_ops

    return triton_ops


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


def read(rows: Any, corpus: Corpus, device: torch.device, dtype: torch.dtype) -> DocumentBatch:
    """The batch ``corpus.batch(rows, device, dtype)``, sorted by word too by a compiled kernel."""
    entries = corpus.row_offsets, corpus.word_index, corpus.counts
    # Mapped arrays may be chains, and want their pages released.
    in_memory = all(type(x) is np.ndarray for x in entries) and entries[1].dtype == np.int32
    if not in_memory or not is_compiled(torch.empty(0, device=device)):
        return corpus.batch(rows, device, dtype)
    from torch_lntm.kernels import compiled

    made, lengths, by_word = compiled.read(entries, rows, corpus.num_words, dtype)
    columns = corpus.columns_of(rows, device, dtype)
    about: Any = corpus.num_words, torch.tensor(rows), corpus.num_docs, columns
    batch = DocumentBatch(*made, *about)
    return batch.knowing(positions=batch.index, lengths=lengths, by_word=by_word)


def expected_counts(
    weights: Tensor,
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
    by_word: bool = False,
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

    Raises:
        ConfigError: The documents are over other words than the topics, or are not as many as the
            weights. Kernels do not check what they read.
    """
    operations = _operations(weights)
    _require_shapes(batch, words, weights, weights.shape[1])
    weights = weights.contiguous()
    rows = (batch.row_offsets, batch.word_index, batch.counts)
    log_likelihood, topic_counts, ratio = operations.expected_counts(
        weights, words, *rows, floor, by_word
    )
    counts = word_counts(weights, words, batch, ratio) if by_word else None
    return log_likelihood, topic_counts, counts


def word_counts(weights: Tensor, words: Tensor, batch: DocumentBatch, ratio: Tensor) -> Tensor:
    """Word counts ``(num_words, num_topics)`` from ratios ``(nnz,)`` of counts and s."""
    _require_shapes(batch, words, weights, weights.shape[1])
    if ratio.shape != batch.counts.shape:
        raise ConfigError(f"{ratio.numel()} ratios of counts; expected {batch.nnz}")
    return cast(Tensor, _operations(weights).word_counts(weights, words, *batch.by_word, ratio))


def _require_shapes(
    batch: DocumentBatch, words: Tensor, rows: Tensor, num_topics: int | None = None
) -> None:
    """Raise unless documents fit topics by word, and the last but one axis of other rows.

    Topics by word must also have ``num_topics`` columns and the dtype of the others, if it is
    given.
    """
    if words.shape[0] != batch.num_words:
        raise ConfigError(
            f"documents over {batch.num_words} words given to topics over {words.shape[0]} words; "
            "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
        )
    if rows.shape[-2] != batch.num_docs:
        raise ConfigError(f"rows for {rows.shape[-2]} documents; expected {batch.num_docs}")
    if num_topics is not None and words.shape[1] != num_topics:
        raise ConfigError(f"{words.shape[1]} topics of words; expected {num_topics}")
    if num_topics is not None and not words.dtype == rows.dtype == batch.dtype:
        raise ConfigError(f"{rows.dtype} rows and {batch.dtype} counts with {words.dtype} topics")


def _require_space(position: Tensor, form: tuple[Any, ...], factor: Tensor | None) -> None:
    """Raise unless a space and a metric have the shapes of positions."""
    num_docs, dim = position.shape[1:]
    loc, loading, _, concentration = form
    metrics = [torch.Size([dim, dim]), torch.Size([num_docs, dim, dim])]
    if (
        dim != len(loading if concentration is None else concentration)
        or (concentration is None and loc.dim() > 1 and len(loc) not in (1, num_docs))
        or (factor is not None and factor.shape not in metrics)
    ):
        raise ConfigError(f"z of shape {tuple(position.shape)} in a space or metric of other z")


def _require_axes(position: Tensor, rest: tuple[Tensor, ...], drawn: Any, number: int) -> None:
    """Raise unless other tensors of a visit have a row for each chain, first the gradient."""
    rows = position.shape[:2]
    numbers = [(number, *position.shape), (number, *rows), (number, *rows)]
    shapes = [position.shape, *[rows] * (len(rest) - 1), *(numbers if len(drawn) > 1 else [rows])]
    for tensor, shape in zip((*rest, *drawn), shapes, strict=True):
        if tensor.shape != shape:
            raise ConfigError(f"{tuple(tensor.shape)} numbers of chains; expected {tuple(shape)}")


def transition(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    drawn: tuple[Tensor, Tensor, Tensor],
    step_size: Tensor,
    inverse_temperature: float,
    num_steps: int,
    jitter: float,
    max_error: float,
    loc: Tensor,
    loading: Tensor,
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Transition of all chains in a single launch by Triton, for normal z and affine logits.

    Args:
        state: Fields of an :class:`~torch_lntm.sampling.hmc.HMCState`.
        drawn: Fields of a :class:`~torch_lntm.sampling.hmc.Randomness`.
        step_size: Step sizes, broadcastable to ``(num_chains, num_docs)``.
        inverse_temperature: That of the likelihood.
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
    position, log_prior = state[:2]
    _require_shapes(batch, words, position, loading.shape[1])
    epsilon = step_size.to(log_prior).expand_as(log_prior)
    temperature = torch.full_like(log_prior, inverse_temperature)
    tensors = (*state, *drawn, epsilon, temperature, loc, loading, loading.mT)
    *new, acceptance, accepted, energy_error, divergent = _operations(position).transition(
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


def visit(
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    drawn: tuple[Tensor, ...],
    adaptation: tuple[Tensor, ...],
    settings: tuple[Any, ...],
    number: int,
    form: tuple[Any, ...],
    words: Tensor,
    batch: DocumentBatch,
    floor: float,
    bursts: tuple[float, Tensor] | None,
    temperature: float,
    factor: Tensor | None,
    with_counts: bool = False,
) -> tuple[tuple[Tensor, ...], ...]:
    """Some transitions of all chains in a single call, by compiled kernels alone.

    Args:
        state: Fields of an :class:`~torch_lntm.sampling.hmc.HMCState`.
        drawn: Keys ``(num_chains, num_docs)`` of the chains' transitions, or the fields of a
            :class:`~torch_lntm.sampling.hmc.Randomness` with an axis of transitions.
        adaptation: Step sizes ``(num_chains, num_docs)`` and, if they are adapted, the tensors of
            a :class:`~torch_lntm.sampling.step_sizes.DualAveraging`.
        settings: Fields of :class:`torch_lntm.kernels.numba_ops.Settings`.
        number: Number of transitions.
        form: Fields of a :class:`~torch_lntm.latents.space.SpaceForm`.
        words: As for :func:`transition`.
        batch: The documents.
        floor: Least probability of a word.
        bursts: Concentration and length terms of a Dirichlet-multinomial likelihood. None for
            independent draws.
        temperature: Inverse temperature of the likelihood.
        factor: As for :class:`~torch_lntm.latents.metrics.Metric`.
        with_counts: Whether :func:`word_counts` is called at the new state.

    Returns:
        The new ``state`` and ``adaptation``, the fields of
        :class:`torch_lntm.kernels.numba_ops.Outcome`, ``(number, num_chains, num_docs)`` each, and
        arguments of :func:`word_counts`: proportions ``(num_chains, num_docs, num_topics)`` and
        ratios ``(num_chains, nnz)``.
    """
    from torch_lntm.kernels import compiled

    _require_shapes(batch, words, state[0], form[1].shape[1])
    _require_space(state[0], form, factor)
    _require_axes(state[0], (*state[:0:-1], *adaptation), drawn, number)
    rows = batch.row_offsets, batch.word_index, batch.counts, batch.lengths
    documents = *rows, words, floor
    options = bursts, temperature, factor, with_counts
    return compiled.visit(documents, form, state, drawn, adaptation, settings, number, *options)


def start_step(
    running: tuple[Any, ...],
    words: Tensor,
    batch: DocumentBatch,
    theta: Tensor,
    sweeps: int,
    concentration: float,
    weight: float,
) -> tuple[float, Tensor]:
    """A step of a start, by compiled kernels alone.

    Args:
        running: Fields of :class:`torch_lntm.kernels.numba_ops.Running`, as tensors. The rows are
            contiguous and overwritten.
        words: ``(n,)`` positions of the words of the batch in the rows.
        batch: The documents, over these words.
        theta: ``(corpus_size, num_topics)`` proportions of all documents. Those of the batch are
            overwritten.
        sweeps: Number of updates of the proportions.
        concentration: Pseudo-tokens of each topic.
        weight: Factor of the word counts that are added to the rows.

    Returns:
        Log likelihood, and expected tokens ``(num_topics,)`` of the topics in float64.
    """
    from torch_lntm.kernels import compiled

    _require_shapes(batch, words, batch.index[:, None])
    rows = running[0]
    if theta.shape != (batch.corpus_size, rows.shape[1]) or theta.dtype != rows.dtype:
        raise ConfigError(f"{theta.dtype} proportions of shape {tuple(theta.shape)} for {batch}")
    if not (rows.is_contiguous() and theta.is_contiguous()):
        raise ConfigError("rows or proportions of a start are not contiguous")
    documents = batch.row_offsets, batch.word_index, batch.counts, *batch.by_word, batch.index
    return compiled.start_step(running, (words, *documents, theta), sweeps, concentration, weight)


def draw_topics(
    weights: Tensor, words: Tensor, batch: DocumentBatch, tokens: Tensor, uniforms: Tensor
) -> Tensor:
    """:func:`torch_lntm.kernels.mixture.draw_topics` by compiled kernels."""
    _require_shapes(batch, words, weights, weights.shape[1])
    if len(tokens) != batch.nnz or len(uniforms) != int(tokens.sum()) or bool((tokens < 0).any()):
        raise ConfigError(f"tokens of {len(tokens)} counts and {len(uniforms)} uniform numbers")
    return _operations(weights).draw_topics(weights, words, *batch.by_word, tokens, uniforms)


def mixed(bits: Tensor) -> Tensor:
    """Mixed bits of int64 bits, by the function of :mod:`torch_lntm.noise`, in a single launch."""
    return _operations(bits).mixed(bits.contiguous())


def uniform(key: Tensor, size: int) -> Tensor:
    """:func:`torch_lntm.noise.uniform` in one launch."""
    return _operations(key).uniform(key.contiguous(), size)


def normal(key: Tensor, size: int) -> Tensor:
    """:func:`torch_lntm.noise.normal` in one launch."""
    return _operations(key).normal(key.contiguous(), size)
