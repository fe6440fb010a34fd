"""How well documents of a query's label are found: similarities, rankings, precision and recall.

A similarity is a function. Given the positions of some queries, it returns the score of every
document for each of them, the higher the better. :func:`retrieval` asks it for a bounded number of
queries at a time, so that the table of all scores is never held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import as_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.checks import as_probabilities
from torch_lntm.kernels import probability_floor
from torch_lntm.progress import tqdm

#: Scores of all documents ``(num_rows, num_documents)`` for the queries at some positions.
Similarity = Callable[[slice], Tensor]
#: Recalls at which precision is read off.
RECALLS = tuple(step / 20 for step in range(21))
#: Scores, or other numbers, held at once.
_MAX_NUMBERS = 2**22


@dataclass(frozen=True, eq=False, repr=False)
class Retrieval:
    """Rankings of documents for queries, judged by the documents' labels.

    Attributes:
        average_precision: ``(num_queries,)`` float64 average precision of each query's ranking; NaN
            where no document has the query's label.
        precision: ``(num_queries, num_recalls)`` float64 interpolated precision of each query, the
            highest precision at this recall or a higher one; NaN in the same rows.
        recall: ``(num_recalls,)`` float64 the recalls.
    """

    average_precision: Tensor
    precision: Tensor
    recall: Tensor

    @property
    def mean_average_precision(self) -> float:
        """Mean of the average precisions, over queries that have a relevant document."""
        return float(self.average_precision.nanmean())

    @property
    def standard_error(self) -> float:
        """Standard error of ``mean_average_precision`` over queries; NaN for a single one."""
        return _error(self.average_precision)

    @property
    def curve(self) -> Tensor:
        """``(num_recalls,)`` float64 mean over queries of the precision at each recall."""
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
    """Ranks documents for every query; those with the query's label are relevant.

    Average precision is the mean, over the relevant documents, of the share of relevant documents
    among those that rank as high or higher. Documents with the same score have the same rank, the
    last of theirs. (*Putthividhya et al. 2009, §3.3* judge by curves of precision.)

    Args:
        similarity: The scores; :func:`by_likelihood`, :func:`by_cosine`, :func:`by_hellinger` or
            :func:`by_tfidf`, or a function of your own.
        query_labels: One label a query.
        document_labels: One label a document.
        recalls: Recalls from 0 to 1 at which to read off precision.
        progress: Show a progress bar on standard error.

    Returns:
        Average precision and curve of every query. Two results over the same queries compare query
        by query, see :func:`average_precision_difference`.

    Raises:
        ConfigError: Scores of another shape or that are NaN, recalls outside 0 … 1, no queries or
            no documents, or no query that has a relevant document.
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
    """By how much the mean average precision is higher, query by query, and its standard error.

    Args:
        ours: Rankings by some similarity.
        other: Rankings for the same queries by another.

    Raises:
        ConfigError: The results are of different queries.
    """
    a, b = ours.average_precision, other.average_precision
    if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        raise ConfigError("the results are of different queries; rank for the same ones")
    return float((a - b).nanmean()), _error(a - b)


