from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from studies.measure import Cells
from studies.papers.khan_bouchard import Compared, FullSettings, figure, read_texts, run, tables
from torch_lntm.errors import ConfigError

TINY = FullSettings(
    corpora=("simulated",),
    num_topics=(4,),
    train_docs=60,
    test_docs=12,
    reference_docs=4,
    reference_draws=40,
    theta_samples=50,
    ais_temperatures=60,
    num_words=40,
    num_tokens=40,
)


@pytest.fixture(scope="module")
def rows() -> list[Compared]:
    return run(TINY, Cells())


@pytest.mark.slow
def test_bounds_are_below_the_evidence_and_the_full_one_is_tighter(rows: list[Compared]) -> None:
    (row,) = rows
    diagonal, full = row.gaps
    assert statistics.fmean(full) > 0.2
    assert all(a >= b - 1e-3 for a, b in zip(diagonal, full, strict=True))
    mean, error = row.tighter
    gains = [a - b for a, b in zip(diagonal, full, strict=True)]
    assert mean == pytest.approx(statistics.fmean(gains))
    assert error == pytest.approx(statistics.stdev(gains) / len(gains) ** 0.5)
    assert all(0.0 < apart < 0.5 for distances in row.distances for apart in distances)
    assert len(row.distances[0]) == 4
    # The full V's evidence is that of its own parameters.
    assert row.learned[0] == row.evidence != row.learned[1]


@pytest.mark.slow
def test_tables_and_figure_show_the_rows(rows: list[Compared]) -> None:
    text = tables(rows)
    mean, error = rows[0].tighter
    assert f"{mean:.2f} ({error:.2f})" in text
    assert text.count("| simulated |") == 2
    assert len(figure(rows).axes) == 4


def test_texts_of_a_file_are_divided(texts: Path) -> None:
    train, test = read_texts(TINY, str(texts), 4)
    assert (train.num_docs, test.num_docs) == (60, 12)
    with pytest.raises(ConfigError, match="240 documents; expected at least 560"):
        read_texts(FullSettings(), str(texts), 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference_docs": 61}, "reference_docs is 61 of 60"),
        ({"corpora": ()}, "corpora are none"),
        ({"num_topics": (1,)}, "num_topics is 1"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FullSettings(**change)
