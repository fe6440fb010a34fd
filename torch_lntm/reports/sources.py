"""Sources of an independent factor topic model: topics, and activity in documents."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from torch_lntm.errors import require_whole
from torch_lntm.frames import Rows
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel


@dataclass(frozen=True)
class SourceTopic:
    """A topic at an end of a source.

    Attributes:
        topic: The topic's number, from 0.
        name: Name of the topic; its number as text if it has no name.
        loading: Change of the topic's logit per unit of the source, minus the mean over topics (the
            softmax ignores the mean).
        words: Most probable words of the topic.
    """

    topic: int
    name: str
    loading: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class SourceSummary:
    """A source, with the topics that rise and fall with it.

    Attributes:
        source: The source's number, from 0: its column of the mixing matrix A.
        distribution: ``"gaussian"`` or ``"laplace"``.
        variance: Prior variance: 1 for Gaussian, 2 for Laplace sources.
        share: Share of the variance of the centred logits that the source explains. The shares of
            the sources and of the noise sum to 1.
        positive: Topics with the largest positive loadings, the largest first.
        negative: Topics with the largest negative loadings, the largest first.
    """

    source: int
    distribution: str
    variance: float
    share: float
    positive: tuple[SourceTopic, ...]
    negative: tuple[SourceTopic, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows of a frame, from the most positive loading to the most negative."""
        about = {"source": self.source, "distribution": self.distribution, "share": self.share}
        return [about | asdict(t) for t in (*self.positive, *reversed(self.negative))]


@torch.no_grad()
def summarise_sources(
    model: TopicModel, *, num_topics: int = 4, num_words: int = 8
) -> Rows[SourceSummary]:
    """Sources of an independent factor topic model, with the topics at both ends of each.

    The topics with large positive loadings occur together if the source is positive, the topics
    with large negative loadings if it is negative (*Putthividhya et al. 2009, §3.1*). Loadings are
    columns of A, centred over topics because the softmax ignores a common shift. Rotation, order
    and sign are conventions of :class:`~torch_lntm.models.IndependentFactorPrior`. Gaussian sources
    are rotated to the principal axes of A. Sources are sorted by share. The largest loading of each
    source is positive.

    Args:
        model: The model.
        num_topics: Most topics at each end. Each end has loadings of one sign.
        num_words: Words of each topic.

    Returns:
        The sources. The columns of ``frame()`` are ``source``, ``distribution``, ``share``,
        ``topic``, ``name``, ``loading`` and ``words``, with a row for each topic at an end.

    Raises:
        ConfigError: The model has no sources, or a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> [source.distribution for source in lntm.reports.summarise_sources(factors)]
        ['gaussian', 'gaussian']
    """
    prior = source_prior(model)
    require_whole(1, num_topics=num_topics, num_words=num_words)
    words = [model.words_at(row) for row in model.topics.top_words(num_words)[0].tolist()]
    loadings = prior.centred_mixing().cpu()
    variance = prior.source_variance * loadings.square().sum(0)
    shares = variance / prior.contrast_covariance().trace().cpu()
    order = loadings.argsort(dim=0, stable=True, descending=True)
    columns = ("source", "distribution", "share", "topic", "name", "loading", "words")
    summaries = Rows[SourceSummary](columns=columns)
    for source in range(prior.num_sources):
        topics = [
            SourceTopic(k, model.topic_names[k], float(loadings[k, source]), words[k])
            for k in order[:, source].tolist()
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
