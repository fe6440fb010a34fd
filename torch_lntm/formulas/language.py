"""The language of formulas, restricted so that formulas of unknown origin are safe.

formulaic reads R's operators, but runs the expressions between them as Python code. This module
therefore parses every expression first, and accepts only columns, numbers, arithmetic and a few
named functions.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from torch_lntm.errors import ConfigError

#: Functions for use in expressions.
FUNCTIONS = (
    *("C", "Treatment", "Sum", "Helmert", "Diff"),
    *("bs", "cr", "cs", "cc", "poly"),
    *("center", "scale", "standardize", "log", "log10", "log2", "exp", "I"),
)
#: Functions of R and mgcv, and their counterparts.
_IN_R = {"s": "bs(x, df=10)", "ns": "cr(x, df=5, constraints='center')", "factor": "C(x)"}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)


#: A random term, such as ``(1 | author)``, or ``(1 | `blog-name`)``.
_RANDOM = re.compile(r"\(\s*1\s*\|\s*(?:([^\W\d]\w*)|`([^`]+)`)\s*\)")


def summands_of(text: str) -> list[str]:
    """Summands of a right-hand side, which signs of plus outside of parentheses divide."""
    summands, depth = [""], 0
    # Signs within the back-quotes of a name do not count.
    for piece in re.findall(r"`[^`]*`|.", text.strip().removeprefix("~"), re.DOTALL):
        depth += (piece == "(") - (piece == ")")
        if piece == "+" and depth == 0:
            summands.append("")
        else:
            summands[-1] += piece
    return summands


def split_random(text: str) -> tuple[str, tuple[str, ...]]:
    """Divide a formula into its fixed terms and the columns of its random terms.

    Args:
        text: A formula, such as ``"~ party + (1 | author)"``.

    Returns:
        The right-hand side without random terms (``"1"`` if empty), and the random terms' columns.

    Raises:
        ConfigError: A column has several random terms.
    """
    if "|" not in text:
        return text, ()
    summands = summands_of(text)
    matches = [_RANDOM.fullmatch(summand.strip()) for summand in summands]
    columns = tuple(match[1] or match[2] for match in matches if match)
    if len(set(columns)) < len(columns):
        raise ConfigError(f"formula {text!r} has several random terms of one column; leave one")
    fixed = [part for part, match in zip(summands, matches, strict=True) if not match]
    return "+".join(fixed) if fixed else "1", columns


def check_formula(text: str) -> Any:
    """Parse a formula without evaluating any of it.

    Args:
        text: Right-hand side in R's notation, with an optional ``~``, such as
            ``"~ party * bs(date, df=6)"``.

    Returns:
        The ``formulaic`` formula of the fixed terms. :func:`split_random` has the random terms.

    Raises:
        ConfigError: The text is no right-hand side, or has a forbidden part.
    """
    import formulaic

    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"formula {text!r}; expected text such as '~ party + bs(date, df=6)'")
    right = split_random(text)[0].strip().removeprefix("~")
    for sign in "|~\n":
        if sign in right:
            raise ConfigError(
                f"formula {text!r} has a {sign!r} outside of a random term; expected the "
                "right-hand side alone, in a line such as '~ party + bs(date, df=6) + (1 | author)'"
            )
    try:
        parsed = formulaic.Formula(right)
    except Exception as error:
        raise ConfigError(f"formula {text!r} cannot be read: {plain_message(error)}") from error
    if type(parsed).__name__ != "SimpleFormula":
        raise ConfigError(f"formula {text!r} has several parts; expected one right-hand side")
    for term in parsed:
        for factor in term.factors:
            if factor.eval_method.value == "python":
                _check_expression(text, str(factor.expr))
    return parsed


def plain_message(error: Exception) -> str:
    """A message of formulaic as a single line of plain text."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())


def columns_of(parsed: Any) -> tuple[str, ...]:
    """Names of the columns in a parsed formula, in order."""
    names: dict[str, None] = {}
    for factor in (factor for term in parsed for factor in term.factors):
        if factor.eval_method.value == "lookup":
            names[str(factor.expr)] = None
        elif factor.eval_method.value == "python":
            names |= dict.fromkeys(_names(_tree(str(factor.expr))))
    return tuple(names)


def level_column(expression: str) -> str | None:
    """The column whose values are the levels of an expression ``party`` or ``C(party, ...)``."""
    try:
        match _tree(expression):
            case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name), *_]):
                return name
            case ast.Call():
                return None
    except SyntaxError:  # a name in back-quotes
        pass
    return expression


def _tree(expression: str) -> ast.expr:
    return ast.parse(expression.strip(), mode="eval").body


def _names(node: ast.AST) -> list[str]:
    """Names of columns in an expression. Names of functions are left out."""
    called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in called]


def _check_expression(text: str, expression: str) -> None:
    try:
        _check_node(_tree(expression), as_argument=False)
    except SyntaxError as error:
        raise ConfigError(f"formula {text!r}: {expression!r} is not an expression") from error
    except _Refused as error:
        raise ConfigError(
            f"formula {text!r}: {expression!r} has {error}, which is forbidden; expected columns, "
            f"numbers, arithmetic and the functions {', '.join(FUNCTIONS)}. Compute other columns "
            "first, and add them by corpus.with_metadata"
        ) from None


class _Refused(Exception):
    """A forbidden part of a formula."""


def _check_node(node: ast.expr, as_argument: bool) -> None:
    """Accept columns, numbers, arithmetic and calls of :data:`FUNCTIONS`; refuse everything else.

    Args:
        node: The expression.
        as_argument: The expression is an argument of a function. Text and lists are then accepted
            too.

    Raises:
        _Refused: The expression has a forbidden part.
    """
    match node:
        case ast.Name(id=name):
            if name.startswith("_"):
                raise _Refused(f"the name {name!r}")
        case ast.Constant(value=bool() | str() | None):
            if not as_argument:
                raise _Refused(_described(node))
        case ast.Constant(value=int() | float()):
            pass
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if as_argument:
            for element in elements:
                _check_node(element, as_argument=True)
        case ast.UnaryOp(op=operator, operand=operand) if isinstance(operator, _OPERATORS):
            _check_node(operand, as_argument=False)
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            _check_node(left, as_argument=False)
            _check_node(right, as_argument=False)
        case ast.BinOp(op=ast.BitXor()):
            raise _Refused("^ (write ** instead)")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            _check_call(name, arguments, keywords)
        case _:
            raise _Refused(_described(node))


def _check_call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
    """Accept calls of :data:`FUNCTIONS` with allowed arguments."""
    if name not in FUNCTIONS:
        hint = f" (write {_IN_R[name]} instead)" if name in _IN_R else ""
        raise _Refused(f"a call of {name!r}{hint}")
    for keyword in keywords:
        if keyword.arg is None or keyword.arg.startswith("_"):
            raise _Refused("an argument by ** or with a private name")
    for argument in [*arguments, *(keyword.value for keyword in keywords)]:
        _check_node(argument, as_argument=True)


def _described(node: ast.expr) -> str:
    return f"{type(node).__name__} ({ast.unparse(node)!r:.60})"
