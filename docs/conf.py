"""Settings of the site: `make docs` builds it into `build/site`."""

from __future__ import annotations

import re
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
exclude_patterns = ["notebooks/.ipynb_checkpoints", "**/*.py"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# The tests execute the notebooks; the site shows the outputs that they were committed with.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
# Types stand beside the descriptions of arguments, so that a signature is a line of names.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
# scikit-learn writes the docstrings of its request methods, with references to its own site.
_REQUESTS = ",".join(f"set_{name}_request" for name in ("fit", "partial_fit", "score", "transform"))
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": _REQUESTS,
}
napoleon_use_ivar = True

# `make links`: resolvers and publishers refuse every program.
linkcheck_ignore = [r"https?://(dx\.)?doi\.org/", r"https?://(dl\.acm|www\.jstor|academic\.oup)\."]
linkcheck_timeout, linkcheck_retries = 20, 2

html_theme = "furo"
html_title = f"torch_lntm {release}"
html_static_path: list[str] = []


def _escape_bars(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Escape the bars of absolute values and conditions: Sphinx reads bars as substitutions."""
    for i, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[i] = "``".join(parts)


def _skip_generated(app, what, name, obj, skip, options):  # type: ignore[no-untyped-def]
    """Leave out scikit-learn's generated methods: their text refers to its own glossary."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def _offer_studies(app, docname, source):  # type: ignore[no-untyped-def]
    """Turn links to the studies, whose pages the site does not show, into downloads."""
    source[0] = re.sub(
        r"\[([^\[\]]+)\]\((\.\./studies/[^)#\s]+)(?:#[^)\s]*)?\)",
        r"{download}`\1 <\2>`",
        source[0],
    )


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the functions above, before napoleon reads the docstrings."""
    app.connect("source-read", _offer_studies)
    app.connect("autodoc-skip-member", _skip_generated)
    app.connect("autodoc-process-docstring", _escape_bars, priority=100)
