"""Lower bounds on log p(w) from any normal posterior of eta."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels.mixture import mixture_log_likelihood
from torch_lntm.posteriors.normal import NormalPosterior


def tangent_log_normaliser(logits: Tensor, variance: Tensor) -> Tensor:
    """Upper bound lse(m + diag V / 2) on E lse(eta), eta ~ N(m, V).

    *Ahmed & Xing 2007, eq. 15; Khan & Bouchard 2009, eq. 14*, at the best ζ or ξ.

    Args:
        logits: ``(num_docs, num_topics)`` m.
        variance: ``(num_docs, num_topics)`` diag V.

    Returns:
        ``(num_docs,)``.
    """
    return torch.logsumexp(logits + 0.5 * variance, -1)


def tangent_weights(posterior: NormalPosterior) -> Tensor:
    """Weights t with log Σ_k t_k φ_k ≤ E log Σ_k θ_k φ_k for all positive φ, by the tangent bound.

    Args:
        posterior: Any normal posterior of documents' eta.

    Returns:
        ``(num_docs, num_topics)`` float64, exp(m_k − lse(m + diag V / 2)); rows sum to less than 1.
    """
    logits = posterior.space.lift(posterior.mean.double())
    variance = posterior.space.lift(posterior.variance.double())
    return (logits - tangent_log_normaliser(logits, variance)[:, None]).exp()


def tilted_log_normaliser(logits: Tensor, covariance: Tensor) -> Tensor:
    """Upper bound min_a [lse_k(m_k + V_kk/2 − (Va)_k) + ½aᵀVa] on E lse(eta), eta ~ N(m, V).

    Every a gives a bound (a = 0 gives the tangent bound). It is convex in a, with the minimum at a
    = softmax(m + diag V/2 − Va). Damped Newton steps start from a = softmax(m + diag V/2) or from
    0, whichever gives the lower bound. In contrast to the tangent bound, it does not charge for
    variance along the common shift of all topics, to which softmax is invariant.

    Args:
        logits: ``(num_docs, num_topics)`` m, float64.
        covariance: ``(num_docs, num_topics, num_topics)`` V, float64.

    Returns:
        ``(num_docs,)``.
    """
    shifted = logits + 0.5 * covariance.diagonal(dim1=-2, dim2=-1)

    def evaluate(a: Tensor) -> tuple[Tensor, Tensor]:
        product = (covariance @ a[..., None]).squeeze(-1)
        value = torch.logsumexp(shifted - product, -1) + 0.5 * (a * product).sum(-1)
        return value, torch.softmax(shifted - product, -1)

    a = torch.softmax(shifted, -1)
    value, q = evaluate(a)
    zero_value, zero_q = evaluate(torch.zeros_like(a))
    lower = zero_value < value
    a = torch.where(lower[:, None], 0.0, a)
    value, q = torch.where(lower, zero_value, value), torch.where(lower[:, None], zero_q, q)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(50):
        # Hessian V + VHV and gradient V(a − q), H = diag q − qqᵀ: (I + HV) δ = q − a.
        weighted = q[..., None] * covariance - q[..., None] * (q[:, None, :] @ covariance)
        delta = torch.linalg.solve(eye + weighted, q - a)
        slope = ((q - a)[:, None, :] @ covariance @ delta[..., None]).flatten()
        active = slope > 1e-10
        if not bool(active.any()):
            break
        step = torch.where(active, 1.0, 0.0)
        for _ in range(40):
            trial = a + step[:, None] * delta
            trial_value, trial_q = evaluate(trial)
            too_high = active & (trial_value > value - 1e-4 * step * slope + 1e-13 * value.abs())
            if not bool(too_high.any()):
                break
            step = torch.where(too_high, step / 2.0, step)
        better = active & (trial_value <= value)
        if not bool(better.any()):
            break
        a = torch.where(better[:, None], trial, a)
        value = torch.where(better, trial_value, value)
        q = torch.where(better[:, None], trial_q, q)
    return value


def gaussian_bound(
    batch: DocumentBatch, topics: Tensor, posterior: NormalPosterior, kind: str = "tilted"
) -> Tensor:
    """Lower bound on each document's log p(w): loglik(e^m) − N·b(m, V) − KL(posterior ‖ prior).

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        posterior: Any normal posterior of their eta.
        kind: Bound b on E lse(eta), ``"tangent"`` or ``"tilted"``. Defaults to ``"tilted"``.

    Returns:
        ``(num_docs,)`` float64 nats.

    Raises:
        ConfigError: The kind is unknown.

    Example:
        >>> from torch_lntm.solvers.bounds import gaussian_bound
        >>> topics, post = model.topics.probs.detach(), guide.posterior(batch)
        >>> gaussian_bound(batch, topics, post, "tilted").shape
        torch.Size([5])
    """
    if kind not in ("tangent", "tilted"):
        raise ConfigError(f"bound kind {kind!r}; expected 'tangent' or 'tilted'")
    space = posterior.space
    logits = space.lift(posterior.mean)
    log_likelihood = mixture_log_likelihood(torch.softmax(logits, -1), topics, batch)
    logits = logits.double()
    if kind == "tangent":
        normaliser = tangent_log_normaliser(logits, space.lift(posterior.variance.double()))
    else:
        # Lifted on both sides: with a row and a column of zeros if anchored.
        covariance = space.lift(space.lift(posterior.covariance.double()).mT)
        normaliser = tilted_log_normaliser(logits, covariance)
    gap = normaliser - torch.logsumexp(logits, -1)
    return log_likelihood - batch.lengths.double() * gap - posterior.kl()
