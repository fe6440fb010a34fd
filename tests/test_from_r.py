"""The code of the page for users of R, by R."""

from __future__ import annotations

import sys

import pytest
from support.markdown import BLOCK, DOCS, compare
from support.r import run_r


@pytest.mark.long
def test_page_runs_in_r(tmp_path, monkeypatch):
    pytest.importorskip("rdata", reason="needs rdata")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICULATE_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    page = (DOCS / "from_stm.md").read_text(encoding="utf-8").partition("## Fit from R")[2]
    blocks = BLOCK.findall(page)
    code = "\n".join(block for _, language, block in blocks if language == "r")
    packages = ("Matrix", "reticulate", "jsonlite", "tidytext")
    found = run_r("options(width = 100)\n" + code, packages=packages)
    for table in (block for _, language, block in blocks if language == "text"):
        compare(table, found)
    assert "# A tibble: 450" in found
    assert (tmp_path / "fit.rds").exists()
