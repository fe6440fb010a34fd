"""Additive sufficient statistics, which every E-step produces and every M-step consumes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.kernels.mixture import expected_word_counts, word_probabilities
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Draws, Posterior
from torch_lntm.posteriors.normal import SampledMoments
from torch_lntm.solvers.options import DEFAULTS, SolveOptions

#: Prefix of the names of the words' sums.
_WORDS = "words."


@dataclass(eq=False)
class Statistics:
    """Expected sufficient statistics of a topic model, summed over documents.

    Statistics of disjoint sets of documents add up, which is what batches, processes and stochastic
    approximation (:meth:`blend_`) rely on. Within a batch the sums have the model's dtype, across
    batches they are float64, and a running average keeps the dtype it has.

    Variational EM, Monte-Carlo EM and :class:`~torch_lntm.inference.StepwiseEM` all blend in new
    statistics and then make an M-step, but each has these two lines to itself because the rest of
    the loop differs. Their step sizes go by the number of updates, by the age of documents, or by
    tokens; Monte-Carlo EM makes no M-step within its first epoch; and the average of a stream
    grows. The start of a fit averages its topics in
    :class:`~torch_lntm.inference.em.start.RunningTopics`, whose updates touch only the words of a
    batch.

    Attributes:
        num_docs: Number of documents in the sums.
        num_tokens: Number of their tokens.
        sums: Float64 sums by name: moments of the posteriors for the prior's M-step, and sums with
            the prefix ``words.`` for the words' M-step.
        word_counts: ``(num_topics, num_words)`` expected tokens, stored word by word.
        objective: Sum of the guide's objective, nats. It may be a tensor, so that the host need not
            wait for a GPU.
        num_unconverged: Number of documents whose posterior missed the solver's tolerance; it may
            be a tensor, too.
    """

    num_docs: float
    num_tokens: float
    sums: dict[str, Tensor]
    word_counts: Tensor
    objective: float | Tensor
    num_unconverged: int | Tensor

    def add_(self, other: Statistics) -> Statistics:
        """Add the statistics of further documents in place. The word counts become float64."""
        self.num_docs += other.num_docs
        self.num_tokens += other.num_tokens
        self.sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        self.word_counts = self.word_counts.double().add_(other.word_counts)
        self.objective += other.objective
        self.num_unconverged += other.num_unconverged
        return self

    def scaled(self, weight: float) -> Statistics:
        """Statistics in which every document has the weight ``weight``."""
        return Statistics(
            weight * self.num_docs,
            weight * self.num_tokens,
            {name: weight * value for name, value in self.sums.items()},
            weight * self.word_counts,
            weight * self.objective,
            self.num_unconverged,
        )

    def blend_(self, new: Statistics, weight: float, scale: float = 1.0) -> None:
        """Move this running average towards new statistics, in place (*Cappé & Moulines 2009*).

        It becomes (1 − weight) × average + weight × scale × new, and takes ``num_unconverged`` from
        ``new``.
        """
        old_weight, new_weight = 1.0 - weight, weight * scale
        self.num_docs = old_weight * self.num_docs + new_weight * new.num_docs
        self.num_tokens = old_weight * self.num_tokens + new_weight * new.num_tokens
        self.sums = {
            name: old_weight * x + new_weight * new.sums[name] for name, x in self.sums.items()
        }
        self.word_counts.mul_(old_weight).add_(new.word_counts, alpha=new_weight)
        self.objective = old_weight * self.objective + new_weight * new.objective
        self.num_unconverged = new.num_unconverged

    def maximise(self, model: TopicModel, *, topics: bool = True) -> None:
        """M-step: set the model's parameters to their maximisers under their priors.

        Args:
            model: The model.
            topics: Whether to set the topics too.
        """
        word_sums = {name: x for name, x in self.sums.items() if name.startswith(_WORDS)}
        model.words.m_step(**{name.removeprefix(_WORDS): x for name, x in word_sums.items()})
        prior_sums = {name: x for name, x in self.sums.items() if name not in word_sums}
        model.prior.m_step(self.num_docs, **prior_sums)
        if topics:
            model.topics.m_step(self.word_counts)


def sum_statistics(parts: Iterable[Statistics | None]) -> Statistics | None:
    """Sum of the statistics of several sets of documents.

    Args:
        parts: The statistics. ``None`` stands for a set without documents.

    Returns:
        The sum. ``None`` if all parts are ``None``.
    """
    total: Statistics | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total.add_(part)
    return total


@torch.no_grad()
def expected_statistics(
    guide: Guide[Any],
    batch: DocumentBatch,
    posterior: Posterior,
    moments: SampledMoments | None = None,
    options: SolveOptions = DEFAULTS,
) -> Statistics:
    """Statistics of a batch under its posterior.

    Args:
        guide: The guide of the posterior.
        batch: Non-empty documents, as ``model.check_batch`` returns them. The M-step of the prior
            must not see empty documents.
        posterior: Posterior of the documents.
        moments: Moments to use if the posterior has no covariances. Defaults to the moments of the
            posterior.
        options: Settings of the solver, with the inverse temperatures of annealing.
    """
    model = guide.model
    sums = model.prior.statistics(moments or posterior, batch)
    if not model.words.independent:
        word_sums = model.words.statistics(guide.word_probabilities(batch, posterior), batch)
        sums |= {_WORDS + name: x for name, x in word_sums.items()}
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=batch.num_tokens,
        sums=sums,
        word_counts=guide.word_counts(batch, posterior, options),
        objective=(moments.objective() if moments else posterior.objective.sum()).double(),
        num_unconverged=(~posterior.converged).sum(),
    )


@torch.no_grad()
def chain_statistics(model: TopicModel, chains: Chains, used: Tensor | None = None) -> Statistics:
    """Statistics at the chains' last draws, averaged over the chains of each document.

    A document none of whose chains is used is left out.

    Args:
        model: The model.
        chains: Chains of non-empty documents.
        used: ``(num_chains, num_docs)`` bool: chains in the average. Defaults to all chains.

    Returns:
        The statistics. The objective is the log likelihood. Documents with an unused chain count as
        unconverged.
    """
    batch, latents, logits = chains.target.batch, chains.latents, chains.logits
    log_likelihood = chains.state.log_likelihood
    rows = chains.target.rows(len(log_likelihood))
    num_unconverged, counts = 0, chains.counts
    if used is None:
        weights = torch.full_like(log_likelihood, 1.0 / len(log_likelihood))
    else:
        num_unconverged = int((~used).any(0).sum())
        included = used.any(0).nonzero().squeeze(-1)
        if len(included) < batch.num_docs:
            batch = batch.select(included)
            rows, counts = batch.repeat(len(log_likelihood)), None
            latents = {site: value[:, included] for site, value in latents.items()}
            logits, log_likelihood = logits[:, included], log_likelihood[:, included]
            used = used[:, included]
        weights = used.double() / used.sum(0).clamp_min(1)
    draws = Draws(latents, logits, weights)
    theta, ratio = counts or (torch.softmax(logits, -1), None)
    theta = theta.flatten(0, 1).to(rows.dtype)
    shares = weights.flatten() if len(weights) > 1 else None
    sums, topics = model.prior.statistics(draws, batch), model.topics.probs
    if not model.words.independent:
        word_sums = model.words.statistics(word_probabilities(theta, topics, rows), rows, shares)
        sums |= {_WORDS + name: x for name, x in word_sums.items()}
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=batch.num_tokens,
        sums=sums,
        word_counts=expected_word_counts(
            theta, topics, rows, model.words, shares=shares, ratio=ratio
        ),
        objective=(weights * log_likelihood).sum().double(),
        num_unconverged=num_unconverged,
    )
