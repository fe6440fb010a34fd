"""Least squares with random terms, such as ``(1 | author)``, for many outcomes and many draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.effects.regression import Part, Pooled
from torch_lntm.errors import ConfigError
from torch_lntm.solvers.arrow import Arrow, Levels

#: Bounds of the penalties, number of updates, and relative change of the last update.
MIN_PENALTY, MAX_PENALTY, UPDATES, TOLERANCE = 1e-6, 1e8, 200, 1e-3
#: Share of a column's squares within levels, up to which the column is constant within levels.
CONSTANT = 1e-9
#: Maximum number of pairs of levels of different terms, and of sums over levels in memory.
MAX_PAIRS, MAX_SUMS = 2**22, 2**27


@dataclass(frozen=True, eq=False)
class RandomTerms:
    """Random terms of a regression, pooled over draws.

    Attributes:
        effects: ``(num_outcomes, num_levels)`` effects of all levels, term by term.
        variances: ``(num_outcomes, num_levels)`` variances of the effects.
        spread: ``(num_outcomes, num_terms)`` standard deviation of each term's effects.
        residual: ``(num_outcomes,)`` standard deviation of the residuals.
        sizes: Number of levels of each term.
        freedoms: ``(num_terms,)`` degrees of freedom of each term's variance: its levels, less the
            columns that are constant within the levels.
    """

    effects: Tensor
    variances: Tensor
    spread: Tensor
    residual: Tensor
    sizes: tuple[int, ...]
    freedoms: tuple[float, ...]


@dataclass(eq=False)
class _Sums:
    """Sums over documents: Gram matrix, products with the outcomes, and squared outcomes."""

    gram: Arrow
    dense: Tensor  # (num_draws, num_dense, num_outcomes)
    levels: Tensor  # (num_draws, largest, num_outcomes)
    squares: Tensor  # (num_draws, num_outcomes)
    num_docs: int
    num_fixed: int


def regress_mixed(
    parts: Callable[[], Iterator[Part]], sizes: tuple[int, ...]
) -> tuple[Pooled, RandomTerms]:
    """Regress every draw of every outcome on the design and on levels with normal effects.

    The variances of each term's effects and of the residuals maximise the restricted likelihood,
    for each draw and outcome. They are found by MacKay's fixed point r = γ σ²/|b|², for the ratio
    r of the variances, effects b and their number of determined coefficients γ. Covariances are
    those of the model. Degrees of freedom follow the containment rule: a column that is constant
    within the levels of a term has as many as the term has levels, less the number of such columns.

    Args:
        parts: As for ``regress``, with ``positions`` of the levels.
        sizes: Number of levels of each term.

    Returns:
        The pooled coefficients of the design, and the random terms.

    Raises:
        ConfigError: There are too few documents, or too many levels.
    """
    levels = Levels(sizes)
    sums = _add_up(parts(), levels)
    num_fixed, num_draws = sums.num_fixed, len(sums.dense)
    num_outcomes = sums.dense.shape[2]
    ratio = torch.ones(num_outcomes, len(sizes), dtype=torch.float64)
    coefficients, effects, within, variances, spreads, residuals = [], [], [], [], [], []
    determined = torch.zeros((), dtype=torch.float64)
    for draw in range(num_draws):
        ratio, residual, gamma = _variances(sums, draw, ratio, levels)
        system = _penalised(sums.gram, ratio, levels, num_fixed)
        dense, main = _solve(system, sums, draw)
        coefficients.append(dense[:, :num_fixed])
        effects.append(_join(levels, dense[:, num_fixed:], main))
        within.append(residual[:, None, None] * system.dense_inverse[:, :num_fixed, :num_fixed])
        first, last = system.inverse_diagonal()
        variances.append(residual[:, None] * _join(levels, first[:, num_fixed:], last))
        spreads.append(residual[:, None] / ratio)
        residuals.append(residual)
        determined = determined + gamma.sum(1).mean() / num_draws
    draws = torch.stack(coefficients, 1)  # (num_outcomes, num_draws, num_terms)
    mean = draws.mean(1)
    centred = draws - mean[:, None]
    between = centred.mT @ centred / max(1, num_draws - 1)
    freedom = max(1.0, sums.num_docs - num_fixed - float(determined))
    of_columns, of_terms = _containment(sums, levels, freedom)
    pooled = Pooled(
        mean,
        torch.stack(within).mean(0),
        between,
        num_draws,
        freedom,
        of_columns,
    )
    by_draw = torch.stack(effects)
    total = torch.stack(variances).mean(0) + (1 + 1 / num_draws) * by_draw.var(0)
    terms = RandomTerms(
        by_draw.mean(0),
        total,
        torch.stack(spreads).mean(0).sqrt(),
        torch.stack(residuals).mean(0).sqrt(),
        tuple(sizes),
        of_terms,
    )
    return pooled, terms


def _add_up(parts: Iterator[Part], levels: Levels) -> _Sums:
    """Sums over all documents."""
    total: list[Tensor] = []
    num_docs = 0
    if levels.num_pairs > MAX_PAIRS:
        raise ConfigError(
            f"the random terms have {levels.sizes} levels, and more than {MAX_PAIRS:,} pairs of "
            "levels; leave out a term, or make its levels coarser"
        )
    for part in parts:
        assert part.positions is not None
        num_draws, size, num_outcomes = part.outcomes.shape
        if num_draws * levels.num_levels * num_outcomes > MAX_SUMS:
            raise ConfigError(
                f"{num_draws} draws of {num_outcomes} topics for {levels.num_levels} levels need "
                "too much memory; regress some of the topics (topics=), or take fewer draws"
            )
        weighted = part.weights[:, None] * part.design
        outcomes = part.outcomes.permute(1, 0, 2).reshape(size, -1)
        by_level = levels.sums(part.weights[:, None] * outcomes, part.positions)
        new = [
            weighted.mT @ part.design,
            levels.sums(weighted, part.positions),
            levels.sums(part.weights[:, None], part.positions)[:, 0],
            levels.pairs(part.weights, part.positions),
            weighted.mT @ part.outcomes,
            by_level.view(-1, num_draws, num_outcomes),
            (part.weights[:, None] * part.outcomes.square()).sum(1),
        ]
        total = [a + b for a, b in zip(total, new, strict=True)] if total else new
        num_docs += size
    columns, crossed, counts, pairs, dense, by_level, squares = total
    if num_docs <= len(columns):
        raise ConfigError(
            f"{num_docs} documents with words for {len(columns)} coefficients; expected more "
            "documents"
        )
    other, main = levels.divide(by_level)
    gram = levels.gram(columns, crossed, counts, pairs)
    dense = torch.cat([dense, other.transpose(0, 1)], 1)
    return _Sums(gram, dense, main.transpose(0, 1), squares, num_docs, len(columns))


def _penalised(gram: Arrow, ratio: Tensor, levels: Levels, num_fixed: int) -> Arrow:
    """Precision of the coefficients relative to the residuals', by outcome."""
    penalties = levels.repeat(ratio).mT
    other, main = levels.divide(penalties)
    return gram.plus(torch.cat([other.new_zeros(num_fixed, len(ratio)), other]).mT, main.mT)


