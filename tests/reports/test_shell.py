"""Names, groups and stability of a run's topics serve the other commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.recipes import Recipe


@pytest.mark.slow
def test_names_groups_and_stability_serve_other_commands(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)

    def printed(*arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    quick = ["--num-topics", "4", "--posterior", "taylor", "--max-iterations", "2"]
    printed("fit", "example", "--out", "run", "--test-fraction", "0.2", *quick)
    before = lntm.load_run("run").model.state_dict()
    program = "import sys; print('Name', len(sys.stdin.read().split('1. ')[0]) % 97)"
    Path("ask.py").write_text(program)
    printed("names", "run", "--set", "1=mine")
    printed("names", "run", "--ask", f"{sys.executable} ask.py")
    run = lntm.load_run("run")
    first, second, third, _ = run.model.topic_names
    assert (first[:5], second, third[:5]) == ("Name ", "mine", "Name ")
    assert all(torch.equal(before[name], x) for name, x in run.model.state_dict().items())
    printed("tree", "run", "--levels", "3,2", "--out", "groups.json", "--figure", "tree.png")
    groups = json.loads(Path("groups.json").read_text())
    assert Path("tree.png").stat().st_size > 1000
    assert all(name in printed("topics", "run", "--groups", "groups.json") for name in groups)
    shares = printed("transform", "run", "example", "--out", "-", "--groups", "groups.json")
    head = shares.partition("\n")[0].split(",")
    assert {name for name, topics in groups.items() if len(topics) > 1} <= set(head)
    options = ["--source", "guide", "--num-draws", "3"]
    of_groups = ["--formula", "~ season", "--groups", "a=0,mine; b=2"]
    assert "\nb     season[T.winter]" in printed("effects", "run", *of_groups, *options)
    printed_as = ["--num-fits", "1", "--print-as", "json"]
    made, make = [], Recipe.make

    def spy(*arguments, **settings):
        made.append(settings["options"])
        return make(*arguments, **settings)

    monkeypatch.setattr(Recipe, "make", spy)
    assert len(json.loads(printed("stability", "run", *printed_as))) == 4
    assert {options["max_iterations"] for options in made} == {2}
    printed("report", "run", "--levels", "3,2", "--stability", "1", *options)
    page = Path("run/report.html").read_text()
    for told in (">mine<", "Groups of topics", "Stability of the topics"):
        assert told in page
    assert main(["names", "run", "--clear", "--ask", "no-such-program"]) == 1
    assert "'no-such-program' failed" in capsys.readouterr().err
