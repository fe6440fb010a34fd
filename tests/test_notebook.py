"""The notebooks run, and are committed with outputs, without warnings and paths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import nbformat
import pandas as pd
import pyro
import pytest
import torch
from support.markdown import compare

mpl.use("Agg")

from matplotlib import pyplot as plt

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
PNG = "image/png"
#: Notebooks of more than half a minute run smaller, so what they print is not compared.
LARGE = {"ep_and_vb", "large", "measurement", "monte_carlo_em", "pyro", "your_own_prior"}


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def clean_session() -> Iterator[None]:
    """Restore global settings after a notebook: threads, seeds, styles, parameter store."""
    threads = torch.get_num_threads()
    # Jupyter has no terminal, whose width would limit the columns.
    columns = pd.option_context("display.max_columns", 20)
    with torch.random.fork_rng(), mpl.rc_context(), pyro.get_param_store().scope(), columns:
        yield
    plt.close("all")
    torch.set_num_threads(threads)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_are_committed_with_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = code_cells(notebook)
    outputs = [output for cell in code for output in cell.outputs]
    assert all(cell.outputs for cell in code)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(PNG in output.get("data", {}) for output in outputs) in (2, 3, 4)
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert path.stat().st_size < 300_000
    text = json.dumps(code)
    assert not any(place in text for place in ("site-packages", "/home/", "/root/", "/tmp/"))


@pytest.mark.long
# Chains of the quick size are too short, and warn.
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.UnreliableEstimateWarning")
def test_notebooks_run(path, tmp_path, monkeypatch, capsys, clean_session, request):
    if path.stem in LARGE:
        monkeypatch.setenv("LNTM_QUICK", "1")
    if "LNTM_DATA" in path.read_text(encoding="utf-8"):
        monkeypatch.setenv("LNTM_DATA", str(request.getfixturevalue("shared_data")))
    monkeypatch.chdir(tmp_path)
    figures = []
    monkeypatch.setattr(plt, "show", lambda: figures.append(plt.gcf()) or plt.close())
    names = {"__name__": "notebook"}
    notebook = nbformat.read(path, as_version=4)
    said = ""
    for number, cell in enumerate(code_cells(notebook)):
        exec(compile(cell.source, f"{path.name}, code cell {number}", "exec"), names)
        printed = capsys.readouterr()
        assert printed.err == ""
        said += printed.out
        if path.stem not in LARGE:
            compare("".join(o.text for o in cell.outputs if "text" in o), printed.out)
    shown = [o for cell in code_cells(notebook) for o in cell.outputs if PNG in o.get("data", {})]
    assert len(figures) == len(shown)
    for figure in figures:
        figure.canvas.draw()
    assert said
