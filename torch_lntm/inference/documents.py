"""Posteriors of a whole corpus: the topics of every document and, if there are any, the sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, as_corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.guides import Guide, require_guide
from torch_lntm.models import IndependentFactorPrior, TopicModel
from torch_lntm.progress import tqdm

Estimate = Literal["mode", "mean"]


@dataclass(frozen=True, eq=False, repr=False)
class SourceActivity:
    """The sources of a corpus's documents, on the scale of their prior.

    Attributes:
        mean: ``(num_docs, num_sources)`` posterior means; 0 for empty documents.
        std: ``(num_docs, num_sources)`` posterior standard deviations.
        converged: ``(num_docs,)`` whether the document's posterior met the guide's tolerance.
    """

    mean: Tensor
    std: Tensor
    converged: Tensor

    def __repr__(self) -> str:
        num_docs, num_sources = self.mean.shape
        return f"SourceActivity({num_docs} documents, {num_sources} sources)"


@dataclass(frozen=True, eq=False, repr=False)
class DocumentTopics:
    """The topic proportions of a corpus's documents, beside what identifies the documents.

    Attributes:
        theta: ``(num_docs, num_topics)`` proportions; empty documents have the prior's.
        converged: ``(num_docs,)`` whether the document's posterior met the guide's tolerance.
        lengths: ``(num_docs,)`` tokens of the document.
        estimate: ``"mode"``, the mode of the posterior on the softmax scale (softmax of the mean of
            eta; under a Dirichlet the mean of theta), or ``"mean"``, the posterior mean of theta.
        sources: The documents' sources, for models that have them.
        metadata: ``(num_docs,)`` values of every column of the corpus's metadata, by name.
    """

    theta: Tensor
    converged: Tensor
    lengths: NDArray[np.int64]
    estimate: Estimate
    sources: SourceActivity | None = None
    metadata: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        num_docs, num_topics = self.theta.shape
        return (
            f"DocumentTopics({num_docs} documents, {num_topics} topics, {self.estimate}, "
            f"{int((~self.converged).sum())} unconverged)"
        )


@torch.no_grad()
def transform(
    guide: Guide[Any],
    corpus: Corpus,
    estimate: Estimate = "mode",
    *,
    num_samples: int = 200,
    seed: int = 0,
    max_docs: int | None = None,
    progress: bool = False,
) -> DocumentTopics:
    """Solve the posteriors of every document, empty ones included.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary, or a matrix of their counts.
        estimate: ``"mode"`` or ``"mean"``; see :class:`DocumentTopics`.
        num_samples: Draws for ``"mean"``.
        seed: Seed of these draws.
        max_docs: Documents per batch, which bounds memory; by default from what the guide needs.
        progress: Show a progress bar on standard error.

    Returns:
        The proportions, on the CPU, and the sources if the model has any.

    Raises:
        ConfigError: No guide, another estimate, or a corpus over other words.
    """
    if estimate not in get_args(Estimate):
        raise ConfigError(f"estimate {estimate!r}; expected one of {', '.join(get_args(Estimate))}")
    require_whole(1, num_samples=num_samples, max_docs=max_docs)
    require_whole(0, seed=seed)
    model = require_guide(guide).model
    corpus = model.encode(as_corpus(corpus, allow_empty=True))
    mode = estimate == "mode"
    only_means = mode and not model.prior.num_sources
    solve = guide.means if only_means else guide.posterior
    entries = corpus.nnz / corpus.num_docs
    if max_docs is None:
        lean = only_means and guide.separates_means
        size = (guide.memory_of_means if lean else guide.memory_per_document)(entries)
        if not mode:
            size = max(size, model.num_topics * num_samples)
        max_docs = docs_at_once(size, model.device, model.dtype)
    parts: list[list[Tensor]] = []
    with tqdm(total=len(corpus), desc="documents", unit="doc", disable=not progress) as bar:
        for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
            posterior = solve(batch)
            found = [posterior.theta_mode() if mode else posterior.theta_mean(num_samples, seed)]
            found.append(posterior.converged)
            if model.prior.num_sources:
                found += posterior.source_moments(model.prior.space(batch))
            parts.append([tensor.cpu() for tensor in found])
            bar.update(batch.num_docs)
    theta, converged, *moments = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    sources = SourceActivity(moments[0], moments[1], converged) if moments else None
    return DocumentTopics(
        theta, converged, corpus.lengths, estimate, sources, dict(corpus.metadata)
    )


def source_prior(model: TopicModel) -> IndependentFactorPrior:
    """The prior of a model that has sources.

    Raises:
        ConfigError: The model has none.
    """
    if not model.prior.num_sources:
        raise ConfigError(f"the model, {model.name}, has no sources; iftm has them")
    return cast(IndependentFactorPrior, model.prior)
