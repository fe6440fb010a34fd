"""Annealed importance sampling over a corpus: its settings, its batches, what each model's z is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.models import (
    DirichletPrior,
    IndependentFactorPrior,
    LogisticNormalPrior,
    TopicModel,
)
from torch_lntm.solvers import ais, hmc
from torch_lntm.solvers.factor import FactorPrior

#: Numbers that a batch's words and chains hold at most: on a processor what its caches hold
#: (*measured: with five times as many a document takes four times as long*), elsewhere what
#: keeps the device busy.
_MAX_NUMBERS_CPU, _MAX_NUMBERS_ELSEWHERE = 2**19, 2**25
#: Transitions after which every chain should have moved.
_FEWEST_TRANSITIONS = 10


@dataclass(frozen=True, eq=False)
class AIS:
    """Settings of annealed importance sampling.

    The defaults took 20 seconds of one core for 150 articles of 1,250 tokens with 10 topics.
    Accuracy comes from temperatures first: with twice as many, the log weights have about half the
    variance. Where that is above 1, chains are a poor substitute.

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

    def __post_init__(self) -> None:
        for name, number, least in (
            ("num_chains", self.num_chains, 2),
            ("num_steps", self.num_steps, 1),
        ):
            if number < least:
                raise ConfigError(f"{name} is {number}; expected at least {least}")
        _ = self.temperatures

    @cached_property
    def temperatures(self) -> list[float]:
        """The schedule, from 0 to 1."""
        return ais.make_schedule(self.schedule, self.num_temperatures).tolist()

    def describe(self) -> str:
        """Path and transitions, in words."""
        name = self.schedule if isinstance(self.schedule, str) else "given"
        return (
            f"{len(self.temperatures)} temperatures ({name} schedule), each with a transition of "
            f"{self.num_steps} leapfrog steps"
        )


class ChainSummary(NamedTuple):
    """What the weights of chains say, for each document.

    Attributes:
        log_mean: ``(num_docs,)`` log of the mean weight, nats.
        standard_error: ``(num_docs,)`` standard error of ``log_mean`` over chains, by the delta
            method: the relative standard error of the mean weight.
        effective_sample_size: ``(num_docs,)`` (Σw)² / Σw², between 1 and the number of chains.
    """

    log_mean: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor


def summarise_chains(log_weights: Tensor) -> ChainSummary:
    """The mean weight of each document, of ``(num_chains, num_docs)`` log weights."""
    top = log_weights.amax(0)
    weights = (log_weights - top).exp()
    mean = weights.mean(0)
    return ChainSummary(
        mean.log() + top,
        weights.std(0) / (mean * math.sqrt(len(weights))),
        weights.sum(0).square() / weights.square().sum(0),
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
        ConfigError: A corpus over another vocabulary.
        IncompatibleGuideError: A prior that there is no path for.
        NumericalError: A parameter, or a density where the chains start, is not finite; names the
            parameter or the documents.
    """
    schedule = settings.temperatures
    model.check_parameters()
    batches = _batches(model, corpus, settings.num_chains, max_docs)
    total = len(batches) * (len(schedule) - 1)
    with tqdm(total=total, disable=not progress, unit="temperature") as bar:
        for batch in batches:
            target = _target(model, batch, settings.num_chains)
            keys = hmc.chain_keys(seed, batch.index, settings.num_chains)
            transitions = ais.tune(target, schedule, keys, settings.num_steps)
            posterior = None
            if latents is not None:
                of_batch = {name: value[batch.index] for name, value in latents.items()}
                posterior = _position(target, of_batch, keys)
            chains = ais.anneal(target, schedule, transitions, keys, posterior, bar.update)
            # A chain that a few transitions leave where it is has bad luck, not a bad step size.
            stuck = ~chains.moved.all(0) & (len(schedule) > _FEWEST_TRANSITIONS + 2)
            yield AnnealedDocuments(
                batch.index.cpu(),
                chains.log_weights.cpu(),
                chains.acceptance.mean(0).cpu(),
                stuck.cpu(),
            )


def _batches(
    model: TopicModel, corpus: Corpus, num_chains: int, max_docs: int
) -> list[DocumentBatch]:
    """All documents with tokens, those with as many words together."""
    whole = model.check_batch(corpus.batch(model.device, torch.float64)).to(dtype=torch.float64)
    sizes = whole.row_offsets.diff()
    order = sizes.argsort(stable=True)
    order = order[sizes[order] > 0]
    numbers = _MAX_NUMBERS_CPU if model.device.type == "cpu" else _MAX_NUMBERS_ELSEWHERE
    batches, stop = [], len(order)
    for_document = (sizes[order] * (model.num_topics + num_chains)).tolist()
    while stop > 0:
        start = max(0, stop - max(1, min(max_docs, numbers // for_document[stop - 1])))
        batches.append(whole.select(order[start:stop]))
        stop = start
    return batches


def _target(model: TopicModel, batch: DocumentBatch, num_chains: int) -> hmc.DocumentTarget:
    """The target of documents at the model's present parameters, in float64."""
    topics, prior = model.topics.double_probs, model.prior
    if isinstance(prior, DirichletPrior):
        coordinates = ais.GammaCoordinates(prior.concentration.detach().double())
        return ais.DirichletTarget(batch, topics, coordinates, num_chains)
    if isinstance(prior, IndependentFactorPrior) and prior.source == "laplace":
        return ais.PaddedTarget(batch, topics, _double(prior.solver_prior()), num_chains)
    if isinstance(prior, IndependentFactorPrior | LogisticNormalPrior):
        marginal = prior.solver_prior().marginal()
        return ais.PaddedTarget(batch, topics, _double(marginal), num_chains)
    raise IncompatibleGuideError(
        f"annealed importance sampling is not for a {type(prior).__name__}; expected a model of "
        "torch_lntm.models"
    )


def _double(prior: Any) -> Any:
    """A solvers' prior in float64."""
    values = {field.name: getattr(prior, field.name) for field in fields(prior)}
    return replace(prior, **{n: v.double() for n, v in values.items() if isinstance(v, Tensor)})


def _position(target: hmc.DocumentTarget, latents: Mapping[str, Tensor], keys: Tensor) -> Tensor:
    """The z ``(num_chains, num_docs, dim)`` of documents' latent variables."""
    if isinstance(target, ais.DirichletTarget):
        theta = latents["theta"].expand(target.num_chains, -1, -1)
        return target.prior.draw_given(theta, hmc.fold_in(keys, ais.POSTERIOR))
    eta, prior = latents["eta"].double(), target.prior
    if isinstance(prior, FactorPrior):
        source = latents["source"].double()
        z = torch.cat([source, prior.noise(eta, source)], -1)
    else:
        z = prior.whiten(eta)
    return z.expand(target.num_chains, -1, -1)
