"""Functions are short enough to be read at once; `make check` bounds their branches."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "torch_lntm"
#: Most lines of code in a function, without its docstring, comments and blank lines.
MOST_LINES = 60
#: Triton compiles a kernel as one function.
KERNELS = PACKAGE / "kernels" / "triton_ops.py"


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokens:
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def long_functions(source: str) -> list[str]:
    """Functions with more lines of code than are allowed, in words."""
    lines = code_lines(source)
    lengths = [
        (node.name, sum(node.lineno <= line <= node.end_lineno for line in lines))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    ]
    return [f"{name}: {length} lines" for name, length in lengths if length > MOST_LINES]


def test_no_function_is_longer_than_a_page() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {problem}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != KERNELS
        for problem in long_functions(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n    # a comment\n\n"
    document = '    """A summary.\n\n    More.\n    """\n'
    assert long_functions("def f():\n" + document + 59 * body) == []
    assert long_functions("def f():\n" + document + 60 * body) == ["f: 61 lines"]
