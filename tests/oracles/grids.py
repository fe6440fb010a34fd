"""log p(document) of models with 2 or 3 topics, by quadrature around a guide's posterior.

The reference of the package's estimates by importance and annealed sampling. It is exact to many
digits, and takes any normal prior of eta and any Dirichlet prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from scipy.optimize import brentq
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.evaluation import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.evaluation.checks import warn_of_documents
from torch_lntm.evaluation.likelihood.importance import documents, guide_for
from torch_lntm.guides import Guide
from torch_lntm.kernels.likelihood import (
    INDEPENDENT,
    Cells,
    CountLikelihood,
    log_likelihood_at,
    log_likelihood_of,
)
from torch_lntm.latents.contrasts import ContrastSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.latents.sticks import StickSpace, stick_parameters
from torch_lntm.models import TopicModel

#: Nats below the log integrand at the centre at which the integrand becomes negligible.
NEGLIGIBLE = 40.0
#: Distance of a grid's points at its centre, in standard deviations of the given posterior. A third
#: would be enough for a normal integrand. Ridges and second modes of real integrands can be 10
#: times finer.
CENTRAL_STEP = 0.03
#: Largest numerical error of a document's quadrature without a warning, nats.
TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Quadrature(LikelihoodMethod):
    """Quadrature for 2 or 3 topics, a method for ``log_likelihood``.

    Args:
        num_points: Points on each of the K − 1 axes, odd and at least 11.
        guide: Guide whose posterior centres the grid. A rough posterior suffices. Defaults to the
            guide of importance sampling.
    """

    num_points: int = 201
    guide: Guide[Any] | None = None

    name: ClassVar[str] = "quadrature"

    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """The estimates. The seed is ignored."""
        guide = guide_for(model, self.guide)
        values = torch.zeros(corpus.num_docs, dtype=torch.float64)
        errors = torch.zeros_like(values)
        for d in chain.from_iterable(documents(model, corpus, guide, max_docs, progress)):
            value, error = marginal_by_quadrature(
                d.space, d.posterior, d.row, d.words, d.cells, self.num_points, model.words
            )
            values[d.position], errors[d.position] = value.cpu(), error.cpu()
        warn_of_documents(errors > TOLERANCE, "a quadrature error", "raise num_points")
        points = self.num_points ** (model.num_topics - 1)
        return LikelihoodEstimate(
            log_likelihood=values,
            standard_error=errors,
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=f"quadrature on {points} points",
            num_draws=points,
            corpus_name=corpus.name,
        )


def marginal_by_quadrature(
    space: IdentifiedSpace,
    posterior: Any,
    row: int,
    words: Tensor,
    cells: Cells,
    num_points: int,
    likelihood: CountLikelihood = INDEPENDENT,
) -> tuple[Tensor, Tensor]:
    """Integrate a single document: log ∫ p(z) p(document | z) dz, by a trapezoid rule.

    The grid covers every relevant z. Let f be the log integrand, c the centre of the grid and U
    the log likelihood of the document if every token had its best topic. Then f(z) > f(c) − 40
    implies log p(z) > log p(c) − (U − log p(document | c) + 40). This bounds z.

    Args:
        space: Coordinates of a batch of documents, with their prior.
        posterior: A guide's posterior of the batch, as the centre of the grid. A rough posterior is
            enough.
        row: Position of the document in the batch.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        cells: Counts of these words.
        num_points: Points on each axis, odd.
        likelihood: Distribution of the counts. Defaults to independent draws.

    Returns:
        The log integral (scalar, nats) and an estimate of its numerical error. The estimate is the
        distance from the integral over every second point of each axis. In practice the error is
        far smaller. The estimate is infinite if a single point has more than half of the sum,
        because both grids could then agree on a wrong value.
    """
    document = space.select(torch.tensor([row], device=words.device))
    best = log_likelihood_of(words.amax(1)[None], cells, likelihood)[0]

    def log_likelihood(z: Tensor) -> Tensor:
        logits = document.logits(z[:, None]).squeeze(1)
        return log_likelihood_at(logits, words, cells, likelihood)

    def depth(z: Tensor) -> Tensor:
        return best - log_likelihood(z[None])[0] + NEGLIGIBLE

    if isinstance(space, ContrastSpace):
        centre, scale, ends = _contrast_grid(space, posterior, row, depth, num_points)
    else:
        centre, scale, ends = _stick_grid(cast(StickSpace, space), posterior, row, depth)
    dim = len(centre)
    ticks = torch.linspace(-1.0, 1.0, num_points, dtype=words.dtype, device=words.device)
    axes = ticks[:, None] * ends
    nodes = torch.cartesian_prod(*axes.unbind(-1)).reshape(-1, dim)
    z = centre + nodes.sinh() @ scale.mT
    log_prior = document.log_density(z[:, None]).squeeze(1)
    # The last term is the Jacobian of sinh.
    values = log_likelihood(z) + log_prior + nodes.cosh().log().sum(-1)
    log_step = scale.diagonal().log().sum() + (axes[1] - axes[0]).log().sum()
    fine = values.logsumexp(0)
    coarse = values.reshape([num_points] * dim)[(slice(None, None, 2),) * dim].flatten()
    error = (fine - coarse.logsumexp(0) - dim * math.log(2.0)).abs()
    dominated = values.amax() - fine > math.log(0.5)
    return fine + log_step, torch.where(dominated, torch.inf, error)


#: A grid of sinh-spaced points: its centre ``(dim,)``, lower triangular scale ``(dim, dim)``
#: and positive ends ``(dim,)``. The points are centre + scale·sinh(t), with t evenly spaced from
#: −ends to ends.
Grid = tuple[Tensor, Tensor, Tensor]


def _contrast_grid(
    space: ContrastSpace,
    posterior: Any,
    row: int,
    depth: Callable[[Tensor], Tensor],
    num_points: int,
) -> Grid:
    """Evenly spaced points if they reach far enough.

    Otherwise the distances between points grow in proportion to their distance from the centre.
    The prior density at w is lower than at the centre c by more than a depth D if |w|² > 2D + |c|².
    """
    rows = torch.tensor([row], device=space.loc.device)
    (centre,), (tril,) = space.select(rows).normal(posterior, rows, ())
    radius = (2.0 * depth(centre) + centre.square().sum()).sqrt()
    radius = radius + torch.linalg.vector_norm(centre)
    reach = float(radius * torch.linalg.matrix_norm(torch.linalg.inv(tril), 2))
    spread = _spread(reach, CENTRAL_STEP * (num_points - 1) / 2)
    ends = torch.full_like(centre, math.asinh(reach / spread))
    return centre, spread * tril, ends


def _spread(reach: float, target: float) -> float:
    """Scale s of points s·sinh(t), with t evenly spaced up to asinh(reach/s).

    Args:
        reach: Distance of the last point from the centre.
        target: Distance of the last point for equal steps of the length at the centre.

    Returns:
        The solution s of s·asinh(reach/s) = target, or an s so large that points are evenly spaced.
    """
    widest = 1e4 * reach
    if widest * math.asinh(1e-4) < target:
        return widest
    return brentq(lambda scale: scale * math.asinh(reach / scale) - target, 1e-12 * reach, widest)


def _stick_grid(
    space: StickSpace, posterior: Any, row: int, depth: Callable[[Tensor], Tensor]
) -> Grid:
    """Points around the posterior's mean.

    As one or two topics vanish, the likelihood tends to a function of a single coordinate. All
    ridges of great length therefore lie along the axes.
    """
    own, after = stick_parameters(posterior.gamma[row].double()[space.order])
    centre = own.log() - after.log()
    # Standard deviations of the logits, limited to the logistic function's own width.
    spread = torch.polygamma(1, own) + torch.polygamma(1, after)
    spread = spread.sqrt().clamp_max(1.0)
    reach = (depth(centre) - space._log_kernel(centre)) / space.exponents.amin(0)
    return centre, spread.diag(), torch.asinh((reach + centre.abs()) / spread)
