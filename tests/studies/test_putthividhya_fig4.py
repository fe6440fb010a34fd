from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.measure import Cells
from studies.papers.putthividhya_fig4 import RealResult, RealSettings, figure, read_texts, run
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def settings(texts: Path) -> RealSettings:
    return RealSettings(
        corpora=(str(texts),),
        models=("lda", "iftm-g", "ctm-bl"),
        num_topics=(4,),
        completion_topics=4,
        observed_shares=(0.2, 0.8),
        train_docs=150,
        test_docs=20,
        num_samples=200,
        ais_temperatures=50,
        theta_samples=50,
    )


@pytest.fixture(scope="module")
def result(settings: RealSettings) -> RealResult:
    return run(settings, Cells())


def test_nothing_is_fitted_that_is_judged(settings: RealSettings, texts: Path) -> None:
    train, test = read_texts(settings, str(texts))
    assert (train.num_docs, test.num_docs) == (150, 20)
    seen = {tuple(row) for row in train.to_scipy().toarray().tolist()}
    assert not any(tuple(row) in seen for row in test.to_scipy().toarray().tolist())


@pytest.mark.slow
def test_both_estimates_agree_and_beat_equal_words(
    result: RealResult, settings: RealSettings
) -> None:
    (corpus,) = settings.corpora
    for name in settings.models:
        values = [result.perplexity(corpus, 4, name, e) for e in ("importance", "annealed")]
        # Documents of 30 tokens and four topics: neither estimate has trouble.
        assert values[0] == pytest.approx(values[1], rel=0.02)
        assert 5 < values[0] < 40
        assert all(5 < result.completion(corpus, name, share) < 40 for share in (0.2, 0.8))


@pytest.mark.slow
def test_differences_are_paired_by_document(result: RealResult, settings: RealSettings) -> None:
    (corpus,) = settings.corpora
    ours, other = (np.array(result.find(corpus, 4, n).annealed) for n in ("iftm-g", "lda"))
    # All documents have 30 tokens.
    gap = (ours - other) / 30
    mean, error = result.gap(corpus, 4, "lda", "annealed")
    assert mean == pytest.approx(gap.mean())
    assert error == pytest.approx(gap.std(ddof=1) / math.sqrt(20))
    assert f"{mean:.4f} ({error:.4f})" in result.tables()
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.find(corpus, 5, "lda")


@pytest.mark.slow
def test_the_figure_has_a_row_a_corpus(result: RealResult) -> None:
    assert len(figure(result).axes) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ("vb",)}, "models are vb"),
        ({"completion_topics": 61}, "completion_topics is 61"),
        ({"observed_shares": (1.0,)}, "shares below 1"),
        ({"test_docs": 1}, "test_docs is 1"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RealSettings(**change)


def test_a_corpus_that_is_too_small_is_refused(texts: Path) -> None:
    with pytest.raises(ConfigError, match="has 240 documents; expected at least 560"):
        read_texts(RealSettings(), str(texts))
