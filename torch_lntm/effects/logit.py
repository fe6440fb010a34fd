"""Multinomial logit regression of topic proportions, with sandwich covariances.

The expected proportions are softmax(Bᵀx), as in the fractional logit of *Papke & Wooldridge 1996*,
for all topics together. Predictions lie between 0 and 1, and sum to 1 over the topics. A regression
of each topic by itself would lose the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.effects.regression import Part
from torch_lntm.errors import ConfigError, NumericalError

#: Maximum number of coefficients. The covariance has the square of it.
MAX_COEFFICIENTS = 5000
#: Newton steps for the mean of the draws, steps from it to each draw, and their tolerance.
NEWTON_STEPS, DRAW_STEPS, TOLERANCE = 100, 20, 1e-8
#: Maximum number of draws in the average of the sandwich covariance.
SANDWICH_DRAWS = 10
#: Expected proportion of a document, below which the columns separate the topic from documents.
MIN_PROPORTION = 1e-7
#: Maximum number of values in memory at once.
MAX_NUMBERS = 2**23


@dataclass(frozen=True, eq=False)
class LogitRegression:
    """A multinomial logit regression, pooled over draws.

    The last topic has the coefficients 0. Coefficients are in the order topic by topic.

    Attributes:
        coefficients: ``(num_terms, num_topics)`` means over draws.
        within: ``(num_coefficients, num_coefficients)`` sandwich covariance of a single regression.
        deviations: ``(num_draws, num_coefficients)`` coefficients of each draw less their mean.
        freedom: Degrees of freedom of a single regression.
        separated: Topics whose proportion is almost 0 for some values of the columns.
    """

    coefficients: Tensor
    within: Tensor
    deviations: Tensor
    freedom: float
    separated: tuple[int, ...]

    def predict(
        self, x: Tensor, weights: Tensor, responses: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Average predictions over documents, and their derivatives in the coefficients.

        Args:
            x: ``(num_docs, num_terms)`` rows of the design.
            weights: ``(num_docs,)`` weights with the sum 1.
            responses: ``(num_responses, num_topics)`` matrix from topics to responses.
            positions: Levels of random terms, which this regression lacks.

        Returns:
            ``(num_responses,)`` predictions, and ``(num_responses, num_coefficients)`` derivatives.
        """
        theta = _softmax(x, self.coefficients)
        by_response = theta @ responses.mT
        # Σ_k c_k theta_k has the derivative theta_j (c_j − Σ_k c_k theta_k) in topic j's predictor.
        rows = []
        for c, average in zip(responses, by_response.mT, strict=True):
            slopes = weights[:, None] * theta * (c - average[:, None])
            rows.append((slopes[:, :-1].mT @ x).flatten())
        return weights @ by_response, torch.stack(rows)

    def variances(self, derivatives: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of linear functions of the coefficients: within draws, and between draws.

        Args:
            derivatives: ``(num_functions, num_coefficients)``.
        """
        within = (derivatives @ self.within * derivatives).sum(1).clamp_min(0.0)
        between = (self.deviations @ derivatives.mT).square().sum(0)
        return within, between / max(1, len(self.deviations) - 1)


def regress_logit(
    parts: Callable[[], Iterator[Part]], num_clusters: int | None = None
) -> LogitRegression:
    """Regress every draw of all topics' proportions on the design, and pool over draws.

    The estimating equations are linear in the proportions, Σ_d w x (theta_d − softmax(Bᵀx_d))ᵀ = 0.
    The sums over documents of each draw therefore suffice for the coefficients. Standard errors
    are robust to any variance of the proportions, and have the factor n/(n − num_terms) for few
    documents.

    Args:
        parts: As for ``regress``; the outcomes are the proportions of all topics.
        num_clusters: As for ``regress``.

    Raises:
        ConfigError: There are too many coefficients.
        NumericalError: The regression did not converge.
    """
    designs, all_weights, cross = [], [], torch.zeros((), dtype=torch.float64)
    for part in parts():
        weighted = part.weights[:, None] * part.design
        cross = cross + weighted.mT @ part.outcomes
        designs.append(part.design)
        all_weights.append(part.weights)
        _check_size(part)
    x, w = torch.cat(designs), torch.cat(all_weights)
    # An orthonormal design makes Newton's steps exact to rounding for columns of any size.
    root = torch.linalg.cholesky(x.mT @ (w[:, None] * x)).mT
    basis = torch.linalg.inv(root)
    x, cross = x @ basis, basis.mT @ cross
    mean, information = _maximise(x, w, cross.mean(0))
    num_terms, num_topics = mean.shape
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(information))
    draws = torch.stack([_move(x, w, mean, inverse, sums) for sums in cross])
    pooled = draws.mean(0)
    chosen = torch.linspace(0, len(draws) - 1, min(len(draws), SANDWICH_DRAWS)).round().long()
    meat = _meat(parts, basis, draws, chosen, num_clusters)
    num_docs = len(x)
    scale = num_docs / (num_docs - num_terms)
    freedom = num_docs - num_terms
    if num_clusters is not None:
        scale = num_clusters / (num_clusters - 1) * (num_docs - 1) / (num_docs - num_terms)
        freedom = num_clusters - 1
    separated = (_softmax(x, pooled).amin(0) < MIN_PROPORTION).nonzero().squeeze(-1)
    back = torch.block_diag(*[basis] * (num_topics - 1))
    within = back @ (scale * (inverse @ meat @ inverse)) @ back.mT
    deviations = (draws - pooled)[..., :-1].mT.flatten(1) @ back.mT
    return LogitRegression(
        basis @ pooled, within, deviations, float(freedom), tuple(separated.tolist())
    )


def _check_size(part: Part) -> None:
    num_coefficients = part.design.shape[1] * (part.outcomes.shape[-1] - 1)
    if not 0 < num_coefficients <= MAX_COEFFICIENTS:
        raise ConfigError(
            f"the logit has {num_coefficients:,} coefficients; expected 1 to {MAX_COEFFICIENTS:,}. "
            "Use link='identity', or a formula with fewer terms"
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

    coefficients = torch.zeros_like(cross)
    value = objective(coefficients)
    for _ in range(NEWTON_STEPS):
        score = (cross - x.mT @ (w[:, None] * _softmax(x, coefficients)))[:, :-1].mT.flatten()
        information = _information(x, w, coefficients)
        information.diagonal().add_(1e-12 * information.diagonal().max())
        step = torch.linalg.solve(information, score)
        change = _as_coefficients(step, cross)
        size = 1.0
        while size > 1e-6 and not objective(coefficients + size * change) >= value:
            size /= 2
        coefficients = coefficients + size * change
        gain, value = objective(coefficients) - value, objective(coefficients)
        if float(score @ step) < TOLERANCE and float(gain) < TOLERANCE:
            return coefficients, information
    raise NumericalError(
        "the logit regression of the proportions did not converge: some topics are absent for some "
        "values of the columns; use link='identity'"
    )


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
        score = (cross - x.mT @ (w[:, None] * _softmax(x, coefficients)))[:, :-1].mT.flatten()
        step = inverse @ score
        coefficients = coefficients + _as_coefficients(step, cross)
        if float(score @ step) < TOLERANCE:
            return coefficients
    return _maximise(x, w, cross)[0]


def _meat(
    parts: Callable[[], Iterator[Part]],
    basis: Tensor,
    draws: Tensor,
    chosen: Tensor,
    num_clusters: int | None,
) -> Tensor:
    """Σ s sᵀ over documents or clusters, for their scores s; mean over the chosen draws."""
    coefficients = draws[chosen]
    num_draws, num_terms, num_topics = coefficients.shape
    size = (num_topics - 1) * num_terms
    total = coefficients.new_zeros(size, size)
    sums = coefficients.new_zeros(num_draws, num_clusters or 0, size)
    for part in parts():
        x = part.design @ basis
        residuals = (part.outcomes[chosen] - _softmax(x, coefficients))[..., :-1]
        x = part.weights[:, None] * x
        for of_draw, residual in zip(sums, residuals, strict=True):
            for at in torch.arange(len(x)).split(_step(size)):
                scores = (residual[at, :, None] * x[at, None]).flatten(1)
                if part.clusters is None:
                    total += scores.mT @ scores
                else:
                    of_draw.index_add_(0, part.clusters[at], scores)
    return (total + sums.flatten(0, 1).mT @ sums.flatten(0, 1)) / num_draws
