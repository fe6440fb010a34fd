"""What a fitted model says, in tables: its topics, and documents' topic proportions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import LogisticNormalGuide
from torch_lntm.models import TopicModel

Estimate = Literal["mode", "mean"]
TableFormat = Literal["text", "json", "csv"]

#: Matrix entries that the covariances of a batch of documents may have.
_MAX_MATRIX_ENTRIES = 2**23


@dataclass(frozen=True)
class TopicSummary:
    """One topic in words.

    Attributes:
        topic: Its number, from 0, as in ``model.topics.probs``.
        share: Its mean proportion over documents; None where no documents are known.
        words: Its most probable words; ``#17`` stands for column 17 without a vocabulary.
        probabilities: Their probabilities.
        correlated: ``(topic, correlation)`` of those it is most correlated with, whatever the
            sign, by the prior's centred logits.
    """

    topic: int
    share: float | None
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    correlated: tuple[tuple[int, float], ...]


@torch.no_grad()
def summarise_topics(
    model: TopicModel,
    shares: Sequence[float] | Tensor | None = None,
    *,
    num_words: int = 10,
    num_correlated: int = 3,
) -> list[TopicSummary]:
    """The topics of a model, the largest first.

    Args:
        model: The model.
        shares: ``(num_topics,)`` mean proportions; without them topics keep their order.
        num_words: Words of each topic.
        num_correlated: Correlated topics of each topic.

    Raises:
        ConfigError: Shares of another length, or a number below 0.
    """
    if shares is not None and len(shares) != model.num_topics:
        raise ConfigError(f"{len(shares)} shares for {model.num_topics} topics; expected as many")
    if num_words < 1 or num_correlated < 0:
        raise ConfigError(
            f"num_words is {num_words} and num_correlated {num_correlated}; expected at least 1 and 0"
        )
    top = model.topics.probs.detach().cpu().topk(min(num_words, model.num_words), -1)
    correlation = model.topic_correlation().cpu()
    strength = correlation.abs().fill_diagonal_(-1.0)
    partners = strength.topk(min(num_correlated, model.num_topics - 1), -1).indices
    vocabulary = model.vocabulary
    summaries = []
    for k in range(model.num_topics):
        words = [f"#{v}" if vocabulary is None else vocabulary[v] for v in top.indices[k].tolist()]
        summaries.append(
            TopicSummary(
                topic=k,
                share=None if shares is None else float(shares[k]),
                words=tuple(words),
                probabilities=tuple(top.values[k].tolist()),
                correlated=tuple((j, float(correlation[k, j])) for j in partners[k].tolist()),
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
        rows = [["topic", "share", "words", "correlated"]]
        for s in summaries:
            share = "" if s.share is None else f"{s.share:.6f}"
            pairs = " ".join(f"{k}:{r:.4f}" for k, r in s.correlated)
            rows.append([str(s.topic), share, " ".join(s.words), pairs])
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(rows)
        return table.getvalue().rstrip("\n")
    if format != "text":
        raise ConfigError(f"format {format!r}; expected one of {', '.join(get_args(TableFormat))}")
    digits = len(str(max(s.topic for s in summaries)))
    lines = ["topic   share   top words, most correlated topics (correlation)"]
    for s in summaries:
        share = "   –  " if s.share is None else f"{s.share:6.1%}"
        lines.append(f"{s.topic:>5}  {share}   {' '.join(s.words)}")
        if s.correlated:
            pairs = "   ".join(f"{k:>{digits}} ({_signed(r)})" for k, r in s.correlated)
            lines.append(" " * 16 + "with " + pairs)
    return "\n".join(lines)


def _signed(number: float) -> str:
    """A correlation with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in aligned columns; those of numbers only are aligned on the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    numeric = [all(cell[:1] in "0123456789-" for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        columns = zip(cells, widths, numeric, strict=True)
        return "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in columns).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, rows)])


def topic_shares(theta: Tensor, corpus: Corpus) -> Tensor:
    """Mean proportion of each topic over the documents that are not empty.

    Args:
        theta: ``(num_docs, num_topics)`` proportions.
        corpus: The documents.

    Returns:
        ``(num_topics,)`` float64, summing to 1.
    """
    return theta[torch.from_numpy(corpus.lengths > 0)].double().mean(0)


@dataclass(frozen=True, eq=False)
class DocumentTopics:
    """Topic proportions of a corpus's documents.

    Attributes:
        theta: ``(num_docs, num_topics)`` proportions, of empty documents the prior's.
        converged: ``(num_docs,)`` whether the document's posterior met the guide's tolerance.
        estimate: ``"mode"``, softmax of the posterior mean of eta, or ``"mean"``, the posterior
            mean of theta.
    """

    theta: Tensor
    converged: Tensor
    estimate: Estimate


@torch.no_grad()
def document_topics(
    guide: LogisticNormalGuide,
    corpus: Corpus,
    estimate: Estimate = "mode",
    *,
    num_samples: int = 200,
    seed: int = 0,
    max_docs: int | None = None,
    progress: bool = False,
) -> DocumentTopics:
    """Topic proportions of every document, empty ones included.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        estimate: ``"mode"`` or ``"mean"``; see :class:`DocumentTopics`.
        num_samples: Draws for ``"mean"``.
        seed: Seed of these.
        max_docs: Documents per batch; bounds memory. By default from the number of topics.
        progress: Show a progress bar on standard error.

    Raises:
        ConfigError: Another estimate, or a corpus over another number of words.
    """
    if estimate not in get_args(Estimate):
        raise ConfigError(f"estimate {estimate!r}; expected one of {', '.join(get_args(Estimate))}")
    model = guide.model
    if max_docs is None:
        max_docs = min(max(16, _MAX_MATRIX_ENTRIES // model.num_topics**2), 1024)
    parts = []
    with tqdm(total=len(corpus), desc="documents", unit="doc", disable=not progress) as bar:
        for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
            posterior = guide.posterior(batch)
            if estimate == "mode":
                theta = posterior.theta_mode()
            else:
                theta = posterior.theta_mean(num_samples, seed)
            parts.append((theta.cpu(), posterior.converged.cpu()))
            bar.update(batch.num_docs)
    theta, converged = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return DocumentTopics(theta, converged, estimate)
