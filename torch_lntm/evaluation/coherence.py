"""Coherence of topics (top words that occur together), and diversity of their top words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel

Measure = Literal["npmi", "umass"]
_EXPECTED = (
    "a model, a floating-point matrix of weights (num_topics, num_words), or a non-empty list of "
    "different words or positions of words for each topic"
)


def coherence(
    topics: Any,
    corpus: Corpus,
    measure: Measure = "npmi",
    top_n: int = 10,
    *,
    smoothing: float = 1.0,
) -> Tensor:
    """Coherence of each topic: how often its top words occur in the same documents.

    A topic's coherence is the mean of a measure over pairs of its top words. D(u, v) is the number
    of documents with both words, D the number of non-empty documents, and p = D(·)/D.

    * ``"npmi"`` (*Bouma 2009*): log[p(u, v) / (p(u) p(v))] / −log p(u, v), from −1 to 1. A pair
      without a common document has −1, the limit. A pair in every document has 1.
    * ``"umass"`` (*Mimno et al. 2011*): log[(D(u, v) + smoothing) / D(u)] for the higher-ranking
      word u. If u never occurs, the value is log(smoothing / D), the smallest possible value.
      Mimno et al. sum over pairs; the mean used here is independent of ``top_n``.

    Words count as together if they occur in the same document. Many tools slide a window over the
    text, which needs word order, so their NPMI differs. A topic of one word scores 0.

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
    if measure not in get_args(Measure):
        raise ConfigError(f"measure is {measure!r}; expected one of {', '.join(get_args(Measure))}")
    if top_n < 2:
        raise ConfigError(f"top_n is {top_n}; expected at least 2, for pairs of words")
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
            # D replaces D(u) = 0, which gives log(smoothing / D), the smallest value.
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
    if top_n < 1:
        raise ConfigError(f"top_n is {top_n}; expected at least 1")
    rows = [words[:top_n] for words in _top_words(topics, top_n, None)]
    return len(np.unique(np.concatenate(rows))) / sum(len(row) for row in rows)


def _top_words(topics: Any, top_n: int, corpus: Corpus | None) -> list[NDArray[Any]]:
    """Top words of each topic; their positions if there is a corpus."""
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
    return [_row(k, words, corpus) for k, words in enumerate(topics)]


def _row(k: int, words: Any, corpus: Corpus | None) -> NDArray[Any]:
    """The top words of topic k; their positions if there is a corpus."""
    words = words.tolist() if hasattr(words, "tolist") else words
    kind = next((kind for kind in (str, Integral) if _holds(words, kind)), None)
    if kind is None or len(set(words)) < len(words):
        raise ConfigError(f"topic {k} is {words!r:.60}, or has a word twice; expected {_EXPECTED}")
    if corpus is not None and kind is str:
        column = {word: i for i, word in enumerate(corpus.vocabulary or ())}
        unknown = [word for word in words if word not in column]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is not in the vocabulary of {corpus!r}")
        words = [column[word] for word in words]
    elif corpus is not None and not 0 <= min(words) <= max(words) < corpus.num_words:
        raise ConfigError(
            f"topic {k} has word positions outside 0 … {corpus.num_words - 1}, the corpus's"
        )
    return np.asarray(words)


def _holds(words: Any, kind: type) -> bool:
    """Whether an argument is a list of items of a kind, at least one."""
    listed = isinstance(words, Sequence) and not isinstance(words, str)
    return listed and len(words) > 0 and all(isinstance(word, kind) for word in words)
