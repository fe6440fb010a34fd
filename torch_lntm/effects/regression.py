"""Shared by the regressions of both links: draws in parts, robust covariances and intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import scipy.special
import scipy.stats
import torch
from numpy.typing import NDArray
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

from torch_lntm.effects.design import Design
from torch_lntm.errors import require_level
from torch_lntm.inference.chains.samples import effective_sample_size

#: Standard errors for equal variances of the outcomes, or robust to unequal variances (*MacKinnon &
#: White 1985*).
StandardErrors = Literal["classical", "HC1", "HC3"]
#: Scale on which an interval is symmetric.
Scale = Literal["identity", "logit", "atanh"]
#: Number of grids of a standard deviation, each within the one before, of their values, and the
#: depth of a log density below its maximum at which a grid ends.
GRIDS, VALUES, DEPTH = 3, 21, 10.0
#: Most values of a chunk of documents in memory.
MAX_NUMBERS = 2**23


#: A function that iterates over all documents in parts, in the same order at each call: positions
#: of documents in the design, and draws ``(num_draws, num_docs, num_topics)`` of their proportions,
#: float64.
Parts = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def between(moved: Tensor) -> Tensor:
    """Variances between draws, of functions' deviations ``(num_functions, num_draws)``."""
    return (moved[:, None] @ moved[..., None]).flatten() / max(1, moved.shape[1] - 1)


def agreement(moved: Tensor, num_chains: int) -> tuple[Tensor, Tensor]:
    """Split R-hat and effective number of draws of functions, over chains that draw in turn.

    Args:
        moved: ``(num_functions, num_draws)`` deviations in each draw.
        num_chains: Number of chains.

    Returns:
        Two arrays ``(num_functions,)``; the number of draws is at least 4. NaN and all
        draws for fewer than 4 of a chain.
    """
    each = moved.shape[-1] // num_chains
    if each < 4:
        return torch.full_like(moved[:, 0], torch.nan), torch.full_like(moved[:, 0], moved.shape[1])
    chains = moved[:, : each * num_chains].unflatten(-1, (each, num_chains)).permute(2, 1, 0)
    size = effective_sample_size(chains).clamp(4.0, moved.shape[1])
    return split_gelman_rubin(chains), size


def with_unknown(within: Tensor, gradients: Tensor, unknown: Tensor | None) -> Tensor:
    """Variances of functions, infinite along directions of unknown variance.

    Args:
        within: ``(num_functions,)``.
        gradients: ``(num_functions, num_terms * num_outcomes)``, term by term.
        unknown: ``(num_terms, num_directions)``, if any.
    """
    if unknown is None:
        return within
    parts = gradients.unflatten(-1, (len(unknown), -1)).mT @ unknown
    share = parts.square().sum((-2, -1)) / gradients.square().sum(-1).clamp_min(1e-300)
    return within + torch.where(share > 1e-16, torch.inf, 0.0)


