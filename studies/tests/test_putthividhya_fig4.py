from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.measure import Cells
from studies.papers.putthividhya_fig4 import figure, read_texts, run
from studies.papers.putthividhya_fig4_scores import RealResult, RealSettings
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def settings(texts: Path) -> RealSettings:
    return RealSettings(
        corpora=(str(texts),),
        models=("lda", "iftm-g", "ctm-bl"),
        num_topics=(4,),
        completion_topics=4,
        observed_shares=(0.2, 0.8),
        exact_share=0.2,
        exact_tolerance=0.04,
        fits=2,
        train_docs=80,
        test_docs=20,
        num_samples=200,
        ais_temperatures=40,
        theta_samples=50,
    )


@pytest.fixture(scope="module")
def result(settings: RealSettings) -> RealResult:
    return run(settings, Cells())


def test_nothing_is_fitted_that_is_judged(settings: RealSettings, texts: Path) -> None:
    train, test = read_texts(settings, str(texts))
    assert (train.num_docs, test.num_docs) == (80, 20)
    seen = {tuple(row) for row in train.to_scipy().toarray().tolist()}
    assert not any(tuple(row) in seen for row in test.to_scipy().toarray().tolist())


@pytest.mark.slow
def test_both_estimates_agree_and_beat_equal_words(
    result: RealResult, settings: RealSettings
) -> None:
    (corpus,) = settings.corpora
    for name in settings.models:
        assert [row.fit for row in result.find(corpus, 4, name)] == [0, 1]
        found = [result.likelihood(corpus, 4, name, e) for e in ("importance", "annealed")]
        # Documents of 30 tokens and four topics: neither estimate has trouble.
        assert found[0].perplexity == pytest.approx(found[1].perplexity, rel=0.02)
        assert 5 < found[0].perplexity < 40
        for share in (0.2, 0.8):
            assert 5 < result.completion(corpus, name, share).perplexity < 40


@pytest.mark.slow
def test_differences_are_paired_by_document_with_an_error_over_fits(
    result: RealResult, settings: RealSettings
) -> None:
    (corpus,) = settings.corpora
    ours, other = (
        np.array([row.annealed for row in result.find(corpus, 4, name)])
        for name in ("iftm-g", "lda")
    )
    # All documents have 30 tokens.
    gap = (ours - other) / 30
    mean, error = gap.mean(), gap.mean(0).std(ddof=1) / math.sqrt(20)
    between = abs(gap[0].mean() - gap[1].mean()) / 2
    assert f"{mean:.4f} ({error:.4f}; {between:.4f})" in result.tables()
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.find(corpus, 5, "lda")


@pytest.mark.slow
def test_the_rest_is_predicted_by_other_posteriors_and_exactly(
    result: RealResult, settings: RealSettings
) -> None:
    (corpus,) = settings.corpora
    posteriors = {
        name: list(result.find(corpus, 4, name)[0].predictions) for name in settings.models
    }
    assert posteriors["lda"] == ["own", "exact"]
    assert posteriors["iftm-g"] == ["own", "taylor", "exact"]
    assert posteriors["ctm-bl"] == ["own", "blei-lafferty", "taylor", "exact"]
    for name in settings.models:
        own, exact = (result.prediction(corpus, name, p) for p in ("own", "exact"))
        assert own.gap == result.completion(corpus, name, 0.2).gap
        # No posterior predicts the tokens much better than the exact one.
        assert exact.perplexity < 1.03 * own.perplexity
        assert all(0.0 < row.exact_error < 0.04 for row in result.find(corpus, 4, name))
    # Blei and Lafferty's posterior is the own one of the model that was fitted by it.
    again = result.prediction(corpus, "ctm-bl", "blei-lafferty")
    assert again.perplexity == pytest.approx(
        result.completion(corpus, "ctm-bl", 0.2).perplexity, rel=1e-3
    )
    line = next(line for line in result.tables().splitlines() if line.startswith("| LDA"))
    assert line.count("–") == 2


@pytest.mark.slow
def test_the_figure_has_a_row_a_corpus(result: RealResult) -> None:
    assert len(figure(result).axes) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ("vb",)}, "models are vb"),
        ({"completion_topics": 61}, "completion_topics is 61"),
        ({"observed_shares": (1.0,)}, "shares below 1"),
        ({"exact_share": 0.2}, "exact_share is 0.2"),
        ({"test_docs": 1}, "test_docs is 1"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RealSettings(**change)


def test_a_corpus_that_is_too_small_is_refused(texts: Path) -> None:
    with pytest.raises(ConfigError, match="has 240 documents; expected at least 560"):
        read_texts(RealSettings(), str(texts))
