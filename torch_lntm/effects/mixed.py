"""Least squares with random terms, such as ``(1 | author)``, for many outcomes and many draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.effects.design import Design
from torch_lntm.effects.regression import LeastSquares, Parts, RandomTerms
from torch_lntm.errors import ConfigError
from torch_lntm.solvers.arrow import Arrow, Levels

#: Bounds of the penalties, number of updates, and relative change of the last update.
MIN_PENALTY, MAX_PENALTY, UPDATES, TOLERANCE = 1e-6, 1e8, 200, 1e-9
#: Share of a column's squares within levels, up to which the column is constant within levels.
CONSTANT = 1e-9
#: Maximum number of pairs of levels of different terms, and of sums over levels in memory.
MAX_PAIRS, MAX_SUMS = 2**22, 2**27


@dataclass(eq=False)
class _Sums:
    """Sums over documents: Gram matrix, products with the outcomes, and squared outcomes."""

    gram: Arrow
    dense: Tensor  # (num_draws, num_dense, num_outcomes)
    levels: Tensor  # (num_draws, largest, num_outcomes)
    squares: Tensor  # (num_draws, num_outcomes)
    freedom: int


def regress_mixed(design: Design, parts: Parts, responses: Tensor) -> LeastSquares:
    """Regress every draw of every response on the design and on levels with normal effects.

    The variances of each term's effects and of the residuals maximise the restricted likelihood,
    for each draw and response. They are found by MacKay's fixed point r = γ σ²/|b|², for the ratio
    r of the variances, effects b and their number of determined coefficients γ, with Steffensen's
    acceleration. Covariances are those of the model.

    Args:
        design: The design, with positions of the levels.
        parts: As for :func:`regress`.
        responses: As for :func:`regress`.

    Raises:
        ConfigError: There are too many levels.
    """
    levels = Levels(design.sizes)
    sums = _add_up(design, parts, responses, levels)
    num_fixed, num_draws = design.x.shape[1], len(sums.dense)
    ratio = torch.ones(len(responses), len(design.sizes), dtype=torch.float64)
    coefficients, effects, within, variances, spreads, residuals = [], [], [], [], [], []
    determined = 0.0
    for draw in range(num_draws):
        ratio, residual, gamma = _variances(sums, draw, ratio, levels, num_fixed)
        system = _penalised(sums.gram, ratio, levels, num_fixed)
        dense, main = _solve(system, sums, draw)
        coefficients.append(dense[:, :num_fixed])
        effects.append(_join(levels, dense[:, num_fixed:], main))
        within.append(residual[:, None, None] * system.dense_inverse[:, :num_fixed, :num_fixed])
        first, last = system.inverse_diagonal()
        variances.append(residual[:, None] * _join(levels, first[:, num_fixed:], last))
        spreads.append(residual[:, None] / ratio)
        residuals.append(residual)
        determined += float(gamma.sum(1).mean()) / num_draws
    draws, by_draw = torch.stack(coefficients), torch.stack(effects)
    mean = draws.mean(0)
    total = torch.stack(variances).mean(0) + (1 + 1 / num_draws) * by_draw.var(0)
    return LeastSquares(
        mean,
        torch.stack(within).mean(0),
        draws - mean,
        max(1.0, sums.freedom - determined),
        spread=torch.stack(spreads).mean(0).sqrt(),
        random=RandomTerms(by_draw.mean(0), total, torch.stack(residuals).mean(0).sqrt()),
    )


def containment(design: Design, freedom: float) -> tuple[Tensor, tuple[float, ...]]:
    """Degrees of freedom by the containment rule.

    A column that is constant within the levels of a term has as many as the term has levels, less
    the number of such columns.

    Args:
        design: The design.
        freedom: Degrees of freedom of other columns.

    Returns:
        Degrees of freedom ``(num_terms,)`` of the coefficients, and of each term's variance.
    """
    assert design.positions is not None
    raw, weights = torch.from_numpy(design.raw), design.weights[:, None]
    total = (weights * (raw - (weights * raw).sum(0) / weights.sum()).square()).sum(0)
    result, bounds = torch.full((raw.shape[1],), freedom, dtype=torch.float64), []
    for size, at in zip(design.sizes, design.positions.mT, strict=True):
        sums = raw.new_zeros(size, raw.shape[1] + 1)
        sums.index_add_(0, at, weights * torch.cat([raw, torch.ones_like(weights)], 1))
        means = sums[:, :-1] / sums[:, -1:].clamp_min(1e-300)
        constant = (weights * (raw - means[at]).square()).sum(0) <= CONSTANT * total
        bounds.append(float(max(1, size - int(constant.sum()))))
        result = result.where(~constant, result.clamp_max(bounds[-1]))
    return result, tuple(bounds)


def _add_up(design: Design, parts: Parts, responses: Tensor, levels: Levels) -> _Sums:
    """Sums over all documents."""
    x, weights, positions = design.x, design.weights[:, None], design.positions
    assert positions is not None
    if levels.num_pairs > MAX_PAIRS:
        raise ConfigError(
            f"the random terms have {levels.sizes} levels, and more than {MAX_PAIRS:,} pairs of "
            "levels; leave out a term, or make its levels coarser"
        )
    dense = by_level = squares = torch.zeros((), dtype=torch.float64)
    for rows, theta in parts():
        outcomes = theta @ responses.mT
        if levels.num_levels * outcomes.shape[0] * outcomes.shape[2] > MAX_SUMS:
            raise ConfigError(
                f"{len(theta)} draws of {len(responses)} topics for {levels.num_levels} levels "
                "need too much memory; regress some of the topics (topics=), or take fewer draws"
            )
        weighted = weights[rows] * outcomes
        dense = dense + x[rows].mT @ weighted
        flat = weighted.transpose(0, 1).flatten(1)
        by_level = by_level + levels.sums(flat, positions[rows])
        squares = squares + (weighted * outcomes).sum(1)
    other, main = levels.divide(by_level.view(-1, len(dense), len(responses)))
    counts = levels.sums(weights, positions)[:, 0]
    pairs = levels.pairs(weights[:, 0], positions)
    gram = levels.gram((weights * x).mT @ x, levels.sums(weights * x, positions), counts, pairs)
    dense = torch.cat([dense, other.transpose(0, 1)], 1)
    return _Sums(gram, dense, main.transpose(0, 1), squares, len(x) - x.shape[1])


def _penalised(gram: Arrow, ratio: Tensor, levels: Levels, num_fixed: int) -> Arrow:
    """Precision of the coefficients relative to the residuals', by outcome."""
    other, main = levels.divide(levels.repeat(ratio).mT)
    return gram.plus(torch.cat([other.new_zeros(num_fixed, len(ratio)), other]).mT, main.mT)


