"""Additive sufficient statistics: the only thing an M-step sees of an E-step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.kernels import expected_word_counts, word_probabilities
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Draws, Posterior, SampledMoments

#: The start of the names of the words' sums among the prior's.
_WORDS = "words."


@dataclass(eq=False)
class Statistics:
    """Expected sufficient statistics of a topic model, summed over documents.

    Statistics of disjoint sets of documents add up, so batches, processes and stochastic
    approximation (:meth:`blend_`) are one mechanism. Within a batch sums over documents run in the
    model's dtype, between batches in float64; running averages keep the dtype.

    Attributes:
        num_docs: Documents summed over.
        num_tokens: Their tokens.
        sums: Float64 sums by name: moments of the posteriors for the prior's M-step, and sums for
            the words' M-step, whose names begin with ``words.``.
        word_counts: ``(num_topics, num_words)`` expected tokens, stored word by word.
        objective: Sum of the guide's objective, nats. As the next one, it is a tensor while it is
            on a GPU, for which the host need not wait.
        num_unconverged: Documents whose solver did not meet its tolerance.
    """

    num_docs: float
    num_tokens: float
    sums: dict[str, Tensor]
    word_counts: Tensor
    objective: float | Tensor
    num_unconverged: int | Tensor

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both sets of documents."""
        return self.scaled(1.0).add_(other)

    def add_(self, other: Statistics) -> Statistics:
        """Add the statistics of other documents, in place but for the type of the counts."""
        self.num_docs += other.num_docs
        self.num_tokens += other.num_tokens
        self.sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        self.word_counts = self.word_counts.double().add_(other.word_counts)
        self.objective += other.objective
        self.num_unconverged += other.num_unconverged
        return self

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

    def blend_(self, new: Statistics, weight: float, scale: float = 1.0) -> None:
        """Move this running average towards others, in place (*Cappé & Moulines 2009*).

        It becomes (1 − weight) × these + weight × scale × new, with the unconverged documents of
        ``new``.
        """
        keep, take = 1.0 - weight, weight * scale
        self.num_docs = keep * self.num_docs + take * new.num_docs
        self.num_tokens = keep * self.num_tokens + take * new.num_tokens
        self.sums = {name: keep * x + take * new.sums[name] for name, x in self.sums.items()}
        self.word_counts.mul_(keep).add_(new.word_counts, alpha=take)
        self.objective = keep * self.objective + take * new.objective
        self.num_unconverged = new.num_unconverged

    def maximise(self, model: TopicModel) -> None:
        """The M-step: set the model's parameters to their maximisers, priors included."""
        self.maximise_prior(model)
        model.topics.m_step(self.word_counts)

    def maximise_prior(self, model: TopicModel) -> None:
        """The M-step of all parameters but the topics."""
        of_words = {name: x for name, x in self.sums.items() if name.startswith(_WORDS)}
        model.words.m_step(**{name.removeprefix(_WORDS): x for name, x in of_words.items()})
        others = {name: x for name, x in self.sums.items() if name not in of_words}
        model.prior.m_step(self.num_docs, **others)


def sum_statistics(parts: Iterable[Statistics | None]) -> Statistics | None:
    """The sum of the statistics of several sets of documents; None if there is no set but None."""
    total: Statistics | None = None
    for found in parts:
        if found is not None:
            total = found if total is None else total.add_(found)
    return total


def as_float_if_ready(number: Tensor) -> Any:
    """A number as Python's where the host has it; else the tensor that will have it."""
    return number if number.is_cuda else number.item()


