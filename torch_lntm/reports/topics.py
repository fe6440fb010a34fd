"""The topics of a model in words, with their shares and their correlations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import TopicModel
from torch_lntm.reports.tables import TableFormat, check_text, signed, to_csv, words_of


@dataclass(frozen=True)
class TopicSummary:
    """One topic in words.

    Attributes:
        topic: Its number, from 0, as in ``model.topics.probs``.
        share: Its mean proportion over documents; None where no documents are known.
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
    lines = ["topic   share   top words, most correlated topics"]
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


def topic_shares(theta: Tensor, corpus: Corpus) -> Tensor:
    """Mean proportion of each topic over the documents that are not empty.

    Args:
        theta: ``(num_docs, num_topics)`` proportions.
        corpus: The documents.

    Returns:
        ``(num_topics,)`` float64, summing to 1.
    """
    return theta.cpu()[torch.from_numpy(corpus.lengths > 0)].double().mean(0)
