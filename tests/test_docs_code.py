"""Commands and Python code of the documentation work."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.markdown import DOCS, code_of, run_page

import torch_lntm as lntm
from torch_lntm.cli.main import parse

ROOT = DOCS.parent
STUDIES = ROOT / "studies" / "pages"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(STUDIES.glob("*.md"))]
#: A command on a line of its own, perhaps after a pipe or a launcher.
_COMMAND = re.compile(r"^(?:[^`\n]* )?(?:torch-lntm|-m torch_lntm) +(\w[^`\n|]*)$", re.MULTILINE)
#: Code of pages that takes too long for a test, and its replacement.
SHORTER: dict[str, dict[str, str]] = {
    "choosing.md": {
        "ctm(50,": "ctm(3,",
        "MonteCarloEM(model)": "MonteCarloEM(model, max_epochs=2)",
    },
    "from_bertopic.md": {"max_epochs=60": "max_epochs=10", "(1, 2, 3)": "(1, 2)"},
    "structural.md": {
        "stm(20,": "stm(3,",
        "num_permutations=99": "num_permutations=1, num_draws=2",
        "[10, 20, 50], num_seeds=3": "[2, 3], num_seeds=1",
        "DocumentHMC(model), corpus)": "DocumentHMC(model), corpus, 2, warmup_steps=5)",
        "joint_draws(model, corpus)": "joint_draws(model, corpus, num_draws=2, warmup_steps=5)",
        "topics=[3]": "topics=[1]",
    },
}
#: Pages of which it is enough that they run, and the libraries that they need.
RUNNING = {
    "from_bertopic.md": [],
    "reproducibility.md": [],
    "other_languages.md": ["simplemma", "stopwordsiso"],
    "single_cells.md": [],
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Pages run in a folder of their own, and their figures are closed."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


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


@pytest.mark.long
@pytest.mark.parametrize("name", RUNNING)
def test_every_block_of_a_page_runs(name: str) -> None:
    for module in RUNNING[name]:
        pytest.importorskip(module)
    assert "lntm" in run_page(name, SHORTER.get(name, {}))


@pytest.mark.long
def test_the_page_on_structural_models_runs(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    words = ["tax", "war", "vote", "poll", "court", "oil"]
    rows = ["text,party,date,blog"]
    for d in range(50):
        party = ("Conservative", "Liberal")[d % 2]
        day = np.datetime64("2004-01-01") + rng.integers(0, 360)
        weights = rng.dirichlet(np.ones(6))
        rows.append(f"{' '.join(rng.choice(words, 20, p=weights))},{party},{day},{d % 9}")
    (own_folder / "posts.csv").write_text("\n".join(rows))
    names = run_page("structural.md", SHORTER["structural.md"])
    assert "party[T.Liberal]" in capsys.readouterr().out
    assert isinstance(names["selection"], lntm.selection.Selection)


@pytest.mark.long
def test_the_page_on_choosing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("choosing.md", SHORTER["choosing.md"], lntm=lntm, corpus=lntm.example_corpus())
    assert capsys.readouterr().out.count("perplexity") == 2
    assert names["capped"].counts.max() <= 3


@pytest.mark.long
def test_the_page_on_time_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("time.md")
    assert "['stream'" in capsys.readouterr().out
    lower, upper, probs = (names[name].numpy() for name in ("lower", "upper", "probs"))
    assert (lower < probs).all()
    assert (probs < upper).all()
    assert probs[0, 0] > 5 * probs[-1, 0]


@pytest.mark.long
def test_the_pages_on_keywords_and_names_run(own_folder: Path) -> None:
    names = run_page("keywords.md")
    assert names["model"].topic_names[:3] == ("cricket", "afghanistan", "middle east")
    assert 0.03 < names["topic"].lower < names["topic"].mass
    named = run_page("names.md")["model"].topic_names
    assert all(name.startswith(("About ", "politics")) for name in named)
    assert "Groups of topics" in (own_folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_page_s_code_writes_a_csv_and_calls_mlflow(monkeypatch):
    logged: list[dict[str, float]] = []
    tracker = ModuleType("mlflow")
    tracker.start_run = nullcontext
    tracker.log_metrics = logged.append
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    exec("import torch_lntm" + code_of("plugins.md").partition("\nimport torch_lntm")[2], {})
    with open(Path("fit.csv"), newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == len(logged) > 5
    assert [float(row[2]) for row in rows] == [entry["objective"] for entry in logged]


#: Replacements of slow code of the page on scikit-learn.
QUICKER = {
    "(n_components=10, random_state=0)": "(n_components=10, random_state=0, max_iter=10)",
    "CorrelatedTopicModel(random_state=0)": "CorrelatedTopicModel(random_state=0, max_iter=20)",
    "cv=3": "cv=2",
    "vocabulary=vectorizer, random_state=0": "vocabulary=vectorizer, random_state=0, max_iter=20",
}


@pytest.mark.long
def test_the_page_on_scikit_learn_finds_two_topics():
    rng, labels = np.random.default_rng(0), [0, 1] * 60
    words = [[f"word{v}" for v in range(8 * label, 8 * label + 8)] for label in (0, 1)]
    texts = [" ".join(rng.choice(words[label], 12)) for label in labels]
    found = run_page("scikit_learn.md", QUICKER, texts=texts, labels=labels)
    assert found["best"].n_components == 2
    assert found["theta"].shape == (300, 10)
    np.testing.assert_allclose(found["again"].transform(found["X"]).sum(1), 1.0, rtol=1e-5)
