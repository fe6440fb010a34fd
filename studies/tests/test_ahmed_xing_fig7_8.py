from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.measure import Cells
from studies.papers.ahmed_xing_fig7_8 import PapersResult, PapersSettings, figure, run
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def result(texts: Path) -> PapersResult:
    settings = PapersSettings(
        corpus=str(texts),
        num_topics=(4,),
        splits=2,
        train_docs=100,
        test_docs=15,
        iteration_docs=5,
        relative_tolerance=1e-4,
        num_samples=200,
        ais_temperatures=50,
    )
    return run(settings, Cells())


@pytest.mark.slow
def test_every_fit_is_judged_in_every_division(result: PapersResult) -> None:
    assert len(result.rows) == 2 * 3
    for row in result.rows:
        own, annealed = (np.exp(-np.sum(v) / 450) for v in (row.importance, row.annealed))
        # Documents of 30 tokens and four topics: neither estimate has trouble.
        assert own == pytest.approx(annealed, rel=0.02)
        assert 5 < own < 40
        assert row.tokens == [30] * 15
        assert math.isnan(row.iterations) == (row.posterior == "lda")
        assert not row.iterations <= 1
        assert math.isnan(row.printed) or row.printed > 1


@pytest.mark.slow
def test_differences_are_paired_by_document(result: PapersResult) -> None:
    gaps = np.concatenate(
        [
            np.array(a.annealed) - np.array(b.annealed)
            for a, b in zip(
                result.select(4, "taylor"), result.select(4, "blei-lafferty"), strict=True
            )
        ]
    )
    mean, error = result.gap(4, "blei-lafferty", "annealed")
    assert mean == pytest.approx(gaps.mean() / 30)
    assert error == pytest.approx(gaps.std(ddof=1) / math.sqrt(30) / 30)
    assert f"{mean:.4f} ({error:.4f})" in result.tables()
    with pytest.raises(ConfigError, match="nothing was measured"):
        result.select(5, "taylor")


@pytest.mark.slow
def test_the_figure_has_perplexities_and_iterations(result: PapersResult) -> None:
    axes = figure(result).axes
    assert [len(ax.lines) > 0 for ax in axes] == [True] * 3
    # Solid and dotted for each of two posteriors.
    assert len(axes[2].lines) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"posteriors": ("lda",)}, "expected taylor"),
        ({"posteriors": ("vb",)}, "posteriors are vb"),
        ({"iteration_docs": 41}, "at most all documents"),
        ({"splits": 0}, "splits is 0"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PapersSettings(**change)


def test_a_corpus_that_is_too_small_is_refused(texts: Path) -> None:
    with pytest.raises(ConfigError, match="has 240 documents; expected at least 340"):
        run(PapersSettings(corpus=str(texts)), Cells())
