"""Commands and Python code of the documentation work."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.markdown import DOCS, code_of

import torch_lntm as lntm
from torch_lntm.cli.main import parse

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
#: A command on a line of its own, perhaps after a pipe or a launcher.
_COMMAND = re.compile(r"^(?:[^`\n]* )?(?:torch-lntm|-m torch_lntm) +(\w[^`\n|]*)$", re.MULTILINE)
#: Replacements of slow code.
SHORTER = {"ctm(50,": "ctm(3,", "MonteCarloEM(model)": "MonteCarloEM(model, max_epochs=2)"}


def commands(text: str) -> list[list[str]]:
    """Arguments of every command on a line of its own."""
    lines = _COMMAND.findall(text.replace("\\\n", " "))
    # Plug-ins and configuration files belong to the reader.
    return [
        shlex.split(line, comments=True)
        for line in lines
        if "--config" not in line and "--plugin" not in line
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_accepts_every_command_of_the_docs(page: Path) -> None:
    for arguments in commands(page.read_text(encoding="utf-8")):
        parse(arguments)


def test_the_docs_have_commands() -> None:
    assert sum(len(commands(page.read_text(encoding="utf-8"))) for page in PAGES) > 25


@pytest.mark.slow
def test_the_page_on_choosing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of("choosing.md")
    for long, short in SHORTER.items():
        assert long in code
        code = code.replace(long, short)
    names: dict[str, Any] = {"lntm": lntm, "corpus": lntm.example_corpus()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.LNTMWarning)
        exec(compile(code, "choosing.md", "exec"), names)
    assert capsys.readouterr().out.count("perplexity") == 2
    assert names["capped"].counts.max() <= 3


@pytest.mark.slow
def test_the_page_on_time_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code_of("time.md"), "time.md", "exec"), names)
    assert "['stream'" in capsys.readouterr().out
    assert names["theta"].shape == (20, 2)
    lower, upper, probs = (names[name].numpy() for name in ("lower", "upper", "probs"))
    assert (lower < probs).all()
    assert (probs < upper).all()
    assert probs[0, 0] > 5 * probs[-1, 0]
    assert float(names["topics"].drift()[names["old"], -1]) > 0.2
    labels = lntm.plotting.path_plot(names["model"], names["old"]).get_legend().get_texts()
    assert {"tape", "stream"} == {text.get_text() for text in labels[:2]}
    with pytest.raises(lntm.errors.ConfigError, match="do not move with time"):
        lntm.plotting.path_plot(names["future"], 0)


@pytest.mark.slow
def test_the_page_on_keywords_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(code_of("keywords.md"), "keywords.md", "exec"), names)
    model = names["model"]
    assert model.topic_names[:3] == ("cricket", "afghanistan", "middle east")
    assert "cricket" in capsys.readouterr().out
    assert names["theta"].shape == (5, 10)
    assert 0.03 < names["topic"].lower < names["topic"].mass


@pytest.mark.slow
def test_the_page_on_names_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code_of("names.md"), "names.md", "exec"), names)
    model, out = names["model"], capsys.readouterr().out
    assert "politics" in out
    assert "first  early − late" in out
    assert names["theta"].shape == (300, 2)
    assert all(name.startswith(("About ", "politics")) for name in model.topic_names)
    assert "Groups of topics" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert names["stability"].by_seed.shape == (2, 10)
