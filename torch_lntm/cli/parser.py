"""Command line and configuration files, checked against the options of a command."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import docstring_parser

import torch_lntm as lntm
from torch_lntm.cli.command import Command, visible
from torch_lntm.cli.commands import COMMANDS
from torch_lntm.cli.mappings import Typed, read_mapping, read_value
from torch_lntm.errors import ConfigError
from torch_lntm.options import Option


class Parser(argparse.ArgumentParser):
    """Parser with errors of a single line and suggestions of similar options."""

    def error(self, message: str) -> NoReturn:
        """Exit with an error about the options."""
        text = " ".join(message.split())
        if text.startswith("unrecognized arguments:"):
            unknown = text.partition(":")[2].split()[0].partition("=")[0]
            options = [name for action in self._actions for name in action.option_strings]
            text += _suggestion(unknown, options)
        self.exit(2, f"error: {visible(text)}\nSee {self.prog} --help.\n")


class Help(argparse.HelpFormatter):
    """Help with the line breaks of descriptions, and without uninformative types and defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        hidden = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return f"{action.help or ''}{'' if hidden else ' (default: %(default)s)'}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _suggestion(unknown: str, names: Sequence[str]) -> str:
    close = get_close_matches(unknown, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def parse(arguments: Sequence[str]) -> Command:
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
        + "\n".join(
            f"  {name:10} {(inspect.getdoc(command) or '').partition(chr(10))[0]}"
            for name, command in COMMANDS.items()
        ),
        formatter_class=Help,
    )
    parser.add_argument("--version", action="store_true", help="Print the version and exit.")
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        command = COMMANDS[name]
        return command.of(_options(command_parser(f"torch-lntm {name}", command), command, rest))
    if list(arguments) == ["--version"]:
        print(f"torch-lntm {lntm.__version__}")
        parser.exit(0)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help(sys.stdout if arguments else sys.stderr)
        parser.exit(0 if arguments else 2)
    hint = _suggestion(arguments[0], [*COMMANDS, "--help", "--version"]) or (
        f"; expected one of {', '.join(COMMANDS)}, or a command of a plug-in, by --plugin FILE"
    )
    parser.error(f"no command {arguments[0]!r}{hint}")


def command_parser(prog: str, command: type[Command]) -> Parser:
    """Parser of a command, with its options under their headings."""
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
    known = command.known()
    for name in command.positionals:
        text = known[name].help.replace("%", "%%")
        parser.add_argument(name, nargs="?", type=Typed, help=text, metavar=name.upper())
    parser.add_argument("--config", type=Path, help="YAML or JSON file of options by name.")
    for title, options in command.headed().items():
        group = parser.add_argument_group(title) if title else parser
        for name, option in options.items():
            if name not in command.positionals:
                add_option(group, option)
    return parser


def add_option(group: Any, option: Option, **settings: Any) -> None:
    """Add an option to a parser. :func:`read_value` converts the values later.

    Args:
        group: The parser, or a group of the parser.
        option: The option. Truth values as defaults give two flags, ``--name`` and ``--no-name``.
        **settings: Further arguments of ``add_argument``.
    """
    settings["help"] = option.help.replace("%", "%%")
    if isinstance(option.default, bool):
        settings["action"] = argparse.BooleanOptionalAction
    else:
        listed = [("true", "false") if k is bool else k for k in option.kinds]
        choices = ",".join(",".join(kind) for kind in listed if isinstance(kind, tuple))
        metavar = f"{{{choices}}}" if choices else option.name.upper()
        settings |= {"type": Typed, "metavar": metavar}
    # The default is set separately, because the action would write it into the help.
    group.add_argument("--" + option.name.replace("_", "-"), default=None, **settings)
    group.set_defaults(**{option.name: option.default})


def _options(parser: Parser, command: type[Command], arguments: list[str]) -> dict[str, Any]:
    """Options of a command. Arguments override the configuration file, which overrides defaults."""
    # Messages name options as Python and configuration files do, so both spellings are known.
    flags = [a.partition("=") if a.startswith("--") else (a, "", "") for a in arguments]
    arguments = [
        flag.replace("_", "-") + sign + value if flag.startswith("--") else flag
        for flag, sign, value in flags
    ]
    config: Path | None = parser.parse_known_args(arguments)[0].config
    if config is not None:
        parser.set_defaults(**_read_config(parser, command, config))
    options = vars(parser.parse_args(arguments))
    options.pop("config")
    first = options[command.positionals[0]] if command.positionals else None
    if config is None and Path(str(first)).suffix in (".yaml", ".yml"):
        parser.error(f"{first}: is a configuration file; did you mean --config {first}?")
    missing = [n.upper() for n in command.positionals if n not in command.optional]
    missing = [n for n in missing if options[n.lower()] is None]
    missing += [f"--{name}" for name in command.required if options[name] is None]
    if missing:
        parser.error(f"{', '.join(missing)} not given")
    known = command.known()
    try:
        for name, value in options.items():
            if isinstance(value, Typed):
                options[name] = read_value(name, known[name].kinds, value)
    except ValueError as error:
        parser.error(str(error))
    return options


def _read_config(parser: Parser, command: type[Command], path: Path) -> dict[str, Any]:
    """Read and check the options in a configuration file. Null stands for the default."""
    known = command.known()
    try:
        values = read_mapping(path)
        for key, value in values.items():
            if key in command.line_only:
                advice = f"give it on the command line, as --{key}"
                raise ConfigError(f"{path}: {key} runs code; {advice}")
            if key not in known:
                hint = _suggestion(str(key).replace("-", "_"), list(known))
                raise ConfigError(f"{path}: unknown option {key!r}{hint}")
            default, kinds = known[key].default, known[key].kinds
            values[key] = default if value is None else read_value(f"{path}: {key}", kinds, value)
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    return values


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
        try:
            _import_plugin(plugin)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"the plug-in {plugin} cannot be imported ({reason})") from error
    return remaining if options.plugin else list(arguments)


def _import_plugin(plugin: str) -> None:
    """Import a module by its name or its .py file. The working directory is searched too."""
    if not plugin.endswith(".py"):
        here = os.getcwd()
        sys.path.insert(0, here)
        try:
            importlib.import_module(plugin)
        finally:
            sys.path.remove(here)
        return
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
