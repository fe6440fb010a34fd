"""Whatever texts of the project name is there: pages, headings, files, objects and rooms."""

from __future__ import annotations

import json
import operator
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import torch_lntm

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "studies" / "README.md",
    *sorted((ROOT / "studies" / "pages").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
BLOCK = re.compile(r"^(```|~~~|:::).*?^\1\s*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
# [text](target "title"), whose text may hold an image, [name]: target, and what HTML names.
LINK = re.compile(
    r"\]\(\s*<?([^>)\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)"
    r"|<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"",
    re.MULTILINE,
)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
NAMED_FILE = re.compile(r"(?:docs|notebooks|studies|configs|tests|torch_lntm)/[\w./*-]+")
NAMED_OBJECT = re.compile(r"(?:lntm|torch_lntm)\.([\w.]+\w)")


def prose(path: Path) -> str:
    """A page's Markdown without blocks of code; of a notebook that of its Markdown cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return BLOCK.sub("", text)


def anchors(text: str) -> Iterator[str]:
    """The names of a Markdown text's headings, as GitHub and MyST make them."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(text):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
        yield f"{name}-{found[name]}" if found[name] else name


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere, in words."""
    for found in LINK.findall(SPAN.sub("", prose(page))):
        link = "".join(found)
        if EXTERNAL.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        # The site has the notebooks in a folder of the docs.
        if target.is_relative_to(ROOT / "docs" / "notebooks"):
            target = ROOT / target.relative_to(ROOT / "docs")
        if not target.is_relative_to(ROOT) or not target.exists():
            yield f"{page.name}: {link} leads to no file of the project"
        elif anchor and unquote(anchor) not in anchors(prose(target)):
            yield f"{page.name}: {link} leads to no heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_named_file_and_object_exists() -> None:
    texts = [prose(page) for page in PAGES if page.name != "CHANGELOG.md"]  # it names what was
    texts += [path.read_text("utf-8") for path in (ROOT / "torch_lntm").rglob("*.py")]
    spans = {span for text in texts for span in SPAN.findall(text)}
    files = list(filter(NAMED_FILE.fullmatch, spans))
    assert len(files) > 50
    assert [name for name in files if not list(ROOT.glob(name))] == []
    for found in filter(None, map(NAMED_OBJECT.fullmatch, spans)):
        # Triton and Numba, which their files import, may be missing.
        if not found[1].startswith(("kernels.triton_ops", "kernels.numba_ops", "kernels.compiled")):
            operator.attrgetter(found[1])(torch_lntm)


def test_every_room_is_described_and_drawn() -> None:
    drawing = runpy.run_path(str(ROOT / "docs" / "figures" / "architecture.py"))
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    described = re.findall(r"^\* \*\*(\w+)\*\*(?: and \*\*(\w+)\*\*)?:", page, re.MULTILINE)
    drawn = {room for group in drawing["ROOMS"].values() for room in group}
    rooms = set(drawing["imports"]())
    assert {name for pair in described for name in pair if name} == drawn == rooms
