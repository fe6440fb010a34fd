"""The full-covariance Taylor posterior (Ahmed & Xing 2007)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.factor import GaussianFactorSpace
from torch_lntm.latents.linalg import inverse_cholesky
from torch_lntm.latents.normal import EtaSpace, NormalSpace
from torch_lntm.posteriors.normal import LowRankPosterior, ModePosterior, NormalPosterior
from torch_lntm.solvers.ascent import Objective, maximise_mean
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision


def find_mode(
    batch: DocumentBatch, topics: Tensor, space: EtaSpace, options: SolveOptions
) -> ModePosterior:
    """A local mode of log p(w, eta) of each document, with the topic assignments summed out.

    The modes are the fixed points of *Ahmed & Xing 2007, eqs 10 and 12*, but they are reached by
    ascent because the paper's undamped iteration fails to converge on some documents.

    Arguments as for :func:`torch_lntm.solvers.taylor.taylor`.

    Returns:
        The modes. The objective is log p(w, eta) at the mode, without the prior's normalising
        constant.
    """
    ascent = maximise_mean(
        Objective(batch, topics, space, None, options.inverse_temperature),
        space.whiten(options.start),
        tolerance=options.tolerance,
        max_iterations=options.max_iterations,
    )
    return ModePosterior(
        space=space,
        mean=space.unwhiten(ascent.point.z),
        index=batch.index,
        converged=ascent.converged,
        iterations=ascent.iterations,
        objective=ascent.point.value,
    )


#: :func:`find_mode`, in float64 for the documents that need it.
mode = in_sufficient_precision(find_mode)


def complete_information(space: NormalSpace, p: Tensor, lengths: Tensor) -> Tensor:
    """Whitened precisions B = I + N·Cᵀ diag(p) C, C = F − 1(pᵀF), F the lifted factor.

    B equals I + N·Fᵀ(diag p − ppᵀ)F without the cancellation: a common shift of all topics drops
    out of C before the squares. Coordinates are reversed (see
    :class:`~torch_lntm.posteriors.NormalPosterior`).

    Args:
        space: Whitened prior of eta.
        p: ``(num_docs, num_topics)`` weights with sum 1.
        lengths: ``(num_docs,)`` tokens.

    Returns:
        ``(num_docs, dim, dim)``.
    """
    factor = space.factor.flip(1)
    root = (factor - (p @ factor)[:, None, :]).mul_((lengths[:, None] * p).sqrt()[..., None])
    precision = root.mT @ root
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


def exact_information(space: NormalSpace, p: Tensor, lengths: Tensor) -> Tensor:
    """:func:`complete_information`, formed in float64 from arguments of any dtype."""
    p = p.double()
    # Weights of lower precision sum to 1 only up to their rounding, which the centring would feel.
    p = p / p.sum(-1, keepdim=True)
    return complete_information(space.to(torch.float64), p, lengths.double())


def low_rank_covariance(
    space: GaussianFactorSpace, weights: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of (AAᵀ + Λ⁻¹)⁻¹ + diag w − wwᵀ/N as diag(d) + WWᵀ.

    The derivation conditions on the sources s. Given s, eta has precision Λ + diag w − wwᵀ/N, hence
    covariance diag 1/(λ+w) + uuᵀ/Σr with u = w/(λ+w) and r = λw/(λ+w). Its mean changes with s by
    T_k = (1−u_k) a_k + u_k ā, ā = Σ r_k a_k / Σr. The sources have precision B = I + Σ_k r_k
    (a_k−ā)(a_k−ā)ᵀ, a sum of positive terms free of cancellation. Hence d = 1/(λ+w) and W = [T R,
    u/(Σr)^½] with RRᵀ = B⁻¹. The log determinant is log|B| + Σ log(1+w/λ) + log(Σr/N).

    Args:
        space: A and Λ.
        weights: ``(num_docs, num_topics)`` w = N·theta; zeros for an empty document.
        index: ``(num_docs,)`` corpus positions, to name documents in an error.

    Returns:
        d ``(num_docs, num_topics)``, W ``(num_docs, num_topics, num_sources + 1)`` and the log
        determinant of the inverse of diag(d) + WWᵀ times AAᵀ + Λ⁻¹ ``(num_docs,)``; float64.
    """
    w, precision, mixing = (x.double() for x in (weights, space.noise_precision, space.mixing))
    lengths = w.sum(-1)
    diagonal = 1.0 / (precision + w)
    u = w * diagonal
    r = precision * u
    # The sum is 0 only for an empty document, with u = 0 too.
    total = torch.where(lengths > 0, r.sum(-1), 1.0)
    average = (r @ mixing / total[:, None])[:, None, :]
    centred = mixing - average
    # Reversed coordinates, as in every whitened precision: the inverse of the Cholesky factor then
    # gives a lower triangular root of the covariance.
    information = (centred.mT @ (r[..., None] * centred)).flip(1, 2)
    information.diagonal(dim1=-2, dim2=-1).add_(1.0)
    inverse = inverse_cholesky(information, index)
    root = inverse.mT.flip(1, 2)
    slope = mixing - u[..., None] * centred
    loading = torch.cat([slope @ root, (u / total[:, None].sqrt())[..., None]], -1)
    shared = torch.where(lengths > 0, (total / lengths.clamp_min(1.0)).log(), 0.0)
    log_det = torch.log1p(w / precision).sum(-1) + shared
    log_det = log_det - 2.0 * inverse.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return diagonal, loading, log_det


