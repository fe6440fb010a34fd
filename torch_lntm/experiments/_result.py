"""What experiments share: settings from a file, results to a folder, means with their errors."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, TypeVar

from torch_lntm.errors import ConfigError
from torch_lntm.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The colours and lines of the methods in every figure.
STYLES: dict[str, dict[str, Any]] = {
    "exact": {"color": "#1a1a1a", "linestyle": "-"},
    "max": {"color": "#4d4d4d", "linestyle": "--"},
    "vb": {"color": "#c25b00", "linestyle": "--"},
    "vb second-order": {"color": "#762a83", "linestyle": "-"},
    "ep": {"color": "#2166ac", "linestyle": "-."},
}


def check_output(folder: str | Path) -> Path:
    """The folder to write to.

    Raises:
        ConfigError: It is a file, or holds a result already.
    """
    folder = Path(folder)
    if (folder / "result.json").exists() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"{folder} exists already; name another folder or remove it")
    return folder


class Result(ABC):
    """What an experiment measured: a dataclass of JSON-able fields.

    Attributes:
        seconds: Wall-clock time.
    """

    seconds: float

    @abstractmethod
    def report(self) -> str:
        """The tables, as Markdown."""

    def figure(self) -> Figure | None:
        """The figure, where the paper has one; needs the extra ``viz``."""
        return None

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json``, ``tables.md`` and, if it has one, ``figure.png``.

        Args:
            folder: Made if missing.

        Returns:
            The folder.

        Raises:
            ConfigError: The folder holds a result already.
        """
        folder = check_output(folder)
        with atomic_write(folder / "tables.md") as file:
            file.write((self.report() + "\n").encode())
        plot = self.figure() if find_spec("matplotlib") is not None else None
        if plot is not None:
            with atomic_write(folder / "figure.png") as file:
                plot.savefig(file, format="png", dpi=100)
        content = _without_nan(asdict(self))  # type: ignore[call-overload]
        # Last: where it is, the others are.
        with atomic_write(folder / "result.json") as file:
            file.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
        return folder


def _without_nan(value: Any) -> Any:
    """The same with null in place of NaN, which JSON has not."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


Settings = TypeVar("Settings")
Measured = TypeVar("Measured", bound=Result)


def command(
    module: str,
    settings_type: type[Settings],
    run: Callable[[Settings], Measured],
    argv: Sequence[str] | None,
) -> Measured:
    """Run an experiment from the command line; writes the result and prints its tables.

    Args:
        module: Name of the experiment's module below this package.
        settings_type: The dataclass of its settings, each of which becomes an option.
        run: The experiment.
        argv: Arguments instead of the process's own.

    Returns:
        The result.

    Raises:
        ConfigError: Settings that cannot be used, or an output folder that holds a result.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog=f"python -m {__package__}.{module}")
    parser.add_argument("--config", action="config", help="a YAML file with these settings")
    parser.add_argument("--out", type=str, required=True, help="folder to write to")
    parser.add_class_arguments(settings_type)
    options = parser.parse_args(argv)
    names = [field.name for field in fields(settings_type)]  # type: ignore[arg-type]
    settings = settings_type(**{name: options[name] for name in names})
    folder = check_output(options.out)
    result = run(settings)
    result.save(folder)
    print(result.report())
    print(f"\n{result.seconds:.0f} seconds; written to {folder}")
    return result


def check_settings(settings: object, whole: dict[str, int], positive: Iterable[str]) -> None:
    """Check the values of settings, each a number or a list of them.

    Args:
        settings: The dataclass.
        whole: Names of whole numbers, and the least that each may be.
        positive: Names of positive numbers.

    Raises:
        ConfigError: A value that cannot be used.
    """
    for name, value in _values(settings, whole):
        if not isinstance(value, int) or isinstance(value, bool) or value < whole[name]:
            raise ConfigError(f"{name} is {value!r}; expected a whole number >= {whole[name]}")
    for name, value in _values(settings, positive):
        if not isinstance(value, int | float) or not math.isfinite(value) or not value > 0:
            raise ConfigError(f"{name} is {value!r}; expected a positive number")


def _values(settings: object, names: Iterable[str]) -> Iterable[tuple[str, Any]]:
    for name in names:
        value = getattr(settings, name)
        for item in value if isinstance(value, list | tuple) else (value,):
            yield name, item


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (NaN for a single value)."""
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return fmean(values), error


def with_error(values: Sequence[float], digits: int) -> str:
    """Mean and, in parentheses, its standard error; a dash where there is no value."""
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f" ({error:.{digits}f})")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its first column to the left and the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
