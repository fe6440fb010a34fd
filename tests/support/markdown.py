"""Pages of the documentation, read by tests."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def code_of(page: str) -> str:
    """The Python of a page of the documentation."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
