"""transform, which finds the topics and sources of every document of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, knows_its_options, require_one, require_whole
from torch_lntm.guides import Guide
from torch_lntm.guides.theta_draws import ThetaDraws
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.draws import DrawSource, require_source, theta_draws
from torch_lntm.models import IndependentFactorPrior, TopicGroups, TopicModel
from torch_lntm.models.names import is_named
from torch_lntm.models.topic_groups import as_groups
from torch_lntm.progress import tqdm

Estimate = Literal["mode", "mean"]
#: Default numbers of draws of a document for its mean, by a guide and by chains.
GUIDE_DRAWS, CHAIN_DRAWS = 200, 50


class SourceActivity(NamedTuple):
    """Sources of a corpus's documents, on the scale of their prior.

    Attributes:
        mean: ``(num_docs, num_sources)`` posterior means. 0 for empty documents.
        std: ``(num_docs, num_sources)`` posterior standard deviations.
    """

    mean: Tensor
    std: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class DocumentTopics:
    """Topic proportions of a corpus's documents, with the documents' metadata.

    Attributes:
        theta: ``(num_docs, num_topics)`` proportions. Empty documents have the prior's proportions.
        converged: ``(num_docs,)`` bool: the document's posterior met the guide's tolerance, or its
            chains moved.
        lengths: ``(num_docs,)`` number of tokens of the document.
        estimate: ``"mode"`` for the softmax of eta's posterior mean, or for the mean of theta if
            the posterior is a Dirichlet distribution. ``"mean"`` for the posterior mean of theta.
        topic_names: Names of the topics; see :attr:`TopicModel.topic_names`.
        sources: The documents' sources, for models with sources, by a guide.
        metadata: The corpus's metadata, whose index names the documents.
        groups: Groups of topics, if asked for.
    """

    theta: Tensor
    converged: Tensor
    lengths: NDArray[np.int64]
    estimate: Estimate
    topic_names: tuple[str, ...]
    sources: SourceActivity | None = None
    metadata: pd.DataFrame = field(default_factory=pd.DataFrame)
    groups: TopicGroups | None = None

    def frame(self) -> pd.DataFrame:
        """A row for each document, by name: metadata, tokens, and proportions of the topics.

        A topic's column is headed by its name, or by ``topic_3`` if topic 3 has none. Groups and
        sources follow the topics. If two columns would have the same head, one gets a prefix, as in
        ``topic_tokens`` and ``metadata.tokens``.
        """
        names, metadata = self.topic_names, self.metadata
        heads = [name if is_named(names, k) else f"topic_{k}" for k, name in enumerate(names)]
        parts: list[Any] = [("topic_", heads, self.theta.numpy().T)]
        if self.groups is not None:
            parts.append(("group_", list(self.groups.names), self.group_theta.numpy().T))
        if self.sources is not None:
            activity = self.sources.mean.numpy().T
            parts.append(("source_", [f"source_{k}" for k in range(len(activity))], activity))
        parts.append(("metadata.", [*map(str, metadata)], [metadata[x].array for x in metadata]))
        columns: dict[str, Any] = {"document": range(len(self.theta)), "tokens": self.lengths}
        columns["converged"] = self.converged.numpy().astype(int)
        for prefix, heads, values in parts:
            about = len(columns)
            for head, value in zip(heads, values, strict=True):
                while head in columns:
                    head = prefix + head
                columns[head] = value
        frame = pd.DataFrame(columns, metadata.index if len(metadata.index) else None)
        return frame[["document", *list(columns)[about:], *list(columns)[1:about]]]

    @property
    def topic_tokens(self) -> Tensor:
        """Expected tokens of the topics ``(num_topics,)``: sums of tokens times proportions."""
        return torch.from_numpy(self.lengths.astype("float64")) @ self.theta.double()

    @property
    def group_theta(self) -> Tensor:
        """Proportions ``(num_docs, num_groups)`` of the groups: sums of their topics' proportions.

        A sum of posterior means is the posterior mean of the group's proportion, whereas a sum of
        modes is only a plug-in estimate.

        Raises:
            ConfigError: There are no groups.
        """
        if self.groups is None:
            raise ConfigError("there are no groups of topics; give transform its argument groups")
        return self.groups.sums(self.theta)

    def __repr__(self) -> str:
        num_docs, num_topics = self.theta.shape
        return (
            f"DocumentTopics({num_docs} documents, {num_topics} topics, {self.estimate}, "
            f"{int((~self.converged).sum())} unconverged)"
        )


@torch.no_grad()
@knows_its_options
def transform(
    source: DrawSource,
    corpus: Corpus,
    estimate: Estimate | None = None,
    *,
    num_draws: int | None = None,
    seed: int = 0,
    max_docs: int | None = None,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    new_words: Any = None,
    progress: bool = True,
) -> DocumentTopics:
    """Topic proportions of all documents, including empty documents.

    Guides are fast, whereas chains give exact posterior means and classify short documents better.

    Args:
        source: What draws theta: a guide, or chains, which are ``DocumentHMC(model)`` or the chains
            that a fit by Monte-Carlo EM keeps.
        corpus: Documents over the model's vocabulary, or a matrix of their counts.
        estimate: ``"mode"`` or ``"mean"``; see :class:`DocumentTopics`. Guides default to the mode,
            whereas chains have the mean only.
        num_draws: Number of draws for ``"mean"``. Defaults to 200 for a guide, to 50 for chains,
            and to all draws of existing :class:`ThetaDraws`.
        seed: Seed of a guide's draws.
        max_docs: Largest number of documents in a batch, to bound memory. Defaults to a number that
            suits the memory that the guide needs per document.
        groups: Groups of topics, such as ``{"economy": [3, 7]}``; see :class:`TopicGroups`.
        new_words: Vectors of words, by which words of the corpus that the model lacks count too
            (:meth:`~torch_lntm.models.TopicModel.with_words`). New chains then draw theta.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The proportions, on the CPU, and the sources if the model has sources.

    Raises:
        ConfigError: The source or the estimate is invalid, chains are asked for the mode, a number
            is out of range, a group is refused, or the corpus has a different vocabulary.

    Example:
        >>> topics = lntm.inference.transform(guide, test)
        >>> topics
        DocumentTopics(... documents, 10 topics, mode, ...)
        >>> topics.theta.shape == (len(test), 10)
        True
        >>> lntm.inference.transform(lntm.inference.DocumentHMC(model), test[:20])
        DocumentTopics(20 documents, 10 topics, mean, 0 unconverged)
    """
    require_one((None, *get_args(Estimate)), estimate=estimate)
    require_whole(1, num_draws=num_draws, max_docs=max_docs)
    require_whole(0, seed=seed)
    model, corpus = require_source(source).model, as_corpus(corpus, allow_empty=True)
    if new_words is not None:
        model = model.with_words(corpus.vocabulary or (), new_words)
        source, corpus = DocumentHMC(model), corpus.with_vocabulary(model.vocabulary or ())
    topic_groups = as_groups(model, groups)
    corpus = model.encode(corpus)
    options: dict[str, Any] = {"seed": seed, "max_docs": max_docs, "progress": progress}
    if isinstance(source, Guide):
        estimate = estimate or "mode"
        found = _by_guide(source, corpus, estimate, num_draws or GUIDE_DRAWS, **options)
    elif estimate == "mode":
        raise ConfigError("chains have no mode of theta; take the estimate 'mean', or a guide")
    else:
        estimate = "mean"
        found = _by_draws(source, corpus, num_draws, **options)
    theta, converged, sources = found
    return DocumentTopics(
        theta,
        converged,
        corpus.lengths,
        estimate,
        model.topic_names,
        sources,
        corpus.metadata,
        topic_groups,
    )


def _by_draws(
    source: DrawSource, corpus: Corpus, num_draws: int | None, **options: Any
) -> tuple[Tensor, Tensor, None]:
    """Means of theta over draws, and whether all chains of a document moved."""
    if num_draws is None and not isinstance(source, ThetaDraws):
        num_draws = CHAIN_DRAWS
    draws = theta_draws(source, corpus, num_draws, keep=False, **options)
    model = source.model
    theta = torch.empty(len(corpus), model.num_topics, dtype=model.dtype)
    converged = torch.empty(len(corpus), dtype=torch.bool)
    for part in draws:
        rows = torch.from_numpy(part.rows)
        theta[rows] = part.theta.double().mean(0).to(theta)
        converged[rows] = part.converged
    return theta, converged, None


def _by_guide(
    guide: Guide[Any],
    corpus: Corpus,
    estimate: Estimate,
    num_draws: int,
    seed: int,
    max_docs: int | None,
    progress: bool,
) -> tuple[Tensor, Tensor, SourceActivity | None]:
    """Theta, convergence and sources by a guide's posteriors."""
    model, mode = guide.model, estimate == "mode"
    only_means = mode and not model.prior.num_sources
    entries = corpus.nnz / corpus.num_docs
    if max_docs is None:
        no_covariances = only_means and guide.separates_means
        memory = guide.memory_of_means if no_covariances else guide.memory_per_document
        size = memory(entries)
        if not mode:
            size = max(size, model.num_topics * num_draws)
        max_docs = docs_at_once(size, model.device, model.dtype)
    parts: list[list[Tensor]] = []
    with tqdm(total=len(corpus), desc="documents", unit="doc", disable=not progress) as bar:
        for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
            posterior = guide.posterior(batch, covariances=not only_means)
            tensors = [
                posterior.theta_mode() if mode else posterior.theta_mean(num_draws, seed=seed)
            ]
            tensors.append(posterior.converged)
            if model.prior.num_sources:
                tensors += posterior.source_moments(model.prior.space(batch))
            parts.append([tensor.cpu() for tensor in tensors])
            bar.update(batch.num_docs)
    theta, converged, *moments = (torch.cat(column) for column in zip(*parts, strict=True))
    sources = SourceActivity(*moments) if moments else None
    return theta, converged, sources


def source_prior(model: TopicModel) -> IndependentFactorPrior:
    """Prior of a model with sources.

    Raises:
        ConfigError: The model has no sources.
    """
    if not model.prior.num_sources:
        raise ConfigError(f"the model, {model.name}, has no sources; iftm has them")
    return cast(IndependentFactorPrior, model.prior)
