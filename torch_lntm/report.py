"""What a fitted model says, in tables: its topics, its scores, documents' topic proportions."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.files import atomic_write
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import (
    CompletionResult,
    LikelihoodEstimate,
    coherence,
    topic_diversity,
)
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
    if num_words < 1 or num_correlated < 0:
        raise ConfigError(
            f"num_words is {num_words} and num_correlated {num_correlated}; "
            "expected at least 1 and 0"
        )
    top = model.topics.probs.detach().cpu().topk(min(num_words, model.num_words), -1)
    correlation = model.topic_correlation().cpu()
    order = correlation.fill_diagonal_(0.0).argsort(stable=True, dim=-1, descending=True)
    vocabulary = model.vocabulary
    summaries = []
    for k in range(model.num_topics):
        words = [f"#{v}" if vocabulary is None else vocabulary[v] for v in top.indices[k].tolist()]
        pairs = [(j, float(correlation[k, j])) for j in order[k].tolist()]
        summaries.append(
            TopicSummary(
                topic=k,
                share=None if shares is None else float(shares[k]),
                words=tuple(words),
                probabilities=tuple(top.values[k].tolist()),
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
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(rows)
        return table.getvalue().rstrip("\n")
    if format != "text":
        raise ConfigError(f"format {format!r}; expected one of {', '.join(get_args(TableFormat))}")
    lines = ["topic   share   top words, most correlated topics"]
    for s in summaries:
        share = "   –  " if s.share is None else f"{s.share:6.1%}"
        lines.append(f"{s.topic:>5}  {share}   {' '.join(s.words)}")
        partners = [
            " ".join([how, *(f"{k:>4} ({_signed(r)})" for k, r in pairs)])
            for how, pairs in (("with", s.correlated), ("against", s.opposed))
            if pairs
        ]
        if partners:
            lines.append(" " * 16 + "   ".join(partners))
    return "\n".join(lines)


def _signed(number: float) -> str:
    """A correlation with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")


@dataclass(frozen=True)
class Score:
    """One number about a model, with what is needed to read it.

    Attributes:
        metric: Its name.
        value: The number.
        standard_error: Over documents, or over topics where the unit says so; None if it has none.
        unit: What the number counts.
        method: How it was found.
        documents: Documents it is about.
        tokens: Tokens it is about.
    """

    metric: str
    value: float
    standard_error: float | None
    unit: str
    method: str
    documents: int | None = None
    tokens: int | None = None


def completion_scores(*results: CompletionResult) -> list[Score]:
    """Perplexities of document completion."""
    scores = []
    for result in results:
        method = result.method
        if result.observed_fraction is not None:
            method += f"; {result.observed_fraction:.0%} of tokens observed, seed {result.seed}"
        scores.append(
            Score(
                "completion perplexity",
                result.perplexity,
                result.standard_error,
                "per held-out token",
                method,
                result.num_docs,
                int(result.held_out_tokens.sum()),
            )
        )
    return scores


def likelihood_scores(estimate: LikelihoodEstimate) -> list[Score]:
    """Perplexity and log likelihood of whole documents."""
    method = f"{estimate.method}, {estimate.num_samples} points"
    if estimate.proposal is not None:
        method = f"importance sampling, {estimate.num_samples} draws of {estimate.proposal}"
    about = (method, estimate.num_docs, int(estimate.lengths.sum()))
    return [
        Score(
            "perplexity",
            estimate.perplexity,
            estimate.perplexity_standard_error,
            "per token",
            *about,
        ),
        Score(
            "log likelihood",
            estimate.nats_per_token,
            estimate.nats_per_token_standard_error,
            "nats per token",
            *about,
        ),
    ]


def coherence_scores(model: TopicModel, corpus: Corpus, top_n: int = 10) -> list[Score]:
    """Mean coherence of the topics by NPMI and UMass, with the standard error over topics."""
    scores = []
    measures: dict[Literal["npmi", "umass"], str] = {"npmi": "NPMI", "umass": "UMass"}
    for measure, name in measures.items():
        values = coherence(model.topics.probs.detach(), corpus, measure, top_n)
        scores.append(
            Score(
                f"coherence {name}",
                float(values.mean()),
                float(values.std() / math.sqrt(len(values))),
                "mean over topics",
                f"top {top_n} words, together in documents",
                corpus.num_docs,
                corpus.num_tokens,
            )
        )
    return scores


def diversity_score(model: TopicModel, top_n: int = 10) -> Score:
    """Share of different words among the topics' top words."""
    value = topic_diversity(model.topics.probs.detach(), top_n)
    return Score("topic diversity", value, None, "share of different words", f"top {top_n} words")


def format_scores(scores: Sequence[Score]) -> str:
    """Scores as a table to read."""
    header = ["metric", "value", "s.e.", "unit", "documents", "method"]
    rows = []
    for score in scores:
        error = score.standard_error
        if error is None or not math.isfinite(error) or error <= 0:
            value, spread = f"{score.value:.4g}", "–"
        else:
            # As many decimals as two digits of the standard error need.
            decimals = min(6, max(0, 1 - math.floor(math.log10(error))))
            value, spread = f"{score.value:.{decimals}f}", f"{error:.{decimals}f}"
        documents = "" if score.documents is None else str(score.documents)
        rows.append([score.metric, value, spread, score.unit, documents, score.method])
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if name in ("value", "s.e.", "documents") else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def write_scores(path: str | Path, scores: Sequence[Score]) -> None:
    """Write scores as a JSON list of objects; a standard error that is not finite is null."""
    records = [asdict(score) for score in scores]
    for record in records:
        error = record["standard_error"]
        record["standard_error"] = error if error is not None and math.isfinite(error) else None
    with atomic_write(Path(path)) as file:
        file.write((json.dumps(records, indent=2, ensure_ascii=False) + "\n").encode())


def topic_shares(theta: Tensor, corpus: Corpus) -> Tensor:
    """Mean proportion of each topic over the documents that are not empty.

    Args:
        theta: ``(num_docs, num_topics)`` proportions.
        corpus: The documents.

    Returns:
        ``(num_topics,)`` float64, summing to 1.
    """
    return theta.cpu()[torch.from_numpy(corpus.lengths > 0)].double().mean(0)


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
    for name, value in (("num_samples", num_samples), ("seed", seed + 1)):
        if value < 1:
            raise ConfigError(f"{name} is too small; expected num_samples >= 1 and seed >= 0")
    model = guide.model
    if max_docs is None:
        per_document = model.num_topics * max(model.num_topics, num_samples)
        max_docs = min(max(16, _MAX_MATRIX_ENTRIES // per_document), 1024)
    parts = []
    with tqdm(total=len(corpus), desc="documents", unit="doc", disable=not progress) as bar:
        for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
            posterior = guide.posterior(batch)
            mode = estimate == "mode"
            theta = posterior.theta_mode() if mode else posterior.theta_mean(num_samples, seed)
            parts.append((theta.cpu(), posterior.converged.cpu()))
            bar.update(batch.num_docs)
    theta, converged = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return DocumentTopics(theta, converged, estimate)
