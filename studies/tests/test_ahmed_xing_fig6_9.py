from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from studies.measure import Cells
from studies.papers.ahmed_xing_fig6_9 import (
    EXACT,
    Proportions,
    ProportionSettings,
    figure,
    run,
    stacked_bars,
    tables,
)
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def result(texts: Path) -> Proportions:
    settings = ProportionSettings(
        corpus=str(texts), num_topics=6, train_docs=100, test_docs=8, draws=60, theta_samples=50
    )
    return run(settings, Cells())


@pytest.mark.slow
def test_proportions_by_chains_and_posteriors(result: Proportions) -> None:
    assert set(result.theta) == {EXACT, "taylor", "blei-lafferty"}
    for theta in (*result.theta.values(), *result.modes.values()):
        assert np.shape(theta) == (8, 6)
        np.testing.assert_allclose(np.sum(theta, 1), 1.0, atol=1e-3)
    # The posteriors are of the same model and documents as the chains.
    for name in ("taylor", "blei-lafferty"):
        assert 0.0 < np.mean(result.distances(result.theta[name])) < 0.25
    assert result.distances(result.theta[EXACT]) == [0.0] * 8
    np.testing.assert_allclose(np.sum(result.covariance, 0), 0.0, atol=1e-2)
    assert all(name in tables(result) for name in result.names)


@pytest.mark.slow
def test_the_figure_has_three_rows_of_bars_and_a_graph(result: Proportions) -> None:
    axes = figure(result).axes
    assert len(axes) == 4
    words = {text.get_text() for text in axes[3].texts}
    assert all(name.partition(" ")[0] in words for name in result.names)


def test_bars_stand_on_each_other_and_reach_one() -> None:
    theta = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
    ax = Figure().subplots()
    stacked_bars(ax, theta, np.array([1, 0]))
    first, second, rest = ([bar.get_height() for bar in bars] for bars in ax.containers)
    np.testing.assert_allclose([first, second, rest], [[0.2, 0.6], [0.5, 0.1], [0.3, 0.3]])
    assert [bar.get_y() for bar in ax.containers[2]] == pytest.approx([0.7, 0.7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_topics": 1}, "num_topics is 1"),
        ({"draws": 4}, "draws is 4"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProportionSettings(**change)


def test_a_corpus_that_is_too_small_is_refused(texts: Path) -> None:
    with pytest.raises(ConfigError, match="has 240 documents; expected at least 1060"):
        run(ProportionSettings(corpus=str(texts)), Cells())
