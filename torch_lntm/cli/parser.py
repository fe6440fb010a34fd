"""Command line and configuration files, both checked against a command's fields."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import typing
import warnings
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TextIO

import docstring_parser
import jsonargparse
import yaml

import torch_lntm as lntm
from torch_lntm.cli.commands import COMMANDS
from torch_lntm.cli.documents import Command
from torch_lntm.errors import LNTMError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments, without the program's name; by default those of the process.

    Returns:
        The exit code: 0 done, 1 an error that was reported, 130 after Ctrl-C.

    Raises:
        SystemExit: With 2 for wrong options, with 0 after printing help or the version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, options = _parse(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return command(**options).run()
        except (LNTMError, OSError) as error:
            if isinstance(error, BrokenPipeError):  # the reader, such as head, has had enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 141
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=sys.stderr)


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
        self.exit(2, f"error: {text}\nSee {self.prog} --help.\n")


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


def _parse(arguments: list[str]) -> tuple[type[Command], dict[str, Any]]:
    """The command and its options."""
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
    if arguments == ["--version"]:
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
    missing = [field.upper() for field in command.positionals if options[field] is None]
    missing += [f"--{f}" for f in command.required if options[f] is None]
    if missing:
        parser.error(f"{', '.join(missing)} not given")
    return options


def _command_parser(prog: str, command: type[Command]) -> _Parser:
    positionals = " ".join(map(str.upper, command.positionals))
    about = docstring_parser.parse(inspect.getdoc(command) or "", docstring_parser.Style.GOOGLE)
    parser = _Parser(
        prog=prog,
        usage=f"{prog} {positionals} [--option VALUE ...]",
        description="\n".join(filter(None, [about.short_description, about.long_description])),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    help_of = {
        parameter.arg_name: " ".join((parameter.description or "").split()).replace("%", "%%")
        for base in reversed(command.__mro__)
        for parameter in docstring_parser.parse(base.__doc__ or "").params
    }
    hints = typing.get_type_hints(command)
    for name in command.positionals:
        parser.add_argument(
            name, nargs="?", type=hints[name], help=help_of[name], metavar=name.upper()
        )
    parser.add_argument("--config", type=str, help="YAML or JSON file of options, by their names.")
    for field in fields(command):
        if field.name in command.positionals:
            continue
        flag = "--" + field.name.replace("_", "-")
        settings: dict[str, Any] = {"default": field.default, "help": help_of[field.name]}
        if isinstance(field.default, bool):
            settings["action"] = jsonargparse.ActionYesNo(no_prefix="no-")
        else:
            settings["type"] = hints[field.name]
        parser.add_argument(flag, **settings)
    return parser


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
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")
    except yaml.YAMLError as error:
        parser.error(f"{path}: not YAML: {error}")
    values = {} if values is None else values
    if not isinstance(values, dict):
        parser.error(f"{path}: expected lines 'option: value', got a {type(values).__name__}")
    known = [field.name for field in fields(command)]
    for key in values:
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
