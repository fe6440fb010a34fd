"""Finds the documents of a float32 model that need float64.

Float32 is too coarse for a document for one of three reasons:

* The rounding error of its log likelihood grows with its length, and once it reaches the tolerance
  a solver cannot see further gains.
* Its whitened precision has eigenvalues between 1 and about its length times the prior variance of
  a logit. If their ratio nears the reciprocal of the machine epsilon, the small ones are lost,
  which are the large posterior variances.
* Mixture probabilities have a floor near the smallest number (see
  :mod:`torch_lntm.kernels.mixture`). A topic below the floor has no gradient, even if it alone has
  some word of the document.

The first two are known before the solve, whereas the third shows only in the posterior, after which
the document is solved again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels.mixture import expected_topic_counts, probability_floor
from torch_lntm.posteriors.normal import ModePosterior, NormalPosterior
from torch_lntm.solvers.options import SolveOptions

#: Return type of a solver.
Solved = NormalPosterior | ModePosterior
Solver = TypeVar("Solver", bound=Callable[..., Solved])


def in_sufficient_precision(solver: Solver) -> Solver:
    """Decorate a solver of normal posteriors to use float64 for the documents that need it.

    The posteriors keep the dtype of the model. A document that loses words even in float64 counts
    as not converged; see :func:`has_lost_words`.

    Args:
        solver: A function of a batch, topics, a latent space and :class:`SolveOptions`.
    """

    @wraps(solver)
    def solve(batch: DocumentBatch, topics: Tensor, space: Any, options: SolveOptions) -> Solved:
        fine, fine_space, part, part_options = None, space, batch, options
        if topics.dtype != torch.float64:
            coarse = needs_float64(batch, space, options.tolerance)
            if bool(coarse.any()):
                fine = (~coarse).nonzero().squeeze(-1)
                fine_space, part = space.select(fine), batch.select(fine)
                part_options = options._replace(start=options.start[fine])
        single = solver(part, topics, fine_space, part_options)
        lost = has_lost_words(part, topics, single.topic_weights(options.inverse_temperature))
        if topics.dtype == torch.float64:
            return replace(single, converged=single.converged & ~lost)
        if fine is None:
            coarse, fine = lost, torch.arange(batch.num_docs, device=lost.device)
        else:
            coarse[fine] = lost
        rows = coarse.nonzero().squeeze(-1)
        if not len(rows):
            return single
        exact = torch.float64
        double = solve(
            batch.select(rows).to(dtype=exact),
            _exact(topics),
            space.select(rows).to(exact),
            options._replace(start=options.start[rows].to(exact)),
        )
        # The float64 posteriors come last, to replace the float32 posteriors of the same documents.
        order = torch.empty_like(batch.index)
        order[fine] = torch.arange(len(fine), device=order.device)
        order[rows] = torch.arange(len(fine), len(fine) + len(rows), device=order.device)
        # A solver that needs a dense covariance replaces the space by its marginal.
        kept_space = single.space is fine_space
        return _joined(single, double, order, space if kept_space else space.marginal())

    return cast(Solver, solve)


def needs_float64(batch: DocumentBatch, space: Any, tolerance: float) -> Tensor:
    """Whether the dtype of the batch is too coarse for a document, ``(num_docs,)`` bool.

    Args:
        batch: Documents.
        space: Their latent space, an ``EtaSpace`` or a ``FactorSpace``.
        tolerance: Tolerance of the solver, nats.
    """
    # The condition number of a whitened precision times the machine epsilon may reach 0.1. The
    # rounding error of a log likelihood, estimated as the number of tokens times the machine
    # epsilon, may reach 1e-3 nats or the solver's tolerance.
    longest = (0.1 / space.eta_variance.amax()).clamp_max(max(1e-3, tolerance))
    return batch.lengths > longest / torch.finfo(batch.dtype).eps


def has_lost_words(batch: DocumentBatch, topics: Tensor, weights: Tensor) -> Tensor:
    """Whether a word is at the floor although some topic has it, ``(num_docs,)`` bool.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        weights: ``(num_docs, num_topics)`` normalised topic weights.
    """
    lost = torch.zeros_like(batch.index, dtype=torch.bool)
    # If all weights are above this limit, a word at the floor has almost no probability in any
    # topic.
    suspects = weights.amin(-1) < probability_floor(topics.dtype) ** 0.5
    rows = suspects.nonzero().squeeze(-1)
    if len(rows):
        part, weights = batch.select(rows), weights[rows]
        topics = torch.where(_is_zero(topics), 0.0, topics)
        explained = expected_topic_counts(weights, topics, part).sum(-1)
        # Words without any topic are at the floor for every choice of weights.
        equal = torch.full_like(weights, 1.0 / weights.shape[-1])
        explicable = expected_topic_counts(equal, topics, part).sum(-1)
        lost[rows] = explicable - explained > 0.1  # tokens
    return lost


def _is_zero(topics: Tensor) -> Tensor:
    """Whether a probability stands for zero because it is at the floor, shape of ``topics``."""
    return topics <= 2.0 * probability_floor(topics.dtype)


def _exact(topics: Tensor) -> Tensor:
    """The topics in float64, with zeros at the floor of float64.

    At the float32 floor, zeros would explain a word better than an improbable topic that does have
    it. A word without any topic keeps its probabilities, and with them the document's objective.
    """
    zero = _is_zero(topics)
    zero = zero & ~zero.all(0)
    return torch.where(zero, probability_floor(torch.float64), topics.double())


def _joined(first: Solved, second: Solved, order: Tensor, space: Any) -> Solved:
    """Posteriors of all documents, in the dtypes of the first part.

    Args:
        first: Posteriors of some documents.
        second: Posteriors of the other documents.
        order: ``(num_docs,)`` positions in the two parts, joined in this order.
        space: Latent space of the posteriors of all documents.
    """
    joined: dict[str, Any] = {
        field.name: torch.cat([value, getattr(second, field.name).to(value)])[order]
        for field in fields(first)
        if isinstance(value := getattr(first, field.name), Tensor)
    }
    return replace(first, space=space, **joined)
