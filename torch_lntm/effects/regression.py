"""Shared by the regressions of both links: draws in parts, pooling and robust covariances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from torch_lntm.effects.design import Design

#: Standard errors for equal variances of the outcomes, or robust to unequal variances (*MacKinnon &
#: White 1985*).
StandardErrors = Literal["classical", "HC1", "HC3"]
#: Most values of a chunk of documents in memory.
MAX_NUMBERS = 2**23


#: A function that iterates over all documents in parts, in the same order at each call: positions
#: of documents in the design, and draws ``(num_draws, num_docs, num_topics)`` of their proportions,
#: float64.
Parts = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def between(moved: Tensor) -> Tensor:
    """Covariances between draws, of functions' deviations ``(..., num_functions, num_draws)``."""
    return moved @ moved.mT / max(1, moved.shape[-1] - 1)


def with_unknown(within: Tensor, gradients: Tensor, unknown: Tensor | None) -> Tensor:
    """Covariances of functions, with infinite variances along directions of unknown variance.

    Args:
        within: ``(..., num_functions, num_functions)``.
        gradients: ``(..., num_functions, num_terms * num_outcomes)``, term by term.
        unknown: ``(num_terms, num_directions)``, if any.
    """
    if unknown is None:
        return within
    parts = gradients.unflatten(-1, (len(unknown), -1)).mT @ unknown
    share = parts.square().sum((-2, -1)) / gradients.square().sum(-1).clamp_min(1e-300)
    return within + torch.diag_embed(torch.where(share > 1e-16, torch.inf, 0.0))


def sandwich(
    design: Design,
    parts: Parts,
    shape: tuple[int, int, int],
    residuals_of: Callable[[Tensor, Tensor], Tensor],
    corrected: Callable[[Tensor, Tensor], Tensor],
    kind: StandardErrors,
) -> tuple[Tensor, Tensor]:
    """Covariance Σ s sᵀ of the score, for scores s of documents or clusters, mean over draws.

    A document that alone determines a coefficient has no residual. Its part has the classical
    variance.

    Args:
        design: The design.
        parts: The draws.
        shape: Number of regressions, of draws, and of outcomes of a regression.
        residuals_of: A function from a part to its residuals
            ``(num_regressions, num_draws, num_docs, num_outcomes)``.
        corrected: A function from positions of documents and their residuals to the residuals
            corrected for the leverages.
        kind: Kind of standard errors. Ignored with clusters.

    Returns:
        ``(num_regressions, num_coefficients, num_coefficients)``, term by term, and the covariance
        ``(num_regressions, num_outcomes, num_outcomes)`` of the residuals.
    """
    (num_docs, num_terms), (num_regressions, num_draws, size) = design.x.shape, shape
    spread = meat = torch.zeros((), dtype=torch.float64)
    count = design.num_clusters
    sums = design.x.new_zeros(count or 0, num_regressions * num_draws * num_terms * size)
    factor = design.weights.square()
    factor[design.alone] = 0.0
    step = MAX_NUMBERS // (num_regressions * size * (num_draws * num_terms + size) + num_terms**2)
    for rows, theta in parts():
        residuals = residuals_of(rows, theta)
        for at in torch.arange(len(rows)).split(max(1, step)):
            docs, errors = rows[at], residuals[:, :, at]
            x, weights = design.x[docs], design.weights[docs]
            spread = spread + torch.einsum("n,rsni,rsnj->rij", weights, errors, errors)
            if design.clusters is not None:
                scores = torch.einsum("nt,rsni->nrsti", weights[:, None] * x, errors)
                sums.index_add_(0, design.clusters[docs], scores.flatten(1))
                continue
            errors = corrected(docs, errors)
            outer = torch.einsum("n,rsni,rsnj->rijn", factor[docs], errors, errors)
            meat = meat + outer @ (x[:, :, None] * x[:, None]).flatten(1)
    dispersion = spread / num_draws / (num_docs - num_terms)
    if count is not None:
        by_cluster = sums.view(count, num_regressions, num_draws, -1)
        found = torch.einsum("grsp,grsq->rpq", by_cluster, by_cluster) / num_draws
        return count / (count - 1) * (num_docs - 1) / (num_docs - num_terms) * found, dispersion
    lone = design.weights[design.alone, None].sqrt() * design.x[design.alone]
    total = meat / num_draws + dispersion[..., None] * (lone.mT @ lone).flatten()
    by_term = total.unflatten(-1, (num_terms, num_terms)).permute(0, 3, 1, 4, 2)
    few = num_docs / (num_docs - num_terms) if kind == "HC1" else 1.0
    return few * by_term.flatten(3).flatten(1, 2), dispersion
