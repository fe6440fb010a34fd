"""The Laplace posterior: Taylor's mode with the observed information."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.mixture import expected_topic_counts, responsibility_covariance
from torch_lntm.latents.linalg import inverse_cholesky
from torch_lntm.latents.normal import EtaSpace, NormalSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.taylor import exact_information, find_mode


def observed_information(
    batch: DocumentBatch, topics: Tensor, space: NormalSpace, theta: Tensor
) -> Tensor:
    """Whitened negative Hessians of log p(w, eta), in float64.

    I + Cᵀ(N·diag θ − Σ_v c_v(diag ρ_v − ρ_vρ_vᵀ))C, where C = F − 1(θᵀF) is centred as in
    :func:`~torch_lntm.solvers.taylor.complete_information`. The second part ignores a common shift
    of all topics even without centring, but only up to rounding. Coordinates are reversed.

    The result is positive semi-definite at a local maximum and indefinite at most other points.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        space: Whitened prior of eta.
        theta: ``(num_docs, num_topics)`` proportions at the point of the Hessian.

    Returns:
        ``(num_docs, dim, dim)`` float64.
    """
    factor = space.lift(space.tril.mT).mT.flip(1)
    centred = factor - (theta.double() @ factor)[:, None, :]
    counts = expected_topic_counts(theta, topics, batch)
    information = responsibility_covariance(theta, topics, batch).double()
    information += (batch.lengths[:, None] * theta - counts).double().diag_embed()
    precision = centred.mT @ information @ centred
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


@in_sufficient_precision
def laplace(
    batch: DocumentBatch, topics: Tensor, space: EtaSpace, options: SolveOptions
) -> NormalPosterior:
    """Solve the Laplace posterior of each document (*Roberts et al. 2016*, R's stm).

    Arguments are as for :func:`torch_lntm.solvers.taylor.taylor`. If the ascent stops before a
    maximum, the observed information may not be positive definite, in which case the document keeps
    Taylor's precision and is marked in ``fallback``.

    Under a factor prior the mode costs less, but the observed information has no low-rank form, so
    the covariance is dense and the posterior's space is the marginal prior of eta.

    Returns:
        The posterior. Its objective is Laplace's approximation of log p(w).

    Example:
        >>> from torch_lntm.solvers.laplace import SolveOptions, laplace
        >>> space, topics = model.prior.space(batch), model.topics.probs.detach()
        >>> options = SolveOptions(torch.zeros(5, space.eta_dim), 1e-3, max_iterations=50)
        >>> laplace(batch, topics, space, options).mean.shape
        torch.Size([5, 10])
    """
    dense = space.marginal()
    mode = find_mode(batch, topics, space, options)
    theta = mode.topic_weights()
    precision = observed_information(batch, topics, dense, theta)
    fallback = torch.linalg.cholesky_ex(precision).info != 0
    if bool(fallback.any()):
        precision[fallback] = exact_information(dense, theta[fallback], batch.lengths[fallback])
    whitened = inverse_cholesky(precision, batch.index)
    half_log_det = whitened.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return NormalPosterior.around(
        mode,
        space=dense,
        objective=mode.objective + half_log_det,
        whitened=whitened.to(theta.dtype),
        fallback=fallback,
    )
