"""Errors are reported in one line."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import QUICK

import torch_lntm as lntm
from torch_lntm.cli import Computation, main
from torch_lntm.kernels import threads


@pytest.fixture
def two_cores(monkeypatch):
    """Two cores for compiled kernels, which use both for any work."""
    monkeypatch.setattr(threads, "_cores", lambda physical=False: 2)
    monkeypatch.setattr(threads, "_torch_threads", lambda: 2)
    monkeypatch.setattr(threads, "LEAST_EFFORT", 1)
    before, chosen = torch.get_num_threads(), threads._chosen
    yield
    torch.set_num_threads(before)
    threads._chosen = chosen


def test_commands_use_all_cores_by_default_but_one_thread_of_torch(two_cores):
    for options, kernels, of_torch in (({"threads": 1}, 1, 1), ({}, 2, 1), ({"threads": 2}, 2, 2)):
        Computation(**options).start()
        assert (threads.num_threads(), torch.get_num_threads()) == (kernels, of_torch)


@pytest.mark.slow
def test_fits_with_any_number_of_threads_write_the_same_files(two_cores, numba, counts, capsys):
    fit = ["fit", counts, "--num-topics", "3", "--max-epochs", "3", "--warmup-epochs", "1"]
    for number in "12":
        assert main([*fit, "--no-progress", "--threads", number, "--out", number]) == 0
    for name in ("model.safetensors", "evaluation.json", "split.npz"):
        assert Path("1", name).read_bytes() == Path("2", name).read_bytes()
    runs = [lntm.load_run(number) for number in "12"]
    latents = [run.chains().latents["eta"].nan_to_num() for run in runs]
    assert torch.equal(*latents)
    objectives = [[record["objective"] for record in run.history] for run in runs]
    assert objectives[0] == objectives[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit none.npz", "none.npz: no such file or folder"),
        ("fit counts.npz --num-topics 0", "num_topics is 0; expected at least 1"),
        ("fit counts.npz --min-df 3", "min_df cannot be used with counts"),
        ("fit one.txt", "test_fraction: a split needs at least 2 documents"),
        ("fit counts.npz --num-sources 3", "num_sources is an option of iftm; leave it out"),
        ("fit counts.npz --model lda --posterior taylor", "TaylorGuide needs a normal prior"),
        ("fit counts.npz --posterior em", "posterior is 'em'; expected one of "),
        ("topics none", "none is no folder of a model or run"),
        ("topics .", ". is no folder of a model or run"),
        ("names run 7=politics", "to name topics, pass --set"),
        ("fit counts.npz --out one.txt/run", "one.txt/run.partial: cannot be written ("),
        ("transform none counts.npz --out x.npz", "ends in .csv, or -"),
        ("evaluate none counts.npz --metrics coherance", "metrics: 'coherance'"),
    ],
)
def test_errors_are_one_line(arguments, message, counts, capsys):
    Path("one.txt").write_text("a single document")
    assert main([*arguments.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not list(Path().glob("**/*.partial"))


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (lambda *_, **o: torch.empty(2**50, dtype=torch.float64), "9007199254740992 bytes"),
        (lambda *_, **o: np.zeros(2**48), "not enough memory (Unable to allocate 2.00 PiB"),
        (lambda *_, **o: Path("none").read_text(), "error: none: No such file or directory"),
    ],
)
def test_shortages_and_errors_of_the_system_are_one_line(
    counts, fail, message, monkeypatch, capsys
):
    monkeypatch.setattr(lntm.inference.VariationalEM, "fit", fail)
    assert main(["fit", counts, "--out", "run", *QUICK]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not Path("run").exists()

    def mistake(*_, **options):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(lntm.inference.VariationalEM, "fit", mistake)
    with pytest.raises(RuntimeError, match="a mistake"):  # of the library itself
        main(["fit", counts, "--out", "run", *QUICK])


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_output_in_any_encoding_is_printed(run_folder, encoding):
    lntm.io.write_topic_names(run_folder, {0: "čáp – bee"})
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(stream):
        assert main(["topics", "run"]) == 0
    stream.flush()
    printed = stream.buffer.getvalue().decode(encoding)
    name = {"ascii": r"\u010d\xe1p \u2013 bee", "cp1252": r"\u010dáp – bee"}
    assert name.get(encoding, "čáp – bee") in printed


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", b"caf\xe9 wood", "", "encoding"),
        ("a.txt", b"wood", "--stop-words german", "is 'german'; expected english, none, or a file"),
        ("a.csv", b"body,n\nwood,2\n", "", "text_field"),
        ("a.zzz", b"wood", "", "format"),
        ("a.csv", b"text,x\nwood,1\nwood,\n", "--model stm --prevalence ~x", "lacks a value in"),
    ],
)
def test_messages_name_the_option(name, content, options, message, capsys):
    Path(name).write_bytes(content)
    assert main(["fit", name, *options.split()]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_control_characters_of_words_and_names_are_escaped(capsys):
    Path("v.ldac").write_text("2 0:3 1:2\n1 1:4\n2 0:1 1:1\n")
    Path("v.vocab.txt").write_text("wo\x1b[31mod\nst\x9bone\n")
    Path("h.csv").write_text("a,b\x1b]0;title\x07\nx,wood\n")
    assert main(["fit", "v.ldac", "--out", "run", "--num-topics", "1", *QUICK[:1]]) == 0
    assert main(["topics", "run"]) == 0
    assert main(["fit", "h.csv"]) == 1
    with pytest.raises(SystemExit):
        main(["fit", "h.csv", "--source", "a\x1b[31m"])
    out, err = capsys.readouterr()
    assert not set("\x1b\x9b\x07") & {*out, *err}
    assert "wo\\x1b[31mod" in out
    assert "b\\x1b]0;title\\x07" in err
