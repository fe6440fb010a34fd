"""Pages of the documentation, read by tests."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"


def code_of(page: str) -> str:
    """The Python of a page of the documentation, or of the one at a path from there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def run_page(page: str, shorter: Mapping[str, str] = {}, **names: Any) -> dict[str, Any]:
    """The names after the Python of a page, run from top to bottom in the present folder.

    Args:
        page: File of the page.
        shorter: Code that takes too long for a test, and its replacement.
        **names: Names that the page takes for granted.
    """
    code = code_of(page)
    for long, short in shorter.items():
        assert long in code, f"{page} has no {long!r}"
        code = code.replace(long, short)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of words and documents; fits here are short
        exec(compile(code, page, "exec"), names)
    return names
