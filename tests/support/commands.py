"""Running commands in tests."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch

import torch_lntm as lntm
from torch_lntm.cli import main

QUICK = (
    *("--no-progress", "--num-topics", "3", "--max-iterations", "3"),
    *("--start-epochs", "3", "--stepwise-epochs", "2"),
)


def fit_quickly(counts, *options, out="run"):
    assert main(["fit", counts, "--out", out, *QUICK, "--max-iterations", "1", *options]) == 0
    return lntm.load_run(out)


def tensors(folder):
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")
