"""The base class of commands, and what every command says and refuses."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from torch_lntm.errors import ConfigError
from torch_lntm.options import Option, help_texts, options_of

#: Control characters. They can move the cursor of a terminal, colour it, or worse.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: ASCII replacements of characters of the tables, for encodings that lack them.
_PLAIN = {"−": "-", "–": "-", "…": "...", "±": "+/-", "’": "'"}

Headed = Mapping[str, Mapping[str, Option]]


@dataclass(kw_only=True)
class Command:
    """Base class of commands.

    The options are the fields of the class, and parameters of the functions that it calls.

    Class variables:

    * ``positionals``: Options for arguments without a flag.
    * ``optional``: Positional arguments with a default.
    * ``required``: Flags without a default.
    * ``takes``: Names of parameters, separated by spaces, by function.
    * ``headings``: Flags under each heading of the help.
    * ``line_only``: Options refused in configuration files.
    * ``shared``: Whether several processes can share the work.

    Attributes:
        plugin: Python module or .py file to import first. It may register models, guides, readers,
            commands and sections of the report. It runs with your rights, so configuration files
            cannot name it. Repeat the option for several modules.
    """

    positionals: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[dict[str, str]] = {}
    headings: ClassVar[dict[str, tuple[str, ...]]] = {}
    line_only: ClassVar[tuple[str, ...]] = ("plugin",)
    shared: ClassVar[bool] = False

    plugin: str | None = None

    @classmethod
    def headed(cls) -> Headed:
        """The options by name, under their headings."""
        return _headed(cls)  # type: ignore[arg-type]

    @classmethod
    def known(cls) -> dict[str, Option]:
        """All options by name."""
        return {n: option for group in cls.headed().values() for n, option in group.items()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Command:
        """A command with the values of its options."""
        own = {field.name for field in fields(cls)}
        command = cls(**{name: value for name, value in values.items() if name in own})
        vars(command).update(values)
        return command

    def __getattr__(self, name: str) -> Any:
        """Default of a function's parameter."""
        if not name.startswith("__") and name in (known := self.known()):
            return known[name].default
        raise AttributeError(f"{type(self).__name__} has no option {name}")

    def arguments(self, function: str) -> dict[str, Any]:
        """Values of the options that are parameters of a function."""
        return {name: getattr(self, name) for name in self.takes[function].split()}

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """The options among some names that differ from their defaults."""
        known, values = self.known(), {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value != known[name].default}

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        raise AssertionError("a command overrides run")


@functools.cache
def _headed(command: type[Command]) -> Headed:
    hints, texts = get_type_hints(command), dict[str, str]()
    known: dict[str, Option] = {}
    for base in reversed(command.__mro__):
        for function, names in vars(base).get("takes", {}).items():
            known |= {name: options_of(function)[name] for name in names.split()}
        texts |= help_texts(base.__doc__ or "")
    for field in fields(command):
        types = kinds_of(hints[field.name])
        known[field.name] = Option(field.name, types, field.default, "")
    known = {n: replace(o, help=texts.get(n, o.help)) for n, o in known.items()}
    headed = {name for names in command.headings.values() for name in names}
    return {
        "": {name: option for name, option in known.items() if name not in headed},
        **{h: {name: known[name] for name in names} for h, names in command.headings.items()},
    }


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Types of a hint, as in :class:`Option`."""
    parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return tuple(get_args(k) if get_origin(k) is Literal else get_origin(k) or k for k in parts)


def visible(text: str) -> str:
    """Escapes control characters, to protect the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def say(message: str) -> None:
    """Print a message to standard error, separately from the results."""
    print(visible(message), file=sys.stderr)


def show(text: object, end: str = "\n") -> None:
    """Print a result. Words and names come from files, and must not control the terminal."""
    if sys.stdout is None:  # if closed
        return
    shown, encoding = visible(str(text)), getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        for fine, plain in _PLAIN.items():
            shown = shown.replace(fine, plain)
        shown = shown.encode(encoding, "replace").decode(encoding)
    print(shown, end=end)


def refuse_existing(path: str | Path | None, overwrite: bool) -> None:
    """Check that a file may be written.

    Raises:
        ConfigError: The file exists and may not be replaced, or is a symbolic link to itself.
    """
    from torch_lntm.files.writing import resolve_link

    if path is not None:
        resolve_link(Path(path))
        if Path(path).exists() and not Path(path).is_dir() and not overwrite:
            raise ConfigError(f"{path}: exists already; choose another path, or pass --overwrite")


def whole_numbers(option: str, text: str) -> list[int]:
    """Numbers in an option such as ``"10,20,50"``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option}: {text!r}; expected whole numbers, as in 10,20,50") from None


def save_figure(figure: Any, path: str | None) -> None:
    """Save a Matplotlib figure in the format of the file's name, which defaults to PNG."""
    from torch_lntm.files.writing import atomic_write

    if path is not None:
        name = Path(path)
        name = name if name.suffix else name.with_name(f"{name.name}.png")
        with atomic_write(name) as file:
            try:
                figure.savefig(file, format=name.suffix.removeprefix("."))
            except ValueError as error:
                raise ConfigError(f"{path}: {error}") from error
