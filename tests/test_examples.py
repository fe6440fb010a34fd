"""Every example in a docstring runs, and prints what the docstring shows."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from unittest import mock

import pytest

import torch_lntm

REPOSITORY = Path(__file__).resolve().parent.parent


def examples() -> list[doctest.DocTest]:
    """The docstrings of the package that hold an example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = pkgutil.walk_packages(torch_lntm.__path__, "torch_lntm.")
    names = [m.name for m in modules if m.name.rpartition(".")[2] not in ("triton_ops", "__main__")]
    found = (
        finder.find(importlib.import_module(name), globs={}) for name in ["torch_lntm", *names]
    )
    return [test for tests in found for test in tests if test.examples]


@pytest.fixture(scope="module")
def first_lines() -> dict[str, object]:
    """The names that the page of the Python interface says every example starts from."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert lines is not None
    names: dict[str, object] = {}
    exec(lines.group(1), names)
    return names


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_prints_what_its_docstring_shows(
    example: doctest.DocTest,
    first_lines: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    example.globs = dict(first_lines)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    with mock.patch.dict(torch_lntm.models.CONSTRUCTORS):
        failed = runner.run(example, out=report.append)
    assert not failed.failed, "".join(report)
