"""Words that label topics: probable, exclusive, or both; and the documents that represent them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference import DocumentTopics
from torch_lntm.models import TopicModel

#: Candidates for each word of a short name.
_CANDIDATES = 5

#: By what a topic's words are ranked; see :func:`word_scores`.
LabelMeasure = Literal["probability", "frex", "lift", "score"]


@dataclass(frozen=True)
class TopicLabels:
    """The words of a topic, best first by each measure of :func:`word_scores`.

    Attributes:
        topic: Its number, from 0.
        probability: Its most probable words.
        frex: Those that are both frequent and exclusive.
        lift: Those that are far more probable than in the corpus.
        score: Those that are probable here and not elsewhere.
    """

    topic: int
    probability: tuple[str, ...]
    frex: tuple[str, ...]
    lift: tuple[str, ...]
    score: tuple[str, ...]


@dataclass(frozen=True)
class RepresentativeDocument:
    """A document with much of a topic.

    Attributes:
        topic: The topic.
        document: Its position in the corpus.
        share: The topic's share of it.
        metadata: The document's values of every column of the metadata.
    """

    topic: int
    document: int
    share: float
    metadata: dict[str, Any]


def topic_labels(model: TopicModel, num_words: int = 2) -> list[str]:
    """A short name for each topic: its number and its most probable words.

    Words that begin like an earlier word of the name, as inflections do, are left out: "file data",
    not "file files".

    Args:
        model: The model.
        num_words: Words in a name; 0 for the number alone.

    Returns:
        ``num_topics`` names such as ``"3 fire sydney"``.
    """
    vocabulary = model.vocabulary
    if vocabulary is None or num_words < 1:
        return [str(k) for k in range(model.num_topics)]
    top = model.topics.top_words(min(_CANDIDATES * num_words, len(vocabulary)))[0].tolist()
    return [
        " ".join([str(k), *distinct_words([vocabulary[v] for v in row], num_words)])
        for k, row in enumerate(top)
    ]


def distinct_words(words: Sequence[str], number: int) -> list[str]:
    """The first words of a ranking, without those that begin like a word before them.

    Two words begin alike if they share three letters or more, and all letters of the shorter word
    but the last: *file* and *files*, *party* and *parties*.

    Args:
        words: Words, the best first.
        number: Words to take. If too few begin differently, the best of the others follow.
    """
    chosen: list[str] = []
    for word in words:
        if not any(_begin_alike(word, earlier) for earlier in chosen):
            chosen.append(word)
    others = (word for word in words if word not in chosen)
    return [*chosen, *others][:number]


def _begin_alike(one: str, other: str) -> bool:
    pairs = zip(one.casefold(), other.casefold(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return shared >= max(3, min(len(one), len(other)) - 1)


def word_scores(
    topics: NDArray[np.float64],
    word_totals: NDArray[np.int64],
    measure: LabelMeasure = "frex",
    *,
    frequency_weight: float = 0.5,
) -> NDArray[np.float64]:
    """How well each word labels each topic (*Roberts et al. 2019, §3.4.1*).

    φ_kv is the probability of word v in topic k, n_v its tokens in the corpus.

    * ``"probability"``: φ_kv.
    * ``"frex"`` (*Airoldi & Bischof 2016*): the harmonic mean of two ranks within the topic,
      divided by the number of words: that of φ_kv, with weight ``frequency_weight``, and that of
      its exclusivity φ_kv/Σ_j φ_jv. Exclusivities are shrunk to 1/K, the more so the rarer the
      word is (James–Stein; *Hausser & Strimmer 2009*).
    * ``"lift"``: log φ_kv − log(n_v/Σn), minus infinity for words that never occur.
    * ``"score"``: φ_kv (log φ_kv − mean_j log φ_jv).

    Args:
        topics: ``(num_topics, num_words)`` probabilities.
        word_totals: ``(num_words,)`` tokens of each word in the corpus.
        measure: One of these.
        frequency_weight: Weight of frequency in FREX, between 0 and 1.

    Returns:
        ``(num_topics, num_words)``.

    Raises:
        ConfigError: A measure, weight or shape that cannot be used.
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
    """Shares of the topics in each word, shrunk to 1/K by James and Stein's rule."""
    num_topics = len(topics)
    share = topics / np.maximum(topics.sum(0), np.finfo(np.float64).tiny)
    variance = (share * (1 - share)).sum(0) / np.maximum(word_totals - 1, 1)
    distance = np.square(share - 1 / num_topics).sum(0)
    # A word that occurs once says nothing of its topic, nor does one of all topics alike.
    known = (word_totals > 1) & (distance > 0)
    shrinkage = np.ones(topics.shape[1])
    np.divide(variance, distance, out=shrinkage, where=known)
    shrinkage = np.minimum(shrinkage, 1.0)
    return shrinkage / num_topics + (1 - shrinkage) * share


