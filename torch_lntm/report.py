"""What a fitted model says, in tables: topics, sources, scores, documents' topics and sources."""

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
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import (
    CompletionResult,
    LikelihoodEstimate,
    coherence,
    topic_diversity,
)
from torch_lntm.files import atomic_write
from torch_lntm.guides import FactorPosterior, Guide, Posterior
from torch_lntm.models import IndependentFactorPrior, TopicModel
from torch_lntm.models.factor import SOURCE_VARIANCE
from torch_lntm.solvers.factor import conditional_sources
from torch_lntm.solvers.gaussian import GaussianPosterior

Estimate = Literal["mode", "mean"]
TableFormat = Literal["text", "json", "csv"]

#: Numbers, such as covariances' entries, that the documents solved at once may need.
_MAX_NUMBERS = 2**23


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
    words, probabilities = _top_words(model, num_words)
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
                probabilities=probabilities[k],
                correlated=tuple((j, r) for j, r in pairs if r > 0)[:num_correlated],
                opposed=tuple((j, r) for j, r in reversed(pairs) if r < 0)[:num_correlated],
            )
        )
    return summaries if shares is None else sorted(summaries, key=lambda s: -(s.share or 0.0))


def _top_words(
    model: TopicModel, num_words: int
) -> tuple[list[tuple[str, ...]], list[tuple[float, ...]]]:
    """The most probable words of each topic, and their probabilities."""
    top = model.topics.probs.detach().cpu().topk(min(num_words, model.num_words), -1)
    vocabulary = model.vocabulary
    words = [
        tuple(f"#{v}" if vocabulary is None else vocabulary[v] for v in row)
        for row in top.indices.tolist()
    ]
    return words, [tuple(row) for row in top.values.tolist()]


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
        return _csv(rows)
    _check_text(format)
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


