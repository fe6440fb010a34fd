"""Every Python block of these pages of docs/ runs, from top to bottom, as it stands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Code of each page that takes too long for a test, and its replacement.
SHORTER: dict[str, dict[str, str]] = {
    "from_bertopic.md": {"max_epochs=60": "max_epochs=10", "(1, 2, 3)": "(1, 2)"},
    "reproducibility.md": {},
    "other_languages.md": {},
    "single_cells.md": {},
}


def run_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a page defines when its blocks run in a folder of their own."""
    page = (DOCS / name).read_text(encoding="utf-8")
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    for long, short in SHORTER[name].items():
        assert long in code, f"{name} has no {long!r}"
        code = code.replace(long, short)
    names: dict[str, Any] = {}
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of words and documents; fits here are short
        exec(compile(code, name, "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORTER)
def test_every_block_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in {"other_languages.md": ["simplemma", "stopwordsiso"]}.get(name, []):
        pytest.importorskip(module)
    assert "lntm" in run_page(name, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", SHORTER)
def test_a_page_is_in_the_table_of_contents(name: str) -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert name.removesuffix(".md") in index.splitlines()