def label_topics(
    model: TopicModel, corpus: Corpus, *, num_words: int = 7, frequency_weight: float = 0.5
) -> list[TopicLabels]:
    """The words that label each topic, by four measures.

    Args:
        model: The model.
        corpus: The documents it was fitted to, whose word frequencies count.
        num_words: Words by each measure.
        frequency_weight: As for :func:`word_scores`.

    Returns:
        One for each topic, in order.

    Raises:
        ConfigError: A number that cannot be used, or a corpus over other words.
    """
    require_whole(1, num_words=num_words)
    corpus = model.encode(corpus)
    topics = model.topics.mean_probs.detach().double().cpu().numpy()
    totals = np.asarray(corpus.word_totals)
    labels: dict[str, list[tuple[str, ...]]] = {}
    for measure in get_args(LabelMeasure):
        scores = word_scores(topics, totals, measure, frequency_weight=frequency_weight)
        # Of words that score alike the more probable comes first.
        order = np.lexsort((-topics, -scores))[:, :num_words]
        labels[measure] = [model.words_at(row) for row in order.tolist()]
    return [
        TopicLabels(topic=k, **{measure: words[k] for measure, words in labels.items()})
        for k in range(model.num_topics)
    ]


def format_labels(labels: Sequence[TopicLabels]) -> str:
    """Labels as text to read, four lines a topic."""
    lines = []
    for one in labels:
        begin = f"topic {one.topic}"
        for measure in get_args(LabelMeasure):
            lines.append(f"{begin:10}  {measure:11}  {' '.join(getattr(one, measure))}")
            begin = ""
    return "\n".join(lines)


def representative_documents(
    found: DocumentTopics,
    *,
    num_docs: int = 3,
    least: float = 0.0,
    topics: Sequence[int] | None = None,
) -> list[RepresentativeDocument]:
    """The documents with the largest share of each topic.

    Args:
        found: What :func:`torch_lntm.inference.transform` gave.
        num_docs: Documents of each topic, at most.
        least: The least share that one must have.
        topics: The topics; all by default.

    Returns:
        Topic by topic, the largest share first; empty documents are left out.

    Raises:
        ConfigError: A number that cannot be used, or there is no such topic.
    """
    require_whole(1, num_docs=num_docs)
    num_topics = found.theta.shape[1]
    chosen = range(num_topics) if topics is None else topics
    unknown = [k for k in chosen if not 0 <= k < num_topics]
    if unknown:
        raise ConfigError(f"topic {unknown[0]}; expected 0 to {num_topics - 1}")
    shares = found.theta.double().clone()
    shares[torch.from_numpy(found.lengths == 0)] = -1.0
    documents = []
    for k in chosen:
        order = shares[:, k].argsort(stable=True, descending=True)[:num_docs]
        documents += [
            RepresentativeDocument(
                topic=k,
                document=d,
                share=float(shares[d, k]),
                metadata={name: values[d] for name, values in found.metadata.items()},
            )
            for d in order.tolist()
            if shares[d, k] >= max(least, 0.0)
        ]
    return documents
