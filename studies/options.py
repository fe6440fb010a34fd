"""The options of a study: its settings' fields, from the command line and from a YAML file."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from studies.measure import Study
from torch_lntm.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """What a command asks for.

    Attributes:
        settings: The study's settings.
        out: The folder to write to.
        data: The folder of corpora; None for the one that the environment names.
    """

    settings: Any
    out: Path
    data: str | None


def read(name: str, study: Study[Any, Any], argv: Sequence[str]) -> Options:
    """The options of a command line.

    An option goes before ``--quick``, that before the file, and the file before the defaults.

    Args:
        name: Name of the study.
        study: The study.
        argv: The arguments after its name.

    Raises:
        SystemExit: With 2 for an option that cannot be used, with 0 after printing the help.
        ConfigError: A file or a setting that cannot be used.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    first.add_argument("--quick", action="store_true")
    given, _ = first.parse_known_args(argv)
    parser = _parser(name, study)
    if given.config is not None:
        parser.set_defaults(_read_file(name, study, Path(given.config)))
    if given.quick:
        parser.set_defaults(_lists(study.quick))
    chosen = parser.parse_args(list(argv))
    values = {field.name: chosen[field.name] for field in fields(study.settings)}
    settings = study.settings(
        **{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    )
    out = chosen.out or f"runs/{name}" + ("-quick" if given.quick else "")
    return Options(settings, Path(out), chosen.data)


def _parser(name: str, study: Study[Any, Any]) -> ArgumentParser:
    about = inspect.getdoc(inspect.getmodule(study.run)) or ""
    parser = ArgumentParser(
        prog=f"python -m studies {name}",
        usage=f"python -m studies {name} [--option VALUE ...]",
        description=about,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=str, help="A YAML file with some of the settings.")
    if study.quick:
        changed = ", ".join(f"{key} {_words(value)}" for key, value in study.quick.items())
        parser.add_argument("--quick", action="store_true", help=f"A small version: {changed}.")
    parser.add_argument(
        "--out",
        type=str,
        help=f"The folder to write to; by default runs/{name}, with --quick runs/{name}-quick. A "
        "study that was interrupted goes on where the folder ends.",
    )
    parser.add_argument(
        "--data", type=str, help="The folder of corpora, instead of the variable LNTM_DATA."
    )
    help_of = {
        parameter.arg_name: " ".join((parameter.description or "").split()).replace("%", "%%")
        for parameter in docstring_parser.parse(inspect.getdoc(study.settings) or "").params
    }
    hints = get_type_hints(study.settings)
    for field in fields(study.settings):
        options: dict[str, Any] = {"default": field.default, "help": help_of[field.name]}
        if isinstance(field.default, bool):
            options["action"] = ActionYesNo(no_prefix="no-")
        elif get_origin(hints[field.name]) is tuple:
            options |= {"type": get_args(hints[field.name])[0], "nargs": "*"}
            options["default"] = list(options["default"])
        else:
            options["type"] = hints[field.name]
        parser.add_argument("--" + field.name.replace("_", "-"), **options)
    return parser


class _Help(DefaultHelpFormatter):
    """Keeps the line breaks of descriptions."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _read_file(name: str, study: Study[Any, Any], path: Path) -> dict[str, Any]:
    """The settings in a file, all known and of the right type."""
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
    parser = _parser(name, study)
    parser.exit_on_error = False
    try:
        checked = parser.parse_object(values)
    except Exception as error:  # jsonargparse raises several kinds
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    return {key: checked[key] for key in values}


def _lists(values: Any) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
