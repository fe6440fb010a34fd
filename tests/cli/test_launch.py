"""Commands that torchrun starts in several processes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.commands import QUICK, tensors

import torch_lntm as lntm
from torch_lntm.cli import launch, main


def torchrun(*arguments, size=2):
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(size), "-m", "torch_lntm", *arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_a_shared_fit_is_saved_and_printed_once(counts, capsys):
    fit = ["fit", counts, *QUICK, "--dtype", "float64"]
    shared = torchrun(*fit, "--out", "shared")
    assert shared.returncode == 0, shared.stderr
    assert main([*fit, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert shared.stdout == out.replace("The run is in run", "The run is in shared")
    said = (
        "fitting 36 documents (1 without words) of 30 words, with 4 held out, cpu, in 2 processes"
    )
    assert shared.stderr.count(said) == 1
    assert shared.stderr.count("fitting") == shared.stderr.count("finished all iterations:") == 1
    assert shared.stderr.count("warning:") <= 1
    assert not Path("shared.partial").exists()
    for name, tensor in tensors("run").items():
        torch.testing.assert_close(tensors("shared")[name], tensor, rtol=1e-8, atol=1e-8)
    evaluation = [Path(run, "evaluation.json").read_text() for run in ("run", "shared")]
    values = [[score["value"] for score in json.loads(text)] for text in evaluation]
    assert values[1] == pytest.approx(values[0], rel=1e-8)


@pytest.mark.long
def test_processes_open_their_own_shards(counts):
    lntm.read_corpus(counts).save("shards", shard_size=7)
    fit = ["fit", "shards", "--num-topics", "3", "--posterior", "laplace", "--max-iterations", "3"]
    shared = torchrun(*fit, "--dtype", "float64", "--out", "shared")
    assert shared.returncode == 0, shared.stderr
    said = "fitting 40 documents (1 without words) of 30 words, cpu, in 2 processes with their own"
    assert shared.stderr.count(said) == 1
    run, part = lntm.load_run("shared"), lntm.read_corpus("shards", rank=0, world_size=1)
    assert run.metadata["corpus"]["num_docs"] == 40
    assert run.metadata["corpus"]["num_tokens"] == part.num_tokens
    assert run.config["test_fraction"] == 0.0
    smoothing = run.config["topic_smoothing"]
    model = lntm.models.ctm(3, 30, dtype="float64", topic_smoothing=smoothing)
    guide = lntm.guides.LaplaceGuide(model)
    engine = lntm.inference.VariationalEM(model, guide, max_iterations=3, progress=False)
    result = engine.fit(part)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensors("shared")[name], tensor, rtol=1e-7, atol=1e-7)
    assert run.metadata["topic_shares"] == pytest.approx(result.topic_shares.tolist(), rel=1e-6)


@pytest.fixture
def second(monkeypatch):
    """This process is the second of two, as a launcher says."""
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_the_rank_is_read_from_the_launchers_variables(monkeypatch, second):
    assert launch.launched_rank() == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launch.launched_rank() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_PORT")
    assert launch.launched_rank() is None


@pytest.mark.slow
def test_other_commands_refuse_several_processes(run_folder, second, capsys):
    capsys.readouterr()
    assert main(["topics", run_folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: this command runs in one process; start it by torch-lntm\n"


def test_only_the_first_process_prints(second, monkeypatch, capsys):
    """A stand-in for a process group: an error that is known to be everyone's."""

    def failing(known):
        print("a result")
        print("a message", file=sys.stderr)
        error = lntm.errors.CorpusError("no such corpus")
        error.shared = known
        raise error

    start = "torch_lntm.cli.documents.Computation.start"
    failure = "error: no such corpus\n"
    for rank, known, out, err in (
        ("1", False, "", failure),
        ("1", True, "", ""),
        ("0", True, "a result\n", f"a message\n{failure}"),
    ):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(start, staticmethod(functools.partial(failing, known)))
        assert main(["fit", "counts.npz"]) == 1
        assert capsys.readouterr() == (out, err)
