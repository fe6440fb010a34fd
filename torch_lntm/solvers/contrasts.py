"""The K − 1 contrasts of eta that the softmax can see, whitened by the prior.

Softmax ignores the shift that all K logits share, so integrals over eta are integrals over the
K − 1 contrasts Q·logits, Q the rows of an orthonormal basis orthogonal to 1. There the free and the
anchored parameterisation are one problem, and a proposal cannot waste itself on the direction that
the likelihood does not have (*measured: Blei–Lafferty's q in K dimensions reached an effective
sample size under 0.4 %*). With QF = LU, F the prior's factor lifted to logits and L triangular, the
coordinates w = L⁻¹Q(logits − μ) have a standard normal prior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.solvers.gaussian import GaussianPrior


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
        ``(..., n, n)``; a diagonal entry is 0 where A has no full rank.
    """
    upper = torch.linalg.qr(factor.mT, mode="r").R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(factor)
    return (sign[..., None] * upper).mT


class ContrastPrior:
    """A normal prior of eta in whitened contrasts, where it is standard normal.

    Args:
        prior: The prior of eta; all is computed in float64 on its device.

    Attributes:
        dim: Number of contrasts, ``num_topics - 1``.
        base: ``(num_topics,)`` logits at w = 0, centred.
        loading: ``(dim, num_topics)`` change of the logits with w.
    """

    def __init__(self, prior: GaussianPrior) -> None:
        lifted = prior.tril
        if prior.anchored:
            lifted = torch.cat([lifted, lifted.new_zeros(1, prior.dim)])
        basis = contrast_basis(len(lifted)).to(lifted.device)
        loc = basis @ prior.lift(prior.loc.double())
        self.dim = len(basis)
        self._loc = loc
        self._tril = triangular_factor(basis @ lifted)
        # The contrasts of eta are this times eta: the anchored topic's logit adds nothing.
        self._contrasts = basis[:, : prior.dim]
        self.base = loc @ basis
        self.loading = self._tril.mT @ basis

    def logits(self, w: Tensor) -> Tensor:
        """Centred logits ``(..., num_topics)`` of whitened contrasts w ``(..., dim)``."""
        return self.base + w @ self.loading

    def project(self, mean: Tensor, scale_tril: Tensor) -> tuple[Tensor, Tensor]:
        """A normal distribution of eta as one of w.

        Args:
            mean: ``(num_docs, latent_dim)`` mean of eta.
            scale_tril: ``(num_docs, latent_dim, latent_dim)`` factor of the covariance of eta.

        Returns:
            ``(loc, tril)`` of w, ``(num_docs, dim)`` and ``(num_docs, dim, dim)`` lower
            triangular, float64.
        """
        centred = mean.double() @ self._contrasts.mT - self._loc
        loc = torch.linalg.solve_triangular(self._tril.mT, centred, upper=True, left=False)
        factor = torch.linalg.solve_triangular(
            self._tril, self._contrasts @ scale_tril.double(), upper=False
        )
        return loc, triangular_factor(factor)


def log_likelihood_at(
    logits: Tensor, words: Tensor, counts: Tensor, *, max_elements: int = 2**22
) -> Tensor:
    """Log likelihood Σ_v c_v log Σ_k θ_k φ_kv of one document at many topic proportions.

    The same function as :func:`torch_lntm.kernels.mixture_log_likelihood`, for many weights of one
    document instead of one weight of many: a dense product then, five times faster.

    Args:
        logits: ``(num_points, num_topics)`` logits of θ.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        counts: ``(nnz,)`` their counts.
        max_elements: Bound on the numbers held at once.

    Returns:
        ``(num_points,)`` nats, in the dtype of ``logits``.
    """
    tiny = torch.finfo(logits.dtype).tiny
    chunks = logits.split(max(1, max_elements // max(1, *words.shape)))
    return torch.cat(
        [(torch.softmax(x, -1) @ words.mT).clamp_min_(tiny).log_() @ counts for x in chunks]
    )
