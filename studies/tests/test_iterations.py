"""The study of EM's iterations: rules on made-up objectives, and a tiny run."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.__main__ import load
from studies.benchmarks.iterations import RULES, Trace, nats_at, tables
from studies.measure import Cells, measure
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.models import ctm

OBJECTIVE = [-7.0, -6.9, -6.88, -6.876, -6.8745, -6.8742]


def test_rules_stop_at_the_first_small_change() -> None:
    stops = {rule: stop(OBJECTIVE) for rule, stop in RULES.items()}
    assert stops["change 0.003"] == 3  # 0.02 of 6.88 is 0.0029
    assert stops["change 0.001"] == 4
    assert stops["gain 0.01"] == 4
    assert stops["gain 0.005"] == 4
    assert stops["gain 0.002"] == 5
    assert stops["gain 0.0005"] == 6
    assert stops["gain 0.0002"] == stops["all iterations"] == 6
    # A fall counts as a change.
    assert RULES["gain 0.01"]([-7.0, -7.1, -7.105]) == 3


def test_the_table_interpolates_scores_between_scored_iterations() -> None:
    seconds = [float(n) for n in range(1, 7)]
    nats, error = [-6.5, -6.4, -6.1], [0.0, 0.01, 0.01]
    trace = Trace("m10", "ctm, taylor", 5, 7, 20.0, OBJECTIVE, seconds, [1, 3, 6], nats, error)
    assert [nats_at(trace, n) for n in (1, 2, 3, 4, 6)] == pytest.approx(
        [-6.5, -6.45, -6.4, -6.3, -6.1]
    )
    rows = [line.split("|")[1:-1] for line in tables([trace]).splitlines() if line[0:1] == "|"]
    found = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert found["change 0.003"] == ["3", "+0.0000", "0.0040", "3.0"]
    assert found["gain 0.002"] == ["5", "+0.2000", "0.0003", "5.0"]
    assert found["all iterations"] == ["6", "+0.3000", "–", "6.0"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_scores_iterations_and_reads_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    truth = ctm(3, 30, topics=synthetic_topics(3, 30, 0.2, seed=0))
    made: Corpus = truth.generate([30] * 60, seed=0)[0]
    save_counts(made, path)
    study = load("iterations")
    settings = study.settings(
        corpora=(str(path),), num_topics=(3,), seeds=(7,), max_iterations=4, tolerance=0.1
    )
    (trace,) = measure("iterations", study, settings, tmp_path / "run", progress=False)
    assert len(trace.objective) == len(trace.cpu_seconds) == 4
    assert trace.scored == [1, 2, 3]
    assert trace.error[0] == 0.0
    assert trace.cpu_seconds == sorted(trace.cpu_seconds)
    assert study.run(settings, Cells())[0].objective == trace.objective


def test_seeds_of_published_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="seeds is 0; expected a whole number >= 7"):
        load("iterations").settings(seeds=(0,))
