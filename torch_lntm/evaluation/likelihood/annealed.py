"""Annealed importance sampling over a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm import noise
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import require_whole
from torch_lntm.evaluation.checks import check_arguments, warn_of_documents
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.latents import DocumentTarget
from torch_lntm.models import TopicModel
from torch_lntm.sampling import ais
from torch_lntm.sampling.importance import summarise_weights

#: Numbers that a batch's words and chains hold at most: on a CPU what its caches hold, elsewhere
#: what keeps the device busy.
_MAX_NUMBERS_CPU, _MAX_NUMBERS_ELSEWHERE = 2**19, 2**25
#: Transitions after which every chain should have moved.
_FEWEST_TRANSITIONS = 10
#: Chains that count, below which one has more than half of the weight: neither the mean weight nor
#: its standard error is then to be trusted.
LEAST_CHAINS = 2.0


@dataclass(frozen=True, eq=False)
class AIS(LikelihoodMethod):
    """Annealed importance sampling (*Neal 2001*): chains from the prior to the posterior.

    It needs no posterior that is near the true one, so it judges them all; it also works where no
    proposal covers the posterior. The estimate of p(w_d) is unbiased, that of its log a stochastic
    lower bound; :func:`ais_bracket` bounds it from the other side.

    Accuracy comes from temperatures first: with twice as many, the log weights have about half the
    variance. Where that is above 1, more chains are a poor substitute.

    Args:
        num_chains: Chains, and so weights, of each document; at least 2.
        num_temperatures: Inverse temperatures from 0 to 1, both included; at least 3.
        num_steps: Leapfrog steps of the transition at each.
        schedule: ``"power"``, (i/(T−1))³, which has most of them where they matter; ``"sigmoid"``
            (*Wu et al. 2017*); ``"linear"``; or a tensor of temperatures, rising from 0 to 1.

    Raises:
        ConfigError: A number that is too small, or temperatures that do not rise from 0 to 1.
    """

    num_chains: int = 16
    num_temperatures: int = 500
    num_steps: int = 5
    schedule: str | Tensor = "power"

    name: ClassVar[str] = "ais"

    def __post_init__(self) -> None:
        require_whole(2, num_chains=self.num_chains)
        require_whole(0, num_temperatures=self.num_temperatures)
        require_whole(1, num_steps=self.num_steps)
        _ = self.temperatures

    @cached_property
    def temperatures(self) -> list[float]:
        """The schedule, from 0 to 1."""
        return ais.make_schedule(self.schedule, self.num_temperatures).tolist()

    def describe(self) -> str:
        """The method and its settings, in words."""
        name = self.schedule if isinstance(self.schedule, str) else "given"
        return (
            f"annealed importance sampling, {self.num_chains} chains, {len(self.temperatures)} "
            f"temperatures ({name} schedule), each with a transition of {self.num_steps} leapfrog "
            "steps"
        )

    @torch.no_grad()
    def estimate(
        self,
        model: TopicModel,
        corpus: Corpus,
        *,
        seed: int = 0,
        max_docs: int = 256,
        progress: bool = False,
    ) -> LikelihoodEstimate:
        """See :meth:`LikelihoodMethod.estimate`.

        Ctrl-C ends it without a result: a partial sum would be of other documents.
        """
        corpus = check_arguments(model, corpus, seed=seed, max_docs=max_docs)
        values = torch.zeros(corpus.num_docs, dtype=torch.float64)
        errors, acceptance = torch.zeros_like(values), torch.ones_like(values)
        size = torch.full_like(values, float(self.num_chains))
        stuck = torch.zeros_like(values, dtype=torch.bool)
        for part in anneal_corpus(
            model, corpus, self, seed=seed, max_docs=max_docs, progress=progress
        ):
            rows, summary = part.rows, summarise_weights(part.log_weights, 0)
            values[rows], errors[rows] = summary.log_mean, summary.standard_error
            size[rows] = summary.effective_sample_size
            acceptance[rows], stuck[rows] = part.acceptance, part.stuck
        warn_of_chains(self, size, stuck, "log likelihoods")
        return LikelihoodEstimate(
            log_likelihood=values,
            standard_error=errors,
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=self.describe(),
            num_samples=self.num_chains,
            seed=seed,
            corpus_name=corpus.name,
            effective_sample_size=size,
            acceptance=acceptance,
        )


class AnnealedDocuments(NamedTuple):
    """What the chains of some documents came to.

    Attributes:
        rows: ``(num_docs,)`` positions in the corpus, on the CPU.
        log_weights: ``(num_chains, num_docs)`` float64 nats, on the CPU, as are the others.
        acceptance: ``(num_docs,)`` mean acceptance probability.
        stuck: ``(num_docs,)`` bool, some chain never moved in 10 transitions or more.
    """

    rows: Tensor
    log_weights: Tensor
    acceptance: Tensor
    stuck: Tensor


def anneal_corpus(
    model: TopicModel,
    corpus: Corpus,
    settings: AIS,
    *,
    seed: int,
    max_docs: int,
    progress: bool,
    latents: Mapping[str, Tensor] | None = None,
) -> Iterator[AnnealedDocuments]:
    """Chains of all documents with tokens, batch by batch.

    Args:
        model: The model.
        corpus: The documents.
        settings: Settings.
        seed: Seed of all noise.
        max_docs: Documents annealed at once, at most.
        progress: Show a progress bar over temperatures.
        latents: ``(num_docs, dim)`` the latent variables that made the documents, by the names of
            their sites: chains go from there to the prior. By default they go from the prior on.

    Raises:
        NumericalError: A parameter, or a density where the chains start, is not finite; names the
            parameter or the documents.
    """
    schedule = settings.temperatures
    model.check_parameters()
    topics = model.topics.double_probs
    parts = _parts(model, corpus, settings.num_chains, max_docs)
    total = len(parts) * (len(schedule) - 1)
    with tqdm(total=total, disable=not progress, unit="temperature") as bar:
        for rows in parts:
            batch = corpus.batch(rows, model.device, torch.float64)
            target = _target(model, topics, batch)
            keys = noise.document_keys(seed, batch.index, settings.num_chains)
            transitions = ais.tune(target, schedule, keys, settings.num_steps)
            posterior = None
            if latents is not None:
                of_batch = {
                    name: value[batch.index].expand(settings.num_chains, -1, -1)
                    for name, value in latents.items()
                }
                posterior = target.space.locate(of_batch, noise.fold_in(keys, ais.POSTERIOR))
                posterior = posterior.to(topics.dtype)
            chains = ais.anneal(target, schedule, transitions, keys, posterior, bar.update)
            # A chain that a few transitions leave where it is has bad luck, not a bad step size.
            stuck = ~chains.moved.all(0) & (len(schedule) > _FEWEST_TRANSITIONS + 2)
            yield AnnealedDocuments(
                batch.index.cpu(),
                chains.log_weights.cpu(),
                chains.acceptance.mean(0).cpu(),
                stuck.cpu(),
            )


def _parts(model: TopicModel, corpus: Corpus, num_chains: int, max_docs: int) -> list[np.ndarray]:
    """Positions of all documents with tokens, those with as many words together."""
    sizes = np.diff(corpus.row_offsets)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    numbers = _MAX_NUMBERS_CPU if model.device.type == "cpu" else _MAX_NUMBERS_ELSEWHERE
    for_document = sizes[order] * (model.num_topics + num_chains)
    parts, stop = [], len(order)
    while stop > 0:
        start = max(0, stop - max(1, min(max_docs, int(numbers // for_document[stop - 1]))))
        parts.append(order[start:stop])
        stop = start
    return parts


def _target(model: TopicModel, topics: Tensor, batch: DocumentBatch) -> DocumentTarget:
    """The density of documents in float64, in as few coordinates as the prior has."""
    target = model.bind(batch, dtype=torch.float64, padded=True)
    return replace(target, space=target.space.compact(), topics=topics)


def warn_of_chains(settings: AIS, size: Tensor, stuck: Tensor, what: str) -> None:
    """Name the documents whose annealed chains are not to be trusted.

    Args:
        settings: What the chains were annealed with.
        size: ``(num_docs,)`` effective sample sizes of the documents' chains.
        stuck: ``(num_docs,)`` bool, whether a chain never moved.
        what: What was estimated, in words.
    """
    # Two chains that differ at all have less than two.
    least = min(LEAST_CHAINS, settings.num_chains / 2.0)
    problem = f"an effective sample size below {least:g} chains"
    cure = "raise num_temperatures, or num_chains"
    warn_of_documents((size < least) & ~stuck, problem, cure, what)
    warn_of_documents(stuck, "chains that never moved", "raise num_temperatures", what)
