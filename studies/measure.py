"""The framework of every study: cells that are kept as they are measured, tables, figures, JSON.

A study measures *cells*, such as one model on one fold. Each cell is a piece of JSON that is
written to ``result.json`` as soon as it is measured, and is not measured again: a study that was
interrupted goes on with the first cell that is missing.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from studies.machine import ROOT, describe
from torch_lntm.errors import ConfigError
from torch_lntm.files import atomic_write
from torch_lntm.progress import tqdm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = TypeVar("Settings")
Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Cells:
    """The finished cells of a study, by name.

    Attributes:
        done: The value of each finished cell.
        keep: Called after each new cell, to write it down.
        folder: Where a study may write what does not fit into JSON, as models; None for nowhere.
        progress: Whether to show progress bars.
    """

    done: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None
    folder: Path | None = None
    progress: bool = False

    def each(self, keys: Iterable[Key], measure: Callable[[Key], Any]) -> list[Any]:
        """The values of some cells; those that are not finished are measured.

        Args:
            keys: What each cell measures: a string, or a tuple of strings and numbers. A cell's
                name is its key in words.
            measure: Measures a cell. It returns JSON: numbers, strings, lists, dictionaries and
                dataclasses of these.

        Returns:
            The values in the order of the keys, dataclasses as dictionaries and tuples as lists.
        """
        # Here and not above: the list of studies is shown without loading torch.
        from torch_lntm.inference.interruption import propagate_interrupts

        found = []
        for key in tqdm(list(keys), disable=not self.progress):
            name = key if isinstance(key, str) else ", ".join(map(str, _parts(key)))
            if name not in self.done:
                with propagate_interrupts():
                    self.done[name] = to_json(measure(key))
                self.keep()
            found.append(from_json(self.done[name]))
        return found

    def one(self, name: str, measure: Callable[[], Any]) -> Any:
        """The value of a single cell, as :meth:`each`."""
        return Cells(self.done, self.keep).each([name], lambda _: measure())[0]


def _parts(key: Hashable) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


@dataclass(frozen=True)
class Study(Generic[Settings, Result]):
    """One study.

    Attributes:
        settings: The dataclass of its settings. Every field becomes an option; its docstring's
            ``Attributes`` are their help.
        run: Measures the cells.
        table: The tables of a result, as Markdown.
        figure: The figure of a result, if the study has one.
        quick: The settings that ``--quick`` changes; a study without any has no such option.
    """

    settings: type[Settings]
    run: Callable[[Settings, Cells], Result]
    table: Callable[[Result], str]
    figure: Callable[[Result], Figure] | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)


def measure(
    name: str,
    study: Study[Settings, Result],
    settings: Settings,
    folder: Path,
    *,
    progress: bool = True,
) -> Result:
    """Run a study, or finish one that was interrupted, and write its result.

    Args:
        name: Name of the study.
        study: The study.
        settings: Its settings.
        folder: Where to write ``result.json`` (after every cell), ``tables.md`` and, if there is a
            figure and matplotlib to draw it, ``figure.png``. Made if missing.
        progress: Whether to show progress bars.

    Returns:
        The result; the same for the same settings, but for seconds and memory.

    Raises:
        ConfigError: The folder holds another study, or the same with other settings.
    """
    path = folder / "result.json"
    record = _open(path, name, to_json(settings))
    session: dict[str, Any] = {**describe(), "cells": [], "seconds": 0.0}
    before, began = set(record["cells"]), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        session["cells"] = [cell for cell in record["cells"] if cell not in before]
        session["seconds"] = round(time.perf_counter() - began, 1)
        record["sessions"] = [*(s for s in record["sessions"] if s is not session), session]
        write(path, dumps(record).encode())

    result = study.run(settings, Cells(record["cells"], keep, folder, progress))
    write(folder / "tables.md", (study.table(result) + "\n").encode())
    if study.figure is not None and find_spec("matplotlib") is not None:
        image = io.BytesIO()
        study.figure(result).savefig(image, format="png", dpi=100)
        write(folder / "figure.png", image.getvalue())
    return result


def _open(path: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The record to go on with: the one in the folder, or a new one."""
    if not path.exists():
        if path.parent.exists() and not path.parent.is_dir():
            raise ConfigError(f"{path.parent} is a file; expected a folder, name another by --out")
        return {"study": name, "settings": settings, "sessions": [], "cells": {}}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = record["study"] == name
        found, _ = record["settings"], (record["sessions"], record["cells"])
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path} is not a result of a study; name another --out") from None
    if not same:
        raise ConfigError(f"{path} is of the study {record['study']}; name another --out")
    names = {**found, **settings}
    other = [key for key in names if found.get(key) != settings.get(key)]
    if other:
        raise ConfigError(
            f"{path} was made with another {', '.join(other)}; name another --out, or remove it"
        )
    return dict(record)


#: A list of numbers over several lines. Strings in JSON have no line breaks.
_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def dumps(record: Mapping[str, Any]) -> str:
    """A record as JSON that can be read and compared: a line for each value or list of numbers."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def write(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all; the folder is made if missing."""
    with atomic_write(path) as file:
        file.write(content)


#: How JSON, which lacks them, holds the numbers that are not finite.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """The value in JSON's types: dataclasses as dictionaries, tuples as lists.

    Numbers that are not finite become the strings "NaN", "Infinity" and "-Infinity".
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, number in _NOT_FINITE.items() if str(number) == str(value))
    return value


def from_json(value: Any) -> Any:
    """The value that :func:`to_json` was given, but for dataclasses and tuples."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def corpus_file(name: str) -> Path:
    """The file of a corpus.

    Args:
        name: A name such as ``ap``, for ``ap.npz`` in the folder of data that the variable
            ``LNTM_DATA`` names, or else in ``../shared/data``; or the path of a file.

    Raises:
        ConfigError: There is no such file.
    """
    path = Path(name)
    if not path.suffix:
        path = Path(os.environ.get("LNTM_DATA", ROOT.parent / "shared" / "data")) / f"{name}.npz"
    if not path.exists():
        raise ConfigError(
            f"there is no corpus {path}; name a file by --corpus, or its folder by --data or the "
            "variable LNTM_DATA"
        )
    return path


def check_numbers(
    settings: object,
    whole: Mapping[str, int],
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
) -> None:
    """Check the numbers among the settings, each a number or several of them.

    Args:
        settings: The dataclass.
        whole: Names of whole numbers, and the least that each may be.
        positive: Names of positive numbers.
        not_negative: Names of numbers that may be 0 as well.

    Raises:
        ConfigError: A value that cannot be used.
    """
    for name, least in whole.items():
        for value in _values(settings, name):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {value!r}; expected a whole number >= {least}")
    zero = set(not_negative)
    for name in (*positive, *zero):
        for value in _values(settings, name):
            number = isinstance(value, int | float) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and name not in zero):
                expected = "a number >= 0" if name in zero else "a positive number"
                raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _values(settings: object, name: str) -> tuple[Any, ...]:
    return _parts(getattr(settings, name))


def check_choices(settings: object, name: str, known: Collection[str]) -> None:
    """Check a setting that holds names.

    Args:
        settings: The dataclass.
        name: The setting.
        known: What may be chosen.

    Raises:
        ConfigError: Nothing is chosen, or something that is not known.
    """
    chosen = getattr(settings, name)
    if not chosen or any(value not in known for value in chosen):
        raise ConfigError(
            f"{name} are {', '.join(chosen) or 'none'}; expected some of {', '.join(known)}"
        )
