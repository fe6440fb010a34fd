"""The code of the page for users of R, by R."""

from __future__ import annotations

import re
import sys

import pytest
from support.markdown import DOCS
from support.r import run_r


@pytest.mark.long
def test_page_runs_in_r(tmp_path, monkeypatch):
    pytest.importorskip("rdata", reason="needs rdata")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICULATE_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    page = (DOCS / "from_r.md").read_text(encoding="utf-8")
    code, shown = (
        re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for language in ("r", "text")
    )
    packages = ("Matrix", "reticulate", "jsonlite", "tidytext")
    found = run_r("options(width = 100)\n" + "\n".join(code), packages=packages)
    assert shown[0] in found
    words = re.compile("[a-z]{4,}")
    for table in shown[1:]:
        assert set(words.findall(table)) <= set(words.findall(found))
    assert "# A tibble: 450" in found
    assert (tmp_path / "fit.rds").exists()
