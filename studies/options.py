"""Options of a study: the fields of its settings, from the command line and from a YAML file."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from studies.measure import Study
from torch_lntm.cli.main import Help, Parser, add_option
from torch_lntm.cli.values import read_value
from torch_lntm.errors import ConfigError
from torch_lntm.options import Option, help_texts, kinds_of


@dataclass(frozen=True)
class Options:
    """The result of parsing a command line.

    Attributes:
        settings: The study's settings.
        out: Folder of the results.
        data: Folder of the corpora. None for the folder of the environment.
        again: Text in the names of the cells to measure anew. None keeps all cells.
    """

    settings: Any
    out: Path
    data: str | None
    again: str | None


def read(name: str, study: Study[Any, Any], argv: Sequence[str]) -> Options:
    """Parse a command line.

    An option overrides ``--quick``, which overrides the file, which overrides the defaults.

    Args:
        name: Name of the study.
        study: The study.
        argv: Arguments after the name.

    Raises:
        SystemExit: With 2 for a wrong option, with 0 after the help.
        ConfigError: A file or a setting has a wrong value.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    first.add_argument("--quick", action="store_true")
    given, _ = first.parse_known_args(argv)
    parser = _parser(name, study)
    if given.config is not None:
        parser.set_defaults(**_read_file(name, study, Path(given.config)))
    if given.quick:
        parser.set_defaults(**study.quick)
    chosen = parser.parse_args(list(argv))
    hints = get_type_hints(study.settings)
    try:
        values = {
            field.name: _value(field.name, hints[field.name], getattr(chosen, field.name))
            for field in fields(study.settings)
        }
    except ValueError as error:
        parser.error(str(error))
    settings = study.settings(**values)
    out = chosen.out or f"runs/{name}" + ("-quick" if given.quick else "")
    return Options(settings, Path(out), chosen.data, chosen.again)


def _value(name: str, hint: Any, value: Any) -> Any:
    """A setting of a command line, a file or a default, converted to its type."""
    try:
        if get_origin(hint) is not tuple:
            return read_value(kinds_of(hint), value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}: expected a list; got {value}")
        return tuple(read_value(kinds_of(get_args(hint)[0]), each) for each in value)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _parser(name: str, study: Study[Any, Any]) -> Parser:
    about = inspect.getdoc(inspect.getmodule(study.run)) or ""
    parser = Parser(
        prog=f"python -m studies {name}",
        usage=f"python -m studies {name} [--option VALUE ...]",
        description=about,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=str, help="A YAML file with some of the settings.")
    if study.quick:
        changed = ", ".join(f"{key} {_words(value)}" for key, value in study.quick.items())
        parser.add_argument("--quick", action="store_true", help=f"A small version: {changed}.")
    parser.add_argument(
        "--out",
        type=str,
        help=f"Folder of the results. Defaults to runs/{name}, with --quick runs/{name}-quick. An "
        "interrupted study continues with the first missing cell.",
    )
    parser.add_argument(
        "--data", type=str, help="The folder of corpora, instead of the variable LNTM_DATA."
    )
    parser.add_argument(
        "--again",
        type=str,
        help="Measure the cells anew whose names contain this text, such as torch_lntm. "
        "Other cells stay. After an interruption, continue without this option.",
    )
    help_of = help_texts(inspect.getdoc(study.settings) or "")
    hints = get_type_hints(study.settings)
    for field in fields(study.settings):
        hint, several = hints[field.name], {}
        if get_origin(hint) is tuple:
            hint, several = get_args(hint)[0], {"nargs": "*"}
        option = Option(field.name, kinds_of(hint), field.default, help_of[field.name])
        add_option(parser, option, **several)
    return parser


def _read_file(name: str, study: Study[Any, Any], path: Path) -> dict[str, Any]:
    """The settings in a file, all with known names and the right type."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}; expected lines 'setting: value'")
    known = [field.name for field in fields(study.settings)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: unknown setting {key!r}; known: {', '.join(known)}")
    hints = get_type_hints(study.settings)
    try:
        return {key: _value(key, hints[key], value) for key, value in values.items()}
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
