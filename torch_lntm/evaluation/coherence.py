"""Coherence of topics (top words that occur together), and diversity of their top words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, as_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel

Measure = Literal["npmi", "umass"]


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
        joint = together[words][:, words].toarray().astype(np.float64)
        first, second = np.triu_indices(len(words), 1)
        if measure == "npmi":
            pairs = _npmi(
                joint[first, second], frequency[words[first]], frequency[words[second]], num_docs
            )
        else:
            pairs = _umass(joint[first, second], frequency[words[first]], num_docs, smoothing)
        scores.append(pairs.mean() if len(pairs) else 0.0)
    return torch.tensor(scores, dtype=torch.float64)


def _npmi(
    joint: NDArray[np.float64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    num_docs: int,
) -> NDArray[np.float64]:
    """NPMI of pairs of words, from numbers of documents with both, the first, the second."""
    values = np.full(len(joint), -1.0)
    values[joint == num_docs] = 1.0
    between = (joint > 0) & (joint < num_docs)
    both, u, v = joint[between], first[between], second[between]
    values[between] = np.log(both * num_docs / (u * v)) / np.log(num_docs / both)
    return values


def _umass(
    joint: NDArray[np.float64], first: NDArray[np.float64], num_docs: int, smoothing: float
) -> NDArray[np.float64]:
    """UMass of pairs, from numbers of documents with both words, and with the first."""
    # D replaces D(u) = 0, which gives log(smoothing / D), the smallest value.
    return np.log((joint + smoothing) / np.where(first > 0, first, num_docs))


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
    """Positions of each topic's top words; checked if there is a corpus."""
    if isinstance(topics, TopicModel):
        topics = topics.topics.mean_probs
    matrix = topics.detach().cpu().numpy() if isinstance(topics, Tensor) else topics
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind == "f":
        _check_weights(matrix, corpus)
        return list(np.argsort(-matrix, axis=1, kind="stable")[:, :top_n])
    rows = [np.asarray(_positions(row, corpus)) for row in matrix]
    if not rows or min(len(row) for row in rows) == 0:
        raise ConfigError("topics must be a matrix of weights or a non-empty list of words each")
    for k, row in enumerate(rows):
        _check_words(k, row, corpus)
    return rows


def _check_weights(matrix: NDArray[Any], corpus: Corpus | None) -> None:
    """Check a matrix of weights, topics by words."""
    if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
        raise ConfigError(
            f"topics of shape {matrix.shape}; expected (num_topics, num_words) finite numbers"
        )
    if corpus is not None and matrix.shape[1] != corpus.num_words:
        raise ConfigError(
            f"topics over {matrix.shape[1]} words and a corpus over {corpus.num_words}; "
            "re-index the corpus with corpus.with_vocabulary(vocabulary)"
        )


def _check_words(k: int, row: NDArray[Any], corpus: Corpus | None) -> None:
    """Check the top words of topic k."""
    if row.ndim != 1 or row.dtype.kind not in "iuU":
        raise ConfigError(
            f"topic {k} must be a list of words or of their positions; weights are given as "
            "one floating-point matrix (num_topics, num_words)"
        )
    if len(np.unique(row)) < len(row):
        raise ConfigError(f"topic {k} has a word twice; give every word once")
    if corpus is not None and (row.min() < 0 or row.max() >= corpus.num_words):
        raise ConfigError(
            f"topic {k} has word positions outside 0 … {corpus.num_words - 1}, the corpus's"
        )


def _positions(words: Sequence[Any], corpus: Corpus | None) -> Sequence[Any]:
    """Word positions of a topic; the corpus's vocabulary translates words."""
    if corpus is None or not len(words) or not isinstance(words[0], str):
        return words
    if corpus.vocabulary is None:
        raise ConfigError(f"{corpus!r} has no vocabulary to find {words[0]!r} in")
    column = {word: i for i, word in enumerate(corpus.vocabulary)}
    unknown = [word for word in words if word not in column]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is not in the vocabulary of {corpus!r}")
    return [column[word] for word in words]
