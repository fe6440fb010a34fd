"""Retrieval of documents with a query's label: similarities, rankings, precision and recall.

A similarity is a function from positions of queries to scores of all documents, higher for more
similar documents. :func:`retrieval` calls the function for a bounded number of queries at a time,
which bounds memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.scores.completion import probabilities
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.checks import as_probabilities
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.progress import tqdm

#: A function from a slice of the queries to the scores ``(num_rows, num_documents)``.
Similarity = Callable[[slice], Tensor]
#: Default recalls of a precision curve.
RECALLS = tuple(step / 20 for step in range(21))
#: Most numbers held at once.
_MAX_NUMBERS = 2**22


@dataclass(frozen=True, eq=False, repr=False)
class Retrieval:
    """Rankings of documents for queries, judged by the documents' labels.

    Attributes:
        average_precision: ``(num_queries,)`` float64 average precision of each query's ranking; NaN
            if no document has the query's label.
        precision: ``(num_queries, num_recalls)`` float64 interpolated precision of each query: the
            highest precision at the recall or above. NaN in the same rows.
        recall: ``(num_recalls,)`` float64 recalls of the columns.
    """

    average_precision: Tensor
    precision: Tensor
    recall: Tensor

    @property
    def mean_average_precision(self) -> float:
        """Mean of the average precisions, over queries with a relevant document."""
        return float(self.average_precision.nanmean())

    @property
    def standard_error(self) -> float:
        """Standard error of ``mean_average_precision`` over queries; NaN for a single query."""
        return _error(self.average_precision)

    @property
    def curve(self) -> Tensor:
        """``(num_recalls,)`` float64 precision at each recall, mean over queries."""
        return self.precision.nanmean(0)

    def __repr__(self) -> str:
        queries = int((~self.average_precision.isnan()).sum())
        return (
            f"Retrieval: mean average precision {self.mean_average_precision:.4f} ± "
            f"{self.standard_error:.2g}, {queries} queries"
        )


@torch.no_grad()
def retrieval(
    similarity: Similarity,
    query_labels: Sequence[object],
    document_labels: Sequence[object],
    *,
    recalls: Sequence[float] = RECALLS,
    progress: bool = False,
) -> Retrieval:
    """Average precision and precision curve of a similarity, for every query.

    A document is relevant if it has the query's label. Average precision is the mean precision at
    the ranks of the relevant documents. Documents with equal scores share their last rank.
    (*Putthividhya et al. 2009, §3.3* compare precision curves.)

    Args:
        similarity: The similarity: :func:`by_likelihood`, :func:`by_cosine`,
            :func:`by_hellinger`, :func:`by_tfidf`, or a function of your own.
        query_labels: A label for each query.
        document_labels: A label for each document.
        recalls: Recalls of the precision curve, from 0 to 1.
        progress: Show a progress bar on standard error.

    Returns:
        Average precision and precision curve of every query.
        :func:`average_precision_difference` compares two results over the same queries.

    Raises:
        ConfigError: The scores are NaN or have another shape. A recall is outside 0 … 1. Queries or
            documents are missing. Relevant documents are missing for every query.

    Example:
        >>> theta = lntm.inference.transform(guide, posts).theta
        >>> similarity = by_hellinger(theta[:20], theta[20:])
        >>> labels = posts.metadata["party"]
        >>> result = retrieval(similarity, labels[:20], labels[20:])
        >>> result.precision.shape
        torch.Size([20, 21])
    """
    levels = torch.tensor([float(level) for level in recalls], dtype=torch.float64)
    if not len(levels) or not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ConfigError(f"recalls are {list(recalls)}; expected numbers from 0 to 1")
    if not len(query_labels) or not len(document_labels):
        raise ConfigError(
            f"{len(query_labels)} queries and {len(document_labels)} documents; "
            "expected some of each"
        )
    names = [str(label) for label in [*query_labels, *document_labels]]
    codes = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    queries, documents = codes[: len(query_labels)], codes[len(query_labels) :]
    size = max(1, _MAX_NUMBERS // len(documents))
    averages, curves = [], []
    for start in tqdm(range(0, len(queries), size), desc="queries", disable=not progress):
        labels = queries[start : start + size]
        scores = similarity(slice(start, start + len(labels))).cpu()
        if scores.shape != (len(labels), len(documents)):
            raise ConfigError(
                f"scores of shape {tuple(scores.shape)}; expected ({len(labels)}, "
                f"{len(documents)}), a number for each query and document"
            )
        if bool(scores.isnan().any()):
            raise ConfigError("a similarity gave NaN; expected numbers")
        average, curve = _judge(scores, labels[:, None] == documents, levels)
        averages.append(average)
        curves.append(curve)
    if not any(bool((~average.isnan()).any()) for average in averages):
        raise ConfigError("no query has a document of its label; check that the labels are alike")
    return Retrieval(torch.cat(averages), torch.cat(curves), levels)


def average_precision_difference(ours: Retrieval, other: Retrieval) -> tuple[float, float]:
    """Difference of two mean average precisions over the same queries, with its standard error.

    Args:
        ours: A result. The difference is positive if this result is better.
        other: A result for the same queries and another similarity.

    Raises:
        ConfigError: The results are for different queries.
    """
    a, b = ours.average_precision, other.average_precision
    if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        raise ConfigError("the results are of different queries; rank for the same ones")
    return float((a - b).nanmean()), _error(a - b)


def by_likelihood(theta: Any, topics: Any, documents: Any, *, per_token: bool = True) -> Similarity:
    """Similarity: log probability of a document's words given the query.

    A word w has probability Σ_k E[theta_k | query] φ_kw (*Putthividhya et al. 2009, §3.3*).

    Args:
        theta: ``(num_queries, num_topics)`` posterior means of theta for the queries.
        topics: ``(num_topics, num_words)`` word probabilities.
        documents: Documents to rank, a corpus or a matrix of counts.
        per_token: Divide by the document's tokens. Otherwise short documents rank before long
            documents of any subject, because every token lowers the log probability.

    Returns:
        The similarity, in nats or nats per token.

    Raises:
        ConfigError: The shapes differ, or a number is negative, infinite or NaN.
    """
    corpus = as_corpus(documents, allow_empty=True)
    probs = probabilities(topics, "topics", (None, corpus.num_words))
    proportions = probabilities(theta, "theta", (None, len(probs)))
    lengths = torch.from_numpy(np.maximum(corpus.lengths, 1)) if per_token else torch.ones(1)
    counts, floor = corpus.to_scipy().astype(np.float64), probability_floor(torch.float64)

    def scores(rows: slice) -> Tensor:
        # Each query needs a dense row of words, so the queries are split to bound memory.
        parts = [
            torch.from_numpy(counts @ (part @ probs).clamp_min(floor).log().T.numpy()).T
            for part in proportions[rows].split(max(1, _MAX_NUMBERS // corpus.num_words))
        ]
        return torch.cat(parts) / lengths

    return scores


def by_cosine(queries: Any, documents: Any) -> Similarity:
    """Similarity: cosine of the angle between two documents' topic proportions.

    Args:
        queries: ``(num_queries, num_topics)`` proportions of the queries.
        documents: ``(num_documents, num_topics)`` proportions of the documents to rank.

    Raises:
        ConfigError: The shapes differ, or a number is negative, infinite or NaN.
    """
    first, second = _proportions(queries, documents)
    return _products(first / first.norm(dim=1)[:, None], second / second.norm(dim=1)[:, None])


def by_hellinger(queries: Any, documents: Any) -> Similarity:
    """Similarity: Σ_k √(theta_k theta'_k) of two documents' topic proportions.

    The Hellinger distance, √(1 − similarity), gives the same ranking.

    Args:
        queries: ``(num_queries, num_topics)`` proportions of the queries.
        documents: ``(num_documents, num_topics)`` proportions of the documents to rank.

    Raises:
        ConfigError: The shapes differ, or a number is negative, infinite or NaN.
    """
    first, second = _proportions(queries, documents)
    return _products(first.sqrt(), second.sqrt())


def by_tfidf(queries: Any, documents: Any) -> Similarity:
    """Similarity: cosine of the angle between two documents' tf–idf weights. It needs no model.

    The weights are counts times 1 + log((1 + D) / (1 + D_w)), as in scikit-learn's
    ``TfidfTransformer``, for D documents to rank, of which D_w contain the word.

    Args:
        queries: The queries, a corpus or a matrix of counts.
        documents: Documents to rank over the same words, a corpus or a matrix of counts.

    Raises:
        ConfigError: The numbers of words differ.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    queries, documents = (as_corpus(x, allow_empty=True) for x in (queries, documents))
    if queries.num_words != documents.num_words:
        raise ConfigError(
            f"queries over {queries.num_words} words and documents over {documents.num_words}; "
            "re-index one by corpus.with_vocabulary(other.vocabulary)"
        )
    weights = TfidfTransformer().fit(documents.to_scipy())
    first, second = (weights.transform(x.to_scipy()) for x in (queries, documents))
    return lambda rows: torch.from_numpy((first[rows] @ second.T).toarray())


def _proportions(queries: Any, documents: Any) -> tuple[Tensor, Tensor]:
    """Proportions of queries and of documents, over the same topics."""
    second = as_probabilities(documents, "documents")
    return probabilities(queries, "queries", (None, second.shape[1])), second


def _products(first: Tensor, second: Tensor) -> Similarity:
    return lambda rows: first[rows] @ second.T


def _judge(scores: Tensor, relevant: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision and interpolated precision of each row's ranking.

    Args:
        scores: ``(num_rows, num_documents)``.
        relevant: The same shape, bool.
        levels: ``(num_recalls,)`` recalls.

    Returns:
        ``(num_rows,)`` and ``(num_rows, num_recalls)``; NaN in rows without a relevant document.
    """
    ranked, order = scores.sort(dim=1, descending=True)
    hits = relevant.gather(1, order)
    num_hits = hits.cumsum(1)
    # Equal scores share a rank: the last rank among them.
    ranks = torch.arange(scores.shape[1]).expand_as(ranked)
    ends = torch.ones_like(hits)
    ends[:, :-1] = ranked[:, :-1] > ranked[:, 1:]
    last = torch.where(ends, ranks, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    precision = num_hits.gather(1, last).double() / (last + 1)
    total = num_hits[:, -1:]
    average = (precision * hits).sum(1) / total[:, 0]
    best = precision.flip(1).cummax(1).values.flip(1)
    # The tolerance keeps the rounding of 0.3 × 10 from requiring a fourth document.
    needed = (levels * total - 1e-9).ceil().long().clamp_min(1)
    position = torch.searchsorted(num_hits, needed).clamp_max(scores.shape[1] - 1)
    curve = best.gather(1, position)
    return average, curve.where(total > 0, math.nan)


def _error(values: Tensor) -> float:
    """Standard error of the mean, NaN values left out; NaN for a single value."""
    valid = values[~values.isnan()]
    return float(valid.std()) / math.sqrt(len(valid)) if len(valid) > 1 else math.nan
