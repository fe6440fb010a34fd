"""Retrieval against scikit-learn's metrics, and similarities against their definitions."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import average_precision_score, precision_recall_curve
from sklearn.metrics.pairwise import cosine_similarity

from studies.scores.retrieval import (
    average_precision_difference,
    by_cosine,
    by_hellinger,
    by_likelihood,
    by_tfidf,
    retrieval,
)
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError

#: The module, which the function of the same name hides.
MODULE = import_module("studies.scores.retrieval")
RECALLS = (0.0, 0.1, 0.3, 0.5, 1.0)


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores with many ties, and labels; one query's label is no document's."""
    rng = np.random.default_rng(0)
    documents, queries = rng.integers(0, 3, 40), rng.integers(0, 3, 12)
    scores = rng.integers(0, 6, (12, 40)) + 2 * (queries[:, None] == documents)
    queries[5] = 7
    return torch.from_numpy(scores.astype(np.float64)), queries, documents


@pytest.mark.parametrize("ties", [True, False])
def test_average_precision_equals_scikit_learns(problem: Any, ties: bool) -> None:
    scores, queries, documents = problem
    if not ties:
        scores = scores + torch.rand(scores.shape, generator=torch.Generator().manual_seed(0))
    result = retrieval(lambda rows: scores[rows], queries, documents, recalls=RECALLS)
    averages = []
    for q, label in enumerate(queries):
        relevant = documents == label
        if not relevant.any():
            assert math.isnan(result.average_precision[q])
            assert bool(result.precision[q].isnan().all())
            continue
        averages.append(average_precision_score(relevant, scores[q].numpy()))
        assert float(result.average_precision[q]) == pytest.approx(averages[-1])
        precision, recall, _ = precision_recall_curve(relevant, scores[q].numpy())
        # The last point, of recall 0, is scikit-learn's convention and no document's.
        expected = [precision[:-1][recall[:-1] >= r - 1e-9].max() for r in RECALLS]
        assert result.precision[q].tolist() == pytest.approx(expected)
    assert len(averages) == 11
    assert result.mean_average_precision == pytest.approx(np.mean(averages))
    assert result.standard_error == pytest.approx(np.std(averages, ddof=1) / math.sqrt(11))
    rest = np.delete(result.precision.numpy(), 5, 0)
    assert result.curve.tolist() == pytest.approx(rest.mean(0).tolist())
    assert "11 queries" in repr(result)


def test_results_do_not_depend_on_chunks_of_queries(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, queries, documents = problem
    asked: list[slice] = []

    def similarity(rows: slice) -> torch.Tensor:
        asked.append(rows)
        return scores[rows]

    whole = retrieval(similarity, queries, documents)
    assert asked == [slice(0, 12)]
    monkeypatch.setattr(MODULE, "_MAX_NUMBERS", 5 * len(documents))
    parts = retrieval(similarity, queries, documents)
    assert asked[1:] == [slice(0, 5), slice(5, 10), slice(10, 12)]
    assert torch.equal(whole.precision.nan_to_num(-1), parts.precision.nan_to_num(-1))


@pytest.fixture(scope="module")
def model() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Corpus, Corpus]:
    """Proportions of queries and documents, topics, and counts of both; one document is empty."""
    rng = np.random.default_rng(1)
    queries, documents = (torch.from_numpy(rng.dirichlet(np.ones(4), n)) for n in (3, 6))
    topics = torch.from_numpy(rng.dirichlet(np.ones(9), 4))
    counts = rng.poisson(1.0, (9, 9))
    counts[4] = 0
    first, second = (Corpus.from_matrix(part) for part in (counts[:3], counts[3:]))
    return queries, documents, topics, first, second


def test_by_likelihood_is_the_log_probability_of_the_words_given_the_query(model: Any) -> None:
    theta, _, topics, _, documents = model
    rows = slice(1, 3)
    counts = documents.to_scipy().toarray()
    total = np.zeros((2, 6))
    for i, q in enumerate((1, 2)):
        for d in range(6):
            for v in range(9):
                p = sum(float(theta[q, k] * topics[k, v]) for k in range(4))
                total[i, d] += counts[d, v] * math.log(p)
    scores = by_likelihood(theta, topics, documents, per_token=False)(rows)
    np.testing.assert_allclose(scores, total)
    lengths = np.maximum(counts.sum(1), 1)
    np.testing.assert_allclose(by_likelihood(theta, topics, documents)(rows), total / lengths)


def test_by_likelihood_is_finite_for_a_word_outside_every_topic(model: Any) -> None:
    theta, _, topics, _, documents = model
    topics = topics.clone()
    topics[:, 0] = 0.0
    scores = by_likelihood(theta, topics, documents)(slice(0, 3))
    assert bool(torch.isfinite(scores).all())
    without = documents.to_scipy().toarray()[:, 0] == 0
    assert float(scores[:, ~without].max()) < float(scores[:, without].min())


def test_cosine_and_hellinger_equal_their_formulas(model: Any) -> None:
    first, second = model[:2]
    rows = slice(0, 3)
    expected = cosine_similarity(first.numpy(), second.numpy())
    np.testing.assert_allclose(by_cosine(first, second)(rows), expected)
    affinity = by_hellinger(first, second)(rows)
    for q in range(3):
        for d in range(6):
            distance = (first[q].sqrt() - second[d].sqrt()).norm() / math.sqrt(2)
            assert float(1 - affinity[q, d]) == pytest.approx(float(distance) ** 2)
    np.testing.assert_allclose(by_hellinger(first, 2 * second)(rows), affinity)


def test_tfidf_weights_come_from_the_ranked_documents(model: Any) -> None:
    queries, documents = model[3:]
    weights = TfidfTransformer().fit(documents.to_scipy())
    expected = cosine_similarity(
        *(weights.transform(c.to_scipy()).toarray() for c in (queries, documents))
    )
    scores = by_tfidf(queries, documents)(slice(0, 3))
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    assert float(scores[:, 1].abs().max()) == 0.0  # the empty document


def test_differences_compare_query_by_query(problem: Any) -> None:
    scores, queries, documents = problem
    ours = retrieval(lambda rows: scores[rows], queries, documents)
    other = retrieval(lambda rows: -scores[rows], queries, documents)
    mean, error = average_precision_difference(ours, other)
    gaps = np.delete((ours.average_precision - other.average_precision).numpy(), 5)
    assert mean == pytest.approx(gaps.mean())
    assert error == pytest.approx(gaps.std(ddof=1) / math.sqrt(11))
    assert mean > 0
    few = retrieval(lambda rows: scores[rows], queries[:4], documents)
    with pytest.raises(ConfigError, match="different queries"):
        average_precision_difference(ours, few)
