"""Annealed importance sampling over a corpus, and its bounds on simulated documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError, require_whole
from torch_lntm.evaluation.checks import corpus_space, warn_of_documents
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate, LikelihoodMethod
from torch_lntm.evaluation.likelihood.importance import guide_for, solve
from torch_lntm.kernels import fused
from torch_lntm.latents import DocumentTarget
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.progress import tqdm
from torch_lntm.sampling import ais
from torch_lntm.sampling.bridge import Bridge
from torch_lntm.sampling.importance import summarise_weights

#: Most numbers of a batch's words and chains. The limit of CPUs fits their caches; the limit of
#: other devices keeps them busy.
_MAX_NUMBERS_CPU, _MAX_NUMBERS_ELSEWHERE = 2**19, 2**25
#: Documents of similar length are annealed together, in one part. A shorter document starts a new
#: part if the old one has at least this many numbers, and the document has less than this share of
#: the words of the longest document in it.
_FEWEST_NUMBERS, _LEAST_SHARE = 2**16, 0.8
#: Transitions after which a chain without a move counts as stuck.
_FEWEST_TRANSITIONS = 10
#: Smallest reliable effective sample size, in chains. Below 2, a single chain has more than half of
#: the weight, so that neither the mean weight nor its standard error can be trusted.
LEAST_CHAINS = 2.0
#: Defaults by start of the path: temperatures, and leapfrog steps.
_DEFAULTS = {"posterior": (64, 6), "prior": (500, 5)}


@dataclass(frozen=True, eq=False)
class AIS(LikelihoodMethod):
    """Annealed importance sampling (*Neal 2001*), by chains that end at the posterior.

    The estimate of p(w_d) is unbiased, so that its logarithm is a stochastic lower bound of log
    p(w_d). :func:`ais_bracket` adds an upper bound.

    * ``start="posterior"``: chains start from a normal q near the posterior and follow q^(1−t) p^t.
      A poor approximation suffices, because a short run of other chains first moves Laplace's
      normal to where the posterior's mass is. Available for normal priors of eta and for factor
      priors.
    * ``start="prior"``: chains start from the prior and follow p(z) p(w | z)^t. This takes many
      times the work, but it needs only the prior's density and is available for every prior.

    Chains from q have to travel to the parts of the posterior that q misses. If the prior is wide
    and few of them arrive, the estimates are too low by more than their spread suggests. The
    defaults are safe for wide priors. For other priors, 32 temperatures of 4 leapfrog steps take a
    third of the work, and are still more accurate than the default from the prior.

    To gain accuracy, use more temperatures, because twice as many about halve the variance of the
    log weights. More chains help little while this variance is above 1.

    Args:
        num_chains: Chains, and thus weights, of each document; at least 2.
        num_temperatures: Inverse temperatures from 0 to 1, ends included; at least 3. Defaults to
            64 from the posterior and to 500 from the prior.
        num_steps: Leapfrog steps of the transition at each temperature. Defaults to 6 from the
            posterior and to 5 from the prior.
        start: ``"posterior"`` or ``"prior"``. Defaults to ``"posterior"`` if the model's prior
            supports it.

    Raises:
        ConfigError: A number is too small, or the start is unknown.
    """

    num_chains: int = 16
    num_temperatures: int | None = None
    num_steps: int | None = None
    start: str | None = None

    name: ClassVar[str] = "ais"

    def __post_init__(self) -> None:
        require_whole(2, num_chains=self.num_chains)
        if self.start is not None and self.start not in _DEFAULTS:
            raise ConfigError(
                f"start is {self.start!r}; expected one of {', '.join(_DEFAULTS)}, or None for the "
                "first that the model's prior has"
            )
        require_whole(3, num_temperatures=self.num_temperatures)
        require_whole(1, num_steps=self.num_steps)

    def path(self, model: TopicModel, corpus: Corpus) -> AIS:
        """These settings, with the defaults that suit a model's documents filled in.

        Raises:
            IncompatibleGuideError: The start is ``"posterior"``, and the model's prior has no
                normal approximation of the posterior.
        """
        start = self.start
        if start != "prior":
            try:
                has_normal = corpus_space(model, corpus).has_normal
            except NotImplementedError:
                has_normal = False
            if start == "posterior" and not has_normal:
                raise IncompatibleGuideError(
                    f"{type(model.prior).__name__} offers no normal approximation of a document's "
                    "posterior; take start='prior'"
                )
            start = "posterior" if has_normal else "prior"
        num_temperatures, num_steps = _DEFAULTS[start]
        return replace(
            self,
            start=start,
            num_temperatures=self.num_temperatures or num_temperatures,
            num_steps=self.num_steps or num_steps,
        )

    def compute(
        self, model: TopicModel, corpus: Corpus, seed: int, max_docs: int, progress: bool
    ) -> LikelihoodEstimate:
        """See :meth:`LikelihoodMethod.compute`.

        Ctrl-C ends the computation without a result.
        """
        path = self.path(model, corpus)
        start = "the prior" if path.start == "prior" else "near the posterior"
        return LikelihoodEstimate(
            **anneal(model, corpus, path, None, seed, max_docs, progress),
            lengths=torch.tensor(corpus.lengths),
            method=self.name,
            description=(
                f"annealed importance sampling, {path.num_chains} chains from {start}, "
                f"{path.num_temperatures} temperatures of {path.num_steps} leapfrog steps"
            ),
            num_draws=self.num_chains,
            seed=seed,
            corpus_name=corpus.name,
        )


@dataclass(frozen=True, eq=False, repr=False)
class AISBracket:
    """Stochastic bounds of log p(w_d), for documents that were simulated from the model.

    Attributes:
        corpus: The documents.
        lower: Estimates by chains that end at the posterior; below log p(w_d) in expectation.
        upper: ``(num_docs,)`` float64 nats, estimates by reverse chains; above log p(w_d) in
            expectation, 0 for an empty document. All reverse chains of a document start from the
            latent variables that generated it, and are therefore dependent. Estimate the error from
            the spread over documents.
    """

    corpus: Corpus
    lower: LikelihoodEstimate
    upper: Tensor

    @property
    def gap(self) -> Tensor:
        """Upper minus lower bound ``(num_docs,)`` nats; chance can make it negative."""
        return self.upper - self.lower.log_likelihood

    @property
    def mean_gap(self) -> float:
        """Mean gap of documents with tokens, nats. It limits the mean error of both bounds."""
        return float(self.gap[self.lower.lengths > 0].mean())

    @property
    def mean_gap_standard_error(self) -> float:
        """Standard error of ``mean_gap`` over documents; infinite for a single document."""
        gap = self.gap[self.lower.lengths > 0]
        return float(gap.std() / math.sqrt(len(gap))) if len(gap) > 1 else math.inf

    def __repr__(self) -> str:
        lower = self.lower
        return (
            f"AISBracket: log p(w) of {lower.num_docs} simulated documents in both directions by "
            f"{lower.description}, seed {lower.seed}; {lower.total:.1f} to "
            f"{float(self.upper.sum()):.1f} nats, gap {self.mean_gap:.3g} nats per document ± "
            f"{self.mean_gap_standard_error:.2g} (s.e. over documents)"
        )


@torch.no_grad()
def ais_bracket(
    model: TopicModel,
    lengths: Sequence[int] | Tensor,
    settings: AIS | None = None,
    *,
    seed: int = 0,
    max_docs: int = 256,
    progress: bool = True,
    covariates: Mapping[str, Any] | None = None,
) -> AISBracket:
    """Bounds the error of annealed importance sampling, as measured on simulated documents.

    The latent variables that generated a simulated document are an exact draw from its posterior.
    Reverse chains that start from this draw have E 1/weight = 1/p(w), so −log of their mean
    1/weight is a stochastic upper bound of log p(w) (*Grosse, Ghahramani & Adams 2015*). Forward
    chains give a lower bound, and if the two meet, both are right. The lower bound is then as
    accurate for real documents of similar lengths, provided that the model fits them.

    Args:
        model: The model. Documents are drawn from its present parameters.
        lengths: ``(num_docs,)`` tokens of each document.
        settings: Chains, temperatures and transitions in both directions. Defaults to ``AIS()``.
        seed: Seed of the documents and of all chains.
        max_docs: Most documents annealed at once.
        progress: Show a progress bar for each direction.
        covariates: ``(num_docs, ...)`` arrays by name, for a prior with covariates.

    Returns:
        The documents and their bounds.

    Raises:
        ConfigError: A setting is out of range.
        NumericalError: A density is infinite or NaN; names documents.

    Warns:
        UnreliableEstimateWarning: Some chains are unreliable, as for :func:`log_likelihood`.

    Example:
        >>> bracket = lntm.evaluation.ais_bracket(model, lengths=[20, 30])
        >>> abs(bracket.mean_gap) < 1
        True
    """
    require_model(model)
    settings = AIS() if settings is None else settings
    corpus, latents = model.generate(lengths, seed=seed, covariates=covariates)
    path = settings.path(model, corpus)
    lower = settings.estimate(model, corpus, seed=seed, max_docs=max_docs, progress=progress)
    upper = anneal(model, corpus, path, latents, seed, max_docs, progress)
    return AISBracket(corpus, lower, upper["log_likelihood"])


@fused.threaded
def anneal(
    model: TopicModel,
    corpus: Corpus,
    path: AIS,
    latents: Mapping[str, Tensor] | None,
    seed: int,
    max_docs: int,
    progress: bool,
) -> dict[str, Tensor]:
    """Estimates of all documents and their diagnostics, with warnings about unreliable ones.

    Args:
        model: The model.
        corpus: The documents.
        path: The path and the number of chains; see :meth:`AIS.path`.
        latents: ``(num_docs, dim)`` latent variables that generated the documents, by site. The
            chains then run in reverse, from these values to the start of the path, and give upper
            bounds. None for forward chains.
        seed: Seed of all noise.
        max_docs: Most documents annealed at once.
        progress: Show a progress bar over temperatures.

    Returns:
        Attributes of a :class:`LikelihoodEstimate` by name.

    Raises:
        NumericalError: A parameter or a density at the start is infinite or NaN, or the normal near
            the posterior failed; names the parameter or the documents.
    """
    assert path.num_temperatures is not None
    assert path.num_steps is not None
    schedule = ais.make_schedule(path.num_temperatures, path.start == "prior")
    model.check_parameters()
    topics = model.topics.double_probs
    targets: Any = _from_prior if path.start == "prior" else _from_posterior
    parts = _parts(model, corpus, path.num_chains, max_docs)
    values = torch.zeros(corpus.num_docs, dtype=torch.float64)
    errors, acceptance = torch.zeros_like(values), torch.ones_like(values)
    size = torch.full_like(values, float(path.num_chains))
    stuck = torch.zeros_like(values, dtype=torch.bool)
    sign = 1.0 if latents is None else -1.0  # weights of reverse chains estimate 1/p(w)
    total = len(parts) * (len(schedule) - 1)
    with tqdm(total=total, disable=not progress, unit="temperature") as bar:
        for first in targets(model, topics, corpus, parts, max_docs):
            rows = first.batch.index
            # Documents are the outermost axis in memory, because every product with these keys
            # needs this order.
            keys = noise.document_keys(seed, rows, path.num_chains).mT.contiguous().mT
            target: DocumentTarget = first
            if isinstance(first, Bridge):  # short chains first improve the normals
                target, transitions = ais.fit(first, schedule, keys, path.num_steps)
            else:
                transitions = ais.tune(first, schedule, keys, path.num_steps)
            begin = None
            if latents is not None:
                found = {
                    name: value[rows].expand(path.num_chains, -1, -1)
                    for name, value in latents.items()
                }
                begin = target.locate(found, noise.fold_in(keys, ais.POSTERIOR))
            chains = ais.anneal(target, schedule, transitions, keys, begin, bar.update)
            summary, rows = summarise_weights(sign * chains.log_weights.cpu(), 0), rows.cpu()
            values[rows], errors[rows] = sign * summary.log_mean, summary.standard_error
            size[rows] = summary.effective_sample_size
            acceptance[rows] = chains.acceptance.mean(0).cpu()
            # Even at a good step size, a few transitions may leave a chain in place by chance.
            stuck[rows] = ~chains.moved.all(0).cpu() & (len(schedule) > _FEWEST_TRANSITIONS + 2)
    # The effective sample size of two different chains is always below 2.
    least = min(LEAST_CHAINS, path.num_chains / 2.0)
    what = "log likelihoods" if latents is None else "upper bounds"
    problem = f"an effective sample size below {least:g} chains"
    cure = "raise num_temperatures, or num_chains"
    warn_of_documents((size < least) & ~stuck, problem, cure, what)
    warn_of_documents(stuck, "chains that never moved", "raise num_temperatures", what)
    return {
        "log_likelihood": values,
        "standard_error": errors,
        "effective_sample_size": size,
        "acceptance": acceptance,
    }


def _parts(model: TopicModel, corpus: Corpus, num_chains: int, max_docs: int) -> list[np.ndarray]:
    """Positions of all documents with tokens, in parts with similar numbers of words."""
    sizes = np.diff(corpus.row_offsets)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    numbers = _MAX_NUMBERS_CPU if model.device.type == "cpu" else _MAX_NUMBERS_ELSEWHERE
    sizes = sizes[order]
    numbers_per_document = sizes * (model.num_topics + num_chains)
    parts, stop = [], len(order)
    while stop > 0:
        longest = stop - 1
        start = max(0, stop - max(1, min(max_docs, int(numbers // numbers_per_document[longest]))))
        # Much shorter documents start a new part if this part is large enough for its overhead.
        similar = int(np.searchsorted(sizes, _LEAST_SHARE * sizes[longest]))
        enough = stop - math.ceil(_FEWEST_NUMBERS / numbers_per_document[longest])
        start = max(start, min(similar, enough))
        parts.append(order[start:stop])
        stop = start
    return parts


def _from_prior(
    model: TopicModel, topics: Tensor, corpus: Corpus, parts: Sequence[np.ndarray], max_docs: int
) -> Iterator[DocumentTarget]:
    """Densities of each part's documents, float64, in the fewest coordinates."""
    for part in parts:
        batch = corpus.batch(part, model.device, torch.float64)
        target = model.bind(batch, dtype=torch.float64, padded=True)
        yield replace(target, space=target.space.compact(), topics=topics)


