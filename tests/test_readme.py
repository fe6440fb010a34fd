"""Every block of the README runs as it stands, but for the sizes that a test cannot afford."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest

from torch_lntm.cli import main

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]
OUTPUT = [code for language, code in BLOCKS if language == "text"]
#: Replacements that make a block short enough for a test, by the start of the block.
SHORTER = {
    "import torch_lntm as lntm\n\nposts": {"stm(20,": "stm(4,"},
    "from sklearn": {"random_state=0": "random_state=0, max_iter=4"},
    "import pyro": {
        "num_samples=500": "num_samples=2, warmup_steps=2",
        "num_samples=20": "num_samples=2, warmup_steps=2",
    },
    "torch-lntm fit lee": {"fit lee --num-topics 10": "fit lee --num-topics 4 --max-epochs 4"},
    "torch-lntm fit posts.csv": {"--num-topics 20": "--num-topics 4 --max-epochs 4"},
}


def shortened(code: str, used: set[str]) -> str:
    """A block that a test can afford; what it replaces must be there."""
    for begin, replacements in SHORTER.items():
        if code.startswith(begin):
            used.add(begin)
            for long, short in replacements.items():
                assert long in code, f"the README has no {long!r} in the block {begin!r}"
                code = code.replace(long, short)
    return code


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README takes for granted, which is where blocks run."""
    rng = np.random.default_rng(0)
    words = ["tax", "war", "vote", "poll", "court", "oil"]
    rows = ["text,party,date"]
    for d in range(60):
        day = np.datetime64("2004-01-01") + rng.integers(0, 360)
        text = " ".join(rng.choice(words, 20, p=rng.dirichlet(np.ones(6))))
        rows.append(f"{text},{('Conservative', 'Liberal')[d % 2]},{day}")
    (tmp_path / "posts.csv").write_text("\n".join(rows))
    (tmp_path / "new.jsonl").write_text('{"text": "fires burn near Sydney homes"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.search(r"@@|TODO|FIXME", README)
    assert {language for language, _ in BLOCKS} == {"python", "sh", "text"}
    assert not re.search(r"^(    |\t)(torch-lntm|make|python|import) ", README, re.MULTILINE)


def test_every_replacement_has_its_block() -> None:
    used: set[str] = set()
    for _, code in BLOCKS:
        shortened(code, used)
    assert used == set(SHORTER)


@pytest.mark.long
@pytest.mark.parametrize("block", PYTHON, ids=lambda code: code.split("\n")[0])
def test_a_python_block_runs_alone(
    block: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib.pyplot as plt

    with warnings.catch_warnings():
        # Short chains warn that they are short, and small corpora that they are small.
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(shortened(block, set()), "README.md", "exec"), {})
    plt.close("all")
    if block == PYTHON[0]:
        # Machines round differently. The themes stay, and the new text is about two of them.
        (shown,), printed = OUTPUT, capsys.readouterr().out
        for text in (shown, printed):
            assert re.search(r"topic +share +top words", text)
            for word in ("plants", "telescope", "harbour", "butter", "team", "orchestra"):
                assert len(re.findall(rf"^ +\d +[\d.]+% .*\b{word}\b", text, re.MULTILINE)) == 1
            first, second, third = re.findall(r"topic (\d): ([\d.]+) to ([\d.]+)", text)
            topics = {
                re.search(rf"^ +(\d) .*\b{word}\b", text, re.MULTILINE)[1]  # type: ignore[index]
                for word in ("harbour", "butter")
            }
            assert {first[0], second[0]} == topics
            assert min(float(first[2]), float(second[2])) > 0.5 > float(third[2])


@pytest.mark.long
@pytest.mark.parametrize("block", SHELL[1:], ids=lambda code: code.split("\n")[0])
def test_a_block_of_commands_runs(
    block: str, files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in shortened(block, set()).splitlines():
        echo, _, command = line.rpartition(" | ")
        name, *arguments = shlex.split(command, comments=True)
        assert name == "torch-lntm"
        said = "".join(f"{text}\n" for text in shlex.split(echo)[1:])
        with warnings.catch_warnings(), io.TextIOWrapper(io.BytesIO(said.encode())) as stdin:
            warnings.simplefilter("ignore", UserWarning)
            monkeypatch.setattr("sys.stdin", stdin)
            assert main(arguments) in (0, None), (line, capfd.readouterr())


@pytest.mark.parametrize("line", SHELL[0].splitlines())
def test_a_command_of_make_is_there(line: str) -> None:
    command = shlex.split(line, comments=True)
    assert command[0] == "make"
    subprocess.run([*command, "-n"], cwd=REPOSITORY, check=True, capture_output=True)
