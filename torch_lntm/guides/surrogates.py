"""Posteriors of documents that repeat words, by posteriors of independent draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.contraction import document_sums
from torch_lntm.kernels.likelihood import surrogate
from torch_lntm.kernels.mixture import word_probabilities
from torch_lntm.latents import LatentSpace
from torch_lntm.solvers.options import SolveOptions

#: Tolerance of a document's surrogate counts between rounds, in tokens. The objective changes by
#: about its square.
MAX_ERROR = 1e-2


def solve_by_surrogates(
    guide: Any,
    solve: Callable[..., Any],
    batch: DocumentBatch,
    topics: Tensor,
    space: LatentSpace,
    options: SolveOptions,
) -> Any:
    """Solve documents that repeat words, by posteriors of independent draws.

    A round updates the surrogate counts at the posterior, and then the posterior at these counts.
    Both raise the same bound on the log likelihood (:mod:`torch_lntm.kernels.likelihood`). Rounds
    go on for documents whose counts still change, and a last one solves all documents so that none
    depends on the others.

    Args:
        guide: The guide.
        solve: Its solver for independent draws, for the last round. The other rounds need means
            alone.
        batch: The documents.
        topics: As for the solver.
        space: As for the solver.
        options: As for the solver, in each round. Surrogate counts have converged if they change by
            less than the square root of the tolerance, in tokens, and by less than ``MAX_ERROR``.
            The number of rounds is at most a quarter of the iterations, plus the last round.
    """
    model, words = guide.model, guide.model.words
    max_change = min(math.sqrt(options.tolerance), MAX_ERROR)
    by_documents = guide.warm_start_rows == "documents"
    latent = options.start if by_documents else space.centre.expand(batch.num_docs, -1)
    probability = word_probabilities(model.theta(latent).to(topics), model.topics.probs, batch)
    start = options.start.clone()
    rows = torch.arange(batch.num_docs, device=batch.device)
    iterations = torch.zeros_like(rows)
    # Iterations of a solver per round. Calls with fewer iterations keep the surrogate counts of the
    # start.
    for _ in range(options.max_iterations // 4):
        entries, _ = batch.entries(rows)
        part = batch.select(rows, len(entries))
        at = rows if by_documents else entries
        surrogates, _ = surrogate(words, probability[entries], part)
        part_options = options._replace(start=start[at])
        means = guide._solve_means(surrogates, topics, space.select(rows), part_options)
        start[at] = means.warm_start.to(start)
        iterations[rows] += means.iterations
        probability[entries] = guide.word_probabilities(part, means)
        change = (words.tokens(probability[entries], part) - surrogates.counts).abs()
        rows = rows[document_sums(change, part) > max_change]
        if not len(rows):
            break
    surrogates, offset = surrogate(words, probability, batch)
    posterior = solve(surrogates, topics, space, options._replace(start=start))
    tokens = words.tokens(guide.word_probabilities(batch, posterior), batch)
    change = (tokens - surrogates.counts).abs()
    posterior.converged &= document_sums(change, batch) <= max_change
    posterior.iterations = posterior.iterations + iterations
    posterior.objective = posterior.objective + offset
    return posterior
