"""Values in the shell, and in YAML and JSON files: options, keywords, groups."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from torch_lntm.errors import ConfigError, FileError
from torch_lntm.files.reading import read_errors, read_text
from torch_lntm.options import Option


def read_value(kinds: tuple[Any, ...], value: Any) -> Any:
    """Convert the value of an option to one of its types.

    Args:
        kinds: Types of the option, as in :class:`~torch_lntm.options.Option`.
        value: Text of the command line, or value of a configuration file.

    Raises:
        argparse.ArgumentTypeError: The value fits none of the types.
    """
    types = [kind for kind in kinds if kind is not type(None)]
    if value is None or (value == "null" and len(types) < len(kinds) and str not in types):
        return None
    for kind in types:
        with suppress(ValueError, OverflowError, yaml.YAMLError, RecursionError):
            return _of_kind(kind, value)
    names = [map(repr, k) if isinstance(k, tuple) else [k.__name__] for k in types]
    expected = ", ".join(name for of_kind in names for name in of_kind)
    raise argparse.ArgumentTypeError(f"expected {expected}; got {value!s:.200}")


def read_option(option: Option, value: Any, path: Path) -> Any:
    """Check the value of an option in a file, in which null stands for the default.

    Raises:
        ConfigError: The value fits none of the option's types.
    """
    try:
        return option.default if value is None else read_value(option.kinds, value)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{path}: {option.name}: {error}") from error


def _of_kind(kind: Any, value: Any) -> Any:
    """Convert a value to a type.

    Raises:
        ValueError: The value has another type.
    """
    if isinstance(kind, tuple):
        is_valid = isinstance(value, str) and value in kind
    elif kind is str:
        is_valid = isinstance(value, str) and "\0" not in value
    elif kind in (bool, dict):
        value = yaml.safe_load(value) if isinstance(value, str) else value
        is_valid = isinstance(value, kind)
    else:
        value = kind(value) if type(value) in (str, int, kind) else value
        is_valid = isinstance(value, kind) and not isinstance(value, bool)
        is_valid = is_valid and (math.isfinite(value) if kind is float else abs(value) < 2**63)
    if not is_valid:
        raise ValueError(f"{value!r} is no {kind}")
    return value


def items_of(text: str | None) -> list[str]:
    """Items of an option, separated by commas."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def whole_numbers(option: str, text: str) -> list[int]:
    """Numbers in an option such as ``"10,20,50"``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option}: {text!r}; expected whole numbers, as in 10,20,50") from None


def mapping_option(option: str, value: str | dict[str, Any]) -> dict[str, Any]:
    """The mapping that an option gives.

    Args:
        option: Name of the option, for messages.
        value: A mapping from a configuration file; or text such as ``"economy=3,7; war=1"``; or
            the path of a file that ends in .json, .yaml or .yml.

    Returns:
        The values by name. Values of a text are text.

    Raises:
        ConfigError: The text is no mapping, has a name twice, or the file is unreadable.
    """
    if isinstance(value, str) and Path(value).suffix in (".json", ".yaml", ".yml"):
        value = read_mapping(Path(value))
    if isinstance(value, dict):
        return {str(name): item for name, item in value.items()}
    mapping: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in value.split(";"))):
        name, sign, text = (piece.strip() for piece in part.partition("="))
        if not sign or not name:
            expected = "pairs such as 'economy=3,7; war=1', or a file that ends in .json or .yaml"
            raise ConfigError(f"{option}: {part!r}; expected {expected}")
        if name in mapping:
            raise ConfigError(f"{option}: {name!r} is given twice; give it once")
        mapping[name] = text
    return mapping


def lists_option(option: str, value: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Lists by name that an option gives, such as topics by group and keywords by topic.

    Args:
        option: Name of the option, for messages.
        value: As for :func:`mapping_option`, where commas separate the items of a list.

    Raises:
        ConfigError: As for :func:`mapping_option`.
    """
    if value is None:
        return None
    return {
        name: items_of(items) if isinstance(items, str) else items
        for name, items in mapping_option(option, value).items()
    }


def read_mapping(path: Path) -> dict[Any, Any]:
    """Read a YAML or JSON file. No value of it is executed.

    Args:
        path: The file.

    Raises:
        FileError: The file is unreadable, or repeats a name.
        ConfigError: It has another form.
    """
    text = read_text(path)
    with read_errors(path, "not YAML", (yaml.YAMLError, TypeError, ValueError, RecursionError)):
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader), f"{path}: ")
        values = yaml.safe_load(text)
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected lines 'name: value', got a {type(values).__name__}")
    return values


def _refuse_repeated_keys(node: yaml.Node | None, where: str) -> None:
    """Refuse a mapping of a YAML document that has a key twice.

    Raises:
        FileError: It has.
    """
    seen: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            problem = f"{name!r} stands on line {seen[name]} and on line {line}"
            raise FileError(f"{where}{problem}; give every name once")
        seen[name] = line
        _refuse_repeated_keys(value, where)
