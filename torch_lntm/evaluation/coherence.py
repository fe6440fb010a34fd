"""Coherence, diversity and exclusivity, which judge topics by their top words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, require_one, require_whole
from torch_lntm.evaluation.checks import as_matrix
from torch_lntm.models import TopicModel

#: Measures of coherence.
MEASURES = ("npmi", "umass")
#: Weight of exclusivity beside frequency, as in R's stm.
EXCLUSIVE = 0.7
_EXPECTED = (
    "a model, a floating-point matrix of weights (num_topics, num_words), or a non-empty list of "
    "different words or positions of words for each topic"
)


def coherence(
    topics: Any,
    corpus: Corpus,
    measure: str = "npmi",
    top_n: int = 10,
    *,
    smoothing: float = 1.0,
) -> Tensor:
    """Coherence of each topic: how often its top words occur in the same documents.

    A topic whose top words occur together reads like a subject. Coherence therefore tells how
    readable topics are, which often disagrees with how well they predict. It averages one of these
    measures over pairs of the top words. D(u, v) is the number of documents with both words, D the
    number of non-empty documents, and p = D(·)/D.

    * ``"npmi"`` (*Bouma 2009*): log[p(u, v) / (p(u) p(v))] / −log p(u, v), from −1 to 1. A pair
      that never shares a document gets the limit, −1, and a pair in every document gets 1.
    * ``"umass"`` (*Mimno et al. 2011*): log[(D(u, v) + smoothing) / D(u)] for the higher-ranking
      word u. If u never occurs, the value is log(smoothing / D), the smallest possible value.
      Mimno et al. sum over pairs; the mean used here is independent of ``top_n``.

    Two words occur together if they are in the same document. Many tools slide a window over the
    text instead, for which they need the order of the words, so their NPMI differs. A topic of one
    word scores 0.

    Args:
        topics: A model; or ``(num_topics, num_words)`` floating-point weights, whose ``top_n``
            largest per topic are used (ties by position); or sequences of word positions or words,
            one per topic, best first.
        corpus: Reference documents, such as the training corpus, or a matrix of counts.
        measure: ``"npmi"`` or ``"umass"``. Defaults to ``"npmi"``.
        top_n: Top words per topic, at least 2.
        smoothing: Documents added to D(u, v) in UMass, positive.

    Returns:
        ``(num_topics,)`` float64.

    Raises:
        ConfigError: A setting is out of range, the topics and the corpus have different words, or
            a topic has a word twice.

    Example:
        >>> lntm.evaluation.coherence(model, corpus).shape
        torch.Size([10])
        >>> lntm.evaluation.coherence([["israeli", "palestinian"]], corpus) > 0.5
        tensor([True])
    """
    require_one(MEASURES, measure=measure)
    require_whole(2, top_n=top_n)  # for pairs of words
    if not 0 < smoothing < math.inf:
        raise ConfigError(f"smoothing is {smoothing}; expected a positive number")
    corpus = as_corpus(corpus, allow_empty=True)
    rows = [words[:top_n] for words in _top_words(topics, top_n, corpus)]
    columns, position = np.unique(np.concatenate(rows), return_inverse=True)
    together = sp.csr_matrix((len(columns), len(columns)))
    for _, part in corpus.parts():
        offsets = np.concatenate([[0], np.cumsum(part.sizes)])
        ones = np.ones(len(part.word_index), np.int64)
        occurs = sp.csr_matrix(
            (ones, part.word_index, offsets), (len(part.sizes), corpus.num_words)
        )[:, columns]
        together = together + (occurs.T @ occurs).tocsr()
    frequency = together.diagonal().astype(np.float64)
    num_docs = max(1, int((corpus.lengths > 0).sum()))
    scores = []
    for words in np.split(position, np.cumsum([len(row) for row in rows])[:-1]):
        first, second = np.triu_indices(len(words), 1)
        both = together[words][:, words].toarray().astype(np.float64)[first, second]
        u, v = frequency[words[first]], frequency[words[second]]
        if measure == "npmi":
            pairs = np.where(both == num_docs, 1.0, -1.0)
            some = (both > 0) & (both < num_docs)
            both, u, v = both[some], u[some], v[some]
            pairs[some] = np.log(both * num_docs / (u * v)) / np.log(num_docs / both)
        else:
            # Where D(u) is 0, D takes its place and gives log(smoothing / D), the smallest value.
            pairs = np.log((both + smoothing) / np.where(u > 0, u, num_docs))
        scores.append(pairs.mean() if len(pairs) else 0.0)
    return torch.tensor(scores, dtype=torch.float64)


def topic_diversity(topics: Any, top_n: int = 25) -> float:
    """Share of distinct words among the top words of all topics (*Dieng et al. 2020*).

    Args:
        topics: A model; or ``(num_topics, num_words)`` floating-point weights; or sequences of word
            positions or of words, one per topic, best first.
        top_n: Top words per topic.

    Returns:
        A number from 1/num_topics (equal topics) to 1 (no shared word).

    Raises:
        ConfigError: ``top_n`` is below 1, or there are no topics.

    Example:
        >>> lntm.evaluation.topic_diversity([["tax", "vote"], ["vote", "rain"]])
        0.75
    """
    require_whole(1, top_n=top_n)
    rows = [words[:top_n] for words in _top_words(topics, top_n, None)]
    return len(np.unique(np.concatenate(rows))) / sum(len(row) for row in rows)


def exclusivity(topics: Any, top_n: int = 10) -> Tensor:
    """Mean exclusivity (FREX) of each topic's most probable words.

    A word scores 1/(w/E + (1 − w)/F) for w = 0.7, a weighted harmonic mean of two ranks within the
    topic (*Bischof & Airoldi 2012*). E is the rank of its exclusivity φ_kv/Σ_j φ_jv and F that of
    its probability φ_kv, both divided by the number of words. R's stm sums the scores of the
    ``top_n`` words, whereas we average them.

    Args:
        topics: A model; or ``(num_topics, num_words)`` probabilities.
        top_n: Top words per topic.

    Returns:
        ``(num_topics,)`` float64, from 0 to 1.

    Raises:
        ConfigError: A number is out of range, or the topics have another shape.

    Example:
        >>> lntm.evaluation.exclusivity(torch.eye(4) + 0.01, top_n=1)
        tensor([1., 1., 1., 1.], dtype=torch.float64)
    """
    require_whole(1, top_n=top_n)
    probs = as_matrix(topics, "topics").numpy()
    scores = frex(probs, probs / np.maximum(probs.sum(0), np.finfo(np.float64).tiny), EXCLUSIVE)
    top = np.argsort(-probs, axis=1, kind="stable")[:, :top_n]
    return torch.from_numpy(np.take_along_axis(scores, top, 1).mean(1))


def frex(
    probs: NDArray[np.float64], shares: NDArray[np.float64], weight: float
) -> NDArray[np.float64]:
    """Harmonic means of the words' ranks by share, with a weight, and by probability."""
    by_share, by_prob = (scipy.stats.rankdata(x, axis=1) / probs.shape[1] for x in (shares, probs))
    return np.asarray(1 / (weight / by_share + (1 - weight) / by_prob))


