"""Multinomial logit regression of topic proportions, with sandwich covariances.

The expected proportions are softmax(Bᵀx), as in the fractional logit of *Papke & Wooldridge 1996*,
for all topics together. Predictions lie between 0 and 1, and sum to 1 over the topics. A regression
of each topic by itself would lose the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.effects.design import Design
from torch_lntm.effects.regression import Parts, StandardErrors, between, correction, with_unknown
from torch_lntm.errors import ConfigError, NumericalError

#: Maximum number of coefficients. The covariance has the square of it.
MAX_COEFFICIENTS = 5000
#: Newton steps for the mean of the draws, steps from it to each draw, and their tolerance.
NEWTON_STEPS, DRAW_STEPS, TOLERANCE = 100, 20, 1e-14
#: Maximum number of draws in the average of the sandwich covariance.
SANDWICH_DRAWS = 10
#: Expected proportion of a document, below which the columns separate the topic from documents.
MIN_PROPORTION = 1e-7
#: Maximum number of values in memory at once.
MAX_NUMBERS = 2**23


@dataclass(frozen=True, eq=False)
class LogitRegression:
    """A multinomial logit regression, pooled over draws.

    The last topic has the coefficients 0. Coefficients are in the basis of the design, and flat
    vectors of them go topic by topic.

    Attributes:
        coefficients: ``(num_terms, num_topics)`` means over draws.
        inverse: ``(num_coefficients, num_coefficients)`` inverse J⁻¹ of the information.
        meat: ``(num_coefficients, num_coefficients)`` covariance M of the score. The covariance of
            a single regression is J⁻¹MJ⁻¹.
        deviations: ``(num_draws, num_coefficients)`` coefficients of each draw less their mean.
        freedom: Degrees of freedom of a single regression.
        separated: Topics whose proportion is almost 0 for some values of the columns.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.
        unknown: See :class:`LeastSquares`.
    """

    coefficients: Tensor
    inverse: Tensor
    meat: Tensor
    deviations: Tensor
    freedom: float
    separated: tuple[int, ...]
    responses: Tensor
    unknown: Tensor | None = None

    def predict(
        self, x: Tensor, weights: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`LeastSquares.predict`."""
        average, slopes = response_slopes(_softmax(x, self.coefficients), weights, self.responses)
        return average, torch.stack([(x.mT @ slope)[:, :-1].mT.flatten() for slope in slopes])

    def covariance(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LeastSquares.covariance`."""
        solved = gradients @ self.inverse
        within = solved @ self.meat @ solved.mT
        # No variance is known to be below its rounding error, as of a topic that is almost absent.
        rounding = 1e-15 * solved.square().sum(-1) * self.meat.abs().max()
        within.diagonal(dim1=-2, dim2=-1).copy_(within.diagonal(dim1=-2, dim2=-1).max(rounding))
        within = with_unknown(within, gradients, self.unknown)
        return within, between(gradients @ self.deviations.mT)


def response_slopes(
    theta: Tensor, weights: Tensor, responses: Tensor
) -> tuple[Tensor, Iterator[Tensor]]:
    """Average responses, and their derivatives in the documents' predictors.

    Args:
        theta: ``(num_docs, num_topics)`` expected proportions.
        weights: ``(num_docs,)`` weights with the sum 1.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.

    Returns:
        ``(num_responses,)``, and ``(num_docs, num_topics)`` for each response.
    """
    by_response = theta @ responses.mT
    # Σ_k c_k theta_k has the derivative theta_j (c_j − Σ_k c_k theta_k) in topic j's predictor.
    weighted, pairs = weights[:, None] * theta, zip(responses, by_response.mT, strict=True)
    return weights @ by_response, (weighted * (c - average[:, None]) for c, average in pairs)


def regress_logit(
    design: Design, parts: Parts, responses: Tensor, kind: StandardErrors = "HC1"
) -> LogitRegression:
    """Regress every draw of all topics' proportions on the design, and pool over draws.

    The estimating equations are linear in the proportions, Σ_d w x (theta_d − softmax(Bᵀx_d))ᵀ = 0.
    The sums over documents of each draw therefore suffice for the coefficients.

    Args:
        design: As for :func:`regress`.
        parts: As for :func:`regress`.
        responses: As for :func:`regress`.
        kind: Kind of standard errors. Ignored with clusters. ``"classical"`` is the information
            with the dispersion of Pearson's residuals. ``"HC2"`` and ``"HC3"`` take the leverages
            of the weighted regression.

    Raises:
        ConfigError: There are too many coefficients.
        NumericalError: The regression did not converge.
    """
    x, w = design.x, design.weights
    size = x.shape[1] * (responses.shape[1] - 1)
    if not 0 < size <= MAX_COEFFICIENTS:
        raise ConfigError(
            f"the logit has {size:,} coefficients; expected 1 to {MAX_COEFFICIENTS:,}. "
            "Use link='identity', or a formula with fewer terms"
        )
    cross = torch.zeros((), dtype=torch.float64)
    for rows, theta in parts():
        cross = cross + (w[rows, None] * x[rows]).mT @ theta
    mean, information = _maximise(x, w, cross.mean(0))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(information))
    draws = torch.stack([_move(x, w, mean, inverse, sums) for sums in cross])
    pooled = draws.mean(0)
    meat = correction(design, kind) * _meat(design, parts, draws, information, inverse, kind)
    separated = (_softmax(x, pooled).amin(0) < MIN_PROPORTION).nonzero().squeeze(-1)
    return LogitRegression(
        pooled,
        inverse,
        meat,
        (draws - pooled)[..., :-1].mT.flatten(1),
        design.freedom,
        tuple(separated.tolist()),
        responses,
        design.directions,
    )


def _softmax(x: Tensor, coefficients: Tensor) -> Tensor:
    """Expected proportions ``(..., num_docs, num_topics)``."""
    return torch.softmax(x @ coefficients, -1)


def _maximise(x: Tensor, w: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients ``(num_terms, num_topics)`` at the mean of the draws, by damped Newton steps.

    Returns:
        The coefficients, and the information ``(num_coefficients, num_coefficients)``.
    """

    def objective(coefficients: Tensor) -> Tensor:
        return (cross * coefficients).sum() - w @ (x @ coefficients).logsumexp(-1)

    def newton(coefficients: Tensor) -> Any:
        score = _score(x, w, cross, coefficients)
        information = _information(x, w, coefficients)
        information.diagonal().add_(1e-12 * information.diagonal().max())
        step = torch.linalg.solve(information, score)
        return (_as_coefficients(step, cross),), float(score @ step), information

    (found,), information = ascend(
        (torch.zeros_like(cross),), objective, newton, TOLERANCE * len(x)
    )
    return found, information


def ascend(
    at: Any, objective: Callable[..., Tensor], newton: Callable[..., Any], tolerance: float
) -> Any:
    """The maximum of a concave function by damped Newton steps, and the last step's system.

    Args:
        at: The start: tensors, which are the arguments of the functions.
        objective: The function.
        newton: The step at a point, the product of score and step, and the system of equations.
        tolerance: The product of score and step that ends the ascent.

    Raises:
        NumericalError: The steps do not converge.
    """
    value = float(objective(*at))
    for _ in range(NEWTON_STEPS):
        change, decrement, system = newton(*at)
        size, gain = 1.0, -math.inf
        while size > 1e-6 and not gain >= -1e-12 * abs(value):
            moved = tuple(x + size * dx for x, dx in zip(at, change, strict=True))
            gain = float(objective(*moved)) - value
            size /= 2
        at, value = moved, value + gain
        if decrement < tolerance:
            return at, system
    raise NumericalError(
        "the logit regression of the proportions did not converge: some topics are absent for some "
        "values of the columns; use link='identity'"
    )


def _score(x: Tensor, w: Tensor, cross: Tensor, coefficients: Tensor) -> Tensor:
    return (cross - x.mT @ (w[:, None] * _softmax(x, coefficients)))[:, :-1].mT.flatten()


def _as_coefficients(vector: Tensor, like: Tensor) -> Tensor:
    """Coefficients ``(num_terms, num_topics)`` of a vector, with a last topic of zeros."""
    num_terms, num_topics = like.shape
    return torch.cat([vector.view(num_topics - 1, num_terms).mT, like.new_zeros(num_terms, 1)], 1)


def _information(x: Tensor, w: Tensor, coefficients: Tensor) -> Tensor:
    """Σ_d w (diag(theta) − theta thetaᵀ) ⊗ xxᵀ without the last topic."""
    num_terms, num_topics = coefficients.shape
    size = (num_topics - 1) * num_terms
    total = x.new_zeros(size, size)
    for rows, weights in zip(*(y.split(_step(size)) for y in (x, w)), strict=True):
        theta = _softmax(rows, coefficients)[:, :-1]
        scaled = (theta[:, :, None] * rows[:, None]).flatten(1)
        total -= scaled.mT @ (weights[:, None] * scaled)
        outer = (weights[:, None] * theta).mT @ (rows[:, :, None] * rows[:, None]).flatten(1)
        blocks = total.view(num_topics - 1, num_terms, num_topics - 1, num_terms)
        blocks.diagonal(dim1=0, dim2=2).add_(outer.view(-1, num_terms, num_terms).permute(1, 2, 0))
    return (total + total.mT) / 2


def _step(size: int) -> int:
    """Documents at once, for ``size`` values of each."""
    return max(1, MAX_NUMBERS // size)


def _move(x: Tensor, w: Tensor, start: Tensor, inverse: Tensor, cross: Tensor) -> Tensor:
    """Coefficients of a draw, by steps with the mean's information, or by Newton steps.

    The information of the mean is wrong for a draw far from the mean. Example: a topic is rare in
    this draw and frequent in all other draws. Newton steps then take over.
    """
    coefficients = start
    for _ in range(DRAW_STEPS):
        score = _score(x, w, cross, coefficients)
        step = inverse @ score
        coefficients = coefficients + _as_coefficients(step, cross)
        if float(score @ step) < 100 * TOLERANCE * len(x):
            return coefficients
    return _maximise(x, w, cross)[0]


def _meat(
    design: Design,
    parts: Parts,
    draws: Tensor,
    information: Tensor,
    inverse: Tensor,
    kind: StandardErrors,
) -> Tensor:
    """Covariance Σ s sᵀ of the score, for scores s of documents or clusters, mean over draws."""
    chosen = torch.linspace(0, len(draws) - 1, min(len(draws), SANDWICH_DRAWS)).round().long()
    coefficients, pooled = draws[chosen], draws.mean(0)
    num_draws, num_terms, num_topics = coefficients.shape
    size = (num_topics - 1) * num_terms
    meat, spread = draws.new_zeros(size, size), draws.new_zeros(num_topics - 1, num_topics - 1)
    sums = draws.new_zeros(num_draws, design.num_clusters or 0, size)
    pearson = 0.0
    factor = design.weights.clone()
    if design.clusters is None:
        factor[design.alone] = 0.0
    for rows, theta in parts():
        x, w, expected = design.x[rows], design.weights[rows], _softmax(design.x[rows], pooled)
        residuals = theta[chosen] - _softmax(x, coefficients)
        pearson += float((w @ (residuals.square() / expected).mean(0)).sum())
        residuals = residuals[..., :-1]
        spread += torch.einsum("n,cni,cnj->ij", w / num_draws, residuals, residuals)
        if design.clusters is None and kind in ("HC2", "HC3"):
            residuals = _corrected(residuals, x, w, expected[:, :-1], inverse, kind)
        weighted = factor[rows, None] * x
        for of_draw, residual in zip(sums, residuals, strict=True):
            for at in torch.arange(len(x)).split(_step(size)):
                scores = (residual[at, :, None] * weighted[at, None]).flatten(1)
                if design.clusters is None:
                    meat += scores.mT @ scores / num_draws
                else:
                    of_draw.index_add_(0, design.clusters[rows[at]], scores)
    freedom = len(design.x) - num_terms
    if design.clusters is not None:
        return sums.flatten(0, 1).mT @ sums.flatten(0, 1) / num_draws
    if kind == "classical":
        return pearson / freedom / (num_topics - 1) * information
    # Documents that alone determine a coefficient have the classical variance.
    lone = design.weights[design.alone, None].sqrt() * design.x[design.alone]
    return meat + torch.kron(spread / freedom, lone.mT @ lone)


def _corrected(
    residuals: Tensor, x: Tensor, w: Tensor, expected: Tensor, inverse: Tensor, kind: StandardErrors
) -> Tensor:
    """Residuals ``(num_draws, num_docs, num_topics - 1)`` corrected for the leverages.

    A document's residuals have the covariance V = W − w W X J⁻¹Xᵀ W under the model, for its
    covariance W of proportions. HC2 gives them the covariance W, and HC3 multiplies by W V⁻¹.
    """
    num_terms, num_free = x.shape[1], expected.shape[1]
    by_column = inverse.view(num_free, num_terms, -1).permute(1, 0, 2).flatten(1)
    found = []
    for at in torch.arange(len(x)).split(_step(num_free**2 * num_terms)):
        p, rows = expected[at], x[at]
        middle = (rows @ by_column).view(len(at), num_free, num_free, num_terms)
        middle = (middle * rows[:, None, None]).sum(-1)
        outer = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        lone = w[at] * rows.square().sum(1) > 1 - 1e-10
        used = torch.where(lone, 0.0, w[at])[:, None, None]
        left = outer - used * (outer @ middle @ outer)
        errors = residuals[:, at].permute(1, 2, 0)
        if kind == "HC3":
            errors = outer @ torch.linalg.solve(left, errors)
        else:
            root = torch.linalg.solve_triangular(torch.linalg.cholesky(left), errors, upper=False)
            errors = torch.linalg.cholesky(outer) @ root
        found.append(errors.permute(2, 0, 1))
    return torch.cat(found, 1)