def _solve(system: Arrow, sums: _Sums, draw: int) -> tuple[Tensor, Tensor]:
    """Coefficients by outcome ``(num_outcomes, num_dense)`` and ``(num_outcomes, largest)``."""
    dense, main = system.solve(sums.dense[draw].mT[..., None], sums.levels[draw].mT[..., None])
    return dense[..., 0], main[..., 0]


def _join(levels: Levels, other: Tensor, main: Tensor) -> Tensor:
    """Values by outcome of all levels ``(num_outcomes, num_levels)``."""
    return levels.join(other.mT, main.mT).mT


def _variances(
    sums: _Sums, draw: int, ratio: Tensor, levels: Levels, num_fixed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Variances of a draw's terms and residuals, by restricted maximum likelihood.

    Returns:
        Ratio of the residual variance to each term's ``(num_outcomes, num_terms)``, residual
        variance ``(num_outcomes,)``, and determined coefficients of each term.
    """

    def of_terms(dense: Tensor, main: Tensor) -> Tensor:
        """Sums over the levels of each term ``(num_outcomes, num_terms)``."""
        parts = _join(levels, dense[:, num_fixed:], main).split(levels.sizes, 1)
        return torch.stack([part.sum(1) for part in parts], 1)

    path = [ratio.log()]
    for _ in range(UPDATES):
        ratio = path[-1].exp()
        system = _penalised(sums.gram, ratio, levels, num_fixed)
        dense, main = _solve(system, sums, draw)
        explained = (dense * sums.dense[draw].mT).sum(1) + (main * sums.levels[draw].mT).sum(1)
        residual = (sums.squares[draw] - explained).clamp_min(1e-300) / sums.freedom
        trace = of_terms(*system.inverse_diagonal())
        gamma = (torch.tensor(levels.sizes) - ratio * trace).clamp_min(0.0)
        new = gamma * residual[:, None] / of_terms(dense.square(), main.square()).clamp_min(1e-300)
        path.append(new.clamp(MIN_PENALTY, MAX_PENALTY).log())
        # Terms without effect drift towards an infinite ratio, where nothing changes any more.
        if float((path[-1] - path[-2]).abs().max()) < TOLERANCE:
            break
        if len(path) == 3:  # the limit of a geometric series through the last three ratios
            first, second, third = path
            share = ((third - second) / (second - first)).nan_to_num(0.0).clamp(-0.9, 0.99)
            limit = third + (third - second) * share / (1 - share)
            path = [limit.clamp(math.log(MIN_PENALTY), math.log(MAX_PENALTY))]
    return ratio, residual, gamma
