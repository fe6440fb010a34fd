"""The study of launches, on the tests' pretend device."""

from __future__ import annotations

import pytest

from studies.benchmarks.launches import Settings, run, tables
from studies.measure import Cells
from torch_lntm.errors import ConfigError


def test_counts_the_parts_that_were_asked_for() -> None:
    cells = Cells()
    settings = Settings(num_docs=8, num_words=20, num_topics=3, length=10, only=("expected",))
    costs = run(settings, cells)
    assert list(costs) == ["expected counts", "expected counts, words' too"]
    less, more = costs.values()
    assert 0 < less["launches"] < more["launches"]
    assert less["waits"] == more["waits"] == 0
    # 5 µs a launch.
    row = [cell.strip() for cell in tables(costs).splitlines()[2].split("|")[1:-1]]
    assert row[:3] == ["expected counts", str(less["launches"]), "0"]
    assert row[3] == f"{0.005 * less['launches']:.2f}"
    assert set(cells.done) == set(costs)


def test_no_part_of_that_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="no part has any of nothing"):
        run(Settings(num_docs=8, num_words=20, num_topics=3, only=("nothing",)), Cells())
