"""Pages of the documentation, read by tests."""

from __future__ import annotations

import io
import re
import shlex
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from torch_lntm.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: A block of code, with the comment above it if there is one.
BLOCK = re.compile(r"(?:^<!-- (not compared: .*?) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
WORD = re.compile(r"[^\W\d]\w+")
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def code_of(page: str) -> str:
    """The Python of a page of the documentation, or of the one at a path from there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def compare(shown: str, printed: str) -> None:
    """Require that the lines of a text are like lines that were printed, in any order.

    Machines round differently, and chains carry this on. So two thirds of the words and numbers of
    a line must be in the other one, and numbers may differ by 10 %, by 0.03 as shares do, or by one
    in the last digit shown. A fit may find one topic in ten otherwise on another processor, so that
    one line in ten may be like none, and one line of a shorter text of at least four. Three dots,
    at the end of a line or alone, stand for what a page leaves out.
    """
    unlike = []
    rows = [line for line in shown.splitlines() if line.strip()]
    lines = [(set(WORD.findall(line)), NUMBER.findall(line)) for line in printed.splitlines()]
    for line in rows:
        words, numbers = set(WORD.findall(line)), NUMBER.findall(line)
        alike = (
            3 * (len(words & others) + sum(map(_close, numbers, found)))
            >= 2 * (len(words) + len(numbers))
            for others, found in lines
            if len(numbers) == len(found) or "..." in line
        )
        if not any(alike):
            unlike.append(line)
    most = max(1, len(rows) // 10) if len(rows) >= 4 else 0
    text = "\n".join(unlike)
    assert len(unlike) <= most, f"the page shows\n{text}\nand its code prints\n{printed}"


def _close(shown: str, printed: str) -> bool:
    value, other = (float(x.replace(",", "").replace("−", "-")) for x in (shown, printed))
    digits = len(shown.partition("e")[0].partition(".")[2])
    unit = 0.0 if "e" in shown else max(10.0**-digits, 0.03)
    return abs(value - other) <= max(0.1 * abs(value), 1.001 * unit)


def run_block(language: str, block: str, names: dict[str, Any]) -> None:
    """Run Python, or the lines of a shell that call the program or Python with a line of code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of words and documents; fits here are short
        if language == "python":
            exec(compile(block, "page", "exec"), names)
            return
        for line in block.splitlines():
            name, *arguments = shlex.split(line, comments=True)
            if name == "torch-lntm":
                assert main(arguments) in (0, None), line
            elif name == "python":
                exec(arguments[arguments.index("-c") + 1], {})


def run_page(page: str, shorter: Mapping[str, str] = {}, **names: Any) -> dict[str, Any]:
    """The names after the Python of a page, run from top to bottom in the present folder.

    A block of text shows what the code above it printed, unless a comment says why it cannot.

    Args:
        page: File of the page.
        shorter: Code that takes too long for a test, and its replacement.
        **names: Names that the page takes for granted.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for long, short in shorter.items():
        assert long in text, f"{page} has no {long!r}"
        text = text.replace(long, short)
    text = text.partition("\n```r\n")[0]  # what follows is for R
    printed = io.StringIO()
    for why, language, block in BLOCK.findall(text):
        if language in ("python", "sh"):
            with redirect_stdout(printed):
                run_block(language, block, names)
        elif language == "text" and not why:
            compare(block, printed.getvalue())
            printed = io.StringIO()
    return names
