"""The cheat sheet: its code runs, its names exist, and llms.txt holds it."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

import pytest

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.cli.cheatsheet import TASKS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_sheet_is_short_and_has_every_name() -> None:
    sheet = lntm.guide()
    assert repr(sheet) == str(sheet)
    assert len(sheet.splitlines()) <= 120
    names = re.findall(r"^> (.+)$", "\n".join(map(textwrap.dedent, TASKS.values())), re.MULTILINE)
    for name in " ".join(names).split():
        assert len(re.findall(rf"^  {name}\(\w*.*", sheet, re.MULTILINE)) == 1, name
    assert "  select(corpus, num_topics, *, recipe='ctm'," in sheet
    assert "  load_run(path, corpus=None): Read a fit from its folder, written by save_run" in sheet


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.LNTMWarning")
def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.sub(r"^ +.*$", "", lntm.guide(), flags=re.MULTILINE)
    assert code.count("MonteCarloEM(model)") == code.count(" + season") == 1
    code = code.replace("EM(model)", "EM(model, max_epochs=3)")
    code = code.replace(' + season"', ' + season", num_draws=20, warmup_steps=20')
    names: dict[str, object] = {}
    exec(code, names)
    assert {"effects", "book", "mine"} <= names.keys()


def test_llms_txt_is_what_the_code_makes() -> None:
    page = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "llms.py"))["text"](), "run python docs/llms.py"
    links = re.findall(r"^- \[.+\]\((.+)\)$", page, re.MULTILINE)
    assert len(links) > 30
    assert all((DOCS / link).exists() for link in links)


def test_the_program_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guide"]) == 0
    assert capsys.readouterr().out == lntm.guide()
