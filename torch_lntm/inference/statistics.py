"""Additive sufficient statistics: the only thing an M-step sees of an E-step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import GaussianPosterior
from torch_lntm.kernels import expected_counts
from torch_lntm.models import TopicModel


@dataclass(eq=False)
class Statistics:
    """Expected sufficient statistics of a logistic-normal topic model, summed over documents.

    Statistics of disjoint sets of documents add up, so batches, processes and stochastic
    approximation (:meth:`scaled`) are one mechanism. Within a batch sums over documents run in the
    model's dtype, between batches in float64.

    Attributes:
        num_docs: Documents summed over.
        num_tokens: Their tokens.
        latent_sum: ``(latent_dim,)`` float64 Σ E[eta].
        latent_outer: ``(latent_dim, latent_dim)`` float64 Σ E[eta etaᵀ].
        word_counts: ``(num_topics, num_words)`` float64 expected tokens.
        objective: Sum of the guide's objective, nats.
        num_unconverged: Documents whose solver did not meet its tolerance.
    """

    num_docs: float
    num_tokens: float
    latent_sum: Tensor
    latent_outer: Tensor
    word_counts: Tensor
    objective: float
    num_unconverged: int

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both sets of documents."""
        return Statistics(
            self.num_docs + other.num_docs,
            self.num_tokens + other.num_tokens,
            self.latent_sum + other.latent_sum,
            self.latent_outer + other.latent_outer,
            self.word_counts + other.word_counts,
            self.objective + other.objective,
            self.num_unconverged + other.num_unconverged,
        )

    def scaled(self, weight: float) -> Statistics:
        """Statistics in which every document counts ``weight``."""
        return Statistics(
            weight * self.num_docs,
            weight * self.num_tokens,
            weight * self.latent_sum,
            weight * self.latent_outer,
            weight * self.word_counts,
            weight * self.objective,
            self.num_unconverged,
        )

    def maximise(self, model: TopicModel) -> None:
        """The M-step: set the model's parameters to their maximisers, priors included."""
        model.prior.m_step(self.num_docs, self.latent_sum, self.latent_outer)
        model.topics.m_step(self.word_counts)


@torch.no_grad()
def sufficient_statistics(
    model: TopicModel,
    batch: DocumentBatch,
    posterior: GaussianPosterior,
    *,
    temperature: float = 1.0,
    topic_temperature: float = 1.0,
) -> Statistics:
    """Statistics of a batch under its posterior.

    Word counts are expected under responsibilities ∝ exp(T·E eta_k) φ_kv^T′ (*Ahmed & Xing 2007,
    eq. 12; Khan & Bouchard 2009, eq. 31*).

    Args:
        model: The model that the posterior was solved under.
        batch: Non-empty documents (an empty one would count as a document of the prior).
        posterior: Their posterior.
        temperature: Inverse temperature T of annealing.
        topic_temperature: That of the topics, T′.
    """
    batch = model.check_batch(batch)
    topics = model.topics.probs
    if topic_temperature != 1.0:
        topics = topics.pow(topic_temperature)
    weights = torch.softmax(temperature * model.prior.lift(posterior.mean), -1)
    counts = expected_counts(weights, topics, batch, word_counts=True)
    assert counts.word_counts is not None
    mean = posterior.mean.double()
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=float(batch.counts.double().sum()),
        latent_sum=mean.sum(0),
        latent_outer=mean.mT @ mean + posterior.covariance_sum(),
        word_counts=counts.word_counts.double(),
        objective=float(posterior.objective.sum()),
        num_unconverged=int((~posterior.converged).sum()),
    )
