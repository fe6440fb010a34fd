"""The chains of a fit in its run's folder: they come back as they were, or a line says why not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentHMC, MonteCarloEM, theta_draws
from torch_lntm.io import load_run, save_run

CONFIG = {"posterior": "hmc"}


@pytest.fixture(scope="module")
def fitted():
    """A model fitted by two chains of each document, its documents, and the result."""
    counts = np.random.default_rng(1).poisson(1.0, (30, 8))
    counts[4] = 0
    corpus = Corpus.from_matrix(counts)
    model = lntm.models.iftm(3, 8, 2, seed=0)
    return (
        model,
        corpus,
        MonteCarloEM(model, max_epochs=12, num_chains=2, progress=False).fit(corpus),
    )


@pytest.fixture
def run(fitted, tmp_path) -> Path:
    model, _, result = fitted
    return save_run(tmp_path / "run", model, result, CONFIG)


def rewritten(path: Path, **changes: object) -> None:
    """Replace tensors of a file of chains, and settings in its head."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["chains"])
    tensors = safetensors.torch.load_file(path)
    for name, value in changes.items():
        (tensors if isinstance(value, torch.Tensor) else about)[name] = value
    path.write_bytes(safetensors.torch.save(tensors, {"chains": json.dumps(about)}))


@pytest.mark.slow
def test_a_loaded_run_and_its_result_continue_chains_equally(fitted, run) -> None:
    _, corpus, result = fitted
    loaded = load_run(run).source
    assert loaded.num_docs == result.source.num_docs == 29
    assert loaded.num_transitions == 36
    expected = theta_draws(result.source, corpus, 5).theta
    torch.testing.assert_close(theta_draws(loaded, corpus, 5).theta, expected)
    other = theta_draws(load_run(run).chains(seed=1), corpus, 5).theta
    assert not torch.allclose(other, expected, atol=1e-3)


@pytest.mark.slow
def test_chains_are_left_out_on_request(fitted, tmp_path) -> None:
    model, _, result = fitted
    path = save_run(tmp_path / "run", model, result, CONFIG, keep_chains=False)
    assert isinstance(load_run(path).source, DocumentHMC)


@pytest.mark.parametrize(
    "damage",
    [
        {"step_size": torch.full((2, 29), torch.nan)},
        {"documents": torch.arange(28)},
        {"documents": torch.arange(29.0)},
        {"latent.eta": torch.zeros(2, 29, 4)},
        {"latent.eta": torch.full((2, 29, 3), torch.inf)},
        {"mass_matrix": "nope"},
        {"num_steps": 10**9},
        {"num_steps": "8"},
        {"target_accept": 2.0},
        {"num_transitions": -1},
        {"num_transitions": math.inf},
        b"\xff" * 100,
    ],
    ids=str,
)
def test_impossible_states_of_chains_are_refused(run, damage) -> None:
    path = run / "chains.safetensors"
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        rewritten(path, **damage)
    with pytest.raises(
        ConfigError, match=r"chains.safetensors: .*delete the file to use new chains"
    ):
        load_run(run).chains()
    path.unlink()
    assert isinstance(load_run(run).source, DocumentHMC)


def test_chains_of_a_replaced_run_are_refused(fitted, run) -> None:
    model, _, result = fitted
    loaded = load_run(run)
    save_run(run, model, replace(result, seconds=9.0), CONFIG, overwrite=True)
    with pytest.raises(ConfigError, match="or the chains of another run or model"):
        loaded.chains()
