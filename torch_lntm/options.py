"""Options of the command line, of configuration files and of estimators, as functions declare them.

A parameter of a function or class is an option. Its annotation is the type of the option, and its
line in the docstring is the help. The sources are read, not imported, so that help comes at once.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import docstring_parser

#: Constructors of the models and engines of the fit, by the names that users know.
MODELS = {name: f"models:{name}" for name in ("ctm", "lntm", "iftm", "lda", "stm")}
VARIATIONAL = {"variational EM (all posteriors except hmc)": "inference:VariationalEM"}
SAMPLED = {"Monte-Carlo EM (posterior hmc)": "inference:MonteCarloEM"}
GUIDES = {"posteriors vb and ep": "guides.dirichlet:_AspectGuide"}
#: Options that a recipe chooses for the documents unless the user does.
CHOSEN = ("topic_smoothing", "max_epochs")

_SIMPLE = {"int": int, "float": float, "bool": bool, "str": str, "Path": str, "Any": str}
_NONE = type(None)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)[^`]*`")


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        name: Name of the parameter. The command line writes hyphens for underscores.
        kinds: Types of the values: ``str``, ``int``, ``float``, ``bool``, ``dict``, ``None``, or a
            tuple of texts to choose from.
        default: Value if the option is left out.
        help: Meaning in words.
        is_positional: Whether the command line takes the value without a flag.
        is_required: Whether the command line refuses a command without a value.
    """

    name: str
    kinds: tuple[Any, ...]
    default: Any
    help: str
    is_positional: bool = False
    is_required: bool = False


@functools.cache
def _text(module: str) -> str:
    path = Path(__file__).parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")


@functools.cache
def options_of(function: str) -> Mapping[str, Option]:
    """The optional parameters of a function or class that a shell can write.

    Args:
        function: Module within the package, a colon and the name, such as
            ``"corpus:read_corpus"``.

    Returns:
        The options by name, in the order of the parameters.
    """
    module, node = _find(*function.split(":"))
    texts = help_texts(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        node = next(n for n in node.body if getattr(n, "name", None) == "__init__")
    arguments = node.args
    positional = arguments.posonlyargs + arguments.args
    required = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*required, *arguments.defaults, *arguments.kw_defaults]
    options: dict[str, Option] = {}
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        name, help_text = argument.arg, texts.get(argument.arg, "")
        options[name] = _option(name, argument.annotation, default, module, help_text)
    match arguments.kwarg:
        case ast.arg(annotation=ast.Subscript(value=ast.Name(id="Unpack"), slice=shared)):
            options |= _shared(shared, module)
    return {name: option for name, option in options.items() if option.kinds not in ((), (_NONE,))}


def _option(name: str, annotation: Any, default: Any, module: str, text: str) -> Option:
    types = () if annotation is None else kinds(annotation, module)
    value = _value(default, module)
    return Option(
        name, types if value is not None or _NONE in types else (*types, _NONE), value, text
    )


def _shared(kind: Any, module: str) -> dict[str, Option]:
    """Options of a typed dictionary, whose annotations are ``Annotated[type, default]``."""
    module, node = _find(module, kind.id)
    texts = help_texts(ast.get_docstring(node) or "")
    options: dict[str, Option] = {}
    for base in node.bases:
        options |= _shared(base, module) if base.id != "TypedDict" else {}
    for field in node.body[1:]:
        name, (annotation, default) = field.target.id, field.annotation.slice.elts
        options[name] = _option(name, annotation, default, module, texts[name])
    return options


@functools.cache
def help_texts(docstring: str) -> Mapping[str, str]:
    """Meaning of each parameter in a docstring, in plain words."""
    return {
        parameter.arg_name: _ROLE.sub(
            r"\1", " ".join((parameter.description or "").split())
        ).replace("``", "")
        for parameter in docstring_parser.parse(docstring, docstring_parser.Style.GOOGLE).params
    }


def _find(module: str, name: str, begin: str = r"^(?:class|def) {}\b") -> tuple[str, Any]:
    """The module that defines a name of another module, and the definition."""
    text = _text(module)
    start = re.search(begin.format(name), text, re.MULTILINE)
    if start is not None:
        # Parsing a whole module would take most of the time of the help.
        rest = text[start.start() :]
        end = re.search(r"\n[A-Za-z@_#]", rest)
        node: Any = ast.parse(rest if end is None else rest[: end.start()]).body[0]
        return module, node.value if isinstance(node, ast.Assign) else node
    listed = rf"\([^)]*\b{name}\b[^)]*\)|[^\n(]*\b{name}\b"
    source = re.search(rf"^from {__package__}\.(\S+) import (?:{listed})", text, re.MULTILINE)
    return (module, None) if source is None else _find(source[1], name, begin)


def _value(node: ast.expr | None, module: str) -> Any:
    """Value of a default: a literal, a constant, or the name of a torch type; else ``None``."""
    if isinstance(node, ast.Name):
        return _value(_find(module, node.id, "^{} = ")[1], module)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return node.attr if isinstance(node, ast.Attribute) else None


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Types of a type hint, as in :class:`Option`."""
    parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return tuple(get_args(k) if get_origin(k) is Literal else get_origin(k) or k for k in parts)


def kinds(annotation: ast.expr, module: str) -> tuple[Any, ...]:
    """Types of an annotation, without types that a shell cannot write, such as tensors.

    Args:
        annotation: The annotation.
        module: Module within the package in which its names are known.
    """
    match annotation:
        case ast.BinOp(left=left, right=right):
            return tuple(dict.fromkeys((*kinds(left, module), *kinds(right, module))))
        case ast.Constant(value=None):
            return (_NONE,)
        case ast.Name(id=name) if name in _SIMPLE:
            return (_SIMPLE[name],)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            choices = ast.literal_eval(values)
            return (choices if isinstance(choices, tuple) else (choices,),)
        case ast.Subscript(value=ast.Name(id="Mapping" | "dict")) | ast.Name(id="dict"):
            return (dict,)
        case ast.Name(id=name):
            module, node = _find(module, name, "^{} = ")
            return kinds(node, module)
    return ()


@functools.cache
def fit_options(skip: tuple[str, ...] = ()) -> Mapping[str, Mapping[str, Option]]:
    """Options of the models, of the guides and of the engines, under their headings.

    Args:
        skip: Options to leave out.
    """
    owners: dict[str, list[str]] = {}
    for model, source in MODELS.items():
        for name in options_of(source):
            owners.setdefault(name, []).append(model)
    groups: dict[str, dict[str, Option]] = {"model": {}}
    for name, models in owners.items():
        option = options_of(MODELS[models[0]])[name]
        heading = "model" if len(models) > 1 else f"model {models[0]}"
        if 1 < len(models) < len(MODELS):
            option = replace(option, help=f"{option.help} For {', '.join(models)}.")
        groups.setdefault(heading, {})[name] = option
    sources = VARIATIONAL | GUIDES | SAMPLED
    for heading, source in sources.items():
        known = {name for group in groups.values() for name in group}
        groups[heading] = {n: o for n, o in options_of(source).items() if n not in known}
    groups["fit"] = {"start": groups[next(iter(VARIATIONAL))].pop("start")}
    return {
        heading: {
            name: replace(option, kinds=(*option.kinds, _NONE), default=None)
            if name in CHOSEN
            else option
            for name, option in group.items()
            if name not in skip
        }
        for heading, group in groups.items()
    }
