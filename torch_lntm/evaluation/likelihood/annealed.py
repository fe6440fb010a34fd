"""Annealed importance sampling over a corpus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError, require_whole
from torch_lntm.evaluation.checks import corpus_space, identified_space, warn_of_documents
from torch_lntm.evaluation.likelihood.documents import solve, words_of
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.guides import make_guide
from torch_lntm.latents import DocumentTarget
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm
from torch_lntm.sampling import ais
from torch_lntm.sampling.bridge import Bridge
from torch_lntm.sampling.importance import summarise_weights

#: Numbers that a batch's words and chains hold at most: on a CPU what its caches hold, elsewhere
#: what keeps the device busy.
_MAX_NUMBERS_CPU, _MAX_NUMBERS_ELSEWHERE = 2**19, 2**25
#: Numbers that a part holds before documents with less than this share of the words of its longest
#: one are left to another.
_FEWEST_NUMBERS, _LEAST_SHARE = 2**16, 0.8
#: Transitions after which every chain should have moved.
_FEWEST_TRANSITIONS = 10
#: Chains that count, below which one has more than half of the weight: neither the mean weight nor
#: its standard error is then to be trusted.
LEAST_CHAINS = 2.0


#: Temperatures, leapfrog steps and schedule of the paths, by where these start.
_DEFAULTS: dict[str, tuple[int, int, str]] = {
    "posterior": (64, 6, "sigmoid"),
    "prior": (500, 5, "power"),
}


@dataclass(frozen=True, eq=False)
class AnnealingPath:
    """How documents are annealed; the fields are those of :class:`AIS`, with none left open."""

    start: str
    num_chains: int
    num_temperatures: int
    num_steps: int
    schedule: str | Tensor

    @cached_property
    def temperatures(self) -> list[float]:
        """The schedule, from 0 to 1."""
        return ais.make_schedule(self.schedule, self.num_temperatures).tolist()

    def describe(self) -> str:
        """The method and its settings, in words."""
        name = self.schedule if isinstance(self.schedule, str) else "given"
        start = "the prior" if self.start == "prior" else "a normal near the posterior"
        return (
            f"annealed importance sampling, {self.num_chains} chains, {len(self.temperatures)} "
            f"temperatures ({name} schedule) from {start} on, each with a transition of "
            f"{self.num_steps} leapfrog steps"
        )


@dataclass(frozen=True, eq=False)
class AIS(LikelihoodMethod):
    """Annealed importance sampling (*Neal 2001*): chains that end at the posterior.

    The estimate of p(w_d) is unbiased, that of its log a stochastic lower bound;
    :func:`ais_bracket` bounds it from the other side.

    * ``start="posterior"``: from a normal q near the posterior, along q^(1−t) p^t. A short run of
      other chains moves Laplace's normal to where the posterior's mass is, so that q need not be
      near in the beginning. For priors whose identified coordinates offer a normal: normal priors
      of eta and factor priors, not Dirichlet priors.
    * ``start="prior"``: from the prior, along p(z) p(w | z)^t. It takes many times
      the work, but needs nothing except the prior's density.

    Chains from q have to travel to what q leaves out. Where the prior is wide and few of them get
    there, their estimates are low by more than their spread tells. The defaults are for such
    priors; elsewhere 32 temperatures of 4 leapfrog steps, a third of the work, are still better
    than the default from the prior.

    Accuracy comes from temperatures first: with twice as many, the log weights have about half the
    variance. Where that is above 1, more chains are a poor substitute.

    Args:
        num_chains: Chains, and so weights, of each document; at least 2.
        num_temperatures: Inverse temperatures from 0 to 1, both included; at least 3. By default 64
            from the posterior and 500 from the prior.
        num_steps: Leapfrog steps of the transition at each; by default 6 and 5.
        schedule: ``"power"``, (i/(T−1))³, which has most of them where they matter from the prior
            on, and is the default there; ``"sigmoid"`` (*Wu et al. 2017*), which has most at both
            ends, and is the default from the posterior; ``"linear"``; or a tensor of temperatures,
            rising from 0 to 1.
        start: ``"posterior"`` or ``"prior"``; by default the first that the model's prior has.

    Raises:
        ConfigError: A number that is too small, temperatures that do not rise from 0 to 1, or no
            such start.
    """

    num_chains: int = 16
    num_temperatures: int | None = None
    num_steps: int | None = None
    schedule: str | Tensor | None = None
    start: str | None = None

    name: ClassVar[str] = "ais"

    def __post_init__(self) -> None:
        require_whole(2, num_chains=self.num_chains)
        if self.start is not None and self.start not in _DEFAULTS:
            raise ConfigError(
                f"start is {self.start!r}; expected one of {', '.join(_DEFAULTS)}, or None for the "
                "first that the model's prior has"
            )
        filled = self._with_defaults(self.start or "posterior")
        require_whole(0, num_temperatures=filled.num_temperatures)
        require_whole(1, num_steps=filled.num_steps)
        _ = filled.temperatures

    def path(self, model: TopicModel, corpus: Corpus) -> AnnealingPath:
        """The path for a model's documents, with nothing left open.

        Raises:
            IncompatibleGuideError: The path is to start from the posterior, and the model's prior
                offers no normal approximation of it.
        """
        if self.start == "prior":
            return self._with_defaults("prior")
        try:
            has_normal = corpus_space(model, corpus).has_normal
        except IncompatibleGuideError:
            has_normal = False
        if self.start == "posterior" and not has_normal:
            raise IncompatibleGuideError(
                f"{type(model.prior).__name__} offers no normal approximation of a document's "
                "posterior; take start='prior'"
            )
        return self._with_defaults("posterior" if has_normal else "prior")

    def _with_defaults(self, start: str) -> AnnealingPath:
        """With the defaults of a start."""
        num_temperatures, num_steps, schedule = _DEFAULTS[start]
        return AnnealingPath(
            start,
            self.num_chains,
            num_temperatures if self.num_temperatures is None else self.num_temperatures,
            num_steps if self.num_steps is None else self.num_steps,
            schedule if self.schedule is None else self.schedule,
        )

    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """See :meth:`LikelihoodMethod.compute`.

        Ctrl-C ends it without a result: a partial sum would be of other documents.
        """
        path = self.path(model, corpus)
        values = torch.zeros(corpus.num_docs, dtype=torch.float64)
        errors, acceptance = torch.zeros_like(values), torch.ones_like(values)
        size = torch.full_like(values, float(self.num_chains))
        stuck = torch.zeros_like(values, dtype=torch.bool)
        for part in anneal_corpus(
            model, corpus, path, seed=seed, max_docs=max_docs, progress=progress
        ):
            rows, summary = part.rows, summarise_weights(part.log_weights, 0)
            values[rows], errors[rows] = summary.log_mean, summary.standard_error
            size[rows] = summary.effective_sample_size
            acceptance[rows], stuck[rows] = part.acceptance, part.stuck
        warn_of_chains(path, size, stuck, "log likelihoods")
        return LikelihoodEstimate(
            log_likelihood=values,
            standard_error=errors,
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=path.describe(),
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
    path: AnnealingPath,
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
        path: The path, and how many chains go along it.
        seed: Seed of all noise.
        max_docs: Documents annealed at once, at most.
        progress: Show a progress bar over temperatures.
        latents: ``(num_docs, dim)`` the latent variables that made the documents, by the names of
            their sites: chains go from there to the start of the path. By default they go from its
            start on.

    Raises:
        NumericalError: A parameter, or a density where the chains start, is not finite, or a normal
            near the posterior could not be computed; names the parameter or the documents.
    """
    schedule = path.temperatures
    model.check_parameters()
    topics = model.topics.double_probs
    start = (_FromPrior if path.start == "prior" else _FromPosterior)(model, topics)
    parts = _parts(model, corpus, path.num_chains, max_docs)
    total = len(parts) * (len(schedule) - 1)
    with tqdm(total=total, disable=not progress, unit="temperature") as bar:
        for first in start.targets(corpus, parts, max_docs):
            batch = first.batch
            # Documents outermost: the layout of all products, which noise then has as well.
            keys = noise.document_keys(seed, batch.index, path.num_chains).mT.contiguous().mT
            target, transitions = start.prepare(first, schedule, keys, path.num_steps)
            posterior = None
            if latents is not None:
                of_batch = {
                    name: value[batch.index].expand(path.num_chains, -1, -1)
                    for name, value in latents.items()
                }
                posterior = target.locate(of_batch, noise.fold_in(keys, ais.POSTERIOR))
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
    sizes = sizes[order]
    for_document = sizes * (model.num_topics + num_chains)
    parts, stop = [], len(order)
    while stop > 0:
        longest = stop - 1
        start = max(0, stop - max(1, min(max_docs, int(numbers // for_document[longest]))))
        # A much shorter document is worth a part of its own, if the part is worth its overhead.
        alike = int(np.searchsorted(sizes, _LEAST_SHARE * sizes[longest]))
        enough = stop - math.ceil(_FEWEST_NUMBERS / for_document[longest])
        start = max(start, min(alike, enough))
        parts.append(order[start:stop])
        stop = start
    return parts


class _FromPrior:
    """Paths from the prior.

    Args:
        model: The model.
        topics: Its topics, float64.
    """

    def __init__(self, model: TopicModel, topics: Tensor) -> None:
        self.model = model
        self.topics = topics

    def targets(
        self, corpus: Corpus, parts: Sequence[np.ndarray], max_docs: int
    ) -> Iterator[DocumentTarget]:
        """The densities of each part's documents in float64, in as few coordinates as there are."""
        for part in parts:
            batch = corpus.batch(part, self.model.device, torch.float64)
            target = self.model.bind(batch, dtype=torch.float64, padded=True)
            yield replace(target, space=target.space.compact(), topics=self.topics)

    def prepare(
        self, target: DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int
    ) -> tuple[DocumentTarget, ais.Transitions]:
        """What chains of keys ``(num_chains, num_docs)`` go along, and how."""
        return target, ais.tune(target, schedule, keys, num_steps)


class _FromPosterior(_FromPrior):
    """Paths from normal approximations of the posteriors."""

    def targets(
        self, corpus: Corpus, parts: Sequence[np.ndarray], max_docs: int
    ) -> Iterator[Bridge]:
        """The same, seen from the normals of the prior's own guide.

        Posteriors are solved for several parts at once.
        """
        ends = np.cumsum([len(part) for part in parts])
        start = 0
        while start < len(parts):
            before = ends[start] - len(parts[start])
            stop = max(start + 1, int(np.searchsorted(ends, before + max_docs, side="right")))
            rows = np.concatenate(parts[start:stop])
            batch = corpus.batch(rows, self.model.device, torch.float64)
            batch = self.model.topics.assign_groups(batch)
            whole = self._bridge(batch)
            for chosen in torch.arange(len(rows), device=batch.device).split(
                [len(part) for part in parts[start:stop]]
            ):
                yield replace(
                    whole,
                    space=whole.space.select(chosen),
                    batch=batch.select(chosen),
                    loc=whole.loc[chosen],
                    factor=whole.factor[chosen],
                )
            start = stop

    def _bridge(self, batch: DocumentBatch) -> Bridge:
        guide = make_guide(identified_space(self.model, batch).reference, self.model)
        space, posterior = solve(self.model, batch.to(dtype=self.model.dtype), guide)
        drawn, _ = guide.as_independent(batch, posterior)
        documents = ((words, cells.counts) for words, cells in words_of(drawn, self.topics.mT))
        loc, factor = space.normal(posterior, documents)
        return Bridge(
            space=space,
            topics=self.topics,
            batch=batch,
            words=self.model.words,
            padded=True,
            loc=loc,
            factor=factor,
        )

    def prepare(
        self, target: DocumentTarget, schedule: Sequence[float], keys: Tensor, num_steps: int
    ) -> tuple[DocumentTarget, ais.Transitions]:
        """See :meth:`_FromPrior.prepare`; from normals that chains have fitted."""
        assert isinstance(target, Bridge)
        return ais.fit(target, schedule, keys, num_steps)


def warn_of_chains(path: AnnealingPath, size: Tensor, stuck: Tensor, what: str) -> None:
    """Name the documents whose annealed chains are not to be trusted.

    Args:
        path: What the chains were annealed along.
        size: ``(num_docs,)`` effective sample sizes of the documents' chains.
        stuck: ``(num_docs,)`` bool, whether a chain never moved.
        what: What was estimated, in words.
    """
    # Two chains that differ at all have less than two.
    least = min(LEAST_CHAINS, path.num_chains / 2.0)
    problem = f"an effective sample size below {least:g} chains"
    cure = "raise num_temperatures, or num_chains"
    warn_of_documents((size < least) & ~stuck, problem, cure, what)
    warn_of_documents(stuck, "chains that never moved", "raise num_temperatures", what)