@in_sufficient_precision
def taylor(
    batch: DocumentBatch, topics: Tensor, space: EtaSpace, options: SolveOptions
) -> NormalPosterior:
    """Solve the Taylor posterior of each document (*Ahmed & Xing 2007, eqs 8–12*).

    The mean is a local mode of log p(w, eta) with the topic assignments summed out, a fixed point
    of eqs 10 and 12. It is reached by ascent, because the paper's undamped iteration fails to
    converge on some documents. The precision, Σ⁻¹ + N(diag θ − θθᵀ) of eq. 9, leaves out the
    uncertainty of the assignments, so that the posterior is narrower than Laplace's.

    Under a factor prior everything costs num_topics × num_sources² per document rather than
    num_topics³, with an equal result.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``inverse_temperature`` is not 1.
        space: Whitened prior of eta.
        options: Starting means ``(num_docs, eta_dim)``. The tolerance is the Newton decrement of a
            converged document in nats, and the returned covariance is not divided by T.

    Returns:
        The posterior, a :class:`~torch_lntm.posteriors.LowRankPosterior` under a factor prior. Its
        objective is Laplace's approximation of log p(w) with this precision.

    Raises:
        NumericalError: A precision is not positive definite; names documents.

    Example:
        >>> from torch_lntm.solvers.taylor import SolveOptions, taylor
        >>> space, topics = model.prior.space(batch), model.topics.probs.detach()
        >>> options = SolveOptions(torch.zeros(5, space.eta_dim), 1e-3, max_iterations=50)
        >>> post = taylor(batch, topics, space, options)
        >>> post.mean.shape, bool(post.converged.all())
        (torch.Size([5, 10]), True)
    """
    mode = find_mode(batch, topics, space, options)
    theta = mode.topic_weights()
    if space.has_low_rank:
        space = cast(GaussianFactorSpace, space)
        weights = batch.lengths[:, None] * theta
        diagonal, loading, log_det = low_rank_covariance(space, weights, batch.index)
        return LowRankPosterior.around(
            mode,
            objective=mode.objective - 0.5 * log_det,
            diagonal=diagonal.to(theta.dtype),
            loading=loading.to(theta.dtype),
            weights=weights,
            log_det=log_det,
        )
    dense = space.marginal()
    whitened = inverse_cholesky(
        complete_information(dense, theta, batch.lengths),
        batch.index,
        lambda rows: exact_information(dense, theta[rows], batch.lengths[rows]),
    )
    half_log_det = whitened.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
    objective = mode.objective + half_log_det
    return NormalPosterior.around(mode, space=dense, objective=objective, whitened=whitened)
