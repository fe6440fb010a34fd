"""Least-squares regression of many outcomes and many draws on a common design."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torch_lntm.effects.design import Design

#: Standard errors for equal variances of the outcomes, or robust to unequal variances (*MacKinnon &
#: White 1985*).
StandardErrors = Literal["classical", "HC0", "HC1", "HC2", "HC3"]


class Part(NamedTuple):
    """Draws of the proportions of some documents.

    Attributes:
        rows: ``(num_docs,)`` positions of the documents in the design.
        theta: ``(num_draws, num_docs, num_topics)``, float64.
    """

    rows: Tensor
    theta: Tensor


#: A function that iterates over all documents in parts, in the same order at each call.
Parts = Callable[[], Iterator[Part]]


@dataclass(frozen=True, eq=False)
class RandomTerms:
    """Random terms of a linear regression, pooled over draws.

    Attributes:
        effects: ``(num_responses, num_levels)`` effects of all levels, term by term.
        variances: ``(num_responses, num_levels)`` variances of the effects.
        residual: ``(num_responses,)`` standard deviation of the residuals.
    """

    effects: Tensor
    variances: Tensor
    residual: Tensor


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """A linear regression, pooled over draws (*Rubin 1987*).

    The responses are topics, or sums over groups of topics. Coefficients and covariances are in the
    basis of the design.

    Attributes:
        coefficients: ``(num_responses, num_terms)`` means over draws.
        within: ``(num_responses, num_terms, num_terms)`` covariance of a single regression, mean
            over draws.
        deviations: ``(num_draws, num_responses, num_terms)`` coefficients less their means.
        freedom: Degrees of freedom of a single regression.
        unknown: ``(num_terms, num_directions)`` directions of unknown variance, if any.
        spread: ``(num_responses, num_random_terms)`` standard deviation of each random term's
            effects, if any.
        random: The random terms, if any.
    """

    coefficients: Tensor
    within: Tensor
    deviations: Tensor
    freedom: float
    unknown: Tensor | None = None
    spread: Tensor | None = None
    random: RandomTerms | None = None

    def predict(
        self, x: Tensor, weights: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Average predictions over documents, and their derivatives in the coefficients.

        Args:
            x: ``(num_docs, num_terms)`` rows in the basis of the design.
            weights: ``(num_docs,)`` weights with the sum 1.
            positions: Levels of random terms, which have the effect 0 here.

        Returns:
            ``(num_responses,)``, and ``(num_responses, num_coefficients)``.
        """
        row = weights @ x
        return self.coefficients @ row, row.expand(len(self.coefficients), -1)

    def covariance(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances of functions of the coefficients: within draws, and between draws.

        Args:
            gradients: ``(num_responses, num_functions, num_coefficients)``.

        Returns:
            Two arrays ``(num_responses, num_functions, num_functions)``. A function of a direction
            that a cluster alone determines has the variance infinity.
        """
        within = with_unknown(gradients @ self.within @ gradients.mT, gradients, self.unknown)
        moved = torch.einsum("srt,rmt->rms", self.deviations, gradients)
        return within, between(moved)


def between(moved: Tensor) -> Tensor:
    """Covariances between draws, of functions' deviations ``(..., num_functions, num_draws)``."""
    return moved @ moved.mT / max(1, moved.shape[-1] - 1)


def with_unknown(within: Tensor, gradients: Tensor, unknown: Tensor | None) -> Tensor:
    """Covariances of functions, with infinite variances along the unknown directions."""
    if unknown is None:
        return within
    parts = gradients.unflatten(-1, (-1, len(unknown))) @ unknown
    share = parts.square().sum((-2, -1)) / gradients.square().sum(-1).clamp_min(1e-300)
    return within + torch.diag_embed(torch.where(share > 1e-16, torch.inf, 0.0))


def correction(design: Design, kind: StandardErrors) -> float:
    """Factor of the covariance for few documents or clusters."""
    num_docs, num_terms = design.raw.shape
    count = design.num_clusters
    if count is not None:  # as in Stata
        return count / (count - 1) * (num_docs - 1) / (num_docs - num_terms)
    return num_docs / (num_docs - num_terms) if kind == "HC1" else 1.0


def regress(
    design: Design, parts: Parts, responses: Tensor, kind: StandardErrors = "HC3"
) -> LeastSquares:
    """Regress every draw of every response on the design, and pool over draws.

    A document that alone determines a coefficient has no residual. Its part of a robust covariance
    has the classical variance.

    Args:
        design: The design.
        parts: The draws.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.
        kind: Kind of standard errors. Ignored with clusters.
    """
    x, weights = design.x, design.weights
    draws = torch.zeros((), dtype=torch.float64)
    for rows, theta in parts():
        draws = draws + (weights[rows, None] * x[rows]).mT @ (theta @ responses.mT)
    num_docs, num_terms = x.shape
    num_draws, _, num_responses = draws.shape  # (num_draws, num_terms, num_responses)
    meat = x.new_zeros(num_responses, num_terms**2)
    sums = x.new_zeros(design.num_clusters or 0, num_draws, num_responses, num_terms)
    variance = x.new_zeros(num_responses)
    power = {"HC2": 1, "HC3": 2}.get(kind, 0)
    factor = weights.square() * (1 - design.leverage).clamp_min(1e-300) ** -power
    factor[design.alone] = 0.0
    for rows, theta in parts():
        residuals = theta @ responses.mT - x[rows] @ draws
        squares = residuals.square().mean(0)
        variance += weights[rows] @ squares / (num_docs - num_terms)
        if design.clusters is None:
            outer = (x[rows, :, None] * x[rows, None]).flatten(1)
            meat += (factor[rows, None] * squares).mT @ outer
        else:
            scores = (
                residuals.transpose(0, 1)[..., None]
                * (weights[rows, None] * x[rows])[:, None, None]
            )
            sums.index_add_(0, design.clusters[rows], scores)
    classical = variance[:, None, None] * torch.eye(num_terms).to(x)
    if design.clusters is not None:
        within = torch.einsum("gskp,gskq->kpq", sums, sums) / num_draws
    elif kind == "classical":
        within = classical
    else:
        lone = weights[design.alone, None].sqrt() * x[design.alone]
        within = meat.unflatten(1, (num_terms, num_terms)) + classical @ (lone.mT @ lone)
    by_draw = draws.mT
    mean, within = by_draw.mean(0), correction(design, kind) * within
    return LeastSquares(mean, within, by_draw - mean, design.freedom, design.directions)
