"""Additive sufficient statistics: the only thing an M-step sees of an E-step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import Guide, Posterior
from torch_lntm.models import TopicModel


@dataclass(eq=False)
class Statistics:
    """Expected sufficient statistics of a topic model, summed over documents.

    Statistics of disjoint sets of documents add up, so batches, processes and stochastic
    approximation (:meth:`scaled`) are one mechanism. Within a batch sums over documents run in the
    model's dtype, between batches in float64.

    Attributes:
        num_docs: Documents summed over.
        num_tokens: Their tokens.
        sums: What the prior's M-step takes, float64 sums of the posteriors' moments by name.
        word_counts: ``(num_topics, num_words)`` float64 expected tokens.
        objective: Sum of the guide's objective, nats.
        num_unconverged: Documents whose solver did not meet its tolerance.
    """

    num_docs: float
    num_tokens: float
    sums: dict[str, Tensor]
    word_counts: Tensor
    objective: float
    num_unconverged: int

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both sets of documents."""
        return Statistics(
            self.num_docs + other.num_docs,
            self.num_tokens + other.num_tokens,
            {name: value + other.sums[name] for name, value in self.sums.items()},
            self.word_counts + other.word_counts,
            self.objective + other.objective,
            self.num_unconverged + other.num_unconverged,
        )

    def scaled(self, weight: float) -> Statistics:
        """Statistics in which every document counts ``weight``."""
        return Statistics(
            weight * self.num_docs,
            weight * self.num_tokens,
            {name: weight * value for name, value in self.sums.items()},
            weight * self.word_counts,
            weight * self.objective,
            self.num_unconverged,
        )

    def maximise(self, model: TopicModel) -> None:
        """The M-step: set the model's parameters to their maximisers, priors included."""
        model.prior.m_step(self.num_docs, **self.sums)
        model.topics.m_step(self.word_counts)


@torch.no_grad()
def sufficient_statistics(
    guide: Guide, batch: DocumentBatch, posterior: Posterior, **temperatures: float
) -> Statistics:
    """Statistics of a batch under its posterior.

    Args:
        guide: The guide that solved the posterior.
        batch: Non-empty documents (an empty one would count as a document of the prior).
        posterior: Their posterior.
        **temperatures: ``temperature`` and ``topic_temperature`` of annealing, for guides that
            have them.
    """
    batch = guide.model.check_batch(batch)
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=float(batch.counts.double().sum()),
        sums=posterior.sums(),
        word_counts=guide.word_counts(batch, posterior, **temperatures),
        objective=float(posterior.objective.sum()),
        num_unconverged=int((~posterior.converged).sum()),
    )
