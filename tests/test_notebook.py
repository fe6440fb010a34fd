"""The notebook runs, and was committed as it runs: with outputs, without warnings or paths."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "quickstart.ipynb"
PNG = "image/png"


def pictures(notebook):
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if PNG in output.get("data", {})
    ]


def printed(notebook, stream):
    return "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "stream" and output["name"] == stream
    )


@pytest.fixture(scope="module")
def committed():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_committed_with_outputs(committed):
    nbformat.validate(committed)
    code = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert len(pictures(committed)) == 3
    assert printed(committed, "stderr") == ""
    assert NOTEBOOK.stat().st_size < 400_000
    text = json.dumps([cell for cell in committed.cells if cell.cell_type == "code"])
    assert not any(place in text for place in ("site-packages", "/home/", "/root/", "/tmp/"))


@pytest.mark.slow
def test_it_runs(committed, tmp_path, monkeypatch):
    # Its own connection files and settings: several test processes may run at once.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # On a fresh machine matplotlib looks through the fonts once, and says so where that is slow.
    import_module("matplotlib.font_manager")
    notebook = nbformat.from_dict(json.loads(json.dumps(committed)))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    assert printed(notebook, "stderr") == ""
    assert len(pictures(notebook)) == 3
    assert "perplexity" in printed(notebook, "stdout")