def _from_posterior(
    model: TopicModel, topics: Tensor, corpus: Corpus, parts: Sequence[np.ndarray], max_docs: int
) -> Iterator[Bridge]:
    """Densities of each part's documents, with normals from the prior's reference guide.

    The posteriors are solved for several parts at once.
    """
    ends = np.cumsum([len(part) for part in parts])
    start = 0
    while start < len(parts):
        num_before = ends[start] - len(parts[start])
        stop = max(start + 1, int(np.searchsorted(ends, num_before + max_docs, side="right")))
        rows = np.concatenate(parts[start:stop])
        batch = corpus.batch(rows, model.device, torch.float64)
        batch = model.topics.assign_levels(batch)
        bridge = _bridge(model, topics, batch)
        for rows_of_part in torch.arange(len(rows), device=batch.device).split(
            [len(part) for part in parts[start:stop]]
        ):
            yield replace(
                bridge,
                space=bridge.space.select(rows_of_part),
                batch=batch.select(rows_of_part),
                loc=bridge.loc[rows_of_part],
                factor=bridge.factor[rows_of_part],
            )
        start = stop


def _bridge(model: TopicModel, topics: Tensor, batch: DocumentBatch) -> Bridge:
    """Paths from normal approximations of the posteriors of a batch."""
    guide = guide_for(model, None)
    given = batch.to(dtype=model.dtype)
    space, posterior = solve(model, given, guide)
    counts = guide.as_independent(given, posterior)[0].counts.double()
    documents = (
        (topics.mT[batch.word_index[start:stop]], counts[start:stop])
        for start, stop in pairwise(batch.row_offsets.tolist())
    )
    rows = torch.arange(batch.num_docs, device=batch.device)
    loc, factor = space.normal(posterior, rows, documents)
    parts: dict[str, Any] = {"topics": topics, "batch": batch, "words": model.words}
    return Bridge(space=space, **parts, padded=True, loc=loc, factor=factor)
