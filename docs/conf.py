"""Settings of the site: `make docs` builds it into `build/site`."""

from __future__ import annotations

import shutil
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Sphinx reads no files outside its folder.
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)

project = "torch_lntm"
author = "The torch_lntm authors"
copyright = author
release = version = version_of("torch_lntm")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
# A package index shows package_page.md; the site has a front page of its own.
exclude_patterns = ["notebooks/.ipynb_checkpoints", "**/*.py", "package_page.md"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# The tests execute the notebooks; the site shows the outputs that they were committed with.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True

# `make links`: resolvers and publishers that answer programs with a refusal, whatever is there.
linkcheck_ignore = [r"https?://(dx\.)?doi\.org/", r"https?://(dl\.acm|www\.jstor|academic\.oup)\."]
linkcheck_timeout, linkcheck_retries = 20, 2

html_theme = "furo"
html_title = f"torch_lntm {release}"
html_static_path: list[str] = []


def _escape_bars(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Absolute values and conditions in docstrings are no substitutions."""
    for i, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[i] = "``".join(parts)


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the above, before napoleon reads the docstrings."""
    app.connect("autodoc-process-docstring", _escape_bars, priority=100)
