"""Sources of an independent factor topic model, with the topics at both ends of each."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from torch_lntm.errors import require_whole
from torch_lntm.frames import Rows
from torch_lntm.inference.documents import source_prior
from torch_lntm.models import TopicModel


@dataclass(frozen=True)
class SourceTopic:
    """A topic at an end of a source.

    Attributes:
        source: The source's number, from 0: its column of the mixing matrix A.
        distribution: ``"gaussian"`` or ``"laplace"``.
        share: Share of the variance of the centred logits that the source explains. The shares of
            the sources and of the noise sum to 1.
        topic: The topic's number, from 0.
        name: Name of the topic; its number as text if it has no name.
        loading: Change of the topic's logit per unit of the source, minus the mean over topics (the
            softmax ignores the mean).
        words: Most probable words of the topic.
    """

    source: int
    distribution: str
    share: float
    topic: int
    name: str
    loading: float
    words: tuple[str, ...]


@torch.no_grad()
def summarise_sources(
    model: TopicModel, *, num_topics: int = 4, top_n: int = 8
) -> Rows[SourceTopic]:
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
        top_n: Words of each topic.

    Returns:
        The topics at the ends of each source, from the most positive loading to the most negative.
        ``frame()`` has a row for each, with the fields of :class:`SourceTopic`.

    Raises:
        ConfigError: The model has no sources, or a number is below 1.

    Example:
        >>> factors = lntm.models.iftm(10, corpus.num_words, num_sources=2)
        >>> frame = lntm.reports.summarise_sources(factors).frame()
        >>> frame.groupby("source")["distribution"].first().tolist()
        ['gaussian', 'gaussian']
    """
    prior = source_prior(model)
    require_whole(1, num_topics=num_topics, top_n=top_n)
    words = [model.words_at(row) for row in model.topics.top_words(top_n)[0].tolist()]
    loadings = prior.centred_mixing().cpu()
    variance = prior.source_variance * loadings.square().sum(0)
    shares = (variance / prior.contrast_covariance().trace().cpu()).tolist()
    rows = Rows[SourceTopic](columns=[field.name for field in fields(SourceTopic)])
    for source, loading in enumerate(loadings.T):
        order = loading.argsort(stable=True, descending=True).tolist()
        rising = [k for k in order if loading[k] > 0][:num_topics]
        falling = [k for k in order if loading[k] < 0][-num_topics:]
        for k in rising + falling:
            about = (source, prior.source, shares[source], k, model.topic_names[k])
            rows.append(SourceTopic(*about, float(loading[k]), words[k]))
    return rows
