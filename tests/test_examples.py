"""Every example in a docstring runs, and prints what the docstring shows."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from support.shared_state import restored

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "torch_lntm"
#: Modules with an example, found without loading them.
MODULES = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def first_lines() -> dict[str, object]:
    """The names that the page of the Python interface says every example starts from."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert lines is not None
    names: dict[str, object] = {}
    exec(lines.group(1), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_their_docstrings_show(
    module: str,
    first_lines: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    for example in examples:
        (tmp_path / example.name).mkdir()
        monkeypatch.chdir(tmp_path / example.name)
        with restored():
            example.globs = dict(first_lines)
            runner.run(example, out=report.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)
