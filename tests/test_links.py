"""Links within the project lead somewhere: those of the README, the docs, the notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "studies" / "README.md",
    *sorted((ROOT / "studies" / "pages").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]

CODE = re.compile(r"^(```|~~~|:::).*?^\1\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# [text](target "title"), whose text may hold an image, and [name]: target.
INLINE = re.compile(r"\]\(\s*(<[^>\n]+>|[^)\s]+)(?:\s+\"[^\"]*\")?\s*\)")
DEFINED = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
TAGGED = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(path: Path) -> str:
    """A page's Markdown; of a notebook that of its Markdown cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def links(text: str) -> list[str]:
    """The targets of a Markdown text's links and pictures."""
    text = CODE.sub("", text)
    found = [target for form in (INLINE, DEFINED, TAGGED) for target in form.findall(text)]
    return [target.strip("<>") for target in found]


def anchors(text: str) -> set[str]:
    """The names of a Markdown text's headings, as GitHub and MyST make them."""
    found: set[str] = set()
    for heading in HEADING.findall(re.sub(r"(?ms)^```.*?^```\s*$", "", text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def target_of(page: Path, link: str) -> Path:
    """The file that a link leads to; the site has the notebooks in a folder of the docs."""
    found = (page.parent / unquote(link)).resolve()
    if found.is_relative_to(ROOT / "docs" / "notebooks"):
        return ROOT / "notebooks" / found.relative_to(ROOT / "docs" / "notebooks")
    return found


def broken_links(page: Path, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere, in words."""
    for link in links(text):
        if EXTERNAL.match(link) or link.startswith("//"):
            continue
        path, _, anchor = link.partition("#")
        target = target_of(page, path) if path else page
        if target != page and not target.is_relative_to(ROOT):
            yield f"{page.name}: {link} leads out of the project"
        elif target != page and not target.exists():
            yield f"{page.name}: {link} leads to no file"
        elif anchor and unquote(anchor) not in anchors(text if target == page else prose(target)):
            yield f"{page.name}: {link} leads to no heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    assert list(broken_links(page, prose(page))) == []


def test_every_named_file_of_the_project_exists() -> None:
    """``studies/pages/decisions.md`` and the like, which texts name without a link."""
    named = re.compile(
        r"`((?:docs|notebooks|studies|configs|tests)/[\w./*-]+\.(?:md|ipynb|json|yaml|py))`"
    )
    texts = {page: prose(page) for page in PAGES}
    texts |= {path: path.read_text("utf-8") for path in (ROOT / "torch_lntm").rglob("*.py")}
    names = {name: path for path, text in texts.items() for name in named.findall(text)}
    assert len(names) > 10
    assert [f"{p.name}: {name}" for name, p in names.items() if not list(ROOT.glob(name))] == []
