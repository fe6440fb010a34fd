"""Quadrature of a document's probability over the few coordinates of 2 or 3 topics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_lntm.kernels import INDEPENDENT, Cells, CountLikelihood
from torch_lntm.kernels.dense import log_likelihood_at, log_likelihood_of
from torch_lntm.latents.identified import IdentifiedSpace

#: Nats below the log integrand at the centre at which the integrand becomes negligible.
NEGLIGIBLE = 40.0


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

    grid = space.grid(posterior, row, depth, num_points)
    dim = len(grid.centre)
    ticks = torch.linspace(-1.0, 1.0, num_points, dtype=words.dtype, device=words.device)
    axes = ticks[:, None] * grid.ends
    nodes = torch.cartesian_prod(*axes.unbind(-1)).reshape(-1, dim)
    z = grid.centre + nodes.sinh() @ grid.scale.mT
    log_prior = document.log_density(z[:, None]).squeeze(1)
    # The last term is the Jacobian of sinh.
    values = log_likelihood(z) + log_prior + nodes.cosh().log().sum(-1)
    log_step = grid.scale.diagonal().log().sum() + (axes[1] - axes[0]).log().sum()
    fine = values.logsumexp(0)
    coarse = values.reshape([num_points] * dim)[(slice(None, None, 2),) * dim].flatten()
    error = (fine - coarse.logsumexp(0) - dim * math.log(2.0)).abs()
    dominated = values.amax() - fine > math.log(0.5)
    return fine + log_step, torch.where(dominated, torch.inf, error)
