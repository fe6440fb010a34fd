"""Registration of further commands of ``torch-lntm``, by plug-ins and other packages."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from torch_lntm.cli.command import Command
from torch_lntm.cli.commands import COMMANDS
from torch_lntm.errors import ConfigError, refuse_other_owner

_NAME = re.compile(r"[a-z][a-z0-9-]*")


def register_command(name: str, command: type[Command] | None = None) -> Callable[..., Any]:
    """Add a command to ``torch-lntm``.

    A command is a dataclass that extends :class:`Command` or :class:`ReadsDocuments`. The fields
    are the options. The docstring is the help: a summary, and under ``Attributes`` a line for each
    field. ``run()`` does the work and returns the exit code. ``docs/plugins.md`` has an example.
    The command line names the plug-in: ``torch-lntm count posts.csv --plugin count.py``.

    Args:
        name: Name of the command, in lower case.
        command: The class. ``register_command`` is a decorator if the class is left out.

    Returns:
        The class.

    Raises:
        ConfigError: The name belongs to another command, or the class does not extend
            ``Command``, lacks a default or the documentation of a field, or lacks ``run()``.
    """
    if command is None:
        return functools.partial(register_command, name)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"command name {name!r}; expected lower-case letters, digits and hyphens, such as count"
        )
    refuse_other_owner("command name", name, COMMANDS.get(name), command)
    _check_class(name, command)
    COMMANDS[name] = command
    return command


def _check_class(name: str, command: type[Command]) -> None:
    """Refuse a class from which the parser cannot make options and help."""
    if not inspect.isclass(command) or not issubclass(command, Command):
        raise ConfigError(f"command {name!r} is {command!r}; expected a class that extends Command")
    if command.run is Command.run:
        raise ConfigError(f"the command {name!r} has no method run() that returns its exit code")
    own = {field.name for field in fields(command) if field.default is not MISSING}
    hints = {field.name: field.type for field in fields(command)} | inspect.get_annotations(command)
    unset = [n for n, hint in hints.items() if n not in own and "ClassVar" not in str(hint)]
    if unset:
        advice = "decorate the class by @dataclass(kw_only=True) and give each field a default"
        raise ConfigError(f"the field {unset[0]} of the command {name!r} is no option; {advice}")
    missing = [option.name for option in command.known().values() if not option.help]
    if missing or not inspect.getdoc(command):
        lacking = f"the docstring of the command {name!r} lacks {[*missing, 'a summary'][0]}"
        advice = "expected a summary, and under Attributes a line for each field"
        raise ConfigError(f"{lacking}; {advice}")
