"""Matrix factorisations for latent spaces, posteriors and metrics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_lntm.errors import NumericalError


def contrast_basis(num_topics: int) -> Tensor:
    """Orthonormal contrasts (Helmert's) of ``num_topics`` logits.

    Args:
        num_topics: K.

    Returns:
        ``(num_topics - 1, num_topics)`` float64. Rows are orthonormal and sum to 0.
    """
    rows = torch.arange(1, num_topics, dtype=torch.float64)[:, None]
    column = torch.arange(num_topics)
    basis = (column < rows).double() - rows * (column == rows)
    return basis / (rows * (rows + 1)).sqrt()


def triangular_factor(factor: Tensor) -> Tensor:
    """Lower triangular G with GGᵀ = AAᵀ and a nonnegative diagonal, without forming AAᵀ.

    Args:
        factor: ``(..., n, m)`` A, n ≤ m.

    Returns:
        ``(..., n, n)``. The diagonal is positive if A has full rank.
    """
    upper = torch.linalg.qr(factor.mT, mode="r").R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(factor)
    return (sign[..., None] * upper).mT


def inverse_of_lower(lower: Tensor) -> Tensor:
    """Inverses L⁻¹ ``(..., n, n)`` of lower triangular matrices ``(..., n, n)``."""
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower)
    return torch.linalg.solve_triangular(lower, eye, upper=False)


def inverse_cholesky(
    precision: Tensor, index: Tensor, recompute: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """R⁻¹ for the lower Cholesky factors R of precisions B = RRᵀ ≥ I.

    If the largest eigenvalue of a precision exceeds the reciprocal of the rounding unit, its small
    eigenvalues were lost when it was formed. Its entries are then useless, and it must be formed
    again in higher precision.

    Args:
        precision: ``(num_docs, dim, dim)``.
        index: ``(num_docs,)`` corpus positions, to name documents in an error.
        recompute: Function of int64 rows that forms the precisions of these documents in float64.
            It is called for precisions without a Cholesky factor.

    Returns:
        ``(num_docs, dim, dim)`` lower triangular, in the dtype of ``precision``.

    Raises:
        NumericalError: A precision is not positive definite, even in float64 if ``recompute`` is
            given.
    """
    chol, info = torch.linalg.cholesky_ex(precision)
    failed = (info != 0).nonzero().squeeze(-1)
    if failed.numel() and recompute is None:
        documents = index[failed].tolist()
        raise NumericalError(
            f"posterior precision of {len(documents)} document(s) is not positive definite, first "
            f"at position {documents[0]}; check the prior covariance and the topics for extreme "
            "values",
            documents,
        )
    inverse = inverse_of_lower(chol)
    if failed.numel() and recompute is not None:
        inverse[failed] = inverse_cholesky(recompute(failed), index[failed]).to(inverse.dtype)
    return inverse
