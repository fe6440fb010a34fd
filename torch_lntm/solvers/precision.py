"""Documents of a float32 model that have to be solved in float64.

Float32 is too coarse for a document for one of three reasons:

* Rounding of its log likelihood grows with its length. Where rounding reaches the tolerance, no
  solver can see whether it still gains anything.
* Its whitened precision has eigenvalues between 1 and about its length times the prior variance of
  a logit. Where their ratio nears the reciprocal of the machine epsilon, the small eigenvalues,
  which are the large posterior variances, are lost.
* Mixture probabilities are floored near the smallest number (see
  :mod:`torch_lntm.kernels.mixture`). A topic that is less probable than that has no gradient, even
  if no other topic has some word of the document.

The first two are known before a document is solved. The third shows in the posterior: the document
is then solved again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels import expected_topic_counts, probability_floor
from torch_lntm.posteriors.mode import ModePosterior
from torch_lntm.posteriors.normal import NormalPosterior

#: Largest acceptable rounding error of a document's log likelihood, in nats, estimated as its
#: number of tokens times the dtype's machine epsilon; the solver's tolerance, if that is larger.
MAX_ROUNDING_ERROR = 1e-3
#: Largest acceptable condition number of a whitened precision times the machine epsilon.
MAX_CONDITION = 0.1
#: Tokens by which expected topic counts may fall short of a document's length.
MAX_LOST_TOKENS = 0.1

#: What a solver returns.
Solved = NormalPosterior | ModePosterior
Solver = TypeVar("Solver", bound=Callable[..., Solved])


def in_sufficient_precision(solver: Solver) -> Solver:
    """Decorate a solver of normal posteriors to use float64 for the documents that need it.

    The posteriors keep the dtype of the model. A document that has lost words even in float64 has
    not converged; see :func:`has_lost_words`.

    Args:
        solver: A function of a batch, topics, a latent space and keywords, among them ``start`` and
            ``tolerance``.
    """

    @wraps(solver)
    def solve(
        batch: DocumentBatch, topics: Tensor, space: Any, *, start: Tensor, **options: Any
    ) -> Solved:
        def run(
            batch: DocumentBatch, topics: Tensor, space: Any, start: Tensor
        ) -> tuple[Solved, Tensor]:
            posterior = solver(batch, topics, space, start=start, **options)
            weights = posterior.topic_weights(options.get("temperature", 1.0))
            return posterior, has_lost_words(batch, topics, weights)

        if topics.dtype == torch.float64:
            posterior, lost = run(batch, topics, space, start)
            return replace(posterior, converged=posterior.converged & ~lost)
        coarse = needs_float64(batch, space, options["tolerance"])
        if bool(coarse.any()):
            fine = (~coarse).nonzero().squeeze(-1)
            fine_space = space.select(fine)
            single, lost = run(batch.select(fine), topics, fine_space, start[fine])
            coarse[fine] = lost
        else:
            fine_space = space
            single, coarse = run(batch, topics, space, start)
            fine = torch.arange(batch.num_docs, device=coarse.device)
        rows = coarse.nonzero().squeeze(-1)
        if not len(rows):
            return single
        exact = torch.float64
        double, lost = run(
            batch.select(rows).to(dtype=exact),
            _exact(topics),
            space.select(rows).to(exact),
            start[rows].to(exact),
        )
        double = replace(double, converged=double.converged & ~lost)
        # The float64 ones come last, and replace those that were solved in float32 before.
        order = torch.empty_like(batch.index)
        order[fine] = torch.arange(len(fine), device=order.device)
        order[rows] = torch.arange(len(fine), len(fine) + len(rows), device=order.device)
        # A solver that needs a dense covariance replaces the space by its marginal.
        kept_space = single.space is fine_space
        return _joined(single, double, order, space if kept_space else space.marginal())

    return cast(Solver, solve)


def needs_float64(batch: DocumentBatch, space: Any, tolerance: float) -> Tensor:
    """Where the dtype of a batch is too coarse for a document, ``(num_docs,)`` bool.

    Args:
        batch: Documents.
        space: Their latent space, an ``EtaSpace`` or a ``FactorSpace``.
        tolerance: Nats that a solver means to be sure of.
    """
    rounding = torch.finfo(batch.dtype).eps
    longest = (MAX_CONDITION / space.eta_variance.amax()).clamp_max(
        max(MAX_ROUNDING_ERROR, tolerance)
    )
    return batch.lengths > longest / rounding


def has_lost_words(batch: DocumentBatch, topics: Tensor, weights: Tensor) -> Tensor:
    """Where the probability of a word that some topic has is floored, ``(num_docs,)`` bool.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``.
        weights: ``(num_docs, num_topics)`` normalised topic weights.
    """
    lost = torch.zeros_like(batch.index, dtype=torch.bool)
    # Where all weights are above this, only words that every topic nearly excludes are floored.
    suspects = weights.amin(-1) < probability_floor(topics.dtype) ** 0.5
    rows = suspects.nonzero().squeeze(-1)
    if len(rows):
        part, weights = batch.select(rows), weights[rows]
        topics = torch.where(_is_zero(topics), 0.0, topics)
        explained = expected_topic_counts(weights, topics, part).sum(-1)
        # Words that no topic has are floored with any weights.
        equal = torch.full_like(weights, 1.0 / weights.shape[-1])
        lost[rows] = (
            expected_topic_counts(equal, topics, part).sum(-1) - explained > MAX_LOST_TOKENS
        )
    return lost


def _is_zero(topics: Tensor) -> Tensor:
    """Where a probability stands for zero, of the shape of ``topics``: it is at the floor."""
    return topics <= 2.0 * probability_floor(topics.dtype)


def _exact(topics: Tensor) -> Tensor:
    """The topics in float64, with zeros at the floor of that dtype.

    At the old floor they would still explain a word better than an improbable topic that has it. A
    word that no topic has keeps its probabilities, and the document's objective with them.
    """
    zero = _is_zero(topics)
    zero = zero & ~zero.all(0)
    return torch.where(zero, probability_floor(torch.float64), topics.double())


def _joined(first: Solved, second: Solved, order: Tensor, space: Any) -> Solved:
    """The posteriors ``order`` of both together, in the dtypes of the first.

    Args:
        first: Posteriors of some documents.
        second: Posteriors of the other documents.
        order: ``(num_docs,)`` positions among those of the first followed by those of the second.
        space: Latent space of the posteriors of all documents.
    """
    joined: dict[str, Any] = {
        field.name: torch.cat([value, getattr(second, field.name).to(value)])[order]
        for field in fields(first)
        if isinstance(value := getattr(first, field.name), Tensor)
    }
    return replace(first, space=space, **joined)
