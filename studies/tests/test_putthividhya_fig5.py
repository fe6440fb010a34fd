from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import average_precision_score

from studies.measure import Cells
from studies.papers.putthividhya_fig5 import (
    RANKINGS,
    RetrievalResult,
    RetrievalSettings,
    figure,
    read_messages,
    run,
)
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def settings(texts: Path) -> RetrievalSettings:
    return RetrievalSettings(
        corpus=str(texts),
        models=("lda", "iftm-g"),
        num_topics=4,
        fits=2,
        min_df=3,
        queries=30,
        theta_samples=10,
    )


@pytest.fixture(scope="module")
def result(settings: RetrievalSettings) -> RetrievalResult:
    return run(settings, Cells())


def test_queries_are_test_documents_over_the_training_words(settings: RetrievalSettings) -> None:
    train, queries = read_messages(settings)
    assert (train.num_docs, queries.num_docs) == (180, 30)
    assert train.vocabulary == queries.vocabulary
    assert int((train.to_scipy() > 0).sum(0).min()) >= 3
    few = read_messages(replace(settings, num_docs=20))[0]
    assert few.num_docs == 20
    assert len(set(few.labels or ())) > 1


@pytest.mark.slow
def test_ranks_by_every_model_and_by_none(
    result: RetrievalResult, settings: RetrievalSettings
) -> None:
    assert len(result.rows) == 1 + 2 * 2 * len(RANKINGS)
    train, queries = read_messages(settings)
    weights = TfidfTransformer().fit(train.to_scipy())
    scores = (
        weights.transform(queries.to_scipy()) @ weights.transform(train.to_scipy()).T
    ).toarray()
    labels = np.array(train.labels)
    for q, label in enumerate(queries.labels or ()):
        expected = average_precision_score(labels == label, scores[q])
        found = result.averages("tf-idf", "tf-idf")
        assert found.shape == (1, 30)
        assert found[0, q] == pytest.approx(expected, abs=1e-5)
    for name in settings.models:
        # Documents of 30 tokens, which are relevant by their largest topic of four.
        assert (result.averages(name, "cosine").mean(1) > 0.5).all()
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.find("ctm-bl", "cosine")


@pytest.mark.slow
def test_differences_are_query_by_query_with_an_error_over_fits(result: RetrievalResult) -> None:
    by_fit = [
        [a - b for a, b in zip(*found, strict=True)]
        for found in zip(
            result.averages("iftm-g", "cosine").tolist(),
            result.averages("lda", "cosine").tolist(),
            strict=True,
        )
    ]
    of_query = [sum(gaps) / 2 for gaps in zip(*by_fit, strict=True)]
    error = statistics.stdev(of_query) / len(of_query) ** 0.5
    between = statistics.stdev(map(statistics.fmean, by_fit)) / 2**0.5
    assert by_fit[0] != by_fit[1]
    text = f"{statistics.fmean(of_query):.4f} ({error:.4f}; {between:.4f})"
    assert text in result.tables()


@pytest.mark.slow
def test_the_figure_has_a_line_for_each(result: RetrievalResult) -> None:
    axes = figure(result).axes
    assert [ax.get_title() for ax in axes] == [
        RANKINGS[r] for r in ("total", "likelihood", "cosine")
    ]
    assert all(len(ax.lines) == 3 for ax in axes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ("vb",)}, "models are vb"),
        ({"queries": 1}, "queries is 1"),
        ({"fits": 0}, "fits is 0"),
        ({"num_docs": 1}, "num_docs is 1"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RetrievalSettings(**change)
