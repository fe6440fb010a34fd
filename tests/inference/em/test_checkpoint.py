"""Checkpoints: what they hold, and which fits may continue them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from support.fits import assert_same, fit, make_corpus

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.inference import VariationalEM
from torch_lntm.inference.em.checkpoint import (
    FitState,
    checksum_of,
    folder_of,
    read_checkpoint,
    read_rows,
    write_checkpoint,
    write_rows,
)
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.em.table import DocumentTable
from torch_lntm.models import DirichletTopics, LogisticNormalPrior, TopicModel, ctm, lda


def test_a_saved_state_is_read_back_unchanged(tmp_path: Path) -> None:
    def words() -> torch.Tensor:
        return torch.rand(5, 3, dtype=torch.float64).mT

    table = DocumentTable(np.arange(4), np.arange(5), torch.device("cpu"))
    table.tensors = {"means": torch.rand(4, 3), "moved": torch.ones(4, 2, dtype=torch.bool)}
    state = FitState(
        table,
        restart=2,
        phase="em",
        step=7,
        updates=11,
        seconds=1.5,
        history=[{"phase": "em", "iteration": 1, "objective": -1.0, "unconverged": None}],
        word_counts=words(),
        theta=torch.rand(4, 3),
        statistics=Statistics(4.0, 9.0, {"latent_sum": torch.rand(3).double()}, words(), -3.0, 1),
        # Own priors may use any name.
        model={name: torch.rand(5, 3) for name in ("prior.word_counts", "prior.slopes.age/sex")},
        best={"prior.loc": torch.rand(3)},
        optimizer={"0": {"step": torch.tensor(3.0)}},
    )
    path, found = tmp_path / "fit.safetensors", FitState(copy.copy(table))
    found.documents.tensors = {}
    write_rows(folder_of(path) / "a-0.safetensors", state.documents)
    write_checkpoint(path, state, {"seed": 1}, "a")
    tensors, record = read_checkpoint(path, {"seed": 1})
    found.load(tensors, record["state"], torch.device("cpu"))
    read_rows(path, record["rows"], found.documents)
    # Sums over words depend on the order in memory, in the last bit.
    assert found.word_counts.stride() == state.word_counts.stride()
    assert found.statistics.word_counts.stride() == state.word_counts.stride()  # type: ignore
    (tensors, record), (expected, about) = found.contents(), state.contents()
    assert record == about
    torch.testing.assert_close(tensors, expected, rtol=0.0, atol=0.0)
    tables = state.documents.tensors
    torch.testing.assert_close(found.documents.tensors, tables, rtol=0.0, atol=0.0)


@pytest.mark.slow
def test_a_checkpoint_of_a_finished_fit_is_the_result(tmp_path: Path) -> None:
    corpus, path = make_corpus(), tmp_path / "fit.safetensors"
    first, expected = fit(corpus, checkpoint=path, checkpoint_seconds=0.0)
    second, result = fit(corpus, checkpoint=path)
    assert_same(first, second)
    assert result.stop_reason == expected.stop_reason == "converged"
    assert result.history == expected.history
    assert torch.equal(result.means, expected.means)


def rewritten(path: Path, **changes: Any) -> None:
    """The file with other items in its record, without those that are None, checksum included."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        record = json.loads(file.metadata()["record"]) | changes
    record = {name: value for name, value in record.items() if value is not None}
    text = json.dumps(record)
    metadata = {"record": text, "checksum": checksum_of(text, tensors)}
    safetensors.torch.save_file(tensors, path, metadata)


@pytest.mark.slow
def test_every_damaged_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    state = FitState(
        DocumentTable(np.arange(4), np.arange(5), torch.device("cpu")),
        model={"topics.logits": torch.ones(5, 3)},
        statistics=Statistics(4.0, 9.0, {"sum": torch.ones(3).double()}, torch.ones(3, 5), -3.0, 1),
    )
    write_checkpoint(path, state, {"seed": 1}, "a")
    complete = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(complete), 400, replace=False):
        damaged = bytearray(complete)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="delete it to start the fit anew") as refused:
            read_checkpoint(path, {"seed": 1})
        assert "\n" not in str(refused.value)
    path.write_bytes(complete)
    read_checkpoint(path, {"seed": 1})


