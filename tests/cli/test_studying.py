"""``torch-lntm effects`` and ``select``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from torch_lntm.cli import main
from torch_lntm.effects import logit


@pytest.fixture
def posts(workplace):
    """Texts of two parties, whose words differ."""
    rng = np.random.default_rng(0)
    words = {"Left": ["tax", "care", "union", "wage"], "Right": ["border", "army", "trade", "debt"]}
    rows = ["text,party,blog"]
    for d in range(60):
        party = ("Left", "Right")[d % 2]
        other = words["Right" if party == "Left" else "Left"]
        text = [*rng.choice(words[party], 12), *rng.choice(other, 4)]
        rows.append(f"{' '.join(text)},{party},{d % 7}")
    Path("posts.csv").write_text("\n".join(rows))
    return "posts.csv"


@pytest.fixture
def run(posts):
    model = ("--model", "stm", "--prevalence", "~ party", "--num-topics", "2")
    brief = ("--max-epochs", "12", "--no-progress")
    assert main(["fit", posts, *model, "--out", "run", *brief]) == 0
    return "run"


@pytest.mark.filterwarnings("default:formula .* separates", "default:Ctrl-C")
def test_ctrl_c_prints_the_effects_of_the_finished_draws(run, capsys, monkeypatch):
    move, draws = logit._Equations.move, iter(range(4))
    monkeypatch.setattr(
        logit._Equations, "move", lambda *of: move(*of) if next(draws) < 3 else signal_ctrl_c()
    )
    assert main(["effects", run, "--num-draws", "10", "--print-as", "json"]) == 130
    out, err = capsys.readouterr()
    assert "warning: Ctrl-C ended the regressions: the effects are those of 3 draws of 10" in err
    assert len(json.loads(out)) == 4


def signal_ctrl_c():
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.filterwarnings("default:formula .* separates")
def test_effects(run, capsys):
    capsys.readouterr()
    assert main(["effects", run, "--num-draws", "10"]) == 0
    out, err = capsys.readouterr()
    assert "party[T.Right]" in out
    assert (out + err).count("Effects('~ party', link='logit')") == 1
    assert main(["effects", run, "--print-as", "json", "--clusters", "blog", "--topics", "1"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    terms = [(row["topic"], row["term"]) for row in rows]
    assert terms == [(1, "Intercept"), (1, "party[T.Right]")]
    assert "of topic proportions in 60 documents" in err
    assert rows[1]["p_value"] < 0.01
    assert "7 clusters" in err
    assert main(["effects", run, "--strata", "party", "--weights", "blog"]) == 0
    assert "the regression (2 strata)" in capsys.readouterr().out
    predict = ("--predict", "party", "--figure", "party.png")
    assert main(["effects", run, "posts.csv", *predict, "--print-as", "csv"]) == 0
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["party"] for row in table] == ["Left", "Right"] * 2
    assert Path("party.png").read_bytes().startswith(b"\x89PNG")
    assert main(["effects", run, "--predict", "party"]) == 0
    assert "by chains of each document" in err
    head, *printed = capsys.readouterr().out.splitlines()
    assert head.split() == ["topic", "name", "party", "estimate", "std_error", "lower", "upper"]
    assert [line.split()[-5] for line in printed] == ["Left", "Right"] * 2
    assert main(["effects", run, "--source", "chains", "--num-draws", "3", "--no-progress"]) == 0
    assert "(Hamiltonian Monte Carlo), which continue the chains of the fit (3 draws)" in (
        capsys.readouterr().out
    )
    assert main(["effects", run, "--source", "joint", "--num-draws", "3", "--no-progress"]) == 0
    assert "the topics' words (3 draws)" in capsys.readouterr().out
    ratio = ("--outcome", "log(new / 1)", "--groups", "new=0", "--link", "identity")
    assert main(["effects", run, "--num-draws", "3", *ratio, "--print-as", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("log(new / 1),Intercept,")
    for options, message in (
        (("--predict", "party", "--figure", "x.nope"), "x.nope"),
        (("--topics", "a"), "the topics have no names"),
    ):
        assert main(["effects", run, *options]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_effects_refuse_wrong_predictions_before_the_draws(run, capsys, monkeypatch):
    monkeypatch.setattr("torch_lntm.cli.commands.source_of", None)
    capsys.readouterr()
    for options, message in (
        (("--by", "blog"), "figure and by need predictions; name their column by --predict"),
        (("--formula", "~ nothing"), "no column 'nothing'"),
        (("--predict", "party", "--by", "blgo"), "does not read the column 'blgo'"),
    ):
        assert main(["effects", run, *options]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
def test_outcomes(run, capsys):
    capsys.readouterr()
    brief = ("--num-draws", "6", "--warmup-steps", "2", "--no-progress", "--family", "poisson")
    ask = ["outcomes", run, "--formula", "blog ~ topics + party", *brief]
    assert main([*ask, "--per", "0.1", "--figure", "blog.png"]) == 0
    out = capsys.readouterr().out
    assert "party[T.Right]" in out
    assert out.count("draws='joint'") == 1
    assert Path("blog.png").read_bytes().startswith(b"\x89PNG")
    assert main([*ask, "--groups", "new=0", "--reference", "1", "--print-as", "csv"]) == 0
    printed = [row["term"] for row in csv.DictReader(capsys.readouterr().out.splitlines())]
    assert printed == ["topic 0", "new", "party[T.Right]"]


@pytest.mark.slow
def test_select(posts, capsys):
    options = ("--num-seeds", "1", "--no-progress", "--top-n", "3")
    stm = ("--model", "stm", "--prevalence", "~ party", "--content", "party")
    command = ["select", posts, "--num-topics", "2,3", *options, *stm, "--likelihood"]
    Path("v.txt").write_text("tax 1 2\ncare 2 1\n")
    command += ["--keywords", "a=tax,care", "--word-vectors", "v.txt"]
    assert main([*command, "--figure", "topics.png", "--print-as", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["num_topics"] for row in rows] == [2, 3]
    assert all(row["likelihood"] < 0 for row in rows)
    assert sum(row["recommended"] for row in rows) == 1
    assert Path("topics.png").exists()
    assert main(["select", posts, *options, "--model", "stm"]) == 1
    assert "needs prevalence" in capsys.readouterr().err
    assert main(["select", posts, *options, "--prevalence", "~ party"]) == 1
    assert "takes no prevalence" in capsys.readouterr().err
