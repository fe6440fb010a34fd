"""Command line and configuration files, checked against the fields of a command."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import docstring_parser
import yaml

import torch_lntm as lntm
from torch_lntm.cli.commands import COMMANDS
from torch_lntm.cli.documents import Command, visible
from torch_lntm.cli.mappings import read_mapping
from torch_lntm.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Parser with errors of a single line and suggestions of similar options."""

    def error(self, message: str) -> NoReturn:
        """Exit with an error about the options."""
        text = " ".join(message.split())
        if text.startswith("unrecognized arguments:"):
            unknown = text.partition(":")[2].split()[0].partition("=")[0]
            options = [name for action in self._actions for name in action.option_strings]
            text += _suggestion(unknown.replace("_", "-"), options)
        self.exit(2, f"error: {visible(text)}\nSee {self.prog} --help.\n")


class Typed(str):
    """Value from the command line, as opposed to a default."""


def read_value(name: str, hint: Any, value: Any) -> Any:
    """Convert the value of an option to one of its types.

    Args:
        name: Name of the option, for messages.
        hint: Type of the option: str, int, float, bool, dict, a Literal, or a union of these types
            and None.
        value: Text of the command line, or value of a configuration file.

    Raises:
        ValueError: The value fits none of the types.
    """
    kinds = [kind for kind in _kinds(hint) if kind is not type(None)]
    if value is None or (value == "null" and len(kinds) < len(_kinds(hint)) and str not in kinds):
        return None
    for kind in kinds:
        with suppress(ValueError, OverflowError):
            return _of_kind(kind, value)
    expected = ", ".join(
        ", ".join(map(repr, get_args(kind)))
        if get_origin(kind) is Literal
        else (get_origin(kind) or kind).__name__
        for kind in kinds
    )
    raise ValueError(f"{name}: expected {expected}; got {value}")


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Possible values of a type, if they can be listed."""
    return ("true", "false") if kind is bool else get_args(kind) * (get_origin(kind) is Literal)


def _of_kind(kind: Any, value: Any) -> Any:
    """Convert a value to a type.

    Raises:
        ValueError: The value has another type.
    """
    is_valid = False
    if get_origin(kind) is Literal:
        is_valid = isinstance(value, str) and value in get_args(kind)
    elif kind is str:
        is_valid = isinstance(value, str) and "\0" not in value
    elif kind is bool:
        value = {"true": True, "false": False}.get(str(value).lower(), value)
        is_valid = isinstance(value, bool)
    elif get_origin(kind) is dict:
        value = yaml.safe_load(value) if isinstance(value, str) else value
        is_valid = isinstance(value, dict)
    else:
        value = kind(value) if type(value) in (str, Typed, int, kind) else value
        is_valid = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
        is_valid = is_valid and isinstance(value, kind)
    if not is_valid:
        raise ValueError(f"{value!r} is no {kind}")
    return str(value) if isinstance(value, Typed) else value


def _suggestion(unknown: str, names: Sequence[str]) -> str:
    close = get_close_matches(unknown, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parse(arguments: Sequence[str]) -> tuple[type[Command], dict[str, Any]]:
    """Parse a command and its options.

    Args:
        arguments: The arguments, without the program's name.

    Raises:
        SystemExit: With code 2 for wrong options, and with code 0 after help or the version.
        ConfigError: A plug-in cannot be imported.
    """
    arguments = _import_plugins(arguments)
    parser = Parser(
        prog="torch-lntm",
        usage="torch-lntm COMMAND ... [--help]",
        description="Logistic-normal topic models, with or without correlations; aspect models.",
        epilog="commands:\n"
        + "\n".join(f"  {name:10} {_summary(command)}" for name, command in COMMANDS.items()),
        formatter_class=Help,
    )
    parser.add_argument("--version", action="store_true", help="Print the version and exit.")
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        return COMMANDS[name], _options(name, COMMANDS[name], rest)
    if list(arguments) == ["--version"]:
        print(f"torch-lntm {lntm.__version__}")
        parser.exit(0)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help(sys.stdout if arguments else sys.stderr)
        parser.exit(0 if arguments else 2)
    names = [*COMMANDS, "--help", "--version"]
    known = ", ".join(COMMANDS)
    hint = _suggestion(arguments[0], names) or (
        f"; expected one of {known}, or a command of a plug-in, by --plugin FILE"
    )
    parser.error(f"no command {arguments[0]!r}{hint}")


class Help(argparse.HelpFormatter):
    """Help with the line breaks of descriptions, and without uninformative types and defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        hidden = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return f"{action.help or ''}{'' if hidden else ' (default: %(default)s)'}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _summary(command: type[Command]) -> str:
    return (inspect.getdoc(command) or "").partition("\n")[0]


def _options(name: str, command: type[Command], arguments: list[str]) -> dict[str, Any]:
    """Options of a command. Arguments override the configuration file, which overrides defaults."""
    parser = _command_parser(f"torch-lntm {name}", command)
    config: Path | None = parser.parse_known_args(arguments)[0].config
    if config is not None:
        parser.set_defaults(**_read_config(parser, command, config))
    options = vars(parser.parse_args(arguments))
    options.pop("config")
    _check_required(parser, command, options, config)
    hints = typing.get_type_hints(command)
    try:
        for option, value in options.items():
            if isinstance(value, Typed):
                options[option] = read_value(option, hints[option], value)
    except ValueError as error:
        parser.error(str(error))
    return options