@pytest.mark.slow
def test_invalid_checkpoints_are_refused_and_left_unchanged(tmp_path: Path) -> None:
    corpus, path = make_corpus(), tmp_path / "fit.safetensors"
    options: dict[str, Any] = {"checkpoint": path, "max_iterations": 1}
    fit(corpus, **options, checkpoint_seconds=0.0)
    complete = path.read_bytes()

    def refused(message: str) -> None:
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=message):
            fit(corpus, **options)
        assert path.read_bytes() == before
        path.write_bytes(complete)

    path.write_bytes(complete[:-100])
    refused("not a complete checkpoint")
    path.write_bytes(b"")
    refused("not a complete checkpoint")
    rewritten(path, format_version=1)
    refused(
        r"a checkpoint of another version of torch_lntm \(format 1; this version reads format 8\); "
        "delete it to start the fit anew"
    )
    rewritten(path, identity=None)
    refused("the checkpoint of another fit")
    safetensors.torch.save_file({"x": torch.ones(1)}, path)
    refused("not a complete checkpoint")
    for file in folder_of(path).iterdir():
        file.write_bytes(b"")
    model = ctm(3, corpus.num_words, dtype="float64")
    before = copy.deepcopy(model.state_dict())
    guide = make_guide("taylor", model, tolerance=1e-8, max_iterations=200)
    with pytest.raises(ConfigError, match="not a complete checkpoint"):
        VariationalEM(model, guide, progress=False, max_iterations=1).fit(corpus, checkpoint=path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_error_for_a_checkpoint_of_another_fit_names_the_differences(tmp_path: Path) -> None:
    corpus = make_corpus()
    other = corpus.to_scipy().toarray()
    other[0, 0] += 1

    def fitted(name: str, model: TopicModel, corpus: Corpus = corpus, **options: Any) -> None:
        guide = make_guide(options.pop("posterior", None), model)
        settings: dict[str, Any] = {"start": "model", "max_iterations": 0, "progress": False}
        engine = VariationalEM(model, guide, **(settings | options))
        engine.fit(corpus, checkpoint=tmp_path / name, checkpoint_seconds=0.0)

    def composed(weight: float) -> TopicModel:
        return TopicModel(LogisticNormalPrior(3, pseudo_documents=weight), DirichletTopics(3, 30))

    def fixed(value: float) -> TopicModel:
        alpha = torch.full((3,), value)
        return lda(3, 30, concentration=alpha, learn_concentration=False)

    fitted("first", ctm(3, 30))
    fitted("first", ctm(3, 30), max_iterations=1)  # how long to run is not part of what a fit is
    for name, different in {
        "seed": {"seed": 1},
        "corpus": {"corpus": Corpus.from_matrix(other)},
        "covariates": {"corpus": corpus.with_covariates({"x": np.ones(30)})},
        "guide": {"posterior": "laplace"},
        "start": {"start": "documents"},
        "model": {"model": ctm(3, 30, dtype="float64")},
        "stepwise_epochs": {"stepwise_epochs": 1},
        "annealing": {"annealing": "ahmed-xing"},
    }.items():
        with pytest.raises(ConfigError, match=rf"another fit \(it differs in .*{name}"):
            fitted("first", **({"model": ctm(3, 30)} | different))
    for make, name in ((composed, "parts"), (fixed, "fixed")):
        fitted(name, make(0.1))
        fitted(name, make(0.1))
        with pytest.raises(ConfigError, match=rf"another fit \(it differs in {name}\)"):
            fitted(name, make(0.7))
