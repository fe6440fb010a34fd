"""Finds sentences that are hard to read: `python -m tests.support.prose [PATHS]`.

It reads docstrings and comments of Python files, and the prose of Markdown files and notebooks
without code, tables, headings and links. `make check` fails at a sentence that is too long, and at
too many headless sentences, which begin with a word such as "What" or "Of", so that their subject
comes late.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOTS = "README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs notebooks torch_lntm studies"
#: Most words of a sentence, and most headless sentences in per cent.
LONGEST, MOST_HEADLESS = 40, 1.0
HEADLESS = re.compile(
    r"(what|which|how|where|of|whose|(who|which|what)ever|those|neither|nor)\b", re.IGNORECASE
)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
#: Code, which counts as no word, and the lines and links of Markdown that are no prose.
CODE = re.compile(
    r"^(```|~~~).*?^\1|^\s*(>>>|\.\.\.).*?$|``[^`]*``|`[^`]*`|:\w+:|\$[^$]*\$", re.M | re.S
)
NO_PROSE = re.compile(r"^(    |\t|[|#!<]).*$|\[(?=[^]]*\]\()|\]\([^)]*\)", re.MULTILINE)


def python_texts(source: str) -> Iterator[str]:
    """Docstrings and comments of a Python file; successive lines of comments are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
    last, block = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|fmt:)", token.string):
            continue
        if token.start[0] != last + 1:
            yield block
            block = ""
        last, block = token.start[0], f"{block} {token.string.lstrip('#: ')}"
    yield block


def texts(path: Path) -> Iterator[str]:
    """Everything that a person reads in one file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
        return
    cells = [source]
    if path.suffix == ".ipynb":
        written = [c for c in json.loads(source)["cells"] if c["cell_type"] == "markdown"]
        cells = ["".join(cell["source"]) for cell in written]
    yield from (NO_PROSE.sub("", CODE.sub(" 0 ", cell)) for cell in cells)


def sentences(path: Path) -> Iterator[str]:
    """Sentences of three words and more."""
    for text in texts(path):
        for part in re.split(r"\n\s*\n|\n(?=\s*[*-] )", CODE.sub(" 0 ", text)):
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z0*])", " ".join(part.split())):
                if len(WORD.findall(sentence)) > 2:
                    yield sentence.removeprefix("* ")


def main() -> int:
    """Prints the share of headless sentences, and what passes a limit."""
    roots = [Path(root) for root in sys.argv[1:] or ROOTS.split()]
    files = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    read = [path for path in files if path.suffix in (".py", ".md", ".ipynb")]
    every = [(path, text) for path in sorted(read) for text in sentences(path)]
    headless = [text for _, text in every if HEADLESS.match(text)]
    share = 100 * len(headless) / max(1, len(every))
    print(f"{share:.2f} of {MOST_HEADLESS:g} per cent of the sentences are headless")
    failures = [f"headless: {text}" for text in headless if share > MOST_HEADLESS]
    failures += [
        f"{path}: {number} words in a sentence, at most {LONGEST}: {text}"
        for path, text in every
        if (number := len(WORD.findall(text))) > LONGEST
    ]
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
