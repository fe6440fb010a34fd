"""The program: parses the options of a command, runs it, and reports an error in a single line."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import docstring_parser

import torch_lntm as lntm
from torch_lntm.cli import commands as commands
from torch_lntm.cli.command import COMMANDS, call, headed, known_options, say, visible
from torch_lntm.cli.launch import STOPPED, first_speaks, launched_rank
from torch_lntm.cli.values import read_mapping, read_option, read_value
from torch_lntm.errors import ConfigError, LNTMError, did_you_mean
from torch_lntm.options import Option

#: Exit codes: after a reported error, and after a closed pipe of the output.
FAILED, READER_GONE = 1, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments, without the program's name. Defaults to the arguments of the process.

    Returns:
        The exit code: 0 after success, 1 after a reported error, 130 after Ctrl-C, 143 after
        SIGTERM, 141 after a closed pipe of the output.

    Raises:
        SystemExit: With code 2 for wrong options, and with code 0 after help or the version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # signs that a terminal lacks are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *about: say(f"warning: {message}")
        try:
            with first_speaks():
                command, values = parse(arguments)
                if launched_rank() is not None and command is not COMMANDS["fit"]:
                    raise ConfigError("this command runs in one process; start it by torch-lntm")
                code = call(command, values) or 0
            if sys.stdout is not None:  # None if closed
                sys.stdout.flush()
            return int(code)
        except BrokenPipeError:  # the reader, such as head, has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except LNTMError as error:
            if error.shared and launched_rank():  # the first process reports the error
                return FAILED
            return _fail(str(error))
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            return _fail(f"{where}{error.strerror or error}")
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            advice = "fewer topics or words, smaller batches (max_docs, batch_size) and float32"
            return _fail(f"not enough memory ({error}); {advice} take less")
        except KeyboardInterrupt as stop:
            reason = "terminated" if type(stop).__name__ == "Terminated" else "interrupted"
            with first_speaks():
                say(reason)
            return STOPPED[reason]


def _fail(message: str) -> int:
    say(f"error: {' '.join(message.split())}")
    return FAILED


class Parser(argparse.ArgumentParser):
    """Parser with errors of a single line and suggestions of similar options."""

    def error(self, message: str) -> NoReturn:
        """Exit with an error about the options."""
        text = " ".join(message.split())
        if text.startswith("unrecognized arguments:"):
            unknown = text.partition(":")[2].split()[0].partition("=")[0]
            text += did_you_mean(unknown, list(self._option_string_actions))
        self.exit(2, f"error: {visible(text)}\nSee {self.prog} --help.\n")


class Help(argparse.RawDescriptionHelpFormatter):
    """Help with the line breaks of descriptions, and without uninformative types and defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        hidden = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
        return f"{action.help or ''}{'' if hidden else ' (default: %(default)s)'}"


def parse(arguments: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Parse a command and its options.

    Args:
        arguments: The arguments, without the program's name.

    Returns:
        The command, and the values of all its options by name.

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
    version = f"torch-lntm {lntm.__version__}"
    parser.add_argument("--version", action="version", version=version)
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        command = COMMANDS[name]
        return command, _values(_command_parser(f"torch-lntm {name}", command), command, rest)
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(2)
    parser.parse_known_args(arguments[:1])  # prints the help or the version, and exits
    hint = did_you_mean(arguments[0], [*COMMANDS, "--help", "--version"]) or (
        f"; expected one of {', '.join(COMMANDS)}, or a command of a plug-in, by --plugin FILE"
    )
    parser.error(f"no command {arguments[0]!r}{hint}")


def _command_parser(prog: str, command: Callable[..., Any]) -> Parser:
    """Parser of a command, with its options under their headings."""
    known = known_options(command).values()
    arguments = [option for option in known if option.is_positional]
    names = [o.name.upper() if o.is_required else f"[{o.name.upper()}]" for o in arguments]
    about = docstring_parser.parse(inspect.getdoc(command) or "", docstring_parser.Style.GOOGLE)
    parser = Parser(
        prog=prog,
        usage=f"{prog} {' '.join(names)} [--option VALUE ...]",
        description="\n".join(filter(None, [about.short_description, about.long_description])),
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, help="YAML or JSON file of options by name.")
    parser.add_argument(
        "--plugin",
        help="Python module or .py file to import first. It may register models, guides, readers, "
        "commands and sections of the report. It runs with your rights, so configuration files "
        "cannot name it. Repeat the option for several modules.",
    )
    for title, options in headed(command).items():
        group = parser.add_argument_group(title) if title else parser
        for option in options.values():
            add_option(parser if option.is_positional else group, option)
    return parser


def add_option(group: Any, option: Option, **settings: Any) -> None:
    """Add an option to a parser.

    Args:
        group: The parser, or a group of the parser.
        option: The option. Truth values as defaults give two flags, ``--name`` and ``--no-name``.
        **settings: Further arguments of ``add_argument``.
    """
    settings["help"] = option.help.replace("%", "%%")
    name = "--" + option.name.replace("_", "-")
    if isinstance(option.default, bool):
        settings["action"] = argparse.BooleanOptionalAction
    else:
        listed = [("true", "false") if k is bool else k for k in option.kinds]
        choices = ",".join(",".join(kind) for kind in listed if isinstance(kind, tuple))
        settings["metavar"] = f"{{{choices}}}" if choices else option.name.upper()
        settings["type"] = functools.partial(read_value, option.kinds)
    if option.is_positional:
        name, settings["nargs"] = option.name, "?"
    # The default is set separately, because the action would write it into the help.
    group.add_argument(name, default=None, **settings)
    group.set_defaults(**{option.name: option.default})


def _values(parser: Parser, command: Callable[..., Any], arguments: list[str]) -> dict[str, Any]:
    """Values of all options: from the arguments, else the configuration file, else the defaults."""
    # Messages spell options as Python and configuration files do, so both spellings are accepted.
    arguments = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), a) for a in arguments]
    config: Path | None = parser.parse_known_args(arguments)[0].config
    known = known_options(command)
    if config is not None:
        parser.set_defaults(**_read_config(parser, known, config))
    values = vars(parser.parse_args(arguments))
    for option in known.values():
        value = values[option.name]
        if option.is_positional and config is None and str(value).endswith((".yaml", ".yml")):
            parser.error(f"{value}: is a configuration file; did you mean --config {value}?")
    missing = [
        option.name.upper() if option.is_positional else f"--{option.name}"
        for option in known.values()
        if option.is_required and values[option.name] is None
    ]
    if missing:
        parser.error(f"{', '.join(missing)} not given")
    return {name: values[name] for name in known}


def _read_config(parser: Parser, known: dict[str, Option], path: Path) -> dict[str, Any]:
    """Read and check the options in a configuration file."""
    try:
        values = read_mapping(path)
        for key, value in values.items():
            if key not in known:
                hint = did_you_mean(str(key).replace("-", "_"), list(known))
                raise ConfigError(f"{path}: unknown option {key!r}{hint}")
            values[key] = read_option(known[key], value, path)
    except ConfigError as error:
        parser.error(str(error))
    return values


def _import_plugins(arguments: Sequence[str]) -> list[str]:
    """Import the module of every ``--plugin``, since one of them may register the command.

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
    """Import a module by its name, also from the working directory, or by its .py file."""
    if not plugin.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        importlib.import_module(plugin)
        return
    # The name is made unique, because a file such as json.py must not replace another module.
    name = f"torch_lntm_plugin_{Path(plugin).stem}"
    spec: Any = importlib.util.spec_from_file_location(name, plugin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
