"""The sources of an independent factor topic model: their topics, and how active they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.guides import Guide
from torch_lntm.inference import SourceActivity, transform
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel
from torch_lntm.models.topic_table import signed
from torch_lntm.reports.tables import TableFormat, check_text, to_csv


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
        distribution: ``"gaussian"`` or ``"laplace"``.
        variance: Its prior variance: 1 if Gaussian, 2 if Laplace.
        share: The part of the variance of the centred logits that it explains; the rest of the sum
            over sources to 1 is the noise's.
        positive: The topics that rise most with the source, the first one most.
        negative: The topics that fall most.
    """

    source: int
    distribution: str
    variance: float
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
    prior = source_prior(model)
    require_whole(1, num_topics=num_topics, num_words=num_words)
    words = [model.words_at(row) for row in model.topics.top_words(num_words)[0].tolist()]
    loadings = prior.centred_mixing().cpu()
    variance = prior.source_variance * loadings.square().sum(0)
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
                variance=prior.source_variance,
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
        return to_csv(rows)
    check_text(format)
    lines = [
        "share: of the variance of the topics' logits, which sources and noise make up together",
        "loading: what one unit of the source adds to a topic's logit, less the mean over topics",
    ]
    if summaries:
        kind, variance = summaries[0].distribution, summaries[0].variance
        axes = "rotates them to the principal axes of the loadings, "
        rotated = axes if kind == "gaussian" else ""
        lines.append(
            f"sources: {kind}, variance {variance:g}; a fit {rotated}orders them by "
            "share and makes the largest loading of each positive"
        )
    lines.append("source   share  loading  topic  top words")
    for s in summaries:
        begin = f"{s.source:>6}  {s.share:6.1%}"
        for t in (*s.positive, *reversed(s.negative)):
            lines.append(f"{begin:14}  {signed(t.loading):>7}  {t.topic:>5}  {' '.join(t.words)}")
            begin = ""
    return "\n".join(lines)


def source_activity(
    guide: Guide[Any], corpus: Corpus, *, max_docs: int | None = None, progress: bool = False
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
    source_prior(guide.model)
    found = transform(guide, corpus, max_docs=max_docs, progress=progress).sources
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
