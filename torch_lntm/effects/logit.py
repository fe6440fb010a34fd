"""Multinomial logit regression of topic proportions, with or without random terms.

As in the fractional logit of *Papke & Wooldridge 1996*, a document's expected proportions are
softmax(Bᵀx + Σ_j b_j), for all topics at once. Here b_j holds the effect on each topic of the
document's level in the random term j. Predictions therefore lie between 0 and 1 and sum to 1 over
the topics, whereas separate regressions of each topic would guarantee neither. The coefficients B
of the last topic are fixed at 0, and the effects of levels have ridge penalties that depend on the
term and the topic.

The estimate solves the penalised equations Σ_d w z (theta_d − softmax)ᵀ = P(B, b), where z runs
over the columns and levels (penalised quasi-likelihood, *Breslow & Clayton 1993*). They are linear
in the proportions, so that each draw enters only through its sums over documents.

To find the covariance, write H for the information, P for the penalties and G = (H + P)⁻¹. To first
order, the error of the estimate is G(s − Pb), where the score s has the covariance M and the
effects b have the variances T. The covariance of the error is therefore G(M + PTP)G.

Without random terms, M is the covariance over documents or clusters. With them, M comes from a
model, but not the multinomial one, under which M would be proportional to H. The proportions of
logistic-normal documents vary differently. M therefore has a dispersion matrix Φ between topics: a
document with the expected proportions D has the covariance D^½ΦD^½.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from torch_lntm.effects.design import WHOLE, Design
from torch_lntm.effects.regression import (
    MAX_NUMBERS,
    Parts,
    StandardErrors,
    between,
    grid_of,
    sandwich,
    with_unknown,
)
from torch_lntm.errors import ConfigError, NumericalError, UnreliableEstimateWarning, warn
from torch_lntm.inference.interruption import stops_on_interrupt
from torch_lntm.progress import tqdm
from torch_lntm.solvers.arrow import Levels
from torch_lntm.solvers.block_arrow import BlockArrow

#: Maximum number of coefficients, whose covariance has the square of it, and of values of the
#: design, and between levels and other coefficients or draws.
MAX_COEFFICIENTS, MAX_STORED = 5000, 2**26
#: Newton steps for the mean of the draws, and steps from it to each draw.
NEWTON_STEPS, DRAW_STEPS = 100, 20
#: Maximum number of draws in the average of the covariance.
SANDWICH_DRAWS = 10
#: Below this expected proportion in some document, a topic counts as separated by the columns.
MIN_PROPORTION = 1e-7
#: Bounds of the variances of effects, number of updates, and relative change of the last update.
MIN_VARIANCE, MAX_VARIANCE, UPDATES, CHANGE = 1e-6, 1e4, 200, 1e-3
#: Number of quantiles of the standard deviation of effects.
QUANTILES = 8
#: Levels of predictions: a level absent from the fit, and a level with the effect 0.
NEW, AVERAGE = -1, -2

#: Coefficients, or sums, ``(num_columns, num_topics)`` of the columns and ``(largest, num_topics)``
#: of the levels of the largest term.
Coefficients = tuple[Tensor, Tensor]


class _Equations:
    """The penalised equations over all documents.

    Their columns are the fixed terms in an orthonormal basis, followed by the levels of every
    random term except the largest.

    Args:
        design: The design.
        num_topics: Number of topics.

    Attributes:
        x: ``(num_docs, num_columns)`` the columns.
        main: ``(num_docs,)`` level in the largest term, and the number of levels for no level.
        keep: Positions of the free coefficients among those of the columns and topics.

    Raises:
        ConfigError: The arrays would be too large.
    """

    def __init__(self, design: Design, num_topics: int) -> None:
        self.levels, self.weights = Levels(design.sizes), design.weights
        self.num_fixed, self.num_topics = len(design.names), num_topics
        largest, num_other = self.levels.largest, self.levels.num_other
        free = torch.ones(self.num_fixed + num_other, num_topics, dtype=torch.bool)
        free[: self.num_fixed, -1] = False
        self.keep = free.flatten().nonzero().squeeze(-1)
        size, num_docs = len(self.keep), len(design.x)
        stored = max(size * largest * num_topics, num_docs * num_other)
        if not 0 < size <= MAX_COEFFICIENTS or stored > MAX_STORED:
            raise ConfigError(
                f"the logit has {size:,} coefficients beside {largest:,} levels of {num_topics} "
                f"topics; expected 1 to {MAX_COEFFICIENTS:,} coefficients, and at most "
                f"{MAX_STORED:,} for the product of coefficients, levels and topics. Use "
                "link='identity', or a formula with fewer terms"
            )
        columns = zip(design.positions.mT, self.levels.sizes, strict=True)
        hot = [one_hot(at, size).to(design.x) for at, size in columns if size]
        main = design.positions[:, self.levels.main]
        self.main = main.where(main >= 0, largest)
        del hot[self.levels.main : self.levels.main + 1]
        self.x = torch.cat([design.x, *hot], 1)

    def fill(self, dense: Tensor) -> Tensor:
        """Coefficients of the columns from the free coefficients ``(num_free,)``."""
        full = dense.new_zeros(self.x.shape[1] * self.num_topics)
        full[self.keep] = dense
        return full.view(-1, self.num_topics)

    def predictor(self, at: Coefficients) -> Tensor:
        """Linear predictors ``(num_docs, num_topics)``."""
        return self.x @ at[0] + pad(at[1], (0, 0, 0, 1))[self.main]

    def theta(self, at: Coefficients) -> Tensor:
        """Expected proportions ``(num_docs, num_topics)``."""
        return torch.softmax(self.predictor(at), -1)

    def by_term(self, columns: Tensor, main: Tensor) -> tuple[Tensor, ...]:
        """Values of the levels of each term, from those of the columns and of the main levels."""
        return self.levels.join(columns[self.num_fixed :], main).split(self.levels.sizes)

    def totals(self, columns: Tensor, main: Tensor) -> Tensor:
        """Sums of :meth:`by_term` over the levels of each term ``(num_terms, num_topics)``."""
        return torch.stack([part.sum(0) for part in self.by_term(columns, main)])

    def ridge(self, penalties: Tensor) -> Coefficients:
        """Penalties ``(num_free,)`` of the columns, and ``(num_topics,)`` of main levels."""
        other, _ = self.levels.divide(self.levels.repeat(penalties.mT).mT)
        columns = torch.cat([other.new_zeros(self.num_fixed, self.num_topics), other])
        return columns.flatten()[self.keep], penalties[self.levels.main]

    def assemble(self, theta: Tensor, matrix_of: Callable[[Tensor], Tensor]) -> BlockArrow:
        """Σ_d w zzᵀ ⊗ A_d, for the columns and level z of a document and its matrix A_d of topics.

        Args:
            theta: ``(num_docs, num_topics)`` expected proportions.
            matrix_of: A function from rows of these to ``(num_rows, num_topics, num_topics)``.
        """
        size, num_topics, num_levels = self.x.shape[1], self.num_topics, self.levels.largest
        dense = self.x.new_zeros(num_topics**2, size**2)
        crossed = self.x.new_zeros(num_levels + 1, num_topics, size * num_topics)
        blocks = self.x.new_zeros(num_levels + 1, num_topics, num_topics)
        width = num_topics**2 * (size if num_levels else 1) + size**2
        for at in torch.arange(len(theta)).split(max(1, MAX_NUMBERS // width)):
            x, main = self.x[at], self.main[at]
            a = self.weights[at, None, None] * matrix_of(theta[at])
            dense += a.flatten(1).mT @ (x[:, :, None] * x[:, None]).flatten(1)
            if num_levels:
                crossed.index_add_(0, main, (x[:, None, :, None] * a[:, :, None]).flatten(2))
                blocks.index_add_(0, main, a)
        square = dense.view(num_topics, num_topics, size, size).permute(2, 0, 3, 1)
        square = square.reshape(size * num_topics, -1)[self.keep][:, self.keep]
        return BlockArrow(square, crossed[:-1, :, self.keep], blocks[:-1])

    def system(self, at: Coefficients, ridge: Coefficients) -> BlockArrow:
        """Penalised information."""
        found = self.assemble(
            self.theta(at), lambda rows: torch.diag_embed(rows) - rows[:, :, None] * rows[:, None]
        )
        # Penalties keep the information regular; without levels, a ridge of rounding size does so.
        least = 0.0 if self.levels.num_levels else 1e-12 * found.dense.diagonal().max()
        return found.plus(ridge[0] + least, ridge[1])

    def step(
        self, at: Coefficients, sums: Coefficients, ridge: Coefficients, system: BlockArrow
    ) -> tuple[Coefficients, float]:
        """A Newton step, and the product of the penalised score and the step."""
        rows = self.weights[:, None] * self.theta(at)
        main = rows.new_zeros(self.levels.largest + 1, self.num_topics)
        main = sums[1] - main.index_add_(0, self.main, rows)[:-1] - ridge[1] * at[1]
        dense = (sums[0] - self.x.mT @ rows).flatten()[self.keep]
        dense = dense - ridge[0] * at[0].flatten()[self.keep]
        first, last = system.solve(dense[:, None], main[..., None])
        decrement = dense @ first[:, 0] + (main * last[..., 0]).sum()
        return (self.fill(first[:, 0]), last[..., 0]), float(decrement)

    @property
    def tolerance(self) -> float:
        """The product of score and step below which the Newton steps end."""
        return 1e-8 if self.levels.num_levels else 1e-14 * len(self.x)

    def maximise(
        self, at: Coefficients, sums: Coefficients, ridge: Coefficients
    ) -> tuple[Coefficients, BlockArrow]:
        """Coefficients by damped Newton steps, and the penalised information.

        Raises:
            NumericalError: The steps do not converge.
        """

        def objective(at: Coefficients) -> float:
            value = sum((a * b).sum() for a, b in zip(sums, at, strict=True))
            value = value - self.weights @ self.predictor(at).logsumexp(-1)
            penalty = ridge[0] @ at[0].flatten()[self.keep].square()
            return float(value - 0.5 * (penalty + (ridge[1] * at[1].square()).sum()))

        value = objective(at)
        for _ in range(NEWTON_STEPS):
            system = self.system(at, ridge)
            change, decrement = self.step(at, sums, ridge, system)
            size, gain = 1.0, -math.inf
            while size > 1e-6 and not gain >= -1e-12 * abs(value):
                moved = (at[0] + size * change[0], at[1] + size * change[1])
                gain = objective(moved) - value
                size /= 2
            at, value = moved, value + gain
            if decrement < self.tolerance:
                return at, system
        raise NumericalError(
            "the logit regression of the proportions did not converge: some topics are absent for "
            "some values of the columns; use link='identity'"
        )

    def move(
        self, at: Coefficients, sums: Coefficients, ridge: Coefficients, system: BlockArrow
    ) -> Coefficients:
        """Coefficients of a draw, by steps with the mean's information, or by Newton steps.

        The mean's information is a poor guide to a draw far from the mean, such as one in which a
        topic is rare although all other draws have much of it. Newton steps then take over.
        """
        start = at
        for _ in range(DRAW_STEPS):
            change, decrement = self.step(at, sums, ridge, system)
            at = (at[0] + change[0], at[1] + change[1])
            if decrement < self.tolerance * (1 if self.levels.num_levels else 100):
                return at
        return self.maximise(start, sums, ridge)[0]


class RandomTerms(NamedTuple):
    """Random terms of a logit, pooled over draws.

    Attributes:
        penalties: ``(num_random_terms, num_topics)`` ridge penalty of each term's effects.
        spread: ``(num_random_terms, num_topics)`` standard deviation of each term's effects on the
            scale of the logit.
        dispersion: ``(num_topics, num_topics)`` dispersion matrix of the proportions.
    """

    penalties: Tensor
    spread: Tensor
    dispersion: Tensor


@dataclass(frozen=True, eq=False)
class LogitRegression:
    """A multinomial logit regression, pooled over draws.

    Vectors of coefficients hold the free ones of the columns, column by column, then those of the
    levels of the largest random term.

    Attributes:
        mean: Means over draws of the coefficients.
        deviations: ``(num_draws, num_coefficients)`` coefficients of each draw less their mean.
        system: Penalised information H + P.
        inner: Covariance M + PTP of the penalised score.
        freedom: Degrees of freedom of a single regression.
        separated: Topics whose proportion is almost 0 in some documents.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.
        random: The random terms, of zeros without levels.
        unknown: See :class:`LinearRegression`.
    """

    equations: _Equations
    mean: Coefficients
    deviations: Tensor
    system: BlockArrow
    inner: BlockArrow
    freedom: float
    separated: tuple[int, ...]
    responses: Tensor
    random: RandomTerms
    unknown: Tensor | None

    def at_variances(self, term: int) -> list[tuple[float, LogitRegression]]:
        """Regressions at quantiles of the standard deviations of a term's effects, with weights.

        The standard deviation of each topic has a posterior of its own (:func:`grid_of`), on the
        scale of the logit. The equations are those of the estimate, linearised there.
        """
        equations, levels = self.equations, self.mean[1]
        spread, penalties = self.random.spread, self.random.penalties
        scale, size = penalties[0] * spread[0].square(), equations.levels.sizes[term]
        plain = self.system.plus(*(-part for part in equations.ridge(penalties)))
        meat = self.inner.plus(*(-part for part in equations.ridge(scale * penalties)))
        flat = torch.cat([self.mean[0].flatten()[equations.keep], levels.flatten()])
        flat = torch.cat([flat[:, None], self.deviations.mT], 1)
        dense, main = flat.split([len(equations.keep), levels.numel()])
        sums = self.system.times(dense, main.unflatten(0, levels.shape))

        def regression(log_spread: Tensor) -> LogitRegression:
            of_terms = spread.clone()
            of_terms[term] = log_spread.exp()
            random = RandomTerms(scale / of_terms.square(), of_terms, self.random.dispersion)
            system = plain.plus(*equations.ridge(random.penalties))
            inner = meat.plus(*equations.ridge(scale * random.penalties))
            dense, main = system.solve(*sums)
            mean = (equations.fill(dense[:, 0]), main[..., 0])
            moved = torch.cat([dense[:, 1:], main[..., 1:].flatten(0, 1)]).mT
            return replace(
                self, mean=mean, deviations=moved, system=system, inner=inner, random=random
            )

        def slope(log_spread: Tensor) -> tuple[Tensor]:
            found = regression(log_spread)
            trace = _traces(equations, found.system.inverse_diagonal())[term]
            error = _traces(equations, found.system.sandwich_diagonal(found.inner))[term]
            expected = size * (2 * log_spread).exp() - 2 * scale * trace + error
            moved = found.deviations.square().mean(0).split([len(dense), len(main)])
            squares = _traces(equations, (moved[0], moved[1].view_as(levels)))
            squares = squares + equations.totals(*(part.square() for part in found.mean))
            determined = (size - found.random.penalties[term] * trace).clamp_min(0.0)
            return (determined * (squares[term] / expected.clamp_min(1e-300) - 1),)

        limits = torch.tensor([MIN_VARIANCE, MAX_VARIANCE]).double().log() / 2
        low, high = limits[:, None].expand(-1, equations.num_topics)
        grid, weights, _ = grid_of(slope, low, high)
        nodes, shares = np.polynomial.legendre.leggauss(QUANTILES)
        below = (weights.cumsum(0) - weights / 2).numpy()
        columns = zip(below.T, grid.numpy().T, strict=True)
        at = np.stack([np.interp((nodes + 1) / 2, *column) for column in columns], 1)
        return [
            (float(share) / 2, regression(torch.from_numpy(values)))
            for share, values in zip(shares, at, strict=True)
        ]

    @property
    def spread(self) -> Tensor:
        """``(num_responses, num_random_terms)`` standard deviations; NaN for groups of topics."""
        single = (self.responses != 0).sum(1) == 1
        spread = self.responses.abs() @ self.random.spread.mT
        return torch.where(single[:, None], spread, torch.nan)

    def predict(self, x: Tensor, weights: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LinearRegression.predict`.

        Args:
            x: See there.
            weights: See there.
            positions: ``(num_docs, num_random_terms)`` level of each document: :data:`NEW` adds the
                variance of the effects, and :data:`AVERAGE` stands for the effect 0.
        """
        equations = self.equations
        effects = equations.by_term(*self.mean)
        predictor = x @ self.mean[0][: equations.num_fixed]
        for values, at in zip(effects, positions.mT, strict=True):
            # The last two rows are those of average and new levels.
            predictor = predictor + pad(values, (0, 0, 0, 2))[at]
        theta = torch.softmax(predictor, -1)
        by_response, rows = theta @ self.responses.mT, []
        for response, average in zip(self.responses, by_response.mT, strict=True):
            # Σ_k c_k theta_k has the derivative theta_j (c_j − Σ_k c_k theta_k) in predictor j.
            slope = weights[:, None] * theta * (response - average[:, None])
            sums = []
            for values, at in zip(effects, positions.mT, strict=True):
                total = values.new_zeros(len(values) + 2, values.shape[1])
                sums.append(total.index_add_(0, at.where(at >= 0, len(total) + at), slope))
            other, main = equations.levels.divide(torch.cat([total[:-2] for total in sums]))
            dense = torch.cat([x.mT @ slope, other]).flatten()[equations.keep]
            rows.append(torch.cat([dense, main.flatten(), *(total[NEW] for total in sums)]))
        return weights @ by_response, torch.stack(rows)

    def variances(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LinearRegression.variances`."""
        sizes = [len(self.equations.keep), self.mean[1].numel(), self.random.spread.numel()]
        dense, levels, new = gradients.split(sizes, 1)
        solved = self.system.solve(dense.mT, levels.mT.unflatten(0, self.mean[1].shape))
        by_function, through = (
            torch.cat([pair[0], pair[1].flatten(0, 1)]).mT
            for pair in (solved, self.inner.times(*solved))
        )
        within = (by_function[:, None] @ through[..., None]).flatten()
        # A variance below its own rounding error, as of an almost absent topic, is not credible.
        rounding = 1e-15 * by_function.square().sum(-1) * self.inner.dense.abs().max()
        new = (new * self.random.spread.flatten())[:, None]
        within = within.max(rounding) + (new @ new.mT).flatten()
        return with_unknown(within, dense, self.unknown), between(self.moved(gradients))

    def moved(self, gradients: Tensor) -> Tensor:
        """See :meth:`LinearRegression.moved`."""
        return gradients[:, : self.deviations.shape[1]] @ self.deviations.mT


def regress_logit(
    design: Design,
    parts: Parts,
    responses: Tensor,
    kind: StandardErrors = "HC1",
    progress: bool = False,
) -> LogitRegression:
    """Regress every draw of all topics' proportions on the design, and pool over draws.

    Args:
        design: As for :func:`regress_linear`.
        parts: As for :func:`regress_linear`.
        responses: As for :func:`regress_linear`.
        kind: Kind of standard errors. Ignored with clusters and with random terms. ``"classical"``
            is the information with the dispersion of Pearson's residuals. ``"HC3"`` takes the
            leverages of the weighted regression.
        progress: Show a progress bar over the draws.

    Raises:
        ConfigError: There are too many coefficients or levels.
        NumericalError: The regression did not converge.

    Warns:
        UnreliableEstimateWarning: Ctrl-C ended the regressions after 2 draws or more, over which
            the result is pooled. The variances of random terms are those of all draws.
    """
    equations = _Equations(design, responses.shape[1])
    sums, chosen, outcomes = _read(equations, parts)
    random, freedom, mean, system, inner = _settle(equations, sums, chosen, outcomes)
    ridge = equations.ridge(random.penalties)
    draws: list[Coefficients] = []
    try:
        for of in tqdm([*zip(*sums, strict=True)], desc="regressions", disable=not progress):
            draws.append(equations.move(mean, of, ridge, system))
    except KeyboardInterrupt:
        if len(draws) < 2 or not stops_on_interrupt():
            raise
        chosen, num_all = _spread(len(draws)), len(sums[0])
        sums = (sums[0][: len(draws)], sums[1][: len(draws)])
        mean, system = equations.maximise(mean, (sums[0].mean(0), sums[1].mean(0)), ridge)
        what = f"Ctrl-C ended the regressions: the effects are those of {len(draws)} draws"
        warn(f"{what} of {num_all}", UnreliableEstimateWarning)
    columns, main = (torch.stack(part) for part in zip(*draws, strict=True))
    flat = torch.cat([columns.flatten(1)[:, equations.keep], main.flatten(1)], 1)
    pooled = (columns.mean(0), main.mean(0))
    if not equations.levels.num_levels:
        freedom = design.freedom
        inner = _robust(design, parts, columns[chosen], pooled[0], chosen, system, kind)
    separated = (equations.theta(pooled).amin(0) < MIN_PROPORTION).nonzero().squeeze(-1)
    return LogitRegression(
        equations,
        pooled,
        flat - flat.mean(0),
        system,
        inner,
        freedom,
        tuple(separated.tolist()),
        responses,
        random,
        design.directions,
    )


def _spread(num_draws: int) -> Tensor:
    """Positions of the draws that the covariance averages over."""
    return torch.linspace(0, num_draws - 1, min(num_draws, SANDWICH_DRAWS)).round().long()


def _read(equations: _Equations, parts: Parts) -> tuple[Coefficients, Tensor, Tensor]:
    """Sums of each draw's proportions, the chosen draws, and their proportions with levels."""
    dense = main = torch.zeros((), dtype=torch.float64)
    order, stored = [], []
    for rows, theta in parts():
        num_draws, _, num_topics = theta.shape
        chosen = _spread(num_draws)
        weighted = equations.weights[rows, None] * theta
        dense = dense + equations.x[rows].mT @ weighted
        by_level = theta.new_zeros(equations.levels.largest + 1, num_draws, num_topics)
        main = main + by_level.index_add_(0, equations.main[rows], weighted.transpose(0, 1))
        order.append(rows)
        stored.append(theta[chosen].float() if equations.levels.num_levels else theta[:0])
    outcomes = torch.cat(stored, 1)[:, torch.cat(order).argsort()]
    return (dense, main[:-1].transpose(0, 1)), chosen, outcomes


def _robust(
    design: Design,
    parts: Parts,
    coefficients: Tensor,
    pooled: Tensor,
    chosen: Tensor,
    system: BlockArrow,
    kind: StandardErrors,
) -> BlockArrow:
    """Covariance of the score of the ``chosen`` draws, for their ``coefficients``."""
    x, (num_terms, num_topics) = design.x, pooled.shape
    free = num_topics - 1
    by_pair = system.dense_inverse.view(num_terms, free, num_terms, free).transpose(1, 2)

    def errors_of(rows: Tensor, theta: Tensor) -> Tensor:
        return theta[chosen] - torch.softmax(x[rows] @ coefficients, -1)

    def corrected(rows: Tensor, residuals: Tensor) -> Tensor:
        """Residuals corrected for the leverages.

        If a document's proportions have the covariance W under the model, its residuals have the
        covariance V = W − w W X J⁻¹Xᵀ W, which is smaller, and HC3 multiplies them by W V⁻¹.
        """
        p = torch.softmax(x[rows] @ pooled, -1)[:, :-1]
        outer = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        pairs = (x[rows, :, None] * x[rows, None]).flatten(1)
        middle = (pairs @ by_pair.flatten(2).flatten(0, 1)).view_as(outer)
        used = design.weights[rows].where(design.leverage[rows] < WHOLE, 0.0)
        left = outer - used[:, None, None] * (outer @ middle @ outer)
        errors = residuals[0].permute(1, 2, 0)
        return (outer @ torch.linalg.solve(left, errors)).permute(2, 0, 1)[None]

    if kind == "classical" and design.strata is None:
        pearson = 0.0
        for rows, theta in parts():
            expected = torch.softmax(x[rows] @ pooled, -1)
            squares = errors_of(rows, theta).square() / expected
            pearson += float((design.weights[rows] @ squares.mean(0)).sum())
        return replace(system, dense=pearson / (len(x) - num_terms) / free * system.dense)
    shape = (1, len(chosen), free)
    meat, _ = sandwich(
        design, parts, shape, lambda *part: errors_of(*part)[None, ..., :-1], corrected, kind
    )
    return replace(system, dense=meat[0])


def _settle(
    equations: _Equations, sums: Coefficients, chosen: Tensor, outcomes: Tensor
) -> tuple[RandomTerms, float, Coefficients, BlockArrow, BlockArrow]:
    """Settles the variances of the levels' effects, and the coefficients with their covariance.

    The penalty of term j and topic k is φ_k / τ²_jk, where φ_k is the topic's dispersion and τ²_jk
    the variance of the effects. This variance solves E Σ b² = Σ b², for the estimated effects b of
    the term's levels. If the proportions had a multinomial variance, the equation would be that of
    MacKay's evidence, or of the restricted likelihood of the linearised regression: τ² = Σ b² / γ,
    for γ determined effects. Variances and dispersion are those of a single draw, averaged over
    some of the draws.
    """
    sizes = torch.tensor(equations.levels.sizes)[:, None]
    variances = equations.x.new_full((len(sizes), equations.num_topics), 0.5)
    scale = equations.x.new_full((equations.num_topics,), 0.1)
    centre = (sums[0].mean(0), sums[1].mean(0))
    mean = (torch.zeros_like(centre[0]), torch.zeros_like(centre[1]))
    fitted: dict[int, Coefficients] = {}
    for left in reversed(range(UPDATES)):
        penalties = scale / variances
        ridge = equations.ridge(penalties)
        mean, system = equations.maximise(mean, centre, ridge)
        if not equations.levels.num_levels:
            return RandomTerms(penalties, 0 * variances, scale), 0.0, mean, system, system
        for s in chosen.tolist():
            fitted[s] = equations.move(fitted.get(s, mean), (sums[0][s], sums[1][s]), ridge, system)
        # The dispersion Φ: second moments of Pearson's residuals, by their degrees of freedom.
        total = equations.x.new_zeros(equations.num_topics, equations.num_topics)
        traces = _traces(equations, system.inverse_diagonal())
        for theta, at in zip(outcomes, fitted.values(), strict=True):
            expected = equations.theta(at).clamp_min(MIN_PROPORTION)
            residuals = (theta.double() - expected) / expected.sqrt()
            total += residuals.mT @ (equations.weights[:, None] * residuals) / len(fitted)
        determined = (sizes - penalties * traces).clamp_min(0.0).sum(0)
        freedom = (len(equations.x) - equations.num_fixed - determined).clamp_min(1.0)
        dispersion = total / (freedom[:, None] * freedom).sqrt()
        inner, new_scale = _model_based(equations, dispersion, mean, scale * penalties)
        of_effects = [equations.totals(a.square(), b.square()) for a, b in fitted.values()]
        # A step of the fixed point τ² ← τ² Σ b² / E Σ b².
        moments = sizes * variances - 2 * scale * traces
        moments = moments + _traces(equations, system.sandwich_diagonal(inner))
        new = variances * torch.stack(of_effects).mean(0) / moments.clamp_min(1e-300)
        new = new.clamp(MIN_VARIANCE, MAX_VARIANCE)
        change = torch.cat([new / variances, (new_scale / scale)[None]]).log().abs().max()
        if not left or float(change) < CHANGE:
            break  # with the variances and the scale of these penalties
        variances, scale = new, new_scale
    random = RandomTerms(penalties, variances.sqrt(), dispersion)
    return random, float(freedom.mean()), mean, system, inner


def _traces(equations: _Equations, diagonal: Coefficients) -> Tensor:
    """Sums of a diagonal over the levels of each term ``(num_terms, num_topics)``."""
    return equations.totals(equations.fill(diagonal[0]), diagonal[1])


def _model_based(
    equations: _Equations, dispersion: Tensor, mean: Coefficients, variance: Tensor
) -> tuple[BlockArrow, Tensor]:
    """M + PTP, and the dispersion of each topic: the ratio of its parts of M and H.

    Args:
        equations: The equations.
        dispersion: The dispersion matrix Φ.
        mean: The coefficients.
        variance: ``(num_terms, num_topics)`` diagonal of PTP.
    """
    theta = equations.theta(mean)
    eye = torch.eye(equations.num_topics).to(theta)

    def matrix_of(rows: Tensor) -> Tensor:
        root = rows.sqrt()
        # Proportions sum to 1, so residuals sum to 0.
        project = eye - rows[:, :, None]
        middle = root[:, :, None] * dispersion * root[:, None]
        return project @ middle @ project.mT

    meat = equations.assemble(theta, matrix_of)
    information = equations.weights @ (theta * (1 - theta))
    scale = meat.blocks.diagonal(dim1=1, dim2=2).sum(0) / information
    return meat.plus(*equations.ridge(variance)), scale.clamp_min(1e-12)
