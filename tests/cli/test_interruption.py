"""Fits that are interrupted or killed, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.commands import QUICK, tensors

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.inference.em.variational import VariationalRun

ENDLESS = ("--num-topics", "3", "--tolerance", "0", "--no-progress", "--checkpoint-seconds", "0")


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "torch_lntm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell makes its background jobs ignore Ctrl-C, and their children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.long
def test_ctrl_c_saves_the_best_iteration_so_far(counts, capsys):
    process = start("fit", counts, "--out", "run", *ENDLESS, "--max-iterations", "1000000")
    wait_for(Path("run.partial/checkpoint.safetensors"), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: saved the best so far" in err
    assert "Traceback" not in err
    assert out == ""
    run = lntm.load_run("run")
    assert run.metadata["stop_reason"] == "interrupted"
    assert run.history
    assert not Path("run.partial").exists()
    assert main(["fit", counts, "--out", "run", *ENDLESS]) == 1
    assert "run: exists already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["select counts.npz --num-topics 2,3", "stability run"])
def test_sigterm_ends_commands_of_many_fits_as_a_fit(run_folder, command, monkeypatch, capsys):
    steps = VariationalRun.steps

    def stopped(self):
        for number, record in enumerate(steps(self)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield record

    monkeypatch.setattr(VariationalRun, "steps", stopped)
    select = ["--posterior", "taylor"] if command.startswith("select") else []
    assert main([*command.split(), *select, "--no-progress"]) == 143
    assert capsys.readouterr().err.splitlines()[-1] == "terminated"


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_fit_continues_to_the_same_result(counts, sent, capsys):
    torch.set_num_threads(1)
    fit = ["fit", counts, *ENDLESS, "--max-iterations", "150"]
    assert main([*fit, "--out", "whole"]) == 0
    process = start(*fit, "--out", "run")
    wait_for(Path("run.partial/checkpoint.safetensors"), process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    if sent == signal.SIGTERM:
        assert process.returncode == 143
        assert "terminated: saved the checkpoint run.partial/checkpoint.safetensors" in err
    assert not Path("run").exists()
    assert main([*fit, "--seed", "1", "--out", "run"]) == 1
    assert "unfinished fit of another configuration (seed is 1, was 0)" in capsys.readouterr().err
    assert main([*fit, "--out", "run"]) == 0
    assert "continuing the unfinished fit of run.partial" in capsys.readouterr().err
    assert not Path("run.partial").exists()
    for name, tensor in tensors("whole").items():
        assert torch.equal(tensor, tensors("run")[name])
    whole, run = lntm.load_run("whole"), lntm.load_run("run")
    assert [h["objective"] for h in run.history] == [h["objective"] for h in whole.history]
    assert run.metadata["topic_shares"] == whole.metadata["topic_shares"]


@pytest.mark.slow
def test_the_default_folder_continues_too(counts, capsys, monkeypatch):
    def killed(*arguments, **options):
        raise SystemError("killed")

    fit = ["fit", counts, *QUICK, "--checkpoint-seconds", "0"]
    with monkeypatch.context() as patch:
        patch.setattr("torch_lntm.io.runs.save_run", killed)
        with pytest.raises(SystemError):
            main(fit)
    assert main(fit) == 0
    partial = Path("runs", "counts.partial")
    assert f"continuing the unfinished fit of {partial}" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["counts"]
    assert main([*fit, "--seed", "1"]) == 1
    assert "runs/counts: exists already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), lntm.NumericalError("no numbers")])
def test_a_fit_is_saved_even_if_scoring_fails(counts, error, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise error

    fit = ["fit", counts, "--out", "run", *QUICK]
    with monkeypatch.context() as patch:
        patch.setattr(lntm.reports.scores, "document_completion", fail)
        assert main(fit) in (1, 130)
    said = "saved without scores, which torch-lntm evaluate makes" in capsys.readouterr().err
    assert said == isinstance(error, KeyboardInterrupt)
    assert lntm.load_run("run").metadata["stop_reason"]
    assert not Path("run/evaluation.json").exists()
    assert not Path("run.partial").exists()
    assert main(["evaluate", "run", "--metrics", "completion", "--theta", "mode"]) == 0
    assert "completion perplexity" in capsys.readouterr().out


@pytest.mark.long
def test_a_closed_output_pipe_leaves_a_complete_run(counts):
    pytest.importorskip("fcntl")
    with start("fit", counts, "--out", "run", *QUICK) as process:
        process.stdout.close()
        process.stderr.read()
    assert process.returncode == 141
    assert lntm.load_run("run").history
    assert Path("run/evaluation.json").exists()
