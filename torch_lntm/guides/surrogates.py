"""Posteriors of documents whose tokens are no independent draws, by posteriors of such draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels import Cells, surrogate, word_probabilities
from torch_lntm.kernels.contraction import document_sums
from torch_lntm.latents import LatentSpace

#: Tokens by which a document's surrogate counts may still change from round to round. The objective
#: would change by about the square of this number.
MAX_ERROR = 1e-2
#: Iterations of a solver in each round. Visits of few iterations take the counts where they start.
ROUND_ITERATIONS = 4


def solve_by_surrogates(
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
    """Solve documents whose tokens are no independent draws, by posteriors of such draws.

    The surrogate counts at a posterior, and the posterior given these counts, raise the same bound
    on the log likelihood; see :mod:`torch_lntm.kernels.likelihood`. Rounds of the two go on for the
    documents whose counts still change. The last round solves all documents, so that no document
    depends on the others.

    Args:
        guide: The guide.
        solve: Its solver for independent draws.
        solve_means: A solver with the same means, which may leave out the rest, for all rounds but
            the last.
        batch: The documents.
        topics: As for the solver.
        space: As for the solver.
        start: As for the solver.
        tolerance: Tolerance of a round. Surrogate counts have converged within its root, in tokens,
            or within ``MAX_ERROR``.
        max_iterations: Bound on the iterations of each round. There are at most a quarter of this
            number of rounds, and the last.
        **settings: Others of the solver.
    """
    model, words = guide.model, guide.model.words
    max_change = min(math.sqrt(tolerance), MAX_ERROR)
    options = {"tolerance": tolerance, "max_iterations": max_iterations, **settings}
    by_documents = guide.warm_start_rows == "documents"
    latent = start if by_documents else None
    if latent is None:
        latent = space.centre.expand(batch.num_docs, -1)
    probability = word_probabilities(model.theta(latent).to(topics), model.topics.probs, batch)
    start = None if start is None else start.clone()
    rows = torch.arange(batch.num_docs, device=batch.device)
    iterations = torch.zeros_like(rows)
    for _ in range(max_iterations // ROUND_ITERATIONS):
        entries, _ = batch.entries(rows)
        part = batch.select(rows, len(entries))
        at = rows if by_documents else entries
        drawn, _ = surrogate(words, probability[entries], part)
        begin = None if start is None else start[at]
        found = solve_means(drawn, topics, space.select(rows), start=begin, **options)
        if start is None:
            # The first round, of all documents.
            start = found.warm_start.clone()
        start[at] = found.warm_start.to(start)
        iterations[rows] += found.iterations
        probability[entries] = guide.word_probabilities(part, found)
        change = (words.tokens(probability[entries], Cells.of(part)) - drawn.counts).abs()
        rows = rows[document_sums(change, part) > max_change]
        if not len(rows):
            break
    drawn, raised = surrogate(words, probability, batch)
    found = solve(drawn, topics, space, start=start, **options)
    change = words.tokens(guide.word_probabilities(batch, found), Cells.of(batch)) - drawn.counts
    found.converged &= document_sums(change.abs(), batch) <= max_change
    found.iterations, found.objective = found.iterations + iterations, found.objective + raised
    return found