def _csv(rows: Sequence[Sequence[str]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue().rstrip("\n")


def _check_text(format: str) -> None:
    """Refuse a format that is none of the tables'."""
    if format != "text":
        raise ConfigError(f"format {format!r}; expected one of {', '.join(get_args(TableFormat))}")


def _signed(number: float) -> str:
    """A number with its sign, the minus as wide as the plus."""
    return f"{number:+.2f}".replace("-", "−")


@dataclass(frozen=True)
class SourceTopic:
    """A topic at an end of a source.

    Attributes:
        topic: Its number, from 0.
        loading: What one unit of the source adds to the topic's logit, less the mean over topics,
            which the softmax ignores.
        words: Its most probable words.
    """

    topic: int
    loading: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class SourceSummary:
    """One source: which topics come and go together with it.

    Attributes:
        source: Its number, from 0: its column of the mixing matrix A.
        distribution: ``"gaussian"`` (variance 1) or ``"laplace"`` (variance 2).
        share: The part of the variance of the centred logits that it explains; the rest of the sum
            over sources to 1 is the noise's.
        positive: The topics that rise most with the source, the first one most.
        negative: The topics that fall most.
    """

    source: int
    distribution: str
    share: float
    positive: tuple[SourceTopic, ...]
    negative: tuple[SourceTopic, ...]


@torch.no_grad()
def summarise_sources(
    model: TopicModel, *, num_topics: int = 4, num_words: int = 8
) -> list[SourceSummary]:
    """The sources of an independent factor topic model, in their order.

    A source is read by the topics at either end of its column of A (*Putthividhya et al. 2009,
    §3.1*): those at one end are likely together when it is positive, those at the other when it is
    negative. The column is centred over topics first, since the softmax ignores what all have in
    common. :class:`~torch_lntm.models.IndependentFactorPrior` says what of this is a convention:
    Gaussian sources are rotated to the principal axes of A, the order is by share, the largest
    loading of each source is positive.

    Args:
        model: The model.
        num_topics: Topics at each end, of those with a loading of its sign.
        num_words: Words of each topic.

    Raises:
        ConfigError: The model has no sources, or a number below 1.
    """
    prior = _factor_prior(model)
    if num_words < 1 or num_topics < 1:
        raise ConfigError(
            f"num_words is {num_words} and num_topics {num_topics}; expected at least 1"
        )
    words, _ = _top_words(model, num_words)
    loadings = prior.centred_mixing().cpu()
    variance = SOURCE_VARIANCE[prior.source] * loadings.square().sum(0)
    shares = variance / prior.contrast_covariance().trace().cpu()
    order = loadings.argsort(dim=0, stable=True, descending=True)
    summaries = []
    for source in range(prior.num_sources):
        topics = [
            SourceTopic(k, float(loadings[k, source]), words[k]) for k in order[:, source].tolist()
        ]
        summaries.append(
            SourceSummary(
                source=source,
                distribution=prior.source,
                share=float(shares[source]),
                positive=tuple(t for t in topics if t.loading > 0)[:num_topics],
                negative=tuple(t for t in reversed(topics) if t.loading < 0)[:num_topics],
            )
        )
    return summaries


def format_sources(summaries: Sequence[SourceSummary], format: TableFormat = "text") -> str:
    """Sources as text to read, as JSON, or as CSV with a row per topic at an end of a source.

    Args:
        summaries: What :func:`summarise_sources` gave.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: Another format.
    """
    if format == "json":
        return json.dumps([asdict(summary) for summary in summaries], indent=2, ensure_ascii=False)
    if format == "csv":
        rows = [["source", "share", "topic", "loading", "words"]]
        for s in summaries:
            for t in (*s.positive, *s.negative):
                about = [f"{s.share:.6f}", str(t.topic), f"{t.loading:.6f}"]
                rows.append([str(s.source), *about, " ".join(t.words)])
        return _csv(rows)
    _check_text(format)
    lines = [
        "share: of the variance of the topics' logits, which sources and noise make up together",
        "loading: what one unit of the source adds to a topic's logit, less the mean over topics",
    ]
    if summaries:
        kind = summaries[0].distribution
        rotated = "rotates them to the principal axes of the loadings, " * (kind == "gaussian")
        lines.append(
            f"sources: {kind}, variance {SOURCE_VARIANCE[kind]:.0f}; a fit {rotated}orders them by "
            "share and makes the largest loading of each positive"
        )
    lines.append("source   share  loading  topic  top words")
    for s in summaries:
        begin = f"{s.source:>6}  {s.share:6.1%}"
        for t in (*s.positive, *reversed(s.negative)):
            lines.append(f"{begin:14}  {_signed(t.loading):>7}  {t.topic:>5}  {' '.join(t.words)}")
            begin = ""
    return "\n".join(lines)


def _factor_prior(model: TopicModel) -> IndependentFactorPrior:
    """The prior of a model that has sources."""
    if not isinstance(model.prior, IndependentFactorPrior):
        raise ConfigError(f"the model, {model.prior.kind}, has no sources; iftm has them")
    return model.prior


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
    how = {
        "importance": "importance sampling, {} draws of {}",
        "ais": "annealed importance sampling, {} chains, {}",
        "quadrature": "quadrature, {} points",
    }
    method = how[estimate.method].format(estimate.num_samples, estimate.proposal)
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
class SourceActivity:
    """The sources of a corpus's documents, on the scale of their prior.

    Attributes:
        mean: ``(num_docs, num_sources)`` posterior means; 0 of empty documents.
        std: ``(num_docs, num_sources)`` posterior standard deviations.
        converged: ``(num_docs,)`` whether the document's posterior met the guide's tolerance.
    """

    mean: Tensor
    std: Tensor
    converged: Tensor


@dataclass(frozen=True, eq=False)
class DocumentTopics:
    """Topic proportions of a corpus's documents.

    Attributes:
        theta: ``(num_docs, num_topics)`` proportions, of empty documents the prior's.
        converged: ``(num_docs,)`` whether the document's posterior met the guide's tolerance.
        estimate: ``"mode"``, the mode of the posterior on the softmax scale (softmax of the mean of
            eta; of a Dirichlet the mean of theta), or ``"mean"``, the posterior mean of theta.
        sources: The documents' sources, of models that have them.
    """

    theta: Tensor
    converged: Tensor
    estimate: Estimate
    sources: SourceActivity | None = None


@torch.no_grad()
def document_topics(
    guide: Guide,
    corpus: Corpus,
    estimate: Estimate = "mode",
    *,
    num_samples: int = 200,
    seed: int = 0,
    max_docs: int | None = None,
    progress: bool = False,
) -> DocumentTopics:
    """Topic proportions of every document, empty ones included, and their sources if there are any.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        estimate: ``"mode"`` or ``"mean"``; see :class:`DocumentTopics`.
        num_samples: Draws for ``"mean"``.
        seed: Seed of these.
        max_docs: Documents per batch; bounds memory. By default from what the guide needs.
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
        per_document = guide.numbers_per_document(corpus.nnz / corpus.num_docs)
        if estimate == "mean":
            per_document = max(per_document, model.num_topics * num_samples)
        max_docs = min(max(16, int(_MAX_NUMBERS / per_document)), 1024)
    prior = model.prior
    parts: list[list[Tensor]] = []
    with tqdm(total=len(corpus), desc="documents", unit="doc", disable=not progress) as bar:
        for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
            posterior = guide.posterior(batch)
            mode = estimate == "mode"
            found = [posterior.theta_mode() if mode else posterior.theta_mean(num_samples, seed)]
            found.append(posterior.converged)
            if isinstance(prior, IndependentFactorPrior):
                found += _source_moments(prior, posterior)
            parts.append([tensor.cpu() for tensor in found])
            bar.update(batch.num_docs)
    theta, converged, *moments = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    sources = SourceActivity(moments[0], moments[1], converged) if moments else None
    return DocumentTopics(theta, converged, estimate, sources)


def _source_moments(prior: IndependentFactorPrior, posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Posterior means and standard deviations of the sources ``(num_docs, num_sources)``."""
    if isinstance(posterior, FactorPosterior):
        return posterior.source_mean, posterior.source_std
    assert isinstance(posterior, GaussianPosterior)
    # Of eta alone: p(s | eta) is normal, with a mean that is affine in eta and one covariance.
    solver = prior.solver_prior()
    mean, tril = conditional_sources(solver, posterior.mean)
    unit = torch.eye(prior.num_topics, dtype=mean.dtype, device=mean.device)
    gain, _ = conditional_sources(solver, solver.loc + unit)
    spread = torch.einsum("il,dij,jl->dl", gain, posterior.covariance, gain)
    return mean, (tril.square().sum(-1) + spread).sqrt()


def source_activity(
    guide: Guide, corpus: Corpus, *, max_docs: int | None = None, progress: bool = False
) -> SourceActivity:
    """How active the sources of an independent factor topic model are in every document.

    Under :class:`~torch_lntm.guides.FactorGuide` these are the moments of its q(source), whose
    standard deviations leave out the uncertainty of eta; under guides with a posterior of eta alone
    those of the sources with eta integrated out.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        max_docs: Documents per batch; bounds memory. By default from what the guide needs.
        progress: Show a progress bar on standard error.

    Raises:
        ConfigError: The model has no sources, or the corpus another number of words.
    """
    _factor_prior(guide.model)
    found = document_topics(guide, corpus, max_docs=max_docs, progress=progress).sources
    assert found is not None
    return found


def most_active_documents(
    activity: SourceActivity, source: int, *, num_docs: int = 5
) -> tuple[list[int], list[int]]:
    """The documents at either end of a source, by its posterior mean.

    Args:
        activity: What :func:`source_activity` gave.
        source: The source's number.
        num_docs: Documents at each end, of those with a mean of its sign.

    Returns:
        Positions of the documents with the largest positive means, the first one most, and of those
        with the lowest negative ones.

    Raises:
        ConfigError: There is no such source, or the number of documents is below 1.
    """
    num_sources = activity.mean.shape[1]
    if not 0 <= source < num_sources or num_docs < 1:
        raise ConfigError(
            f"source is {source} and num_docs {num_docs}; expected 0 to {num_sources - 1}, and at "
            "least 1"
        )
    values = activity.mean[:, source]
    order = values.argsort(stable=True, descending=True).tolist()
    highest = [d for d in order[:num_docs] if values[d] > 0]
    return highest, [d for d in order[: -num_docs - 1 : -1] if values[d] < 0]
