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

#: Tokens by which a document's tables may still change from turn to turn; the objective would
#: change by about the square of that.
MAX_ERROR = 1e-2
#: Iterations of a solver for each turn. Visits of few iterations take the tables where they start.
TURN_ITERATIONS = 4


def solve_by_tables(
    guide: Any,
    solve: Callable[..., Any],
    solve_means: Callable[..., Any],
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
    likelihood; see :mod:`torch_lntm.kernels.bursts`. Documents take turns until their tables have
    converged; the last turn is that of all of them, so that none depends on the others.

    Args:
        guide: The guide.
        solve: Its solver of independent draws.
        solve_means: One with the same means, which may leave out the rest; for all turns but the
            last.
        batch: The documents, with a concentration.
        topics: As for the solver.
        space: As for the solver.
        start: As for the solver.
        tolerance: That of a turn. Tables have converged within its root, in tokens, or within
            ``MAX_ERROR``.
        max_iterations: Bound on the iterations of each turn; there are a quarter as many turns at
            most, and the last.
        **settings: Others of the solver.
    """
    model, max_change = guide.model, min(math.sqrt(tolerance), MAX_ERROR)
    effort = {"tolerance": tolerance, "max_iterations": max_iterations, **settings}
    by_documents = guide.starts_from == "documents"
    latent = start if by_documents else None
    if latent is None:
        latent = space.centre.expand(batch.num_docs, -1)
    probability = word_probabilities(model.theta(latent).to(topics), model.topics.probs, batch)
    start = None if start is None else start.clone()
    rows = torch.arange(batch.num_docs, device=batch.device)
    iterations = torch.zeros_like(rows)
    for _ in range(max_iterations // TURN_ITERATIONS):
        entries, _ = batch.entries(rows)
        part = batch.select(rows, len(entries))
        at = rows if by_documents else entries
        drawn, _ = bursts.with_tables(probability[entries], part)
        begin = None if start is None else start[at]
        found = solve_means(drawn, topics, space.select(rows), start=begin, **effort)
        if start is None:
            # The first turn, of all documents.
            start = found.warm_start.clone()
        start[at] = found.warm_start.to(start)
        iterations[rows] += found.iterations
        probability[entries] = guide.word_probabilities(part, found)
        change = (bursts.tables(probability[entries], part) - drawn.counts).abs()
        rows = rows[document_sums(change, part) > max_change]
        if not len(rows):
            break
    drawn, raised = bursts.with_tables(probability, batch)
    found = solve(drawn, topics, space, start=start, **effort)
    change = bursts.tables(guide.word_probabilities(batch, found), batch) - drawn.counts
    found.converged &= document_sums(change.abs(), batch) <= max_change
    found.iterations, found.objective = found.iterations + iterations, found.objective + raised
    return found
