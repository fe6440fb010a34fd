"""The topics of a model in words, with their shares and their correlations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference import DrawSource, FitResult, MonteCarloResult, theta_draws
from torch_lntm.models import TopicModel
from torch_lntm.reports.tables import TableFormat, check_text, signed, to_csv, words_of

#: Draws of all documents together that shares are means of, at least; most draws of a document;
#: most documents of which posterior means are found after a fit by a guide.
_SHARE_DRAWS, _MOST_DRAWS, _SHARE_DOCS = 10_000, 50, 2000


@dataclass(frozen=True)
class TopicSummary:
    """One topic in words.

    Attributes:
        topic: Its number, from 0, as in ``model.topics.probs``.
        share: Posterior mean of its proportion, averaged over documents; None where no documents
            are known.
        words: Its most probable words; ``#17`` stands for column 17 without a vocabulary.
        probabilities: Their probabilities.
        correlated: ``(topic, correlation)`` of those with the highest positive correlations, by
            the prior's centred logits.
        opposed: The same of those with the lowest negative ones.
    """

    topic: int
    share: float | None
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    correlated: tuple[tuple[int, float], ...]
    opposed: tuple[tuple[int, float], ...]


@torch.no_grad()
def summarise_topics(
    model: TopicModel,
    shares: Sequence[float] | Tensor | None = None,
    *,
    num_words: int = 10,
    num_correlated: int = 2,
) -> list[TopicSummary]:
    """The topics of a model, the largest first.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions; without them topics keep their order.
        num_words: Words of each topic.
        num_correlated: Most positively, and as many most negatively correlated topics of each.

    Raises:
        ConfigError: Shares of another length, or a number below 0.
    """
    if shares is not None and len(shares) != model.num_topics:
        raise ConfigError(f"{len(shares)} shares for {model.num_topics} topics; expected as many")
    require_whole(1, num_words=num_words)
    require_whole(0, num_correlated=num_correlated)
    positions, probabilities = model.topics.top_words(num_words)
    words = [words_of(model, row) for row in positions.tolist()]
    correlation = model.topic_correlation().cpu()
    order = correlation.fill_diagonal_(0.0).argsort(stable=True, dim=-1, descending=True)
    summaries = []
    for k in range(model.num_topics):
        pairs = [(j, float(correlation[k, j])) for j in order[k].tolist()]
        summaries.append(
            TopicSummary(
                topic=k,
                share=None if shares is None else float(shares[k]),
                words=words[k],
                probabilities=tuple(probabilities[k].tolist()),
                correlated=tuple((j, r) for j, r in pairs if r > 0)[:num_correlated],
                opposed=tuple((j, r) for j, r in reversed(pairs) if r < 0)[:num_correlated],
            )
        )
    return summaries if shares is None else sorted(summaries, key=lambda s: -(s.share or 0.0))


def format_topics(summaries: Sequence[TopicSummary], format: TableFormat = "text") -> str:
    """Topics as text to read, as JSON, or as CSV with a row per topic.

    Args:
        summaries: What :func:`summarise_topics` gave.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: Another format.
    """
    if format == "json":
        return json.dumps([asdict(summary) for summary in summaries], indent=2, ensure_ascii=False)
    if format == "csv":
        rows = [["topic", "share", "words", "correlated", "opposed"]]
        for s in summaries:
            share = "" if s.share is None else f"{s.share:.6f}"
            partners = [
                " ".join(f"{k}:{r:.4f}" for k, r in pairs) for pairs in (s.correlated, s.opposed)
            ]
            rows.append([str(s.topic), share, " ".join(s.words), *partners])
        return to_csv(rows)
    check_text(format)
    lines = []
    if any(s.share is not None for s in summaries):
        lines = ["share: posterior mean of the proportion, averaged over the documents"]
    lines.append("topic   share   top words, most correlated topics")
    for s in summaries:
        share = "   –  " if s.share is None else f"{s.share:6.1%}"
        lines.append(f"{s.topic:>5}  {share}   {' '.join(s.words)}")
        partners = [
            " ".join([how, *(f"{k:>4} ({signed(r)})" for k, r in pairs)])
            for how, pairs in (("with", s.correlated), ("against", s.opposed))
            if pairs
        ]
        if partners:
            lines.append(" " * 16 + "   ".join(partners))
    return "\n".join(lines)


@torch.no_grad()
def topic_shares(source: FitResult | DrawSource, corpus: Corpus) -> Tensor:
    """Shares of the topics: posterior means of their proportions, averaged over documents.

    The documents with words count, each as much as any other. The Monte-Carlo standard error of a
    share is about 0.1 percentage points at most. A report has the same shares, with more draws and
    with intervals.

    Args:
        source: The result of a fit, or another source of draws of the documents' proportions; see
            :func:`torch_lntm.inference.theta_draws`.
        corpus: The documents, those of the fit where ``source`` is a result.

    Returns:
        ``(num_topics,)`` float64, summing to 1.
    """
    rows = np.flatnonzero(corpus.lengths)
    if not isinstance(source, FitResult):
        return _mean_of_draws(source, corpus, rows)
    posterior, model = source.posterior, source.posterior.model

    def proportions(latent: Tensor, rows: NDArray[np.int64]) -> Tensor:
        part = latent[..., torch.from_numpy(rows), :].to(model.device)
        return model.theta(part).double().cpu()

    if isinstance(source, MonteCarloResult):
        if len(rows) * len(source.moved) < _SHARE_DRAWS:
            return _mean_of_draws(posterior, corpus, rows)
        return proportions(source.chains[model.prior.latent], rows).mean((0, 1))
    # Proportions at the modes are known of all documents. How far they are from posterior means is
    # found from some.
    some = rows
    if len(rows) > _SHARE_DOCS:
        some = np.sort(np.random.default_rng(0).choice(rows, _SHARE_DOCS, replace=False))
    shift = _mean_of_draws(posterior, corpus, some, source.means)
    shift -= proportions(source.means, some).mean(0)
    return proportions(source.means, rows).mean(0) + shift


def _mean_of_draws(
    source: DrawSource, corpus: Corpus, rows: NDArray[np.int64], means: Tensor | None = None
) -> Tensor:
    """Posterior means of the proportions ``(num_topics,)``, averaged over some documents."""
    num_draws = min(math.ceil(_SHARE_DRAWS / len(rows)), _MOST_DRAWS)
    total = torch.zeros((), dtype=torch.float64)
    for part in theta_draws(source, corpus, num_draws, rows=rows, means=means, keep=False):
        total = total + part.theta.double().mean(0).sum(0)
    return total / len(rows)