def _top_words(topics: Any, top_n: int, corpus: Corpus | None) -> list[NDArray[Any]]:
    """Top words of each topic, as positions if there is a corpus."""
    if isinstance(topics, TopicModel):
        topics = topics.topics.mean_probs
    topics = topics.detach().cpu().numpy() if isinstance(topics, Tensor) else topics
    if isinstance(topics, np.ndarray) and topics.dtype.kind == "f":
        if topics.ndim != 2 or 0 in topics.shape or not np.isfinite(topics).all():
            raise ConfigError(
                f"topics of shape {topics.shape}; expected (num_topics, num_words) finite numbers"
            )
        if corpus is not None and topics.shape[1] != corpus.num_words:
            raise ConfigError(
                f"topics over {topics.shape[1]} words and a corpus over {corpus.num_words}; "
                "re-index the corpus with corpus.with_vocabulary(vocabulary)"
            )
        return list(np.argsort(-topics, axis=1, kind="stable")[:, :top_n])
    if not isinstance(topics, Sequence | np.ndarray) or not len(topics):
        raise ConfigError(f"topics is {topics!r:.60}; expected {_EXPECTED}")
    rows = [words.tolist() if hasattr(words, "tolist") else words for words in topics]
    known: dict[Any, int] = {}
    if corpus is not None:
        known = {v: v for v in range(corpus.num_words)}
        known |= {word: v for v, word in enumerate(corpus.vocabulary or ())}
    for k, words in enumerate(rows):
        listed = isinstance(words, Sequence) and not isinstance(words, str) and len(words) > 0
        if (
            not listed
            or not any(all(isinstance(word, kind) for word in words) for kind in (str, Integral))
            or len(set(words)) < len(words)
        ):
            raise ConfigError(
                f"topic {k} is {words!r:.60}, or has a word twice; expected {_EXPECTED}"
            )
        if corpus is not None:
            unknown = [word for word in words if word not in known]
            if unknown:
                raise ConfigError(
                    f"topic {k} has the word {unknown[0]!r}, which is not in the vocabulary of "
                    f"{corpus!r}"
                )
            rows[k] = [known[word] for word in words]
    return [np.asarray(words) for words in rows]