def _solve(system: Arrow, sums: _Sums, draw: int) -> tuple[Tensor, Tensor]:
    """Coefficients by outcome ``(num_outcomes, num_dense)`` and ``(num_outcomes, largest)``."""
    dense, main = system.solve(sums.dense[draw].mT[..., None], sums.levels[draw].mT[..., None])
    return dense[..., 0], main[..., 0]


def _join(levels: Levels, other: Tensor, main: Tensor) -> Tensor:
    """Values by outcome of all levels ``(num_outcomes, num_levels)``."""
    return levels.join(other.mT, main.mT).mT


def _variances(
    sums: _Sums, draw: int, ratio: Tensor, levels: Levels
) -> tuple[Tensor, Tensor, Tensor]:
    """Variances of a draw's terms and residuals, by restricted maximum likelihood.

    Returns:
        Ratio of the residual variance to each term's ``(num_outcomes, num_terms)``, residual
        variance ``(num_outcomes,)``, and determined coefficients of each term.
    """
    num_fixed = sums.num_fixed
    for _ in range(UPDATES):
        system = _penalised(sums.gram, ratio, levels, num_fixed)
        dense, main = _solve(system, sums, draw)
        explained = (dense * sums.dense[draw].mT).sum(1) + (main * sums.levels[draw].mT).sum(1)
        residual = (sums.squares[draw] - explained).clamp_min(1e-300) / (sums.num_docs - num_fixed)
        first, last = system.inverse_diagonal()
        squares = _join(levels, dense[:, num_fixed:], main).square().split(levels.sizes, 1)
        spreads = _join(levels, first[:, num_fixed:], last).split(levels.sizes, 1)
        length = torch.stack([part.sum(1) for part in squares], 1)
        trace = torch.stack([part.sum(1) for part in spreads], 1)
        gamma = (torch.tensor(levels.sizes) - ratio * trace).clamp_min(0.0)
        new = gamma * residual[:, None] / length.clamp_min(1e-300)
        new = new.clamp(MIN_PENALTY, MAX_PENALTY)
        change = (new / ratio).log().abs().max()
        ratio = new
        # Terms without effect drift towards an infinite ratio, where nothing changes any more.
        if float(change) < TOLERANCE:
            break
    return ratio, residual, gamma


def _containment(sums: _Sums, levels: Levels, freedom: float) -> tuple[Tensor, tuple[float, ...]]:
    """Degrees of freedom by the containment rule.

    Returns:
        Degrees of freedom ``(num_fixed,)`` of the coefficients, and of each term's variance.
    """
    bounds = []
    result = torch.full((sums.num_fixed,), freedom, dtype=torch.float64)
    fixed = sums.gram.dense[: sums.num_fixed, : sums.num_fixed].diagonal()
    other = sums.gram.dense[sums.num_fixed :, : sums.num_fixed]
    crossed = levels.join(other, sums.gram.crossed[: sums.num_fixed].mT)
    counts = levels.join(
        sums.gram.dense.diagonal()[sums.num_fixed :], sums.gram.diagonal
    ).clamp_min(1e-300)
    for size, x, n in zip(
        levels.sizes, crossed.split(levels.sizes), counts.split(levels.sizes), strict=True
    ):
        within = fixed - (x.square() / n[:, None]).sum(0)
        constant = within <= CONSTANT * fixed
        bounds.append(float(max(1, size - int(constant.sum()))))
        result = result.where(~constant, result.clamp_max(bounds[-1]))
    return result, tuple(bounds)
