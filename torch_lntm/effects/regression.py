"""Least-squares regression of many outcomes and many draws on a common design."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError

#: Standard errors for equal variances of the outcomes, or robust to unequal variances (*MacKinnon &
#: White 1985*).
StandardErrors = Literal["classical", "HC0", "HC1", "HC2", "HC3"]


class Part(NamedTuple):
    """Data of some documents, float64.

    Attributes:
        design: ``(num_docs, num_terms)``.
        outcomes: ``(num_draws, num_docs, num_outcomes)``.
        weights: ``(num_docs,)``.
        clusters: ``(num_docs,)`` int64 cluster of each document; None without clusters.
        positions: ``(num_docs, num_terms)`` int64 level in each random term; None without terms.
    """

    design: Tensor
    outcomes: Tensor
    weights: Tensor
    clusters: Tensor | None
    positions: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Pooled:
    """Coefficients pooled over draws of the outcomes (*Rubin 1987*).

    Attributes:
        coefficients: ``(num_outcomes, num_terms)`` means over draws.
        within: ``(num_outcomes, num_terms, num_terms)`` covariance of a single regression, mean
            over draws.
        between: ``(num_outcomes, num_terms, num_terms)`` covariance of the coefficients between
            draws.
        num_draws: Number of draws.
        freedom: Degrees of freedom of a single regression.
        freedoms: ``(num_terms,)`` degrees of freedom of each coefficient, if they differ.
    """

    coefficients: Tensor
    within: Tensor
    between: Tensor
    num_draws: int
    freedom: float
    freedoms: Tensor | None = None


def regress(
    parts: Callable[[], Iterator[Part]],
    standard_errors: StandardErrors = "HC3",
    num_clusters: int | None = None,
) -> Pooled:
    """Regress every draw of every outcome on the design, and pool over draws.

    Args:
        parts: A function that iterates over all documents in parts, in the same order at each call.
            Robust standard errors need a second call.
        standard_errors: Kind of standard errors. Ignored with clusters.
        num_clusters: Number of clusters of dependent documents, with Stata's correction for few
            clusters. None for independent documents.

    Returns:
        The pooled coefficients.

    Raises:
        ConfigError: There are too few documents or clusters.
    """
    if standard_errors not in get_args(StandardErrors):
        raise ConfigError(
            f"standard_errors is {standard_errors!r}; expected one of "
            f"{', '.join(get_args(StandardErrors))}"
        )
    gram, cross, squares, num_docs = _normal_equations(parts())
    num_terms = len(gram)
    if num_docs <= num_terms:
        raise ConfigError(
            f"{num_docs} documents with words for {num_terms} coefficients; expected more documents"
        )
    if num_clusters is not None and num_clusters < 2:
        raise ConfigError(f"{num_clusters} cluster; expected at least 2")
    inverse = torch.linalg.inv(gram)
    inverse = (inverse + inverse.mT) / 2
    draws = inverse @ cross  # (num_draws, num_terms, num_outcomes)
    if num_clusters is not None:
        meat = _cluster_meat(parts(), draws, num_clusters)
        scale = num_clusters / (num_clusters - 1) * (num_docs - 1) / (num_docs - num_terms)
        within = scale * (inverse @ meat @ inverse)
    elif standard_errors == "classical":
        residual = (squares - (draws * cross).sum(1)).mean(0) / (num_docs - num_terms)
        within = residual[:, None, None] * inverse
    else:
        meat = _robust_meat(parts(), draws, inverse, standard_errors)
        scale = num_docs / (num_docs - num_terms) if standard_errors == "HC1" else 1.0
        within = scale * (inverse @ meat @ inverse)
    by_outcome = draws.permute(2, 0, 1)  # (num_outcomes, num_draws, num_terms)
    mean = by_outcome.mean(1)
    centred = by_outcome - mean[:, None]
    between = centred.mT @ centred / max(1, len(draws) - 1)
    freedom = num_docs - num_terms if num_clusters is None else num_clusters - 1
    return Pooled(mean, within, between, len(draws), float(freedom))


def _normal_equations(parts: Iterator[Part]) -> tuple[Tensor, Tensor, Tensor, int]:
    """XᵀWX, XᵀWy by draw, yᵀWy by draw and outcome, and the number of documents."""
    gram = cross = squares = torch.zeros((), dtype=torch.float64)
    num_docs = 0
    for part in parts:
        weighted = part.weights[:, None] * part.design
        gram = gram + weighted.mT @ part.design
        cross = cross + weighted.mT @ part.outcomes
        squares = squares + (part.weights[:, None] * part.outcomes.square()).sum(1)
        num_docs += len(part.design)
    return gram, cross, squares, num_docs


def _robust_meat(
    parts: Iterator[Part], draws: Tensor, inverse: Tensor, standard_errors: StandardErrors
) -> Tensor:
    """Σ_d w²e²xxᵀ by outcome ``(num_outcomes, num_terms, num_terms)``, mean over draws."""
    power = {"HC0": 0, "HC1": 0, "HC2": 1, "HC3": 2}[standard_errors]
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        residuals = part.outcomes - part.design @ draws
        leverage = part.weights * ((part.design @ inverse) * part.design).sum(1)
        # A document that determines a coefficient alone has residual 0 and leverage 1.
        correction = (1.0 - leverage).clamp_min(1e-10) ** -power
        squares = residuals.square().mean(0) * (part.weights.square() * correction)[:, None]
        outer = (part.design[:, :, None] * part.design[:, None, :]).flatten(1)
        total = total + squares.mT @ outer
    return total.unflatten(1, (len(inverse), len(inverse)))


def _cluster_meat(parts: Iterator[Part], draws: Tensor, num_clusters: int) -> Tensor:
    """Σ_g (Σ_d wex)(Σ_d wex)ᵀ by outcome, mean over draws, for documents d of cluster g."""
    num_draws, num_terms, num_outcomes = draws.shape
    sums = draws.new_zeros(num_clusters, num_draws, num_outcomes, num_terms)
    for part in parts:
        assert part.clusters is not None
        residuals = (part.outcomes - part.design @ draws).permute(1, 0, 2)
        scores = residuals[..., None] * (part.weights[:, None] * part.design)[:, None, None, :]
        sums.index_add_(0, part.clusters, scores)
    return torch.einsum("gskp,gskq->kpq", sums, sums) / num_draws
