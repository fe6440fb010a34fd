"""Words of topics: labels, words of groups of documents, and words of merged topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.topic_groups import merged_topics

#: Measures that rank a topic's words; see :func:`word_scores`.
LabelMeasure = Literal["probability", "frex", "lift", "score"]


@dataclass(frozen=True)
class TopicLabels:
    """Best words of a topic by each measure of :func:`word_scores`.

    Attributes:
        topic: The topic's number, from 0.
        name: Name of the topic; its number as text if it has no name.
        probability: Most probable words.
        frex: Words that are both frequent and exclusive.
        lift: Words that are far more probable in the topic than in the corpus.
        score: Words that are far more probable in the topic than in other topics.
    """

    topic: int
    name: str
    probability: tuple[str, ...]
    frex: tuple[str, ...]
    lift: tuple[str, ...]
    score: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows of a frame, a row for each measure and word."""
        return [
            {"topic": self.topic, "name": self.name, "measure": measure, "rank": rank, "term": word}
            for measure in get_args(LabelMeasure)
            for rank, word in enumerate(getattr(self, measure), 1)
        ]


def word_scores(
    topics: NDArray[np.float64],
    word_totals: NDArray[np.int64],
    measure: LabelMeasure = "frex",
    *,
    frequency_weight: float = 0.5,
) -> NDArray[np.float64]:
    """Scores of words as labels of topics (*Roberts et al. 2019, §3.4.1*).

    φ_kv is the probability of word v in topic k, n_v the number of its tokens in the corpus.

    * ``"probability"``: φ_kv.
    * ``"frex"`` (*Airoldi & Bischof 2016*): weighted harmonic mean of two ranks within the topic,
      divided by the number of words. The rank of φ_kv has weight ``frequency_weight``. The rank of
      the exclusivity φ_kv/Σ_j φ_jv has the rest. Exclusivities of rare words are shrunk towards
      1/K (James–Stein; *Hausser & Strimmer 2009*).
    * ``"lift"``: log φ_kv − log(n_v/Σn); minus infinity for words without a token.
    * ``"score"``: φ_kv (log φ_kv − mean_j log φ_jv).

    Args:
        topics: ``(num_topics, num_words)`` probabilities.
        word_totals: ``(num_words,)`` tokens of each word in the corpus.
        measure: ``"probability"``, ``"frex"``, ``"lift"`` or ``"score"``. Defaults to ``"frex"``.
        frequency_weight: Weight of frequency in FREX, between 0 and 1.

    Returns:
        ``(num_topics, num_words)`` scores.

    Raises:
        ConfigError: The measure is unknown, the weight out of range, or a shape different.
    """
    if measure not in get_args(LabelMeasure):
        raise ConfigError(f"measure {measure!r}; expected one of {get_args(LabelMeasure)}")
    if not 0 <= frequency_weight <= 1:
        raise ConfigError(f"frequency_weight is {frequency_weight}; expected from 0 to 1")
    if topics.ndim != 2 or word_totals.shape != topics.shape[1:]:
        raise ConfigError(
            f"topics of shape {topics.shape} and totals of {word_totals.shape}; expected "
            "(num_topics, num_words) and (num_words,)"
        )
    if measure == "probability":
        return topics
    logs = np.log(np.maximum(topics, np.finfo(np.float64).tiny))
    if measure == "score":
        return np.asarray(topics * (logs - logs.mean(0)))
    if measure == "lift":
        with np.errstate(divide="ignore"):
            share = np.log(word_totals / word_totals.sum())
        return np.where(np.isfinite(share), logs - share, -np.inf)
    num_words = topics.shape[1]
    frequency = scipy.stats.rankdata(topics, axis=1) / num_words
    exclusivity = scipy.stats.rankdata(_exclusivity(topics, word_totals), axis=1) / num_words
    return np.asarray(1 / (frequency_weight / frequency + (1 - frequency_weight) / exclusivity))