@torch.no_grad()
def expected_statistics(
    guide: Guide[Any],
    batch: DocumentBatch,
    posterior: Posterior,
    moments: SampledMoments | None = None,
    **temperatures: float,
) -> Statistics:
    """Statistics of a batch under its posterior.

    Args:
        guide: The guide that solved the posterior.
        batch: Non-empty documents (an empty one would count as a document of the prior).
        posterior: Their posterior.
        moments: Moments to take in the place of the posterior's, if it has no covariances.
        **temperatures: ``temperature`` and ``topic_temperature`` of annealing, for guides that
            have them.
    """
    model = guide.model
    batch = model.check_batch(batch)
    sums = model.prior.statistics(moments or posterior, batch)
    if not model.words.independent:
        found = model.words.statistics(guide.word_probabilities(batch, posterior), batch)
        sums |= {_WORDS + name: x for name, x in found.items()}
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=batch.num_tokens,
        sums=sums,
        word_counts=guide.word_counts(batch, posterior, **temperatures),
        objective=as_float_if_ready(moments.objective() if moments else posterior.objective.sum()),
        num_unconverged=as_float_if_ready((~posterior.converged).sum()),
    )


@torch.no_grad()
def sampled_statistics(
    model: TopicModel,
    batch: DocumentBatch,
    latents: dict[str, Tensor],
    logits: Tensor,
    log_likelihood: Tensor,
    used: Tensor | None = None,
) -> Statistics:
    """Statistics of a batch at draws of its latent variables, averaged over chains.

    A document of which no chain is used is not counted.

    Args:
        model: The model.
        batch: Non-empty documents.
        latents: ``(num_chains, num_docs, dim)`` values by the names of the sites.
        logits: ``(num_chains, num_docs, num_topics)`` logits of theta at these.
        log_likelihood: ``(num_chains, num_docs)`` nats at these.
        used: ``(num_chains, num_docs)`` bool, the chains to average; by default all.

    Returns:
        The statistics; the objective is the log likelihood, and documents with chains left out
        count as unconverged.
    """
    batch = model.check_batch(batch)
    rows = batch.repeat(len(log_likelihood))
    return _draw_statistics(model, batch, rows, latents, logits, log_likelihood, used)


def chain_statistics(model: TopicModel, chains: Chains, used: Tensor | None = None) -> Statistics:
    """As :func:`sampled_statistics`, at the last draws of chains, whose batch has been checked.

    Args:
        model: The model.
        chains: The chains of non-empty documents.
        used: ``(num_chains, num_docs)`` bool, the chains to average. Defaults to all.
    """
    target, log_likelihood = chains.target, chains.state.log_likelihood
    rows = target.rows(len(log_likelihood))
    drawn = chains.latents, chains.logits, log_likelihood
    return _draw_statistics(model, target.batch, rows, *drawn, used)


def _draw_statistics(
    model: TopicModel,
    batch: DocumentBatch,
    rows: DocumentBatch,
    latents: dict[str, Tensor],
    logits: Tensor,
    log_likelihood: Tensor,
    used: Tensor | None,
) -> Statistics:
    """As :func:`sampled_statistics`, of a batch that has been checked, and its rows by chain."""
    num_unconverged = 0
    if used is None:
        weights = torch.full_like(log_likelihood, 1.0 / len(log_likelihood))
    else:
        num_unconverged = int((~used).any(0).sum())
        counted = used.any(0).nonzero().squeeze(-1)
        if len(counted) < batch.num_docs:
            batch = batch.select(counted)
            rows = batch.repeat(len(log_likelihood))
            latents = {site: value[:, counted] for site, value in latents.items()}
            logits, log_likelihood = logits[:, counted], log_likelihood[:, counted]
            used = used[:, counted]
        weights = used.double() / used.sum(0).clamp_min(1)
    draws = Draws(latents, logits, weights)
    theta = torch.softmax(logits, -1).flatten(0, 1).to(rows.dtype)
    shares = weights.flatten() if len(weights) > 1 else None
    sums, topics = model.prior.statistics(draws, batch), model.topics.probs
    if not model.words.independent:
        found = model.words.statistics(word_probabilities(theta, topics, rows), rows, shares)
        sums |= {_WORDS + name: x for name, x in found.items()}
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=batch.num_tokens,
        sums=sums,
        word_counts=expected_word_counts(theta, topics, rows, model.words, shares=shares),
        objective=as_float_if_ready((weights * log_likelihood).sum()),
        num_unconverged=num_unconverged,
    )
