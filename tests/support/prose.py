"""Counts what makes text hard to read: `python -m tests.support.prose [PATHS]`.

The counter reads docstrings, comments and messages of Python files, and the prose of Markdown
files and notebooks. It leaves out code, tables, headings and links. `make check` fails at a
sentence that is too long, and at too many headless sentences, which begin with a word such as
"What" or "Of", so that their subject comes late.
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
from typing import NamedTuple

ROOTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "notebooks",
    "torch_lntm",
    "studies",
)
#: Most words of a sentence, and most headless sentences in per cent.
LONGEST, MOST_HEADLESS = 40, 1.0
HEADLESS = {
    *("what", "which", "how", "where", "of", "whose", "whoever", "whichever", "whatever"),
    *("those", "neither", "nor"),
}

_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma|!|ruff|mypy)")


class Sentence(NamedTuple):
    """One sentence and the place where its paragraph begins."""

    path: Path
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The words in lower case; code is left out."""
        return [word.lower() for word in _WORD.findall(self.text) if word != "X"]


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and messages of a Python file, each with its line."""
    tree = ast.parse(source)
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            documented.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield node.body[0].lineno, text
    inside = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value in node.values
    }
    for node in ast.walk(tree):
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
        if id(node) in documented | inside or not isinstance(node, ast.JoinedStr | ast.Constant):
            continue
        text = "".join(
            str(piece.value) if isinstance(piece, ast.Constant) else " X " for piece in pieces
        )
        # Keys, names, templates and code are no sentences.
        is_code = re.search(r"[{}<>$=\\]|\w\(|\d{4,}", text)
        if len(_WORD.findall(text)) > 3 and " " in text.strip() and not is_code:
            yield node.lineno, text
    yield from comments(source)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments; successive lines are one text."""
    begin, last, block = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if block and token.start[0] != last + 1:
            yield begin, " ".join(block)
            block = []
        begin, last = begin if block else token.start[0], token.start[0]
        block.append(token.string.lstrip("#: "))
    if block:
        yield begin, " ".join(block)


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of a Markdown file."""
    begin, block, fenced = 1, list[str](), False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        text = line.strip()
        fence = text.startswith(("```", "~~~"))
        fenced ^= fence
        if fence or fenced or line.startswith(("    ", "\t", "|", "#", "!", "<")):
            text = ""
        if (not text or text.startswith(("* ", "- "))) and block:
            yield begin, " ".join(block)
            block = []
        if text:
            begin = begin if block else number
            block.append(text.removeprefix("* ").removeprefix("- "))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Everything that a person reads in one file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
    elif path.suffix == ".md":
        yield from markdown_texts(source)
    else:
        for number, cell in enumerate(json.loads(source)["cells"]):
            if cell["cell_type"] == "markdown":
                yield from ((number, text) for _, text in markdown_texts("".join(cell["source"])))
            else:
                yield from (
                    (number, text)
                    for _, text in comments(re.sub(r"(?m)^[%!].*$", "", "".join(cell["source"])))
                )


def plain(text: str) -> str:
    """`text` with code as X and links as their words."""
    text = re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", " ", text)
    text = re.sub(r"```.*?```|``[^`]*``|`[^`]*`|:\w+:|\$[^$]*\$", " X ", text, flags=re.S)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", text)


def sentences(path: Path) -> list[Sentence]:
    """Sentences of three words and more."""
    parts = (
        (line, part)
        for line, text in texts(path)
        for part in re.split(r"\n\s*\n|\n(?=\s*[*-] )", text)
    )
    found = (
        Sentence(path, line, piece.strip())
        for line, part in parts
        for piece in _SENTENCE.split(plain(part))
    )
    return [sentence for sentence in found if len(_WORD.findall(sentence.text)) > 2]


def files(roots: list[Path]) -> list[Path]:
    """Every file below `roots` that the counter can read."""
    suffixes = {".py", ".md", ".ipynb"}
    return sorted(
        path
        for root in roots
        for path in ([root] if root.is_file() else root.rglob("*"))
        if path.suffix in suffixes and "build" not in path.parts
    )


def main() -> int:
    """Prints the counts, and where a limit is passed."""
    roots = sys.argv[1:] or [root for root in ROOTS if Path(root).exists()]
    every = [found for path in files([*map(Path, roots)]) for found in sentences(path)]
    headless = [found for found in every if HEADLESS.intersection(found.words[:1])]
    share = 100 * len(headless) / max(1, len(every))
    print(f"{share:.2f} of {MOST_HEADLESS:g} per cent of the sentences are headless")
    failures = [f"headless: {found.text[:90]}" for found in headless if share > MOST_HEADLESS]
    failures += [
        f"{sentence.path}:{sentence.line}: {len(sentence.words)} words in a sentence, at most "
        f"{LONGEST}: {sentence.text[:90]}..."
        for sentence in every
        if len(sentence.words) > LONGEST
    ]
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
