"""``torch-lntm report``: a page on a run, with the texts of its corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import fit_quickly
from support.pages import Page

from torch_lntm.cli import main
from torch_lntm.inference.chains.chains import Chains

ROWS = [
    ("1", "the cat and the dog chase the mouse <i>", "left"),
    ("2", "stocks & bonds fall as banks fail", "right"),
    ("3", "a dog and a cat bark at the mouse", "left"),
    ("4", "banks buy bonds and sell stocks", "right"),
]


@pytest.fixture
def posts(workplace):
    lines = [f"{i},{text},{party},2001-0{i}-05" for i, text, party in ROWS]
    Path("posts.csv").write_text("\n".join(["id,text,party,date", *lines]))
    return "posts.csv"


@pytest.mark.slow
def test_report_of_a_run_quotes_its_texts(posts, capsys):
    fit_quickly(posts, "--num-topics", "2", "--test-fraction", "0.25")
    assert main(["report", "run", "--num-docs", "4", "--title", "Posts & parties"]) == 0
    assert "wrote run/report.html" in capsys.readouterr().err
    page = Page(Path("run/report.html").read_text(encoding="utf-8"))
    assert page.said("h1") == ["Posts & parties"]
    assert {ROWS[0][1], ROWS[1][1]} <= set(page.said("blockquote"))
    assert {"By party", "By date"} <= set(page.said("h3"))
    assert "completion perplexity" in page.said("td")
    settings = dict(zip(page.said("dt"), page.said("dd"), strict=True))
    assert settings["corpus"] == "posts.csv"
    assert settings["test_fraction"] == "0.25"
    assert "effects" not in [section.get("id") for section in page.all("section")]
    # Made again where it belongs; elsewhere only if asked.
    assert main(["report", "run", "--by", "party", "--num-docs", "0"]) == 0
    assert "By date" not in Path("run/report.html").read_text(encoding="utf-8")
    Path("mine.html").write_text("mine")
    assert main(["report", "run", "--out", "mine.html"]) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert Path("mine.html").read_text() == "mine"
    assert main(["report", "run", "--out", "mine.html", "--overwrite", "--by", ""]) == 0
    assert "By party" not in Path("mine.html").read_text(encoding="utf-8")
    survey = ("--weights", "id", "--strata", "party", "--effects", "~ party", "--num-docs", "0")
    assert main(["report", "run", *survey, "--num-draws", "3"]) == 0
    text = Path("run/report.html").read_text(encoding="utf-8")
    assert "a survey with weights id, 2 strata" in text
    assert "4 documents, weighted, on ~ party" in text
    assert main(["report", "run", "--by", "county"]) == 1
    assert "county" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*never moved", "ignore:chains accepted")
def test_the_report_of_a_fit_by_chains_uses_chains_once(posts, monkeypatch):
    hmc = ("--posterior", "hmc", "--max-epochs", "13", "--no-progress", "--num-topics", "2")
    assert main(["fit", posts, "--out", "run", *hmc]) == 0
    init, batches = Chains.__init__, []

    def counted(self, model, settings, batch, *args, **options):
        batches.append(batch.num_docs)
        init(self, model, settings, batch, *args, **options)

    monkeypatch.setattr(Chains, "__init__", counted)
    report = ["report", "run", "--effects", "~ party", "--num-docs", "0", "--num-draws", "3"]
    assert main([*report, "--no-progress"]) == 0
    assert sum(batches) == len(ROWS)  # the page and its effects take the same draws
    page = Page(Path("run/report.html").read_text(encoding="utf-8"))
    settings = dict(zip(page.said("dt"), page.said("dd"), strict=True))
    used = settings["documents' posteriors on this page"]
    assert used.startswith("chains of each document (Hamiltonian Monte Carlo), which continue")


@pytest.mark.slow
def test_report_on_counts_and_on_texts(counts, texts, capsys):
    fit_quickly(counts, "--test-fraction", "0")
    assert main(["report", "run"]) == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Most frequent words" in page
    assert "<blockquote" not in page
    assert 'id="scores"' not in page
    fit_quickly(texts, out="other")
    assert main(["report", "other"]) == 0
    assert "<blockquote" in Path("other/report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report", "run", "--out", ".", "--overwrite"]) == 1
    assert "is a folder; name a file" in capsys.readouterr().err
