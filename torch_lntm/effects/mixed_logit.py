"""Multinomial logit regression of topic proportions with random terms, such as ``(1 | author)``.

The expected proportions of a document are softmax(Bᵀx + Σ_j b_j), where b_j has the effect of the
document's level in term j on each topic. All topics share one regression, so predictions sum to 1.
Each effect has a ridge penalty, which depends on the term and the topic.

The estimate solves the penalised equations of the fractional logit (penalised quasi-likelihood,
*Breslow & Clayton 1993*). With the information H, the penalties P and G = (H + P)⁻¹, its error is
G(s − Pb) to first order. The score s has the covariance M, and the effects b have the variances T.
The covariance of the error is therefore G(M + PTP)G. H would be proportional to M under a
multinomial variance. Proportions of logistic-normal documents vary otherwise, so M has a dispersion
matrix Φ between topics: a document has the covariance D^½ΦD^½, for its expected proportions D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.effects.design import Design
from torch_lntm.effects.logit import (
    DRAW_STEPS,
    MAX_COEFFICIENTS,
    MAX_NUMBERS,
    MIN_PROPORTION,
    SANDWICH_DRAWS,
    ascend,
    response_slopes,
)
from torch_lntm.effects.regression import Parts, between
from torch_lntm.errors import ConfigError
from torch_lntm.solvers.arrow import Levels
from torch_lntm.solvers.block_arrow import BlockArrow

#: Bounds of the variances of effects, number of updates, and relative change of the last update.
MIN_VARIANCE, MAX_VARIANCE, UPDATES, CHANGE = 1e-6, 1e4, 200, 1e-3
#: Tolerance of Newton's steps.
TOLERANCE = 1e-8
#: Maximum number of values of the draws, of the design, and between levels and other coefficients.
MAX_STORED = 2**26
#: Levels of predictions: a level absent from the fit, and a level with the effect 0.
NEW, AVERAGE = -1, -2


@dataclass(frozen=True, eq=False)
class _Design:
    """Rows of all documents.

    The columns are the fixed terms in an orthonormal basis, then all levels but those of the
    largest term. ``main`` is the level in the largest term. ``keep`` are the positions of the free
    coefficients among those of the columns and topics: the last topic has no fixed terms.
    """

    x: Tensor  # (num_docs, num_columns)
    weights: Tensor  # (num_docs,)
    main: Tensor  # (num_docs,)
    levels: Levels
    num_fixed: int
    num_topics: int
    keep: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the coefficients of the columns."""
        return self.x.shape[1], self.num_topics

    def fill(self, dense: Tensor) -> Tensor:
        """Coefficients of the columns from the free coefficients ``(num_free,)``."""
        full = dense.new_zeros(self.shape).flatten()
        full[self.keep] = dense
        return full.view(self.shape)

    def theta(self, at: Coefficients) -> Tensor:
        """Expected proportions ``(num_docs, num_topics)``."""
        return torch.softmax(self.x @ at[0] + at[1][self.main], -1)

    def sums(self, rows: Tensor) -> Coefficients:
        """Sums of weighted rows ``(num_docs, num_topics)`` over columns, and over main levels."""
        rows = self.weights[:, None] * rows
        levels = rows.new_zeros(self.levels.largest, self.num_topics)
        return self.x.mT @ rows, levels.index_add_(0, self.main, rows)

    def by_term(self, columns: Tensor, main: Tensor) -> list[Tensor]:
        """Values of the levels of each term, from those of the columns and of the main levels."""
        joined = self.levels.join(columns[self.num_fixed :], main)
        return list(joined.split(self.levels.sizes))

    def totals(self, columns: Tensor, main: Tensor) -> Tensor:
        """Sums of :meth:`by_term` over the levels of each term ``(num_terms, num_topics)``."""
        return torch.stack([part.sum(0) for part in self.by_term(columns, main)])

    @property
    def sizes(self) -> Tensor:
        """``(num_terms, 1)`` number of levels of each term."""
        return torch.tensor(self.levels.sizes).to(self.x)[:, None]

    def assemble(self, matrix_of: Callable[[slice], Tensor]) -> BlockArrow:
        """Σ_d zzᵀ ⊗ A_d, for the columns and level z of a document and its matrix A_d of topics."""
        size, num_topics = self.shape
        dense = self.x.new_zeros(num_topics**2, size**2)
        crossed = self.x.new_zeros(self.levels.largest, num_topics, size * num_topics)
        blocks = self.x.new_zeros(self.levels.largest, num_topics, num_topics)
        step = max(1, MAX_NUMBERS // (num_topics**2 * size + size**2))
        for start in range(0, len(self.x), step):
            part = slice(start, start + step)
            x, main, a = self.x[part], self.main[part], matrix_of(part)
            dense += a.flatten(1).mT @ (x[:, :, None] * x[:, None]).flatten(1)
            outer = x[:, None, :, None] * a[:, :, None]
            crossed.index_add_(0, main, outer.flatten(2))
            blocks.index_add_(0, main, a)
        square = dense.view(num_topics, num_topics, size, size).permute(2, 0, 3, 1)
        square = square.reshape(size * num_topics, -1)
        return BlockArrow(square[self.keep][:, self.keep], crossed[:, :, self.keep], blocks)


#: Coefficients, or sums, of the columns and of the levels of the largest term.
Coefficients = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class MixedLogit:
    """A multinomial logit regression with random terms, pooled over draws.

    Attributes:
        effects_spread: ``(num_random_terms, num_topics)`` standard deviation of each term's effects
            on the scale of the logit.
        penalties: ``(num_random_terms, num_topics)`` ridge penalty of each term's effects.
        dispersion: ``(num_topics, num_topics)`` dispersion matrix of the proportions.
        freedom: Degrees of freedom of a single regression.
        separated: Topics whose proportion is almost 0 in some documents.
        responses: ``(num_responses, num_topics)`` matrix from topics to responses.
        deviations: ``(num_draws, num_coefficients)`` coefficients of each draw less their mean.
    """

    effects_spread: Tensor
    penalties: Tensor
    dispersion: Tensor
    freedom: float
    separated: tuple[int, ...]
    responses: Tensor
    deviations: Tensor
    _design: _Design
    _mean: Coefficients
    _system: BlockArrow
    _inner: BlockArrow

    @property
    def spread(self) -> Tensor:
        """``(num_responses, num_random_terms)`` standard deviations; NaN for groups of topics."""
        single = (self.responses > 0).sum(1) == 1
        return torch.where(
            single[:, None], (self.responses @ self.effects_spread.mT.double()), torch.nan
        )

    def predict(
        self, x: Tensor, weights: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`LeastSquares.predict`.

        Args:
            x: See there.
            weights: See there.
            positions: ``(num_docs, num_random_terms)`` level of each document: :data:`NEW` adds the
                variance of the effects, and :data:`AVERAGE` stands for the effect 0.
        """
        assert positions is not None
        design = self._design
        effects = design.by_term(*self._mean)
        predictor = x @ self._mean[0][: design.num_fixed]
        for values, at in zip(effects, positions.mT, strict=True):
            # The last two rows are those of average and new levels.
            predictor = predictor + torch.cat([values, values.new_zeros(2, values.shape[1])])[at]
        theta = torch.softmax(predictor, -1)
        average, slopes = response_slopes(theta, weights, self.responses)
        rows = []
        for slope in slopes:
            sums = []
            for values, at in zip(effects, positions.mT, strict=True):
                total = values.new_zeros(len(values) + 2, values.shape[1])
                sums.append(total.index_add_(0, at.where(at >= 0, len(total) + at), slope))
            other, main = design.levels.divide(torch.cat([total[:-2] for total in sums]))
            dense = torch.cat([x.mT @ slope, other]).flatten()[design.keep]
            new = torch.cat([total[NEW] for total in sums])
            rows.append(torch.cat([dense, main.flatten(), new]))
        return average, torch.stack(rows)

    def covariance(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LeastSquares.covariance`."""
        num_free, num_levels = len(self._design.keep), self._mean[1].numel()
        flat = gradients.flatten(0, 1)
        dense, levels, new = flat.split([num_free, num_levels, self.effects_spread.numel()], 1)
        shape = (*self._mean[1].shape, len(flat))
        solved = self._system.solve(dense.mT, levels.mT.reshape(shape))
        halves = [
            torch.cat([half.reshape(-1, len(flat)) for half in pair]).mT.unflatten(
                0, gradients.shape[:2]
            )
            for pair in (solved, self._inner.times(*solved))
        ]
        new = (new * self.effects_spread.flatten()).unflatten(0, gradients.shape[:2])
        moved = gradients[..., : num_free + num_levels] @ self.deviations.mT
        return halves[0] @ halves[1].mT + new @ new.mT, between(moved)


def regress_mixed_logit(design: Design, parts: Parts, responses: Tensor) -> MixedLogit:
    """Regress every draw of all topics' proportions on the design and on levels.

    The penalty of term j and topic k is φ_k / τ²_jk, for the topic's dispersion φ_k and the
    variance τ²_jk of the effects. The variance solves E Σ b² = Σ b², for the estimated effects b
    of its levels. With a multinomial variance of the proportions, the equation is that of MacKay's
    evidence, or of the restricted likelihood of the linearised regression:
    τ² = Σ b² / γ, for γ determined effects. Variances and dispersion are those of a single draw,
    as averages over some of the draws.

    Args:
        design: The design, with positions of the levels.
        parts: As for :func:`regress`.
        responses: As for :func:`regress`.

    Raises:
        ConfigError: There are too many coefficients or levels.
        NumericalError: The regression did not converge.
    """
    rows, sums, chosen, outcomes = _read(design, parts)
    of_draws, mean_sums = list(zip(*sums, strict=True)), (sums[0].mean(0), sums[1].mean(0))
    variances = rows.x.new_full((len(design.sizes), rows.num_topics), 0.5)
    scale = rows.x.new_full((rows.num_topics,), 0.1)
    mean: Coefficients = (torch.zeros_like(mean_sums[0]), torch.zeros_like(mean_sums[1]))
    fitted: dict[int, Coefficients] = {}
    for _ in range(UPDATES):
        penalties = scale / variances
        mean, system = _maximise(rows, mean_sums, penalties, mean)
        for s in chosen:
            fitted[s] = _move(rows, of_draws[s], penalties, fitted.get(s, mean), system)
        found = list(fitted.values())
        dispersion, freedom = _dispersion(rows, outcomes, found, penalties, system)
        inner, new_scale = _meat(rows, dispersion, mean, scale, penalties)
        new = _updated(rows, variances, scale, penalties, system, inner, found)
        change = torch.cat([new / variances, (new_scale / scale)[None]]).log().abs().max()
        if float(change) < CHANGE:
            break
        variances, scale = new, new_scale
    draws = [_move(rows, of_draw, penalties, mean, system) for of_draw in of_draws]
    flat = torch.stack([torch.cat([a.flatten()[rows.keep], b.flatten()]) for a, b in draws])
    pooled, num_free = flat.mean(0), len(rows.keep)
    centre = (rows.fill(pooled[:num_free]), pooled[num_free:].view_as(mean[1]))
    separated = (rows.theta(centre).amin(0) < MIN_PROPORTION).nonzero().squeeze(-1)
    return MixedLogit(
        variances.sqrt(),
        penalties,
        dispersion,
        float(freedom.mean()),
        tuple(separated.tolist()),
        responses,
        flat - pooled,
        rows,
        centre,
        system,
        inner,
    )


def _read(design: Design, parts: Parts) -> tuple[_Design, Coefficients, list[int], Tensor]:
    """All documents.

    Returns:
        The design, sums of each draw's proportions, the chosen draws, and their proportions.

    Raises:
        ConfigError: The arrays would be too large.
    """
    levels, at = Levels(design.sizes), design.positions
    assert at is not None
    num_docs, num_fixed = design.x.shape
    theta = next(parts()).theta
    num_draws, _, num_topics = theta.shape
    num_columns = num_fixed + levels.num_other
    size = num_columns * num_topics
    across = max(size, num_draws) * levels.largest * num_topics
    if size > MAX_COEFFICIENTS or max(across, num_docs * num_columns) > MAX_STORED:
        raise ConfigError(
            f"the logit has {size:,} coefficients beside {levels.largest:,} levels of "
            f"{num_topics} topics and {num_draws} draws; expected at most {MAX_COEFFICIENTS:,} "
            f"coefficients, and {MAX_STORED:,} for the product of coefficients or draws, levels "
            "and topics. Use link='identity', a formula with fewer terms, or fewer draws"
        )
    others = [
        torch.nn.functional.one_hot(column, size).to(design.x)
        for j, (column, size) in enumerate(zip(at.mT, levels.sizes, strict=True))
        if j != levels.main
    ]
    columns = torch.cat([design.x, *others], 1)
    free = torch.ones(columns.shape[1], num_topics, dtype=torch.bool)
    free[:num_fixed, -1] = False
    keep = free.flatten().nonzero().squeeze(-1)
    main = at[:, levels.main]
    count = min(num_draws, SANDWICH_DRAWS, max(2, MAX_STORED // (num_docs * num_topics)))
    chosen = torch.linspace(0, num_draws - 1, count).round().long().tolist()
    stored = theta.new_zeros(count, num_docs, num_topics, dtype=torch.float32)
    dense = columns.new_zeros(num_draws, columns.shape[1], num_topics)
    by_level = columns.new_zeros(levels.largest, num_draws, num_topics)
    for rows, theta in parts():
        stored[:, rows] = theta[chosen].float()
        weighted = design.weights[rows, None] * theta
        dense += columns[rows].mT @ weighted
        by_level.index_add_(0, main[rows], weighted.transpose(0, 1))
    found = _Design(columns, design.weights, main, levels, num_fixed, num_topics, keep)
    return found, (dense, by_level.transpose(0, 1)), chosen, stored


def _ridge(design: _Design, penalties: Tensor) -> Coefficients:
    """Penalties ``(num_columns, num_topics)`` of the columns, and ``(num_topics,)`` of levels."""
    other, main = design.levels.divide(design.levels.repeat(penalties.mT).mT)
    return torch.cat([other.new_zeros(design.num_fixed, design.num_topics), other]), main[0]


def _score(
    design: _Design, sums: Coefficients, penalties: Tensor, at: Coefficients
) -> Coefficients:
    """Free part of the penalised score, and its part of the levels."""
    dense, levels = _ridge(design, penalties)
    of_columns, of_levels = design.sums(design.theta(at))
    score = sums[0] - of_columns - dense * at[0]
    return score.flatten()[design.keep], sums[1] - of_levels - levels * at[1]


def _system(design: _Design, penalties: Tensor, at: Coefficients) -> BlockArrow:
    """Penalised information."""
    theta = design.theta(at)

    def matrix_of(part: slice) -> Tensor:
        rows = theta[part]
        outer = torch.diag_embed(rows) - rows[:, :, None] * rows[:, None]
        return design.weights[part, None, None] * outer

    dense, levels = _ridge(design, penalties)
    return design.assemble(matrix_of).plus(dense.flatten()[design.keep], levels)


def _maximise(
    design: _Design, sums: Coefficients, penalties: Tensor, at: Coefficients
) -> tuple[Coefficients, BlockArrow]:
    """Coefficients by damped Newton steps, and the penalised information."""
    dense, levels = _ridge(design, penalties)

    def objective(columns: Tensor, main: Tensor) -> Tensor:
        normaliser = (design.x @ columns + main[design.main]).logsumexp(-1)
        value = (sums[0] * columns).sum() + (sums[1] * main).sum() - design.weights @ normaliser
        penalty = (dense * columns.square()).sum() + (levels * main.square()).sum()
        return value - 0.5 * penalty

    def newton(columns: Tensor, main: Tensor) -> tuple[Coefficients, float, BlockArrow]:
        at = (columns, main)
        system = _system(design, penalties, at)
        return *_newton_step(design, _score(design, sums, penalties, at), system), system

    found: tuple[Coefficients, BlockArrow] = ascend(at, objective, newton, TOLERANCE)
    return found


def _newton_step(
    design: _Design, score: Coefficients, system: BlockArrow
) -> tuple[Coefficients, float]:
    """Step of the coefficients, and the product of score and step."""
    dense, levels = system.solve(score[0][:, None], score[1][..., None])
    decrement = float(score[0] @ dense[:, 0] + (score[1] * levels[..., 0]).sum())
    return (design.fill(dense[:, 0]), levels[..., 0]), decrement


def _move(
    design: _Design, sums: Coefficients, penalties: Tensor, at: Coefficients, system: BlockArrow
) -> Coefficients:
    """Coefficients of a draw, by steps with the mean's information, or by Newton steps."""
    start = at
    for _ in range(DRAW_STEPS):
        step, decrement = _newton_step(design, _score(design, sums, penalties, at), system)
        at = (at[0] + step[0], at[1] + step[1])
        if decrement < TOLERANCE:
            return at
    return _maximise(design, sums, penalties, start)[0]


def _dispersion(
    design: _Design,
    outcomes: Tensor,
    fitted: list[Coefficients],
    penalties: Tensor,
    system: BlockArrow,
) -> tuple[Tensor, Tensor]:
    """Dispersion matrix Φ: second moments of Pearson's residuals, and degrees of freedom."""
    total = penalties.new_zeros(design.num_topics, design.num_topics)
    for theta, at in zip(outcomes, fitted, strict=True):
        expected = design.theta(at).clamp_min(MIN_PROPORTION)
        residuals = (theta.double() - expected) / expected.sqrt()
        total += residuals.mT @ (design.weights[:, None] * residuals) / len(fitted)
    dense, levels = system.inverse_diagonal()
    traces = design.totals(design.fill(dense), levels)
    determined = (design.sizes - penalties * traces).clamp_min(0.0).sum(0)
    freedom = (len(design.x) - design.num_fixed - determined).clamp_min(1.0)
    return total / (freedom[:, None] * freedom).sqrt(), freedom


def _meat(
    design: _Design, dispersion: Tensor, mean: Coefficients, scale: Tensor, penalties: Tensor
) -> tuple[BlockArrow, Tensor]:
    """M + PTP, and the dispersion of each topic: the ratio of its parts of M and H."""
    theta = design.theta(mean)
    eye = torch.eye(design.num_topics).to(theta)

    def matrix_of(part: slice) -> Tensor:
        rows = theta[part]
        root = rows.sqrt()
        # Proportions sum to 1, so residuals sum to 0.
        project = eye - rows[:, :, None]
        middle = root[:, :, None] * dispersion * root[:, None]
        return design.weights[part, None, None] * (project @ middle @ project.mT)

    meat = design.assemble(matrix_of)
    information = design.weights @ (theta * (1 - theta))
    new_scale = meat.blocks.diagonal(dim1=1, dim2=2).sum(0) / information
    dense, levels = _ridge(design, penalties)
    inner = meat.plus((scale * dense).flatten()[design.keep], scale * levels)
    return inner, new_scale.clamp_min(1e-12)


def _updated(
    design: _Design,
    variances: Tensor,
    scale: Tensor,
    penalties: Tensor,
    system: BlockArrow,
    inner: BlockArrow,
    fitted: list[Coefficients],
) -> Tensor:
    """Variances after a step of the fixed point τ² ← τ² Σ b² / E Σ b²."""
    squares = torch.stack([design.totals(*(x.square() for x in at)) for at in fitted]).mean(0)
    dense, levels = system.inverse_diagonal()
    expected = design.sizes * variances - 2 * scale * design.totals(design.fill(dense), levels)
    dense, levels = system.sandwich_diagonal(inner)
    expected = expected + design.totals(design.fill(dense), levels)
    new = variances * squares / expected.clamp_min(1e-300)
    return new.clamp(MIN_VARIANCE, MAX_VARIANCE)