def by_likelihood(theta: Any, topics: Any, documents: Any, *, per_token: bool = True) -> Similarity:
    """The log probability of a document's words given the query: the paper's score.

    A word w has probability Σ_k E[theta_k | query] φ_kw, theta integrated out token by token
    (*Putthividhya et al. 2009, §3.3*).

    Args:
        theta: ``(num_queries, num_topics)`` the queries' posterior means of theta.
        topics: ``(num_topics, num_words)`` word probabilities.
        documents: The documents to rank, a corpus or a matrix of counts.
        per_token: Divide by the document's tokens. Without it short documents rank before long
            ones, whatever they are about: every token lowers the log probability.

    Returns:
        The similarity, nats or nats per token.

    Raises:
        ConfigError: Shapes that do not fit, or numbers that are no probabilities.
    """
    corpus = as_corpus(documents, allow_empty=True)
    probs = as_probabilities(topics, "topics", (None, corpus.num_words))
    proportions = as_probabilities(theta, "theta", (None, len(probs)))
    lengths = torch.from_numpy(np.maximum(corpus.lengths, 1)) if per_token else torch.ones(1)
    counts, floor = corpus.to_scipy().astype(np.float64), probability_floor(torch.float64)

    def scores(rows: slice) -> Tensor:
        # A row of words a query: as many queries at once as there is room for.
        found = [
            torch.from_numpy(counts @ (part @ probs).clamp_min(floor).log().T.numpy()).T
            for part in proportions[rows].split(max(1, _MAX_NUMBERS // corpus.num_words))
        ]
        return torch.cat(found) / lengths

    return scores


def by_cosine(queries: Any, documents: Any) -> Similarity:
    """The cosine of the angle between two documents' topic proportions.

    Args:
        queries: ``(num_queries, num_topics)`` proportions of the queries.
        documents: ``(num_documents, num_topics)`` proportions of the documents to rank.

    Raises:
        ConfigError: Shapes that do not fit, or numbers that are no proportions.
    """
    first, second = _both(queries, documents)
    return _products(first / first.norm(dim=1)[:, None], second / second.norm(dim=1)[:, None])


def by_hellinger(queries: Any, documents: Any) -> Similarity:
    """Σ_k √(theta_k theta'_k) of two documents' topic proportions.

    The Hellinger distance is √(1 − this), so that both rank alike.

    Args:
        queries: ``(num_queries, num_topics)`` proportions of the queries.
        documents: ``(num_documents, num_topics)`` proportions of the documents to rank.

    Raises:
        ConfigError: Shapes that do not fit, or numbers that are no proportions.
    """
    first, second = _both(queries, documents)
    return _products(first.sqrt(), second.sqrt())


def by_tfidf(queries: Any, documents: Any) -> Similarity:
    """The cosine of the angle between two documents' tf–idf weights, which need no model.

    The weights are those of scikit-learn's ``TfidfTransformer``: counts times
    1 + log((1 + D) / (1 + D_w)), with D_w of the D documents to rank holding the word.

    Args:
        queries: The queries, a corpus or a matrix of counts.
        documents: The documents to rank, over the same words.

    Raises:
        ConfigError: The numbers of words differ.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    asked, ranked = (as_corpus(each, allow_empty=True) for each in (queries, documents))
    if asked.num_words != ranked.num_words:
        raise ConfigError(
            f"queries over {asked.num_words} words and documents over {ranked.num_words}; "
            "re-index one by corpus.with_vocabulary(other.vocabulary)"
        )
    weights = TfidfTransformer().fit(ranked.to_scipy())
    first, second = (weights.transform(each.to_scipy()) for each in (asked, ranked))
    return lambda rows: torch.from_numpy((first[rows] @ second.T).toarray())


def _both(queries: Any, documents: Any) -> tuple[Tensor, Tensor]:
    """Proportions of queries and of documents, over the same topics."""
    second = as_probabilities(documents, "documents", (None, None))
    return as_probabilities(queries, "queries", (None, second.shape[1])), second


def _products(first: Tensor, second: Tensor) -> Similarity:
    return lambda rows: first[rows] @ second.T


def _judge(scores: Tensor, relevant: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision and interpolated precision of some rankings.

    Args:
        scores: ``(num_rows, num_documents)``.
        relevant: The same shape, bool.
        levels: ``(num_recalls,)`` recalls.

    Returns:
        ``(num_rows,)`` and ``(num_rows, num_recalls)``, NaN where nothing is relevant.
    """
    ranked, order = scores.sort(dim=1, descending=True)
    hits = relevant.gather(1, order)
    found = hits.cumsum(1)
    # Equal scores share a rank: the place at which the last of them stands.
    places = torch.arange(scores.shape[1]).expand_as(ranked)
    ends = torch.ones_like(hits)
    ends[:, :-1] = ranked[:, :-1] > ranked[:, 1:]
    last = torch.where(ends, places, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    precision = found.gather(1, last).double() / (last + 1)
    total = found[:, -1:]
    average = (precision * hits).sum(1) / total[:, 0]
    best = precision.flip(1).cummax(1).values.flip(1)
    # Counts of documents are whole: the tolerance keeps 0.3 × 10 from needing a fourth one.
    needed = (levels * total - 1e-9).ceil().long().clamp_min(1)
    at = torch.searchsorted(found, needed).clamp_max(scores.shape[1] - 1)
    curve = best.gather(1, at)
    return average, curve.where(total > 0, math.nan)


def _error(values: Tensor) -> float:
    """Standard error of the mean of the values that are not NaN; NaN for a single one."""
    known = values[~values.isnan()]
    return float(known.std()) / math.sqrt(len(known)) if len(known) > 1 else math.nan
