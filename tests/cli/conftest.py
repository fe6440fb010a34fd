"""A folder to work in, and small corpora in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.commands import QUICK
from support.corpora import save_counts

import torch_lntm as lntm
from torch_lntm.cli import main

SENTENCES = (
    "the cat and the dog chase the mouse",
    "a dog barks at the cat",
    "mouse and cat and dog play",
    "stocks and bonds fall as banks fail",
    "banks buy bonds and sell stocks",
    "stocks rise while bonds rest",
    "the cat buys stocks",
    "",
)


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def texts(workplace):
    Path("texts.txt").write_text("\n".join(SENTENCES))
    return "texts.txt"


@pytest.fixture
def counts(workplace):
    matrix = np.random.default_rng(0).poisson(0.5, (40, 30))
    matrix[7] = 0
    words = [f"w{v}" for v in range(30)]
    labels = {"label": range(40)}
    save_counts(lntm.Corpus.from_matrix(matrix, words, metadata=labels), Path("counts.npz"))
    return "counts.npz"


@pytest.fixture
def run_folder(counts):
    assert main(["fit", counts, "--out", "run", *QUICK]) == 0
    return "run"
