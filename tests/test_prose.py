"""The counter of hard sentences finds them in code, pages and notebooks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import prose


def sentences_of(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [sentence.text for sentence in prose.sentences(path)]


def test_python_files_have_docstrings_comments_and_messages(tmp_path: Path) -> None:
    source = '''"""The first docstring of a module.

Its second paragraph has ``code in it``.
"""
# A comment that
# takes two lines.  noqa is a word here
NAMES = {"a key": 1}  # noqa: E501
raise ValueError(f"expected a number of topics, got {NAMES}")
'''
    assert sentences_of(tmp_path / "module.py", source) == [
        "The first docstring of a module.",
        "Its second paragraph has X .",
        "expected a number of topics, got X",
        "A comment that takes two lines. noqa is a word here",
    ]


def test_pages_have_paragraphs_and_items_without_code_tables_and_headings(tmp_path: Path) -> None:
    page = (
        "# A heading of some words\n\nA [link to a page](page.md) counts as words.\n\n"
        "* An item of four words\n\n| a | table of some words |\n\n```sh\nls of a folder\n```\n"
    )
    expected = ["A link to a page counts as words.", "An item of four words"]
    assert sentences_of(tmp_path / "page.md", page) == expected
    cells = [
        {"cell_type": "markdown", "source": [page]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "# A comment of five words\n"]},
    ]
    notebook = json.dumps({"cells": cells})
    found = sentences_of(tmp_path / "book.ipynb", notebook)
    assert found == [*expected, "A comment of five words"]


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("Topics have words and shares. " * 20, False),
        ("Those are such as these that it has.", True),
        ("Topics have " + "many " * 40 + "words.", True),
    ],
)
def test_a_passed_limit_is_a_failure(
    text: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(sys, "argv", ["prose", str(tmp_path / "page.md")])
    assert prose.main() == fails