def grid_of(
    at: Callable[[Tensor], tuple[Tensor, ...]], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Grid of the logarithm of a standard deviation τ of levels' effects, with its posterior.

    The estimate of τ is 0 in many samples of few levels, and there the effects and their intervals
    would vanish. So τ has a prior instead: a half-Cauchy of scale 1, which is flat near 0, and
    bounds τ where few levels do not (*Gelman 2006*).

    Args:
        at: A function of log τ ``(num_outcomes,)``. It returns the slope of its log likelihood, and
            perhaps other arrays.
        low: ``(num_outcomes,)`` smallest values of log τ.
        high: ``(num_outcomes,)`` largest values.

    Returns:
        Grid and weights ``(num_values, num_outcomes)``, and the other arrays at its values.
    """
    share = torch.linspace(0, 1, VALUES, dtype=low.dtype)[:, None]
    for _ in range(GRIDS):
        grid = low + share * (high - low)
        slopes, *others = map(torch.stack, zip(*map(at, grid), strict=True))
        # The prior's density of log τ is τ / (1 + τ²).
        slopes = slopes + 1 - 2 * torch.sigmoid(2 * grid)
        # The trapezoidal rule, corrected by the slopes' own slopes (Euler and Maclaurin).
        log_p = torch.cat([0 * slopes[:1], torch.cumulative_trapezoid(slopes, dim=0)])
        log_p = (log_p - torch.gradient(slopes, dim=0)[0] / 12) * (high - low) / (VALUES - 1)
        near = (log_p > log_p.amax(0) - DEPTH).int()
        first, last = near.argmax(0) - 1, VALUES - near.flip(0).argmax(0)
        low = grid.gather(0, first.clamp_min(0)[None])[0]
        high = grid.gather(0, last.clamp_max(VALUES - 1)[None])[0]
    return grid, torch.softmax(log_p, 0), others


def sandwich(
    design: Design,
    parts: Parts,
    shape: tuple[int, int, int],
    residuals_of: Callable[[Tensor, Tensor], Tensor],
    corrected: Callable[[Tensor, Tensor], Tensor],
    kind: StandardErrors,
) -> tuple[Tensor, Tensor]:
    """Covariance Σ s sᵀ of the score, for scores s of documents or clusters, mean over draws.

    In a stratum of n_h clusters, or documents, the scores are centred, and their squares multiplied
    by n_h / (n_h − 1), as by Taylor linearisation of a stratified sample (*Binder 1983*).

    A document that alone determines a coefficient has no residual. Its part has the classical
    variance.

    Args:
        design: The design.
        parts: The draws.
        shape: Number of regressions, of draws, and of outcomes of a regression.
        residuals_of: A function from a part to its residuals
            ``(num_regressions, num_draws, num_docs, num_outcomes)``.
        corrected: A function from positions of documents and their residuals to the residuals
            corrected for the leverages, for HC3.
        kind: Kind of standard errors. Ignored with clusters; ``"HC1"`` with strata alone.

    Returns:
        ``(num_regressions, num_coefficients, num_coefficients)``, term by term, and the covariance
        ``(num_regressions, num_outcomes, num_outcomes)`` of the residuals.
    """
    (num_docs, num_terms), (num_regressions, num_draws, size) = design.x.shape, shape
    spread = meat = torch.zeros((), dtype=torch.float64)
    clusters, strata = design.clusters, design.strata
    groups = strata if clusters is None else clusters
    num_groups = 0 if groups is None else int(groups.max()) + 1
    sums = design.x.new_zeros(num_groups, num_regressions * num_draws * num_terms * size)
    factor = design.weights.square()
    factor[design.alone] = 0.0
    each = few = torch.ones((), dtype=torch.float64)
    if strata is not None:
        each = torch.bincount(strata).double()
        few = each / (each - 1)
        if clusters is None:
            factor *= few[strata]
    step = MAX_NUMBERS // (num_regressions * size * (num_draws * num_terms + size) + num_terms**2)
    for rows, theta in parts():
        residuals = residuals_of(rows, theta)
        for at in torch.arange(len(rows)).split(max(1, step)):
            docs, errors = rows[at], residuals[:, :, at]
            x, weights = design.x[docs], design.weights[docs]
            spread = spread + torch.einsum("n,rsni,rsnj->rij", weights, errors, errors)
            if groups is not None:
                scores = torch.einsum("nt,rsni->nrsti", weights[:, None] * x, errors)
                sums.index_add_(0, groups[docs], scores.flatten(1))
            if clusters is not None:
                continue
            errors = corrected(docs, errors) if kind == "HC3" else errors
            outer = torch.einsum("n,rsni,rsnj->rijn", factor[docs], errors, errors)
            meat = meat + outer @ (x[:, :, None] * x[:, None]).flatten(1)
    dispersion = spread / num_draws / (num_docs - num_terms)
    if clusters is None:
        lone = design.weights[design.alone, None].sqrt() * design.x[design.alone]
        total = meat / num_draws + dispersion[..., None] * (lone.mT @ lone).flatten()
        by_term = total.unflatten(-1, (num_terms, num_terms)).permute(0, 3, 1, 4, 2)
        found = by_term.flatten(3).flatten(1, 2)
    if strata is None:
        return (num_docs / (num_docs - num_terms) if kind == "HC1" else 1.0) * found, dispersion

    def squares(scores: Tensor, weights: Tensor) -> Tensor:
        weighted = weights[:, None, None, None] * scores
        return torch.einsum("grsp,grsq->rpq", weighted, scores) / num_draws

    scores = sums.view(num_groups, num_regressions, num_draws, num_terms * size)
    if clusters is not None:
        found = squares(scores, few[strata])
        scores = scores.new_zeros(len(each), *scores.shape[1:]).index_add_(0, strata, scores)
    found = found - squares(scores, few / each)
    return (num_docs - 1) / (num_docs - num_terms) * found, dispersion


def intervals(
    estimates: NDArray[np.float64],
    within: NDArray[np.float64],
    between: NDArray[np.float64],
    num_draws: Any,
    freedom: Any,
    level: float,
    scale: Scale = "identity",
) -> tuple[NDArray[np.float64], ...]:
    """Intervals by Rubin's rules.

    Args:
        estimates: Estimates of any shape.
        within: Variances of a single regression, in the same shape.
        between: Variances between draws, in the same shape.
        num_draws: Number of draws, or of effective draws by estimate.
        freedom: Degrees of freedom of a single regression.
        level: Probability of the intervals.
        scale: Scale on which the intervals are symmetric.

    Returns:
        Standard errors, degrees of freedom, lower and upper ends.

    Raises:
        ConfigError: The probability is not between 0 and 1.
    """
    require_level(level)
    between = (1 + 1 / num_draws) * between
    total = within + between
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    # A smooth minimum of the draws' and the documents' degrees of freedom. Barnard and Rubin (1999)
    # multiply by (n + 1) / (n + 3) as well, which we leave out: it would turn 4 degrees into 2.9
    # even for known proportions, for which a t distribution with n degrees is exact.
    draw_freedom = (num_draws - 1) / np.maximum(share, 1e-12) ** 2
    document_freedom = freedom * np.maximum(1 - share, 1e-12)
    # For uncertain draws, the smooth minimum would fall to 0. But each variance has at least 1
    # degree, and a sum of two has no fewer degrees than the lesser of them (Welch 1947).
    freedom = np.maximum(1 / (1 / draw_freedom + 1 / document_freedom), 1.0)
    errors = np.sqrt(total)
    half = scipy.stats.t.ppf(0.5 + level / 2, freedom) * errors
    tiny = np.finfo(np.float64).tiny
    back: Any = np.asarray
    centre, slope = estimates, np.ones_like(estimates)
    if scale == "logit":
        slope, back = estimates * (1 - estimates), scipy.special.expit
        centre = scipy.special.logit(estimates.clip(tiny, 1 - 1e-16))
    elif scale == "atanh":
        slope, back = 1 - estimates**2, np.tanh
        centre = np.arctanh(estimates.clip(-1 + 1e-16, 1 - 1e-16))
    half = half / np.maximum(slope, tiny)
    return errors, freedom, back(centre - half), back(centre + half)
