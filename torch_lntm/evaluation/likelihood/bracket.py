"""Lower and upper bounds of the log likelihood of simulated documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.evaluation.likelihood.annealed import AIS, anneal_corpus, warn_of_chains
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.sampling.importance import summarise_weights


@dataclass(frozen=True, eq=False, repr=False)
class AISBracket:
    """Stochastic bounds of log p(w_d) for documents that were drawn from the model.

    Attributes:
        corpus: The documents.
        lower: Estimates by chains that end at the posterior; below log p(w_d) in expectation.
        upper: ``(num_docs,)`` float64 nats, estimates by reverse chains; above log p(w_d) in
            expectation, 0 for an empty document. All reverse chains of a document start from the
            latent variables that generated it, and are therefore dependent. Estimate the error from
            the spread over documents.
        upper_effective_sample_size: ``(num_docs,)`` effective number of reverse chains.
    """

    corpus: Corpus
    lower: LikelihoodEstimate
    upper: Tensor
    upper_effective_sample_size: Tensor

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
    progress: bool = False,
    covariates: Mapping[str, Any] | None = None,
) -> AISBracket:
    """Largest error of annealed importance sampling, measured on simulated documents.

    The latent variables that generated a document are a draw from its posterior. Reverse chains
    start from this draw and have E 1/weight = 1/p(w), so −log of their mean 1/weight is a
    stochastic upper bound of log p(w) (*Grosse, Ghahramani & Adams 2015*). Forward chains give a
    lower bound. If both bounds meet, both are right. The lower bound is then as accurate for real
    documents of similar lengths, under a model that fits the documents.

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
    upper = torch.zeros(corpus.num_docs, dtype=torch.float64)
    size = torch.full_like(upper, float(path.num_chains))
    stuck = torch.zeros_like(upper, dtype=torch.bool)
    for part in anneal_corpus(
        model,
        corpus,
        path,
        seed=seed,
        max_docs=max_docs,
        progress=progress,
        latents=latents,
    ):
        summary = summarise_weights(-part.log_weights, 0)
        upper[part.rows] = -summary.log_mean
        size[part.rows] = summary.effective_sample_size
        stuck[part.rows] = part.stuck
    warn_of_chains(path, size, stuck, "upper bounds")
    return AISBracket(corpus, lower, upper, size)
