"""Command line and configuration files, both checked against a command's fields."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import docstring_parser
import jsonargparse
import yaml

import torch_lntm as lntm
from torch_lntm.cli.commands import COMMANDS
from torch_lntm.cli.documents import Command, visible
from torch_lntm.errors import ConfigError


class _Parser(jsonargparse.ArgumentParser):
    """Says what is wrong in a line, without repeating all options, and what may be meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = " ".join(message.split())
        for pattern, plain in _PLAIN:
            text = re.sub(pattern, plain, text)
        if text.startswith("unrecognized arguments:"):
            unknown = text.partition(":")[2].split()[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            text += _suggestion(unknown.replace("_", "-"), known)
        if not self.exit_on_error:
            raise ValueError(text)
        self.exit(2, f"error: {visible(text)}\nSee {self.prog} --help.\n")


#: What jsonargparse says, as a user without Python would say it.
_PLAIN = (
    (r'Parser key "(\w+)":', r"\1:"),
    (
        r"Does not validate.*? Subtypes: \[(.*)\] Errors:.* Given value: (.*)",
        r"expected \1; got \2",
    ),
    (r"Expected an? (<class '\w+'>|typing\.Literal\[.*?\])\. Got value:", r"expected \1; got"),
    (r"typing\.Literal\[(.*?)\]", r"\1"),
    (r", <class 'NoneType'>", ""),
    (r"<class '(\w+)'>", r"\1"),
)


def _suggestion(unknown: str, known: Sequence[str]) -> str:
    close = get_close_matches(unknown, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parse(arguments: Sequence[str]) -> tuple[type[Command], dict[str, Any]]:
    """The command that some arguments choose, and its options.

    Args:
        arguments: The arguments, without the program's name.

    Raises:
        SystemExit: With 2 for wrong options, with 0 after printing help or the version.
        ConfigError: A plug-in that cannot be imported.
    """
    parser = _Parser(
        prog="torch-lntm",
        usage="torch-lntm COMMAND ... [--help]",
        description="Logistic-normal topic models, with or without correlations; aspect models.",
        epilog="commands:\n"
        + "\n".join(f"  {name:10} {_summary(command)}" for name, command in COMMANDS.items()),
        formatter_class=_Help,
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
    known = [*COMMANDS, "--help", "--version"]
    hint = _suggestion(arguments[0], known) or f"; expected one of {', '.join(COMMANDS)}"
    parser.error(f"no command {arguments[0]!r}{hint}")


class _Help(jsonargparse.DefaultHelpFormatter):
    """Keeps the line breaks of descriptions, and leaves out types and defaults that say nothing."""

    def _get_help_string(self, action: argparse.Action) -> str:
        said = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return f"{action.help or ''}{'' if said else ' (default: %(default)s)'}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _summary(command: type[Command]) -> str:
    return (inspect.getdoc(command) or "").partition("\n")[0]


def _options(name: str, command: type[Command], arguments: list[str]) -> dict[str, Any]:
    """The options of a command: the defaults, then the configuration file's, then the arguments."""
    parser = _command_parser(f"torch-lntm {name}", command)
    config = _config_path(parser, arguments)
    if config is not None:
        parser.set_defaults(_read_config(parser, command, config))
    options = vars(parser.parse_args(arguments))
    options.pop("config")
    first = options[command.positionals[0]] if command.positionals else None
    if config is None and Path(str(first)).suffix in (".yaml", ".yml"):
        parser.error(f"{first}: is a configuration file; did you mean --config {first}?")
    missing = [field.upper() for field in command.positionals if options[field] is None]
    missing = [field for field in missing if field.lower() not in command.optional]
    missing += [f"--{f}" for f in command.required if options[f] is None]
    if missing:
        parser.error(f"{', '.join(missing)} not given")
    if options["plugin"] is not None:
        _import_plugin(options["plugin"])
    return options


def _import_plugin(plugin: str) -> None:
    """Import a module by its name, also one in the working directory, or by its .py file.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        if plugin.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(plugin).stem, plugin)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
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


def _command_parser(prog: str, command: type[Command]) -> _Parser:
    positionals = " ".join(
        f"[{name.upper()}]" if name in command.optional else name.upper()
        for name in command.positionals
    )
    about = docstring_parser.parse(inspect.getdoc(command) or "", docstring_parser.Style.GOOGLE)
    parser = _Parser(
        prog=prog,
        usage=f"{prog} {positionals} [--option VALUE ...]",
        description="\n".join(filter(None, [about.short_description, about.long_description])),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    help_of = {
        parameter.arg_name: " ".join((parameter.description or "").split())
        for base in reversed(command.__mro__)
        for parameter in docstring_parser.parse(base.__doc__ or "").params
    }
    hints = typing.get_type_hints(command)
    for name in command.positionals:
        parser.add_argument(
            name, nargs="?", type=_type_of(hints[name]), help=help_of[name], metavar=name.upper()
        )
    parser.add_argument("--config", type=str, help="YAML or JSON file of options, by their names.")
    options = {field.name: field for field in fields(command)}
    grouped = {name for names in command.groups.values() for name in names}
    ungrouped = tuple(name for name in options if name not in {*command.positionals, *grouped})
    for title, names in {"": ungrouped, **command.groups}.items():
        group = parser.add_argument_group(title) if title else parser
        for name in names:
            flag = "--" + name.replace("_", "-")
            default = options[name].default
            settings: dict[str, Any] = {"default": default, "help": help_of[name]}
            if isinstance(default, bool):
                settings["action"] = jsonargparse.ActionYesNo(no_prefix="no-")
            else:
                settings["type"] = _type_of(hints[name])
            group.add_argument(flag, **settings)
    return parser


def _type_of(hint: Any) -> Any:
    """The type to read an option as: texts as they are typed, also ``null``."""
    return str if hint == str | None else hint


def _config_path(parser: _Parser, arguments: list[str]) -> Path | None:
    """The argument of the last ``--config``."""
    path = None
    for i, argument in enumerate(arguments):
        if argument.startswith("--config="):
            path = argument.partition("=")[2]
        elif argument == "--config" and i + 1 < len(arguments):
            path = arguments[i + 1]
    return None if path is None else Path(path)


def _read_config(parser: _Parser, command: type[Command], path: Path) -> dict[str, Any]:
    """A configuration file's options, all known and of the right type."""
    try:
        text = path.read_text(encoding="utf-8")
        twice = _repeated_key(yaml.compose(text, Loader=yaml.SafeLoader))
        if twice is not None:
            parser.error(f"{path}: {twice}; give every option once")
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        parser.error(f"{path}: not YAML of options: {error}")
    values = {} if values is None else values
    if not isinstance(values, dict):
        parser.error(f"{path}: expected lines 'option: value', got a {type(values).__name__}")
    known = [field.name for field in fields(command) if field.name not in command.line_only]
    for key in values:
        if key in command.line_only:
            parser.error(f"{path}: {key} runs code; give it on the command line, as --{key}")
        if key not in known:
            hint = _suggestion(str(key).replace("-", "_"), known)
            parser.error(
                f"{path}: unknown option {key!r}{hint or f'; known: {chr(44).join(known)}'}"
            )
    checker = _command_parser(parser.prog, command)
    checker.exit_on_error = False
    try:
        for field in fields(command):
            if field.default is not None and values.get(field.name, True) is None:
                checker.error(f"{field.name}: expected a value; got null")
            if isinstance(field.default, bool) and not isinstance(
                values.get(field.name, True), bool
            ):
                checker.error(f"{field.name}: expected true or false; got {values[field.name]!r}")
        checked = vars(checker.parse_object(values))
    except ValueError as error:
        parser.error(f"{path}: {error}")
    return {key: checked[key] for key in values}


def _repeated_key(node: yaml.Node | None) -> str | None:
    """A key that stands twice in a mapping of a YAML document, with its lines."""
    seen: dict[str, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                return f"{key.value!r} stands on line {seen[key.value]} and on line {line}"
            seen[str(key.value)] = line
            if (found := _repeated_key(value)) is not None:
                return found
    return None
