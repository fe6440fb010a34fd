"""Commands, which are functions whose parameters are options, and what all of them share."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch_lntm.errors import ConfigError, refuse_other_owner
from torch_lntm.options import Option, help_texts, kinds_of, options_of

#: The commands by name, in the order of the help.
COMMANDS: dict[str, Callable[..., int | None]] = {}

#: Control characters, which can move a terminal's cursor, colour its text, or worse.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Headed = Mapping[str, Mapping[str, Option]]


def register_command(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Add a command to ``torch-lntm``.

    A command is a function. Parameters before ``*`` become arguments without a flag and those after
    it become flags; they are required unless they have a default. A parameter whose type is a class
    brings in the parameters of that class, under a heading with its name. The docstring is the
    help: a summary and, under ``Args``, a line for each option. The function returns its exit code,
    or ``None`` for success. ``docs/plugins.md`` has an example.

    Args:
        name: Name of the command, in lower case.
        function: The function. ``register_command`` is a decorator if it is left out.

    Returns:
        The function.

    Raises:
        ConfigError: The name is no lower-case word, or belongs to another command.
    """
    if function is None:
        return functools.partial(register_command, name)
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ConfigError(
            f"command name {name!r}; expected lower-case letters, digits and hyphens, such as count"
        )
    refuse_other_owner("command name", name, COMMANDS.get(name), function)
    COMMANDS[name] = function
    return function


def takes(source: str | Callable[[], Headed], names: str = "") -> Callable[[Any], Any]:
    """Decorator for a command that passes some of its options on to a function of the library.

    The command receives these options as its ``**options``.

    Args:
        source: The function, as for :func:`~torch_lntm.options.options_of`; or a function that
            returns the options under their headings.
        names: Names of the parameters, separated by blanks.
    """

    def taken() -> Headed:
        if callable(source):
            return source()
        return {"": {name: options_of(source)[name] for name in names.split()}}

    def decorate(command: Any) -> Any:
        command.taken = taken
        return command

    return decorate


@functools.cache
def headed(command: Callable[..., Any], heading: str = "") -> Headed:
    """The options of a command, or of a class of options, under their headings.

    Raises:
        ConfigError: A parameter lacks a type that a shell can write, or a line in the docstring.
    """
    groups: dict[str, dict[str, Option]] = {"": {}}
    texts = help_texts(inspect.getdoc(command) or "")
    for name, parameter in _parameters(command).items():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken: Headed = command.taken()  # type: ignore[attr-defined]
            more: Headed = {title or heading: group for title, group in taken.items()}
        elif _is_group(parameter.annotation):
            more = headed(parameter.annotation, name.replace("_", " "))
        else:
            more = {heading: {name: _option(command, parameter, texts.get(name, ""))}}
        for title, group in more.items():
            for n, option in group.items():
                option = replace(option, help=texts.get(n) or option.help)
                groups.setdefault("" if option.is_positional else title, {})[n] = option
    return groups


def known_options(command: Callable[..., Any]) -> dict[str, Option]:
    """All options of a command, or of a class of options, by name."""
    return {n: option for group in headed(command).values() for n, option in group.items()}


def given(command: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults of a command, or of a class of options."""
    known = known_options(command)
    return {name: value for name, value in values.items() if value != known[name].default}


def call(command: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a command, or make an object of a class of options, with the values of all options."""
    arguments: dict[str, Any] = {}
    for name, parameter in _parameters(command).items():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken = command.taken().values()  # type: ignore[attr-defined]
            arguments |= {option: values[option] for group in taken for option in group}
        elif _is_group(parameter.annotation):
            arguments[name] = call(parameter.annotation, values)
        else:
            arguments[name] = values[name]
    return command(**arguments)


@functools.cache
def _parameters(command: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(command, eval_str=True).parameters


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and annotation.__module__ not in ("builtins", "inspect")


def _option(command: Callable[..., Any], parameter: inspect.Parameter, text: str) -> Option:
    name, is_required = parameter.name, parameter.default is parameter.empty
    if parameter.annotation is parameter.empty or not text:
        of = f"the parameter {name} of the command {command.__name__}"
        raise ConfigError(f"{of} needs a type, such as {name}: int, and a line under Args")
    return Option(
        name,
        kinds_of(parameter.annotation),
        None if is_required else parameter.default,
        text,
        is_positional=parameter.kind is parameter.POSITIONAL_OR_KEYWORD,
        is_required=is_required,
    )


def visible(text: str) -> str:
    """Escapes control characters, to protect the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def say(message: str) -> None:
    """Print a message to standard error, separately from the results."""
    print(visible(message), file=sys.stderr)


def show(text: object, end: str = "\n") -> None:
    """Print a result, without letting words and names from files control the terminal."""
    print(visible(str(text)), end=end)


def save_figure(figure: Any, path: str) -> None:
    """Save a Matplotlib figure in the format of the file's name, which defaults to PNG."""
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
