"""The page about following a fit does what it says, with a stand-in for MLflow."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from support.markdown import run_page


@pytest.mark.slow
def test_the_page_s_code_writes_a_csv_and_calls_mlflow(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    logged: list[dict[str, float]] = []
    tracker = ModuleType("mlflow")
    tracker.start_run = nullcontext
    tracker.log_metrics = logged.append
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    history = run_page("callbacks.md")["result"].history
    with open(Path("fit.csv"), newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == len(logged) > 5
    assert [float(row[2]) for row in rows] == [entry["objective"] for entry in logged]
    assert capsys.readouterr().out.count("'objective'") > 5
    assert history[-1]["phase"] == "em"
    assert all(set(entry) == {"objective", "seconds"} for entry in logged)
