"""The wheel alone, outside of the repository and without gensim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
#: Files beside the package from which setuptools builds the wheel.
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
#: A command by an unpacked wheel, which Python finds before the repository.
ALONE = (
    "import sys; wheel = sys.argv.pop(1); sys.path.insert(0, wheel); sys.modules['gensim'] = None; "
    "import torch_lntm.cli; assert torch_lntm.__file__.startswith(wheel); "
    "sys.exit(torch_lntm.cli.main())"
)


@pytest.mark.long
def test_the_commands_work_from_the_wheel_without_gensim(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "torch_lntm", tmp_path / "source" / "torch_lntm")
    for name in SOURCES:
        shutil.copy(REPOSITORY / name, tmp_path / "source" / name)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path / "source", check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "wheel")
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    for arguments in ("fit example --num-topics 6 --max-iterations 2 --out run", "report run"):
        command = [sys.executable, "-c", ALONE, str(tmp_path / "wheel"), *arguments.split()]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
    assert "<blockquote" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
