from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.measure import Cells
from studies.papers.putthividhya_fig2 import (
    Sources,
    SourceSettings,
    commonest,
    ends_of,
    figure,
    over_fits,
    run,
    strongest,
    tables,
)
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def rows(texts: Path) -> list[Sources]:
    settings = SourceSettings(
        corpora=(str(texts),), num_topics=8, num_sources=2, fits=2, num_docs=80, end_docs=15
    )
    return run(settings, Cells())


@pytest.mark.slow
def test_measures_every_source_and_both_its_ends(rows: list[Sources]) -> None:
    assert [(row.source, row.fit) for row in rows] == [
        (source, number) for number in (0, 1) for source in ("laplace", "gaussian")
    ]
    assert rows[0].loadings != rows[2].loadings
    for row in rows:
        assert len(row.kurtosis) == 2
        assert len(row.ends) == len(row.purity) == 4
        assert all(1.0 <= moved <= 8.0 for moved in row.moved)
        # Fifteen documents at random have a commonest label too.
        assert 1 / 4 <= row.base < 0.8
        assert all(row.base * 0.5 < share <= 1.0 for share in row.purity)
        assert -1.0 < row.chance < 1.0
    text = tables(rows)
    # The two sources of the first fit are there with their topics.
    assert text.count(", laplace, ") == text.count(", gaussian, ") == 2
    assert rows[0].names[0] in text


@pytest.mark.slow
def test_the_figure_has_a_column_a_corpus(rows: list[Sources]) -> None:
    (ax,) = figure(rows).axes
    assert "laplace sources" in ax.get_title()


def test_topics_moved_counts_them() -> None:
    loadings = [[1.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]]
    row = Sources("c", "laplace", 0, ["a"] * 4, loadings, [0.0], [0.0], 0.0, [], math.nan)
    assert row.moved == pytest.approx([1.0, 4.0])
    assert strongest(np.array(loadings), 1) == [1]


def test_errors_are_over_all_sources_and_over_fits() -> None:
    # Over 1, 3, 5, 7 the variance is 20 / 3; the fits' means are 2 and 6.
    assert over_fits([[1.0, 3.0], [5.0, 7.0]], 2) == f"4.00 ({math.sqrt(20 / 3 / 4):.2f}; 2.00)"
    assert over_fits([[1.0, 3.0]], 1) == "2.0 (1.0; –)"


def test_ends_and_their_commonest_label() -> None:
    first, last = ends_of(np.array([0.1, 3.0, -2.0, 1.0]), 2)
    assert (first.tolist(), last.tolist()) == ([1, 3], [2, 0])
    assert commonest(np.array(["a", "b", "a", "c"])) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ("cauchy",)}, "sources are cauchy"),
        ({"num_sources": 60}, "fewer sources than topics"),
        ({"num_topics": 3}, "num_topics is 3"),
        ({"fits": 0}, "fits is 0"),
        ({"corpora": ()}, "corpora are none"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SourceSettings(**change)