def _check_required(
    parser: Parser, command: type[Command], options: dict[str, Any], config: Path | None
) -> None:
    """Refuse missing arguments, and a configuration file in the place of an argument."""
    first = options[command.positionals[0]] if command.positionals else None
    if config is None and Path(str(first)).suffix in (".yaml", ".yml"):
        parser.error(f"{first}: is a configuration file; did you mean --config {first}?")
    missing = [field.upper() for field in command.positionals if options[field] is None]
    missing = [field for field in missing if field.lower() not in command.optional]
    missing += [f"--{f}" for f in command.required if options[f] is None]
    if missing:
        parser.error(f"{', '.join(missing)} not given")


def _import_plugins(arguments: Sequence[str]) -> list[str]:
    """Import the module of every ``--plugin``. A module may register the command.

    Returns:
        The other arguments.

    Raises:
        ConfigError: A module cannot be imported.
    """
    parser = Parser(prog="torch-lntm", add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", action="append", default=[])
    options, remaining = parser.parse_known_args(arguments)
    for plugin in options.plugin:
        _import_plugin(plugin)
    return remaining if options.plugin else list(arguments)


def _import_plugin(plugin: str) -> None:
    """Import a module by its name or its .py file. The working directory is searched too.

    Raises:
        ConfigError: The module cannot be imported.
    """
    try:
        if plugin.endswith(".py"):
            # A unique name, because a file such as json.py must not replace another module.
            name = f"torch_lntm_plugin_{Path(plugin).stem}"
            spec = importlib.util.spec_from_file_location(name, plugin)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # dataclasses look up their module there
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
            return
        here = os.getcwd()
        sys.path.insert(0, here)
        try:
            importlib.import_module(plugin)
        finally:
            sys.path.remove(here)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the plug-in {plugin} cannot be imported ({reason})") from error


def _command_parser(prog: str, command: type[Command]) -> Parser:
    positionals = " ".join(
        f"[{name.upper()}]" if name in command.optional else name.upper()
        for name in command.positionals
    )
    about = docstring_parser.parse(inspect.getdoc(command) or "", docstring_parser.Style.GOOGLE)
    parser = Parser(
        prog=prog,
        usage=f"{prog} {positionals} [--option VALUE ...]",
        description="\n".join(filter(None, [about.short_description, about.long_description])),
        formatter_class=Help,
        allow_abbrev=False,
    )
    help_of = _help_of(command)
    for name in command.positionals:
        parser.add_argument(name, nargs="?", type=Typed, help=help_of[name], metavar=name.upper())
    parser.add_argument("--config", type=Path, help="YAML or JSON file of options by name.")
    hints = typing.get_type_hints(command)
    options = {field.name: field for field in fields(command)}
    grouped = {name for names in command.headings.values() for name in names}
    ungrouped = tuple(name for name in options if name not in {*command.positionals, *grouped})
    for title, names in {"": ungrouped, **command.headings}.items():
        group = parser.add_argument_group(title) if title else parser
        for name in names:
            add_option(group, name, hints[name], options[name].default, help_of[name])
    return parser


def _help_of(command: type[Command]) -> dict[str, str]:
    """Help of every option, from the docstrings."""
    return {
        parameter.arg_name: " ".join((parameter.description or "").split()).replace("%", "%%")
        for base in reversed(command.__mro__)
        for parameter in docstring_parser.parse(base.__doc__ or "").params
    }


def add_option(group: Any, name: str, hint: Any, default: Any, text: str, **settings: Any) -> None:
    """Add an option to a parser. :func:`read_value` converts the values later.

    Args:
        group: The parser, or a group of the parser.
        name: Name of the option.
        hint: Type of the option.
        default: Default of the option. Truth values give two flags, ``--name`` and ``--no-name``.
        text: Help of the option.
        **settings: Further arguments of ``add_argument``.
    """
    settings["help"] = text
    choices = ",".join(choice for kind in _kinds(hint) for choice in _choices(kind))
    if isinstance(default, bool):
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings |= {"type": Typed, "metavar": f"{{{choices}}}" if choices else name.upper()}
    # The default is set separately, because the action would write it into the help.
    group.add_argument("--" + name.replace("_", "-"), default=None, **settings)
    group.set_defaults(**{name: default})


def _read_config(parser: Parser, command: type[Command], path: Path) -> dict[str, Any]:
    """Read and check the options in a configuration file."""
    try:
        values = read_mapping(path)
    except ConfigError as error:
        parser.error(str(error))
    allowed = {
        field.name: field for field in fields(command) if field.name not in command.line_only
    }
    hints = typing.get_type_hints(command)
    for key, value in values.items():
        if key in command.line_only:
            parser.error(f"{path}: {key} runs code; give it on the command line, as --{key}")
        if key not in allowed:
            hint = _suggestion(str(key).replace("-", "_"), list(allowed))
            parser.error(
                f"{path}: unknown option {key!r}{hint or f'; known: {chr(44).join(allowed)}'}"
            )
        default = allowed[key].default
        if isinstance(default, bool) and not isinstance(value, bool):
            parser.error(f"{path}: {key}: expected true or false; got {value!r}")
        if default is not None and value is None:
            parser.error(f"{path}: {key}: expected a value; got null")
        try:
            values[key] = read_value(key, hints[key], value)
        except ValueError as error:
            parser.error(f"{path}: {error}")
    return values
