"""The study of a corpus larger than memory: its documents, its steps and its table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from studies.benchmarks import large
from studies.measure import Cells
from torch_lntm.corpus import read_corpus
from torch_lntm.errors import ConfigError

TINY = large.Settings(num_docs=50, num_words=200, tokens_per_doc=40, batch_size=8, num_topics=2)


@pytest.fixture
def measured(monkeypatch, tmp_path, capsys):
    """Runs the steps in this process, and tells which ran."""
    ran = []

    def here(settings, step, folder):
        ran.append(step)
        large.main(settings, step, Path(folder, "corpus"))
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(large, "in_process", here)
    monkeypatch.setattr(large, "_DRAWN", 20)
    return ran


def test_documents_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "_DRAWN", 20)
    large.write(TINY, tmp_path / "corpus")
    corpus = read_corpus(tmp_path / "corpus")
    assert (corpus.num_docs, corpus.num_words) == (50, 200)
    assert abs(corpus.lengths.mean() - 40) < 6 * np.sqrt(40 / 50)
    assert corpus.word_totals[:20].sum() > corpus.word_totals[-100:].sum()


def test_steps_and_table(measured):
    cells = Cells()
    found = large.run(TINY, cells)
    assert measured == ["write", "open", "batches", "split", "fit"]
    assert set(found["fit"]["phases"]) == {"warm-up", "sampling", "averaging"}
    assert found["batches"]["entries_of_batches"] == found["open"]["entries"] > 50
    assert found["split"]["entries_of_batches"] == found["open"]["entries"]
    assert all(cell["peak_mb"] > 0 for cell in found.values())
    table = large.tables(found)
    assert table.startswith(f"50 documents, {found['open']['entries']} entries")
    assert all(f"| {step} " in table for step in found)
    # What is measured is not measured again.
    del cells.done["split"]
    measured.clear()
    large.run(TINY, cells)
    assert measured == ["write", "split"]
    measured.clear()
    assert large.run(TINY, cells)["open"] == found["open"]
    assert measured == []


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="num_docs is 0"):
        large.Settings(num_docs=0)


@pytest.mark.slow
def test_a_step_in_its_own_process(tmp_path):
    found = large.in_process(TINY, "write", str(tmp_path))
    assert found["wall_seconds"] > 0
    assert read_corpus(tmp_path / "corpus").num_docs == 50
    with pytest.raises(RuntimeError, match="open failed: "):
        large.in_process(TINY, "open", str(tmp_path / "nowhere"))
