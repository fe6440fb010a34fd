"""Writes ``llms.txt``, the cheat sheet and the pages of the site for programs that read.

python docs/llms.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch_lntm as lntm

HERE = Path(__file__).resolve().parent
PAGE = HERE / "llms.txt"


def text() -> str:
    """The file: a title, a summary, the cheat sheet, and links to the pages by caption."""
    index = (HERE / "index.md").read_text(encoding="utf-8")
    title, summary = re.findall(r"\A# (.+)\n\n(.+?\.) ", index)[0]
    parts = [f"# {title}", f"> {summary}", f"```python\n{lntm.guide()}```"]
    for caption, names in re.findall(r":caption: (.+)\n(?::.*\n)*\n([^`]+)```", index):
        # The gallery is made with the site, and not always there.
        pages = [name for name in names.split() if not name.startswith("gallery/")]
        links = "\n".join(f"- [{title_of(name)}]({file_of(name)})" for name in pages)
        parts += [f"## {caption}", links]
    return "\n\n".join(parts) + "\n"


def file_of(name: str) -> str:
    """The file of a page of the site, from this folder."""
    return f"../{name}.ipynb" if name.startswith("notebooks/") else f"{name}.md"


def title_of(name: str) -> str:
    """The first heading of a page."""
    source = (HERE / file_of(name)).read_text(encoding="utf-8")
    if name.startswith("notebooks/"):
        source = "".join(json.loads(source)["cells"][0]["source"])
    return source.partition("\n")[0].removeprefix("# ")


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
