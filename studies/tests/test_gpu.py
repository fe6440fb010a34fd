"""The study of fits on a GPU: its CPU part, and its settings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from studies.__main__ import load
from studies.measure import Cells, measure
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError


@pytest.mark.slow
def test_a_fit_on_the_cpu_has_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNTM_TRITON", "1")
    counts = np.random.default_rng(0).poisson(0.3, (40, 30))
    save_counts(Corpus.from_matrix(counts), tmp_path / "small.npz")
    study, threads = load("gpu"), torch.get_num_threads()
    settings = study.settings(
        corpora=(str(tmp_path / "small.npz"),), topics=(3,), places=("cpu",), epochs=4, threads=1,
    )  # fmt: skip
    (fit,) = measure("gpu", study, settings, tmp_path / "out", progress=False)
    assert fit.epochs == 4
    assert 0.0 < fit.epoch_seconds < fit.wall_seconds
    assert 1.0 < fit.perplexity < 30.0
    assert fit.device is None
    assert " CPU |" in (tmp_path / "out" / "tables.md").read_text()
    # Settings of the process are as before.
    assert os.environ["LNTM_TRITON"] == "1"
    assert torch.get_num_threads() == threads


def test_settings_without_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load("gpu").settings
    with pytest.raises(ConfigError, match=r"1 numbers of topics and 2 corpora"):
        settings(corpora=("m10", "ap"), topics=(5,), places=("cpu",))
    with pytest.raises(ConfigError, match=r"'tpu'; expected one of cpu, cuda, fused"):
        settings(places=("tpu",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"finds no GPU; expected one, or --places cpu"):
        load("gpu").run(settings(), Cells())