def _exclusivity(
    topics: NDArray[np.float64], word_totals: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Shares of the topics in each word, shrunk towards 1/K by James and Stein's estimator."""
    num_topics = len(topics)
    share = topics / np.maximum(topics.sum(0), np.finfo(np.float64).tiny)
    variance = (share * (1 - share)).sum(0) / np.maximum(word_totals - 1, 1)
    distance = np.square(share - 1 / num_topics).sum(0)
    # Words with a single token, or with equal shares of all topics, are shrunk fully.
    informative = (word_totals > 1) & (distance > 0)
    shrinkage = np.ones(topics.shape[1])
    np.divide(variance, distance, out=shrinkage, where=informative)
    shrinkage = np.minimum(shrinkage, 1.0)
    return shrinkage / num_topics + (1 - shrinkage) * share


def label_topics(
    model: TopicModel, corpus: Corpus, *, top_n: int = 7, frequency_weight: float = 0.5
) -> Rows[TopicLabels]:
    """Best words of each topic by four measures; see :func:`word_scores`.

    Args:
        model: The model.
        corpus: The documents of the fit, for the word frequencies.
        top_n: Words by each measure.
        frequency_weight: See :func:`word_scores`.

    Returns:
        Labels of each topic, in the order of the topics. The columns of ``frame()`` are ``topic``,
        ``name``, ``measure``, ``rank`` and ``term``.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.
    """
    require_whole(1, top_n=top_n)
    totals = np.asarray(model.encode(corpus).word_totals)
    probs = np.asarray(model.topics.mean_probs.detach().double().cpu())
    labels: dict[str, list[tuple[str, ...]]] = {}
    for measure in get_args(LabelMeasure):
        scores = word_scores(probs, totals, measure, frequency_weight=frequency_weight)
        # The more probable of two words with equal scores comes first.
        best = np.lexsort((-probs, -scores))[:, :top_n]
        labels[measure] = [model.words_at(row) for row in best.tolist()]
    return Rows(
        TopicLabels(topic=k, name=name, **{m: words[k] for m, words in labels.items()})
        for k, name in enumerate(model.topic_names)
    )


@dataclass(frozen=True)
class GroupWords:
    """Words that a group of documents uses for a topic more often than the groups on average.

    Attributes:
        topic: The topic's number, from 0.
        name: Name of the topic; its number as text if it has no name.
        group: The group's value of the column.
        words: Words of the group, the most typical first. Few or none if the groups write alike.
        probabilities: Probabilities of the words in the group's topic.
        averages: Probabilities of the words in the topic, averaged over the groups.
    """

    topic: int
    name: str
    group: Any
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    averages: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows of a frame, a row for each word."""
        words = zip(self.words, self.probabilities, self.averages, strict=True)
        rows = [(self.topic, self.name, self.group, *word) for word in words]
        return [dict(zip(_GROUP_COLUMNS, row, strict=True)) for row in rows]


_GROUP_COLUMNS = ("topic", "name", "group", "term", "probability", "average")


@torch.no_grad()
def group_words(model: TopicModel, *, top_n: int = 7) -> Rows[GroupWords]:
    """The most typical words of each group of documents in each topic.

    The score of word v in topic k and group g is φ_gkv log(φ_gkv / φ̄_kv), its part of the group's
    relative entropy to the mean φ̄ over groups. Words with equal probabilities in all groups score
    0 and are left out.

    Args:
        model: A model with content covariates, ``models.stm(..., content="party")``.
        top_n: Most words of each topic and group.

    Returns:
        The words, topic by topic and group by group. The columns of ``frame()`` are ``topic``,
        ``name``, ``group``, ``term``, ``probability`` and ``average``.

    Raises:
        ConfigError: The number of words is below 1, or the model has no content covariates.
    """
    require_whole(1, top_n=top_n)
    topics: Any = model.topics
    if topics.num_levels == 1:
        raise ConfigError(
            "the model's topics are the same in all documents; make it by "
            "models.stm(num_topics, corpus, content='party')"
        )
    probs = topics.double_probs.cpu().unflatten(1, (topics.num_levels, topics.num_words))
    average = probs.mean(1)
    scores = probs * (probs / average[:, None]).log()
    scores = torch.where(topics.differing_words.cpu()[:, None], scores, 0.0)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_n]
    rows = Rows[GroupWords](columns=_GROUP_COLUMNS)
    for k, name in enumerate(model.topic_names):
        for g, level in enumerate(topics.content.levels):
            chosen = best[k, g][scores[k, g, best[k, g]] > 0].tolist()
            numbers = tuple(probs[k, g, chosen].tolist()), tuple(average[k, chosen].tolist())
            rows.append(GroupWords(k, name, level, model.words_at(chosen), *numbers))
    return rows


@dataclass(frozen=True)
class GroupSummary:
    """A group of topics in words.

    Attributes:
        group: Name of the group.
        share: Sum of the shares of its topics. None if they are unknown.
        topics: Numbers of its topics.
        names: Names of its topics.
        words: Most probable words of the merged topic.
    """

    group: str
    share: float | None
    topics: tuple[int, ...]
    names: tuple[str, ...]
    words: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """The row of a frame."""
        topics, words = ", ".join(self.names), " ".join(self.words)
        return [{"group": self.group, "share": self.share, "topics": topics, "words": words}]


def summarise_groups(
    model: TopicModel,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups,
    shares: Sequence[float] | Tensor | None = None,
    *,
    top_n: int = 8,
) -> Rows[GroupSummary]:
    """Levels of topics with their shares and the words of the merged topics.

    Args:
        model: The model.
        groups: The groups; see :class:`~torch_lntm.models.TopicGroups`.
        shares: ``(num_topics,)`` shares of the topics, such as ``result.topic_shares``. They weigh
            the topics of a group. Defaults to equal weights.
        top_n: Words of each group.

    Returns:
        The groups, in their order. ``frame()`` has a row for each group.

    Raises:
        ConfigError: A group is refused, a number is below 1, or there is another number of shares.

    Example:
        >>> groups = lntm.reports.summarise_groups(model, {"news": [3, 7]}, top_n=2)
        >>> groups[0].group, groups[0].topics, len(groups[0].words)
        ('news', (3, 7), 2)
    """
    require_whole(1, top_n=top_n)
    found = TopicGroups.of(model.topic_names, groups)
    merged = merged_topics(model, found, shares)
    best = merged.sort(dim=-1, descending=True, stable=True).indices[:, :top_n].tolist()
    rows: Rows[GroupSummary] = Rows()
    for name, topics, words in zip(found.names, found.members, best, strict=True):
        share = None if shares is None else float(sum(shares[k] for k in topics))
        names = tuple(model.topic_names[k] for k in topics)
        rows.append(GroupSummary(name, share, topics, names, model.words_at(words)))
    return rows
