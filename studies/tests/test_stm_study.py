"""The study of R's stm: its intervals with a stand-in for R, and by R where stm is installed."""

from __future__ import annotations

import numpy as np
import pytest
from support.r import run_r

from studies.__main__ import load
from studies.benchmarks import coverage, stm
from studies.measure import Cells
from torch_lntm.errors import ConfigError

SMALL = {"num_corpora": 1, "lengths": (30,), "effects": (0.8,), "num_docs": 60, "num_topics": 3}


@pytest.mark.slow
def test_topics_are_assigned_and_intervals_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    study = load("stm")
    settings = study.settings(**SMALL, num_words=20)
    truth, _, _ = coverage.simulate(settings.simulated, 30, 0.8, 0)
    first, second = coverage.true_levels(truth, settings.simulated.values)
    order = [2, 0, 1]  # R's topics are the true ones in this order, and its first word is unused
    given = {
        "words": [*range(2, 21)],
        "beta": truth.topics.probs.numpy(force=True)[order, 1:].tolist(),
        "Global": [[float((first - second)[k]) + 0.1 * k, 0.08] for k in order],
        "Local": [[0.0, 1e-6] for _ in order],
    }
    monkeypatch.setattr(stm, "fit_in_r", lambda *_: given)
    monkeypatch.setattr(stm, "stm_version", lambda: "0.0")
    result = study.run(settings, Cells())
    rows = np.array(result.intervals[0]["R's stm: Global"])
    assert rows[:, 1] - rows[:, 0] == pytest.approx([0.0, 0.1, 0.2], abs=1e-4)
    # 2.0017 is the t quantile with 58 degrees of freedom.
    assert rows[:, 3] - rows[:, 2] == pytest.approx(2 * 2.0017 * 0.08, abs=1e-4)
    table = study.table(result)
    assert "66.7" in next(line for line in table.splitlines() if "Global" in line)
    assert "stm 0.0" in table


def test_without_stm_the_study_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stm.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="needs R, but there is no Rscript; install R"):
        load("stm").run(stm.Settings(), Cells())


@pytest.mark.slow
def test_stm_itself_fits_a_corpus() -> None:
    run_r("cat(1)", packages=("stm", "jsonlite"))
    settings = stm.Settings(**SMALL, num_words=20)
    found = stm.measure(settings.simulated, 30, 0.8, 0)
    methods = ("true theta", "R's stm: Global", "R's stm: Local")
    assert {method: np.shape(rows) for method, rows in found.items()} == dict.fromkeys(
        methods, (3, 4)
    )
    for rows in found.values():
        assert all(lower < estimate < upper for _, estimate, lower, upper in rows)
