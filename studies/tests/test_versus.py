"""The study that times small work beside another checkout, here beside itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from studies.benchmarks import versus
from studies.benchmarks.versus import Result, Settings, one_round, run, tables
from studies.benchmarks.workloads import Workloads, answers
from studies.machine import ROOT, thread_environment
from studies.measure import Cells
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError

COUNTS = sp.csr_matrix(np.random.default_rng(0).poisson(1.0, (12, 9)) + np.eye(12, 9, dtype=int))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    save_counts(Corpus.from_matrix(COUNTS), path)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_workload_computes_the_same_number_twice() -> None:
    workloads = Workloads(COUNTS, 3)
    names = list(workloads.by_name())
    first, *found = answers(workloads, iter([f"{name}\n" for name in names for _ in range(2)]))
    assert first["workloads"] == names
    assert Path(first["package"]).is_relative_to(ROOT)
    for name, once, twice in zip(names, found[::2], found[1::2], strict=True):
        assert "error" not in once, name
        assert np.isfinite(once["value"])
        assert twice["value"] == once["value"], name
        assert once["cpu_seconds"] > 0


@pytest.mark.slow
def test_the_workloads_import_nothing_of_the_studies(tmp_path: Path) -> None:
    # The other checkout may have none. Python finds a script's own folder, but not its parents.
    script = versus.WORKLOADS
    lines = re.findall(r"^(?:from|import) (\S+)", script.read_text(), re.MULTILINE)
    assert lines
    assert not [line for line in lines if line.split(".")[0] == "studies"]
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**thread_environment(1), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "IndexError" in ended.stderr  # it gets as far as its arguments


@pytest.mark.slow
def test_a_checkout_beside_itself(corpus: Path) -> None:
    settings = Settings(
        other=str(ROOT), corpus=str(corpus), num_topics=3, rounds=1, repeats=1, only=("sparse",)
    )
    result = run(settings, Cells())
    (found,) = result.rounds
    assert list(found) == ["sparse operation, gradients", "sparse operation, topic counts"]
    for sides in found.values():
        assert sides["this"]["value"] == sides["other"]["value"]
        assert all(side["cpu_seconds"] > 0 for side in sides.values())
    assert "0e+00" in tables(result)


@pytest.mark.slow
def test_what_a_checkout_cannot_do_is_named(corpus: Path, tmp_path: Path) -> None:
    package = tmp_path / "torch_lntm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    settings = Settings(other=str(tmp_path), corpus=str(corpus), num_topics=3, rounds=1)
    with pytest.raises(ConfigError, match="ended; its error is above"):
        run(settings, Cells())


def test_a_process_with_the_package_of_another_checkout_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        def __init__(self) -> None:
            self.stdout = iter(['{"package": "/elsewhere/torch_lntm", "workloads": []}\n'])

    process: Any = Process()
    process.stdout = type("Lines", (), {"readline": process.stdout.__next__})()
    with pytest.raises(ConfigError, match="imported /elsewhere"):
        versus.Worker(process, tmp_path)


def test_no_other_checkout_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="by --other"):
        run(Settings(corpus=str(corpus)), Cells())
    with pytest.raises(ConfigError, match="is no checkout"):
        run(Settings(corpus=str(corpus), other=str(tmp_path)), Cells())


@pytest.mark.slow
def test_no_workload_of_that_name_is_refused(corpus: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts.npz"
    sp.save_npz(counts, COUNTS)
    with pytest.raises(ConfigError, match="no workload has any of nothing"):
        one_round(Settings(num_topics=3, only=("nothing",)), ROOT, counts)


def test_ratios_are_medians_over_rounds() -> None:
    rounds = [
        {
            "E-step": {
                "this": {"cpu_seconds": seconds, "value": 2.0},
                "other": {"cpu_seconds": 0.1, "value": 1.0},
            }
        }
        for seconds in (0.2, 0.11, 0.12)
    ]
    text = tables(Result("abc", rounds))
    assert "at abc" in text
    row = [cell.strip() for cell in text.splitlines()[-1].split("|")[1:-1]]
    assert row == ["E-step", "100.0", "110.0", "1.20", "1.10", "2.00", "5e-01"]
