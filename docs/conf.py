"""Settings of the site: `make docs` builds it into `build/site`."""

from __future__ import annotations

import base64
import json
import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Sphinx reads no files outside its folder.
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", dirs_exist_ok=True)


def _write_gallery() -> None:
    """Write a page of all pictures of the notebooks, each of which opens its notebook."""
    folder = HERE / "gallery"
    folder.mkdir(exist_ok=True)
    cards = []
    for path in sorted((HERE / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).partition("\n")[0].removeprefix("# ")
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        pictures = [output["data"] for output in outputs if "image/png" in output.get("data", {})]
        for number, data in enumerate(pictures):
            file = f"{path.stem}-{number}.png"
            (folder / file).write_bytes(base64.b64decode("".join(data["image/png"])))
            cards.append(
                f":::{{grid-item-card}} {title}\n:link: ../notebooks/{path.stem}\n:link-type: doc\n"
                f":img-top: {file}\n:img-alt: Picture {number + 1} of the notebook {path.stem}\n:::"
            )
    text = "# Gallery\n\nEach picture opens the notebook that draws it.\n\n"
    grid = "::::{grid} 1 2 2 3\n:gutter: 3\n\n" + "\n\n".join(cards) + "\n::::\n"
    (folder / "index.md").write_text(text + grid, encoding="utf-8")


_write_gallery()

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
    "sphinx_design",
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


def _write_llms(app, exception):  # type: ignore[no-untyped-def]
    """Put llms.txt on the site, with links to the site's pages."""
    text = (HERE / "llms.txt").read_text(encoding="utf-8").replace("(../notebooks/", "(notebooks/")
    text = re.sub(r"\.(md|ipynb)\)$", ".html)", text, flags=re.MULTILINE)
    Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the functions above, before napoleon reads the docstrings."""
    app.connect("source-read", _offer_studies)
    app.connect("autodoc-skip-member", _skip_generated)
    app.connect("autodoc-process-docstring", _escape_bars, priority=100)
    app.connect("build-finished", _write_llms)
