"""Labels of topics (probable and exclusive words), and representative documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows
from torch_lntm.models import TopicModel

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
    model: TopicModel, corpus: Corpus, *, num_words: int = 7, frequency_weight: float = 0.5
) -> Rows[TopicLabels]:
    """Best words of each topic by four measures; see :func:`word_scores`.

    Args:
        model: The model.
        corpus: The documents of the fit, for the word frequencies.
        num_words: Words by each measure.
        frequency_weight: See :func:`word_scores`.

    Returns:
        Labels of each topic, in the order of the topics. The columns of ``frame()`` are ``topic``,
        ``name``, ``measure``, ``rank`` and ``term``.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.
    """
    require_whole(1, num_words=num_words)
    totals = np.asarray(model.encode(corpus).word_totals)
    labels: dict[str, list[tuple[str, ...]]] = {}
    for measure in get_args(LabelMeasure):
        best = _best_words(_probabilities(model), totals, measure, num_words, frequency_weight)
        labels[measure] = [model.words_at(row) for row in best.tolist()]
    return Rows(
        TopicLabels(topic=k, name=name, **{m: words[k] for m, words in labels.items()})
        for k, name in enumerate(model.topic_names)
    )


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
