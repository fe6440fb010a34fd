"""Factorisations that latent spaces, posteriors and metrics share."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.errors import NumericalError


def contrast_basis(num_topics: int) -> Tensor:
    """Orthonormal contrasts (Helmert's) of ``num_topics`` logits.

    Args:
        num_topics: K, at least 2.

    Returns:
        ``(num_topics - 1, num_topics)`` float64; rows are orthonormal and sum to 0.
    """
    rows = torch.arange(1, num_topics, dtype=torch.float64)[:, None]
    column = torch.arange(num_topics)
    basis = (column < rows).double() - rows * (column == rows)
    return basis / (rows * (rows + 1)).sqrt()


def triangular_factor(factor: Tensor) -> Tensor:
    """The lower triangular G with GGᵀ = AAᵀ and a positive diagonal, without forming AAᵀ.

    Args:
        factor: ``(..., n, m)`` A, n ≤ m.

    Returns:
        ``(..., n, n)``; a diagonal entry is 0 where A does not have full rank.
    """
    upper = torch.linalg.qr(factor.mT, mode="r").R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(factor)
    return (sign[..., None] * upper).mT


def inverse_cholesky(precision: Tensor, index: Tensor, recompute_float64: bool = True) -> Tensor:
    """R⁻¹ for the lower Cholesky factors of precisions B = RRᵀ ≥ I.

    Args:
        precision: ``(num_docs, dim, dim)``.
        index: ``(num_docs,)`` corpus positions, to name documents in an error.
        recompute_float64: Factor those that fail again in float64.

    Returns:
        ``(num_docs, dim, dim)`` lower triangular.

    Raises:
        NumericalError: A precision is not positive definite even in float64.
    """
    chol, info = torch.linalg.cholesky_ex(precision)
    failed = (info != 0).nonzero().squeeze(-1)
    if failed.numel():
        if precision.dtype == torch.float64 or not recompute_float64:
            documents = index[failed].tolist()
            raise NumericalError(
                f"posterior precision of {len(documents)} document(s) is not positive definite, "
                f"first at position {documents[0]}; check the prior covariance and the topics for "
                "extreme values",
                documents,
            )
        again = torch.linalg.cholesky_ex(precision[failed].double())
        if bool((again.info != 0).any()):
            inverse_cholesky(precision[failed].double(), index[failed], False)
        chol[failed] = again.L.to(chol.dtype)
    eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device).expand_as(chol)
    return torch.linalg.solve_triangular(chol, eye, upper=False)
