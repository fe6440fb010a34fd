"""The wheel alone, outside of the repository: the first lines of the README, and commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.markdown import code_of

REPOSITORY = Path(__file__).resolve().parent.parent
#: Files beside the package from which setuptools builds the wheel.
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
#: Python that finds the unpacked wheel before the repository, and no gensim.
ALONE = (
    "import runpy, sys; wheel, script = sys.argv[1:3]; sys.path.insert(0, wheel); "
    "sys.modules['gensim'] = None; sys.argv = sys.argv[2:]; "
    "import torch_lntm; assert torch_lntm.__file__.startswith(wheel); "
    "runpy.run_path(script, run_name='__main__') if script.endswith('.py') "
    "else sys.exit(__import__('torch_lntm.cli', fromlist=['main']).main(sys.argv))"
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel, built from a copy of the sources."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY / "torch_lntm", source / "torch_lntm", ignore=ignored)
    for name in SOURCES:
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, source / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-W", "ignore", "-c", build, str(place)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (archive,) = place.glob("*.whl")
    with zipfile.ZipFile(archive) as file:
        file.extractall(place / "unpacked")
    return place / "unpacked"


def run_alone(wheel: Path, folder: Path, *arguments: str) -> str:
    """Output of a script, or of a command of ``torch-lntm``, with the wheel alone."""
    command = [sys.executable, "-c", ALONE, str(wheel), *arguments]
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_first_lines_of_the_readme_run(wheel: Path, tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(code_of("../README.md").partition("\nimport torch_lntm")[0])
    printed = run_alone(wheel, tmp_path, str(script))
    assert re.search(r"^topic \d: [\d.]+ to [\d.]+$", printed, re.MULTILINE)


def test_the_commands_work_from_the_wheel_without_gensim(wheel: Path, tmp_path: Path) -> None:
    fit = ("fit", "example", "--num-topics", "6", "--out", "run", "--no-progress")
    assert "completion perplexity" in run_alone(wheel, tmp_path, *fit, "--max-iterations", "2")
    run_alone(wheel, tmp_path, "report", "run", "--no-progress")
    assert "<blockquote" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
