"""Options and configuration files, and what is said about wrong ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from support.commands import tensors

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.cli.command import COMMANDS, headed
from torch_lntm.cli.values import read_value
from torch_lntm.options import kinds_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.slow
def test_the_command_line_overrides_the_configuration_file(counts):
    options = {"corpus": counts, "num_topics": 5, "anchored": True, "max_iterations": 1}
    Path("config.yaml").write_text(yaml.safe_dump(options))
    assert main(["fit", "--config", "config.yaml", "--out", "run", "--num-topics", "4"]) == 0
    run = lntm.load_run("run")
    assert run.model.num_topics == 4
    assert run.config["anchored"] is True
    lntm.read_corpus(counts)[:20].save("half")
    other = ["half", "--no-anchored", "--config=config.yaml", "--out", "other"]
    assert main(["fit", *other]) == 0
    run = lntm.load_run("other")
    assert run.config["anchored"] is False
    assert run.metadata["corpus"]["num_docs"] == 20


@pytest.mark.slow
def test_the_configuration_of_a_run_reproduces_the_run(run_folder):
    assert main(["fit", "--config", f"{run_folder}/config.json", "--out", "again"]) == 0
    for name, tensor in tensors("again").items():
        assert torch.equal(tensor, tensors("run")[name])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("num_topic: 3", "unknown option 'num_topic'; did you mean num_topics?"),
        ("num_topics: 5\nseed: 1\nnum_topics: 7", "'num_topics' stands on line 1 and on line 3"),
        ("model_options: {a: 1, a: 2}", "'a' stands on line 1 and on line 1"),
        ("plugin: os", "unknown option 'plugin'"),
        ("source: cauchy", "source: expected 'gaussian', 'laplace'"),
        ("checkpoint_seconds: .nan", "checkpoint_seconds: expected float; got nan"),
        ("- a\n- b", "expected lines 'name: value', got a list"),
        ("a: [1", "not YAML"),
        ("corpus: 2001-13-01", "not YAML (ValueError: month must be in 1..12"),
        ('out: "a\\0b"', "out: expected str; got a"),
    ],
)
def test_a_wrong_configuration_is_explained(config, message, counts, capsys):
    Path("config.yaml").write_text(config)
    with pytest.raises(SystemExit) as stop:
        main(["fit", counts, "--config", "config.yaml"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: config.yaml: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit x.npz --num-topcs 3", "did you mean --num-topics?"),
        ("fit x.npz --num_topics x", "argument --num-topics: expected int; got x"),
        ("fit x.npz --checkpoint-seconds nan", "--checkpoint-seconds: expected float; got nan"),
        ("fit", "CORPUS not given"),
        ("fit x.npz --source cauchy", "--source: expected 'gaussian', 'laplace'; got cauchy"),
        ("fit x.yaml", "x.yaml: is a configuration file; did you mean --config x.yaml?"),
        ("fit x.npz y.npz", "unrecognized arguments: y.npz"),
        ("fit --config none.yaml", "none.yaml: no such file"),
        ("transform run x.npz", "--out not given"),
        ("fti x.npz", "no command 'fti'; did you mean fit?"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("error: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("quickstart", "ctm"), ("iftm", "iftm"), ("aspect", "lda")]
)
def test_the_recommended_configurations_are_valid(name, kind):
    quick = ["--max-iterations", "0", "--start-epochs", "1", "--out", "run", "--no-progress"]
    assert main(["fit", "--config", str(CONFIGS / f"{name}.yaml"), *quick]) == 0
    assert lntm.load_run("run").model.name == kind


def test_help_and_version(capsys):
    for arguments in (["--help"], ["fit", "--help"], ["evaluate", "-h"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--num-topics NUM_TOPICS" in out
    assert "(default: 50)" in out
    assert out.endswith(f"torch-lntm {lntm.__version__}\n")


def test_every_option_has_help_and_a_single_heading():
    for command in COMMANDS.values():
        options = [option for group in headed(command).values() for option in group.values()]
        assert len(options) == len({option.name for option in options})
        assert all(option.help and "`" not in option.help for option in options)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_streams_give_no_traceback(run_folder, monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    assert main(["topics", run_folder]) == 0
    assert main(["transform", run_folder, "counts.npz", "--out", "x.csv"]) == 0


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int | float | None, "3", 3),
        (int | float | None, "0.5", 0.5),
        (float, 3, 3.0),
        (int | None, "null", None),
        (str | None, "null", "null"),
        (bool | None, "false", False),
        (Literal["a", "b"] | None, "b", "b"),
        (dict[str, Any] | None, '{"a": [1]}', {"a": [1]}),
    ],
)
def test_values_have_the_types_of_their_options(hint, text, value):
    found = read_value(kinds_of(hint), text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [(int, True), (int, 2.0), (int, "2.0"), (int, 2**63), (float, "a"), (bool | None, "maybe")],
)
def test_values_of_wrong_types_are_refused(hint, value):
    with pytest.raises(argparse.ArgumentTypeError, match=f"expected .*; got {value}"):
        read_value(kinds_of(hint), value)
