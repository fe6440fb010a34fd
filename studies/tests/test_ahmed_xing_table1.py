from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies.measure import Cells
from studies.papers.ahmed_xing_table1 import (
    STUDY,
    TableResult,
    TableSettings,
    figure,
    read_abstracts,
    run,
)
from torch_lntm.errors import ConfigError


@pytest.fixture(scope="module")
def settings(texts: Path) -> TableSettings:
    return TableSettings(
        corpus=str(texts),
        categories=("L0", "L1", "L2"),
        num_docs=120,
        num_topics=4,
        fits=2,
        splits=3,
        theta_samples=10,
    )


@pytest.fixture(scope="module")
def result(settings: TableSettings) -> TableResult:
    return run(settings, Cells())


def test_documents_are_those_of_the_categories(settings: TableSettings) -> None:
    corpus = read_abstracts(settings)
    assert corpus.num_docs == 120
    assert set(corpus.labels or ()) == {"L0", "L1", "L2"}
    assert bool((corpus.word_totals > 0).all())
    with pytest.raises(ConfigError, match="no document"):
        read_abstracts(replace(settings, categories=("X", "Y")))


@pytest.mark.slow
def test_every_fit_is_judged_by_every_posterior(result: TableResult) -> None:
    assert set(result.kinds) == {
        *(
            (fitted, posterior, estimate)
            for fitted in ("taylor", "blei-lafferty")
            for posterior in ("taylor", "blei-lafferty")
            for estimate in ("mean", "mode")
        ),
        ("lda", "lda", "mean"),
    }
    assert len(result.rows) == 2 * 9
    for row in result.rows:
        # Documents of three labels, which their largest of four topics decides.
        assert len(row.accuracies) == 3
        assert 0.5 < statistics.fmean(row.accuracies) <= 1.0
        assert len(row.recalls) == 3


@pytest.mark.slow
def test_differences_are_paired_and_say_both_errors(result: TableResult) -> None:
    taylor, other = (
        [row.accuracies for row in result.rows if (row.fitted, row.posterior, row.estimate) == kind]
        for kind in (("taylor",) * 2 + ("mean",), ("blei-lafferty",) * 2 + ("mean",))
    )
    gaps = [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(taylor, other, strict=True)]
    by_split = [statistics.fmean(column) for column in zip(*gaps, strict=True)]
    by_fit = [statistics.fmean(row) for row in gaps]
    mean = 100 * statistics.fmean(by_fit)
    splits = 100 * math.sqrt(1 / 3 + 0.15 / 0.85) * statistics.stdev(by_split)
    fits = 100 * statistics.stdev(by_fit) / math.sqrt(2)
    assert f"{mean:.2f} ({splits:.2f}; {fits:.2f})" in result.tables()


@pytest.mark.slow
def test_the_figure_shows_every_kind(result: TableResult) -> None:
    left, right = figure(result).axes
    assert len(left.get_yticklabels()) == 9
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        "Taylor",
        "Blei–Lafferty",
        "LDA",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": ("C04",)}, "at least two labels"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0"),
        ({"fitted": ("vb",)}, "fitted are vb"),
        ({"fits": 0}, "fits is 0"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TableSettings(**change)


def test_quick_is_smaller() -> None:
    assert STUDY.quick["num_docs"] < TableSettings().num_docs
