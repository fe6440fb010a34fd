"""Least-squares regressions of many outcomes and draws, with or without random terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from torch_lntm.effects.design import WHOLE, Design
from torch_lntm.effects.regression import (
    Parts,
    StandardErrors,
    between,
    grid_of,
    sandwich,
    with_unknown,
)
from torch_lntm.errors import ConfigError
from torch_lntm.solvers.arrow import Arrow, Levels

#: Bounds of the penalties, number of updates, and relative change of the last update.
MIN_PENALTY, MAX_PENALTY, UPDATES, TOLERANCE = 1e-6, 1e8, 200, 1e-9
#: Maximum number of pairs of levels of different terms.
MAX_PAIRS = 2**22


@dataclass(frozen=True, eq=False)
class RandomTerms:
    """Random terms of a linear regression.

    Attributes:
        sums: Sums over documents.
        ratios: ``(num_draws, num_responses, num_terms)`` ratios of the residual variance to each
            term's, by restricted maximum likelihood.
        residual: ``(num_responses,)`` standard deviation of the residuals.
    """

    sums: _Sums
    ratios: Tensor
    residual: Tensor

    @cached_property
    def effects(self) -> tuple[Tensor, Tensor]:
        """Effects of all levels, term by term, and their variances, pooled over draws.

        Each term's standard deviation τ is integrated out (:func:`grid_of`), in units of that of
        the residuals, while other terms keep their estimates.

        Returns:
            Two arrays ``(num_responses, num_levels)``.
        """
        found = [self._of_draw(draw, ratio) for draw, ratio in enumerate(self.ratios)]
        means, variances = map(torch.stack, zip(*found, strict=True))
        return means.mean(0), variances.mean(0) + (1 + 1 / len(found)) * means.var(0)

    def _of_draw(self, draw: int, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the effects in a draw."""
        low = torch.full_like(ratio[:, 0], -0.5 * math.log(MAX_PENALTY))
        high = torch.full_like(low, -0.5 * math.log(MIN_PENALTY))
        parts = []
        for term in range(ratio.shape[1]):
            at = partial(self._at, draw, ratio, term)
            _, weights, (means, variances) = grid_of(at, low, high)
            mean = (weights[..., None] * means).sum(0)
            total = variances + (means - mean).square()
            parts.append((mean, (weights[..., None] * total).sum(0)))
        means, variances = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        return means, variances

    def _at(
        self, draw: int, ratio: Tensor, term: int, log_scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Slope of the restricted likelihood in log(τ/σ), and the effects with their variances."""
        sums, ratio = self.sums, ratio.clone()
        ratio[:, term] = (-2 * log_scale).exp()
        system, dense, main = sums.solve(draw, ratio)
        residual = sums.rest(draw, dense, main) / sums.freedom
        of_levels = (sums.of_levels(dense, main), sums.of_levels(*system.inverse_diagonal()))
        mean, spread = (part.split(sums.levels.sizes, 1)[term] for part in of_levels)
        by_row = mean.square() / residual[:, None] + spread
        slope = (ratio[:, term, None] * by_row).sum(1) - sums.levels.sizes[term]
        return slope, mean, residual[:, None] * spread


@dataclass(frozen=True, eq=False)
class LinearRegression:
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
    #: Topics whose proportion is almost 0 at some values, which only the logit can tell.
    separated = ()

    def predict(self, x: Tensor, weights: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
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

    def variances(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of a function of each response's coefficients: within, and between draws.

        Args:
            gradients: ``(num_responses, num_coefficients)``.

        Returns:
            Two arrays ``(num_responses,)``. A function of a direction that a cluster alone
            determines has the variance infinity.
        """
        row = gradients[:, None]
        within = (row @ self.within @ row.mT)[:, 0, 0]
        return with_unknown(within, gradients, self.unknown), between(self.moved(gradients))

    def moved(self, gradients: Tensor) -> Tensor:
        """Deviations ``(num_responses, num_draws)`` of such a function from its mean over draws."""
        return torch.einsum("srt,rt->rs", self.deviations, gradients)


def regress_linear(
    design: Design, parts: Parts, responses: Tensor, kind: StandardErrors = "HC3"
) -> LinearRegression:
    """Regress every draw of every response on the design, and pool over draws.

    Args:
        design: The design.
        parts: The draws.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.
        kind: Kind of standard errors. Ignored with clusters and with random terms.

    Raises:
        ConfigError: There are too many levels.
    """
    sums = _Sums(design, parts, responses)
    if sums.levels.num_levels:
        return _with_levels(sums)
    draws, x = sums.dense, design.x  # the basis is orthonormal

    def residuals_of(rows: Tensor, theta: Tensor) -> Tensor:
        return (theta @ responses.mT - x[rows] @ draws).permute(2, 0, 1)[..., None]

    def corrected(rows: Tensor, residuals: Tensor) -> Tensor:
        return residuals / (1 - design.leverage[rows, None]).clamp_min(1 - WHOLE)

    shape = (len(responses), len(draws), 1)
    within, variance = sandwich(design, parts, shape, residuals_of, corrected, kind)
    if kind == "classical" and design.strata is None:
        within = variance * torch.eye(x.shape[1]).to(x)
    mean = draws.mean(0).mT
    return LinearRegression(mean, within, draws.mT - mean, design.freedom, design.directions)


class _Sums:
    """Sums over documents that suffice for a regression: Gram matrix, products, squared outcomes.

    Args:
        design: The design.
        parts: The draws.
        responses: As for :func:`regress_linear`.

    Attributes:
        dense: ``(num_draws, num_dense, num_outcomes)`` products with the dense columns.
        main: ``(num_draws, largest, num_outcomes)`` products with the levels of the largest term.
        squares: ``(num_draws, num_outcomes)``.

    Raises:
        ConfigError: There are too many levels.
    """

    def __init__(self, design: Design, parts: Parts, responses: Tensor) -> None:
        x, weights, positions = design.x, design.weights[:, None], design.positions
        self.levels, (num_docs, self.num_fixed) = Levels(design.sizes), x.shape
        self.freedom = num_docs - self.num_fixed
        if self.levels.num_pairs > MAX_PAIRS:
            raise ConfigError(
                f"the random terms have {self.levels.sizes} levels, and more than {MAX_PAIRS:,} "
                "pairs of levels; leave out a term, or make its levels coarser"
            )
        dense = by_level = squares = torch.zeros((), dtype=torch.float64)
        for rows, theta in parts():
            outcomes = theta @ responses.mT
            weighted = weights[rows] * outcomes
            dense = dense + x[rows].mT @ weighted
            flat = weighted.transpose(0, 1).flatten(1)
            by_level = by_level + self.levels.sums(flat, positions[rows])
            squares = squares + (weighted * outcomes).sum(1)
        other, main = self.levels.divide(by_level.unflatten(1, dense.shape[::2]))
        self.dense = torch.cat([dense, other.transpose(0, 1)], 1)
        self.main, self.squares = main.transpose(0, 1), squares
        counts = self.levels.sums(weights, positions)[:, 0]
        pairs = self.levels.pairs(weights[:, 0], positions)
        crossed = self.levels.sums(weights * x, positions)
        self.gram = self.levels.gram((weights * x).mT @ x, crossed, counts, pairs)

    def solve(self, draw: int, ratio: Tensor) -> tuple[Arrow, Tensor, Tensor]:
        """Precision of the coefficients, relative to the residuals', and the coefficients.

        Args:
            draw: The draw.
            ratio: ``(num_outcomes, num_terms)`` ratio of the residual variance to each term's.
        """
        other, main = self.levels.divide(self.levels.repeat(ratio).mT)
        penalties = torch.cat([other.new_zeros(self.num_fixed, len(ratio)), other]).mT
        system = self.gram.plus(penalties, main.mT)
        found = system.solve(self.dense[draw].mT[..., None], self.main[draw].mT[..., None])
        return system, found[0][..., 0], found[1][..., 0]

    def rest(self, draw: int, dense: Tensor, main: Tensor) -> Tensor:
        """Penalised sums of squares of the residuals ``(num_outcomes,)``."""
        explained = (dense * self.dense[draw].mT).sum(1) + (main * self.main[draw].mT).sum(1)
        return (self.squares[draw] - explained).clamp_min(1e-300)

    def of_levels(self, dense: Tensor, main: Tensor) -> Tensor:
        """Values of all levels ``(num_outcomes, num_levels)``, from those of the columns."""
        return self.levels.join(dense[:, self.num_fixed :].mT, main.mT).mT

    def totals(self, dense: Tensor, main: Tensor) -> Tensor:
        """Sums of values over the levels of each term ``(num_outcomes, num_terms)``."""
        parts = self.of_levels(dense, main).split(self.levels.sizes, 1)
        return torch.stack([part.sum(1) for part in parts], 1)


def _with_levels(sums: _Sums) -> LinearRegression:
    """The regression with normally distributed level effects, and covariances under that model."""
    (num_draws, num_responses), fixed = sums.squares.shape, slice(sums.num_fixed)
    ratio = torch.ones(num_responses, len(sums.levels.sizes), dtype=torch.float64)
    by_draw, determined = [], 0.0
    for draw in range(num_draws):
        ratio, residual, gamma = _variances(sums, draw, ratio)
        system, dense, _ = sums.solve(draw, ratio)
        of_draw = (
            dense[:, fixed],
            residual[:, None, None] * system.dense_inverse[:, fixed, fixed],
            residual,
            ratio,
        )
        by_draw.append(of_draw)
        determined += float(gamma.sum(1).mean()) / num_draws
    draws, within, residuals, ratios = map(torch.stack, zip(*by_draw, strict=True))
    return LinearRegression(
        draws.mean(0),
        within.mean(0),
        draws - draws.mean(0),
        max(1.0, sums.freedom - determined),
        spread=(residuals[..., None] / ratios).mean(0).sqrt(),
        random=RandomTerms(sums, ratios, residuals.mean(0).sqrt()),
    )


def _variances(sums: _Sums, draw: int, ratio: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Variances of a draw's terms and residuals, by restricted maximum likelihood.

    MacKay's fixed point r = γ σ²/|b|², accelerated by Steffensen's method, finds the ratio r of the
    residual variance σ² to the variance of a term. Here b are the effects of the term's levels, and
    γ is the number of them that the data determine.

    Returns:
        The ratios ``(num_outcomes, num_terms)``, the residual variance ``(num_outcomes,)``, and
        determined coefficients of each term.
    """
    path = [ratio.log()]
    for _ in range(UPDATES):
        ratio = path[-1].exp()
        system, dense, main = sums.solve(draw, ratio)
        residual = sums.rest(draw, dense, main) / sums.freedom
        trace = sums.totals(*system.inverse_diagonal())
        gamma = (torch.tensor(sums.levels.sizes) - ratio * trace).clamp_min(0.0)
        squares = sums.totals(dense.square(), main.square()).clamp_min(1e-300)
        path.append((gamma * residual[:, None] / squares).clamp(MIN_PENALTY, MAX_PENALTY).log())
        # Without any effect, a term's ratio drifts to infinity, where nothing changes any more.
        if float((path[-1] - path[-2]).abs().max()) < TOLERANCE:
            break
        if len(path) == 3:  # the limit of a geometric series through the last three ratios
            first, second, third = path
            share = ((third - second) / (second - first)).nan_to_num(0.0).clamp(-0.9, 0.99)
            limit = third + (third - second) * share / (1 - share)
            path = [limit.clamp(math.log(MIN_PENALTY), math.log(MAX_PENALTY))]
    return ratio, residual, gamma
