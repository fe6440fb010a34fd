"""The full-covariance Taylor posterior (Ahmed & Xing 2007)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior, inverse_cholesky
from torch_lntm.solvers.mean import Objective, maximise_mean


def complete_information(prior: GaussianPrior, p: Tensor, lengths: Tensor) -> Tensor:
    """Whitened precisions B = I + N·Cᵀ diag(p) C, C = F − 1(pᵀF), F the lifted factor.

    That is I + N·Fᵀ(diag p − ppᵀ)F without its cancellation: a variance that all topics share
    drops out of C before anything is squared. Coordinates are reversed (see
    :class:`~torch_lntm.solvers.gaussian.GaussianPosterior`).

    Args:
        prior: Prior of eta.
        p: ``(num_docs, num_topics)`` weights that sum to 1.
        lengths: ``(num_docs,)`` tokens.

    Returns:
        ``(num_docs, dim, dim)``.
    """
    factor = prior.factor.flip(1)
    centred = factor - (p @ factor)[:, None, :]
    precision = centred.mT @ (centred * (lengths[:, None] * p)[..., None])
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


def taylor(
    batch: DocumentBatch,
    topics: Tensor,
    prior: GaussianPrior,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    temperature: float = 1.0,
) -> GaussianPosterior:
    """Solve the Taylor posterior of each document (*Ahmed & Xing 2007, eqs 8–12*).

    The mean is a local mode of log p(w, eta) with the topic assignments summed out: the fixed
    points of eqs 10 and 12, reached by ascent instead of the paper's undamped iteration, which
    does not converge on some documents. The precision is eq. 9, Σ⁻¹ + N(diag θ − θθᵀ): it leaves
    out that the assignments are uncertain too, so the posterior is narrower than Laplace's.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``temperature`` is not 1.
        prior: Prior of eta.
        start: ``(num_docs, dim)`` starting means.
        tolerance: Nats of Newton decrement at which a document has converged.
        max_iterations: Bound on the steps of each document.
        temperature: Inverse temperature; the covariance returned is not divided by it.

    Returns:
        The posterior; its objective is Laplace's approximation of log p(w) with this precision.
    """
    objective = Objective(batch, topics, prior, None, temperature)
    z, value, converged, iterations = maximise_mean(
        objective, prior.whiten(start), tolerance=tolerance, max_iterations=max_iterations
    )
    mean = prior.unwhiten(z)
    theta = torch.softmax(prior.lift(mean), -1)
    precision = complete_information(prior, theta, batch.lengths)
    whitened = inverse_cholesky(precision, batch.index)
    half_log_det = whitened.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
    return GaussianPosterior(
        prior, mean, converged, iterations, value + half_log_det, whitened=whitened
    )
