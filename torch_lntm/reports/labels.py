"""Labels of topics (probable and exclusive words), and representative documents."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference import DocumentTopics
from torch_lntm.models import TopicModel, TopicTable
from torch_lntm.models.names import find_topics, is_named

#: Candidate words for each word of a short name.
_CANDIDATES = 5

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


@dataclass(frozen=True)
class RepresentativeDocument:
    """A document with a large share of a topic.

    Attributes:
        topic: The topic.
        document: Position of the document in the corpus.
        share: Share of the topic in the document.
        metadata: Metadata of the document, by column.
    """

    topic: int
    document: int
    share: float
    metadata: dict[str, Any]


def topic_labels(model: TopicModel, num_words: int = 2) -> list[str]:
    """Short labels of the topics: the name, or the number and the most probable words.

    A label leaves out inflections of its earlier words: "file data" instead of "file files".

    Args:
        model: The model.
        num_words: Words in the label of a topic without a name; 0 for the number alone.

    Returns:
        ``num_topics`` labels such as ``"3 fire sydney"``.

    Example:
        >>> lntm.reports.topic_labels(model)[0].split()[0], len(lntm.reports.topic_labels(model))
        ('0', 10)
    """
    vocabulary, names = model.vocabulary, model.topic_names
    if vocabulary is None or num_words < 1:
        return list(names)
    top = model.topics.top_words(min(_CANDIDATES * num_words, len(vocabulary)))[0].tolist()
    return [
        names[k]
        if is_named(names, k)
        else " ".join([names[k], *distinct_words([vocabulary[v] for v in row], num_words)])
        for k, row in enumerate(top)
    ]


def distinct_words(words: Sequence[str], number: int) -> list[str]:
    """The first words of a ranking, inflections of earlier words left out.

    A word counts as an inflection of another word if both begin alike: they share at least three
    letters, and all letters of the shorter word except the last. Examples are *file* and *files*,
    *party* and *parties*.

    Args:
        words: Words, the best first.
        number: Number of words to return. Inflections fill the end if there are too few words.
    """
    distinct: list[str] = []
    for word in words:
        if not any(_begin_alike(word, earlier) for earlier in distinct):
            distinct.append(word)
    inflections = (word for word in words if word not in distinct)
    return [*distinct, *inflections][:number]


def _begin_alike(first: str, second: str) -> bool:
    pairs = zip(first.casefold(), second.casefold(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return shared >= max(3, min(len(first), len(second)) - 1)


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
    model: TopicModel, corpus: Corpus, *, num_words: int = 7, frequency_weight: float = 0.5
) -> list[TopicLabels]:
    """Best words of each topic by four measures; see :func:`word_scores`.

    Args:
        model: The model.
        corpus: The documents of the fit, for the word frequencies.
        num_words: Words by each measure.
        frequency_weight: See :func:`word_scores`.

    Returns:
        Labels of each topic, in the order of the topics.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.
    """
    require_whole(1, num_words=num_words)
    totals = np.asarray(model.encode(corpus).word_totals)
    labels: dict[str, list[tuple[str, ...]]] = {}
    for measure in get_args(LabelMeasure):
        best = _best_words(_probabilities(model), totals, measure, num_words, frequency_weight)
        labels[measure] = [model.words_at(row) for row in best.tolist()]
    return [
        TopicLabels(topic=k, name=name, **{m: words[k] for m, words in labels.items()})
        for k, name in enumerate(model.topic_names)
    ]


def _probabilities(model: TopicModel) -> NDArray[np.float64]:
    return np.asarray(model.topics.mean_probs.detach().double().cpu())


def _best_words(
    topics: NDArray[np.float64],
    totals: NDArray[np.int64],
    measure: LabelMeasure,
    num_words: int,
    frequency_weight: float = 0.5,
) -> NDArray[np.int64]:
    """``(num_topics, num_words)`` positions of each topic's best words, the best first."""
    scores = word_scores(topics, totals, measure, frequency_weight=frequency_weight)
    # The more probable of two words with equal scores comes first.
    return np.lexsort((-topics, -scores))[:, :num_words]


def table_by(
    table: TopicTable,
    model: TopicModel,
    corpus: Corpus,
    measure: LabelMeasure = "frex",
    *,
    num_words: int = 8,
) -> TopicTable:
    """A table of topics with the best words by a measure, in place of the most probable words.

    Args:
        table: A table of the model's topics.
        model: The model.
        corpus: The documents of the fit, for the word frequencies.
        measure: See :func:`word_scores`.
        num_words: Words of each topic.

    Raises:
        ConfigError: The measure is unknown, the number is below 1, or the corpus has other words.

    Example:
        >>> table = lntm.reports.table_by(result.topic_table(), model, train, num_words=3)
        >>> len(table), len(table[0].words)
        (10, 3)
    """
    require_whole(1, num_words=num_words)
    topics, totals = _probabilities(model), np.asarray(model.encode(corpus).word_totals)
    best = _best_words(topics, totals, measure, num_words)
    return TopicTable(
        tuple(
            replace(
                row,
                words=model.words_at(best[row.topic].tolist()),
                probabilities=tuple(topics[row.topic, best[row.topic]].tolist()),
            )
            for row in table
        ),
        table.names,
    )


def format_labels(labels: Sequence[TopicLabels]) -> str:
    """Labels as text, four lines for each topic."""
    lines = []
    heads = [f"topic {label.name}" for label in labels]
    width = max([10, *map(len, heads)])
    for label, head in zip(labels, heads, strict=True):
        for measure in get_args(LabelMeasure):
            lines.append(f"{head:{width}}  {measure:11}  {' '.join(getattr(label, measure))}")
            head = ""
    return "\n".join(lines)


def representative_documents(
    proportions: DocumentTopics,
    *,
    num_docs: int = 3,
    least: float = 0.0,
    topics: Sequence[int | str] | None = None,
) -> list[RepresentativeDocument]:
    """Documents with the largest share of each topic.

    Args:
        proportions: The result of :func:`torch_lntm.inference.transform`.
        num_docs: Most documents of each topic.
        least: Smallest share of the topic in a document.
        topics: The topics, by number or name. Defaults to all.

    Returns:
        The documents, topic by topic, the largest share first. Empty documents are left out.

    Raises:
        ConfigError: A number is out of range, or a topic does not exist.

    Example:
        >>> proportions = lntm.inference.transform(guide, train)
        >>> documents = lntm.reports.representative_documents(proportions, num_docs=2)
        >>> [document.topic for document in documents][:4]
        [0, 0, 1, 1]
    """
    require_whole(1, num_docs=num_docs)
    names = proportions.topic_names
    numbers = find_topics(names, range(len(names)) if topics is None else topics)
    shares = proportions.theta.double().clone()
    shares[torch.from_numpy(proportions.lengths == 0)] = -1.0
    documents = []
    for k in numbers:
        order = shares[:, k].argsort(stable=True, descending=True)[:num_docs]
        documents += [
            RepresentativeDocument(
                topic=k,
                document=d,
                share=float(shares[d, k]),
                metadata={name: values[d] for name, values in proportions.metadata.items()},
            )
            for d in order.tolist()
            if shares[d, k] >= max(least, 0.0)
        ]
    return documents
