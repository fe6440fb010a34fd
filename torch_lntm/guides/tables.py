"""Posteriors of documents that repeat their words, by those of independent draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels import bursts, word_probabilities
from torch_lntm.kernels.contraction import document_sums
from torch_lntm.latents import LatentSpace

#: Tokens that the tables of a document may be off by. The objective is off by the square of that.
MAX_ERROR = 1e-2


def solve_by_tables(
    guide: Any,
    solve: Callable[..., Any],
    rough: Callable[..., Any] | None,
    batch: DocumentBatch,
    topics: Tensor,
    space: LatentSpace,
    *,
    start: Tensor | None,
    tolerance: float,
    max_iterations: int,
    **settings: float,
) -> Any:
    """Solve documents that repeat their words, as those of independent draws, in turns.

    The tables at a posterior, and the posterior at these tables, raise the same bound on the log
    likelihood; see :mod:`torch_lntm.kernels.bursts`.

    Args:
        guide: The guide.
        solve: Its solver of independent draws.
        rough: A cheaper one with the same means, for all turns but the last; by default the same.
        batch: The documents, with a concentration.
        topics: As for the solver.
        space: As for the solver.
        start: As for the solver.
        tolerance: That of a turn. The tables have converged within its root, in tokens, or within
            ``MAX_ERROR``.
        max_iterations: Bound on the iterations of all turns but the last, where it is another.
        **settings: Others of the solver.
    """
    latent = start if guide.starts_from == "documents" else None
    if latent is None:
        latent = space.centre.expand(batch.num_docs, -1)
    theta = guide.model.theta(latent).to(topics)
    probability = word_probabilities(theta, guide.model.topics.probs, batch)
    step, left = rough or solve, max_iterations
    iterations, max_change = torch.zeros_like(batch.index), min(math.sqrt(tolerance), MAX_ERROR)
    while True:
        drawn, raised = bursts.with_tables(probability, batch)
        effort = {"tolerance": tolerance, "max_iterations": left}
        found = step(drawn, topics, space, start=start, **effort, **settings)
        start, left = found.warm_start, left - max(1, int(found.iterations.max()))
        iterations += found.iterations
        probability = guide.word_probabilities(batch, found)
        change = (bursts.tables(probability, batch) - drawn.counts).abs()
        found.converged &= document_sums(change, batch) <= max_change
        if left <= 0 or bool(found.converged.all()):
            break
    if rough is not None:
        converged, effort = found.converged, {**effort, "max_iterations": max_iterations}
        drawn, raised = bursts.with_tables(probability, batch)
        found = solve(drawn, topics, space, start=start, **effort, **settings)
        found.converged &= converged
        iterations += found.iterations
    found.iterations, found.objective = iterations, found.objective + raised
    return found
