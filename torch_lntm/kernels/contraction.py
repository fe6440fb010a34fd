"""The trilinear form Σ_dv r_dv t_d·φ_v over the stored counts, and its derivatives of every order.

The three factors are r ``(nnz,)``, a number for each stored count, t ``(num_docs, num_topics)``, a
row for each document, and φ ``(num_words, num_topics)``, a row for each word. The derivative of the
form in a factor is a sparse product of the remaining two factors:

    in r   a sampled matrix product   t_d·φ_v
    in t   a sum over words           Σ_v r_dv φ_v
    in φ   a sum over documents       Σ_d r_dv t_d

Memory never holds a table of size documents × words or stored counts × topics. Sums over words run
in CSR order and sums over documents in the transposed order. They need no atomic operations, so
that a result is reproducible on its device.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.likelihood import CountLikelihood

with warnings.catch_warnings():
    # Torch warns once per process that its sparse CSR support is in beta. Our tests cover the
    # operations in use, so users of topic models can ignore the warning.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), check_invariants=False)


def sampled_product(weights: Tensor, words: Tensor, batch: DocumentBatch) -> Tensor:
    """Products t_d·φ_v ``(nnz,)`` at the stored counts."""
    pattern = torch.sparse_csr_tensor(
        batch.row_offsets,
        batch.word_index,
        weights.new_zeros(batch.nnz),
        size=(batch.num_docs, batch.num_words),
        check_invariants=False,
    )
    return torch.sparse.sampled_addmm(pattern, weights, words.mT, beta=0.0).values()


def sum_over_words(ratio: Tensor, words: Tensor, batch: DocumentBatch) -> Tensor:
    """Sums Σ_v r_dv φ_v ``(num_docs, num_topics)``."""
    if batch.nnz == 0:
        return words.new_zeros(batch.num_docs, words.shape[1])
    return F.embedding_bag(
        batch.word_index,
        words,
        batch.row_offsets,
        mode="sum",
        per_sample_weights=ratio,
        include_last_offset=True,
    )


def sum_over_docs(ratio: Tensor, weights: Tensor, batch: DocumentBatch) -> Tensor:
    """Sums Σ_d r_dv t_d ``(num_words, num_topics)``."""
    if batch.nnz == 0:
        return weights.new_zeros(batch.num_words, weights.shape[1])
    order, doc_index, word_offsets = batch.by_word
    return F.embedding_bag(
        doc_index,
        weights,
        word_offsets,
        mode="sum",
        per_sample_weights=ratio[order],
        include_last_offset=True,
    )


def document_sums(values: Tensor, batch: DocumentBatch) -> Tensor:
    """Float64 sums ``(num_docs,)`` of values ``(nnz,)`` within each document."""
    return torch.segment_reduce(
        values.double(), "sum", offsets=batch.row_offsets, axis=0, initial=0.0
    )


class _Function(torch.autograd.Function):
    """Autograd function whose signature is read once.

    ``apply`` inspects the signature of ``forward`` at every call, which takes longer than the rest
    of the call.
    """

    def __init_subclass__(cls) -> None:
        """Store the signature of ``forward`` in an attribute; ``inspect`` reads it first."""
        forward: Any = cls.forward
        forward.__signature__ = inspect.signature(forward)


class _Contraction(_Function):
    """Derivative of the trilinear form in the missing factor, passed as None.

    The result is linear in each of the two given factors, so its derivatives are contractions
    again.
    """

    @staticmethod
    def forward(
        ratio: Tensor | None, weights: Tensor | None, words: Tensor | None, batch: DocumentBatch
    ) -> Tensor:
        if ratio is None:
            assert weights is not None
            assert words is not None
            return sampled_product(weights, words, batch)
        if weights is None:
            assert words is not None
            return sum_over_words(ratio.contiguous(), words.contiguous(), batch)
        return sum_over_docs(ratio, weights.contiguous(), batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *factors, ctx.batch = inputs
        ctx.absent = next(i for i, factor in enumerate(factors) if factor is None)
        ctx.save_for_backward(*factors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * 4
        for i in range(3):
            if i != ctx.absent and ctx.needs_input_grad[i]:
                factors = list(ctx.saved_tensors)
                factors[ctx.absent], factors[i] = grad, None
                gradients[i] = _contract(*factors, ctx.batch)
        return tuple(gradients)


def _contract(*factors_and_batch: Any) -> Tensor:
    """A contraction in a backward pass, recorded only if the backward pass is differentiated."""
    record = torch.is_grad_enabled()
    return (_Contraction.apply if record else _Contraction.forward)(*factors_and_batch)


class _FlooredProduct(_Function):
    """max(t_d·φ_v, floor) at the stored counts, with the derivatives of t_d·φ_v everywhere.

    Gradients therefore agree with expected counts, and an optimiser can raise a probability from
    below the floor.
    """

    @staticmethod
    def forward(weights: Tensor, words: Tensor, batch: DocumentBatch, floor: float) -> Tensor:
        return sampled_product(weights, words, batch).clamp_min_(floor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        weights, words, ctx.batch, _ = inputs
        ctx.save_for_backward(weights, words)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, words = ctx.saved_tensors
        grad_weights = grad_words = None
        if ctx.needs_input_grad[0]:
            grad_weights = _contract(grad, None, words, ctx.batch)
        if ctx.needs_input_grad[1]:
            grad_words = _contract(grad, weights, None, ctx.batch)
        return grad_weights, grad_words, None, None


class _LogLikelihood(_Function):
    """Σ_v c_dv log s_dv of floored s; second derivatives treat s at the floor as a constant."""

    @staticmethod
    def forward(s: Tensor, batch: DocumentBatch, floor: float) -> Tensor:
        return document_sums(batch.counts * s.log(), batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        s, ctx.batch, ctx.floor = inputs
        ctx.save_for_backward(s)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (s,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            # 1 / floor² is not finite.
            s = torch.where(s > ctx.floor, s, ctx.floor)
        ratio = ctx.batch.counts / s
        return grad.to(ratio.dtype)[ctx.batch.row_index] * ratio, None, None


def log_likelihood(
    weights: Tensor, words: Tensor, batch: DocumentBatch, floor: float, likelihood: CountLikelihood
) -> Tensor:
    """Log likelihood ``(num_docs,)`` float64 at s_dv = max(t_d·φ_v, floor).

    It has all derivatives. Where the words need no gradient, ``requires_grad_(False)`` saves it.
    """
    s = _FlooredProduct.apply(weights, words, batch, floor)
    if likelihood.independent:
        return _LogLikelihood.apply(s, batch, floor)
    return _log_likelihood_by_autograd(s, batch, floor, likelihood)


def _log_likelihood_by_autograd(
    s: Tensor, batch: DocumentBatch, floor: float, likelihood: CountLikelihood
) -> Tensor:
    """:class:`_LogLikelihood` of any likelihood, differentiable in its parameters too."""
    floored = s <= floor
    # Below the floor the terms continue as straight lines, whose second derivatives are finite.
    lines = torch.where(floored, (s - s.detach()) / floor, 0.0).double()
    terms = likelihood.log_terms(torch.where(floored, floor, s), batch) + lines
    sums = _Contraction.apply(terms, None, terms.new_ones(batch.num_words, 1), batch).squeeze(1)
    return sums + likelihood.length_term(batch.lengths)
