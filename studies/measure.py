"""The framework of every study: cells kept as they are measured, tables, figures, JSON.

A study measures *cells*, such as one model on one fold. Each cell is a piece of JSON. A measured
cell goes to ``result.json`` at once and never measured again. An interrupted study
continues with the first missing cell.
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
from torch_lntm.files.writing import atomic_write
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
        done: Value of each finished cell.
        keep: Function called after each new cell, to write the cell to disk.
        folder: Folder for results too large for JSON, such as models. None for no such folder.
        progress: Whether to show progress bars.
    """

    done: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None
    folder: Path | None = None
    progress: bool = False

    def each(self, keys: Iterable[Key], measure: Callable[[Key], Any]) -> list[Any]:
        """Values of some cells. Missing cells are measured.

        Args:
            keys: A key for each cell: a string, or a tuple of strings and numbers. The cell's name
                is its key in words.
            measure: Function that measures a cell. It returns JSON: numbers, strings, lists,
                dictionaries, and dataclasses of them.

        Returns:
            The values in the order of the keys, dataclasses as dictionaries and tuples as lists.
        """
        # Imported late: listing the studies loads no torch.
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
        """Value of a single cell, as by :meth:`each`."""
        return Cells(self.done, self.keep).each([name], lambda _: measure())[0]


def _parts(key: Hashable) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


@dataclass(frozen=True)
class Study(Generic[Settings, Result]):
    """One study.

    Attributes:
        settings: Dataclass of its settings. Every field becomes an option; the help comes from
            the docstring's ``Attributes``.
        run: Function that measures the cells.
        table: Function that returns the tables of a result, as Markdown.
        figure: Function that draws the figure of a result, if the study has a figure.
        quick: Settings changed by ``--quick``. An empty dictionary removes the option.
        selects: Settings that choose cells and change no cell. Other values of them add cells to
            the same folder.
    """

    settings: type[Settings]
    run: Callable[[Settings, Cells], Result]
    table: Callable[[Result], str]
    figure: Callable[[Result], Figure] | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)
    selects: Collection[str] = ()


def measure(
    name: str,
    study: Study[Settings, Result],
    settings: Settings,
    folder: Path,
    *,
    again: str | None = None,
    progress: bool = True,
) -> Result:
    """Run a study, or complete an interrupted study, and write its result.

    Args:
        name: Name of the study.
        study: The study.
        settings: Its settings.
        folder: Folder for ``result.json`` (written after every cell), ``tables.md`` and, if the
            study has a figure and matplotlib is installed, ``figure.png``. Made if missing.
        again: Text in the names of the cells to measure anew. The other cells stay. None keeps all
            cells.
        progress: Whether to show progress bars.

    Returns:
        The result. Equal settings give equal results, except for seconds and memory.

    Raises:
        ConfigError: The folder holds a different study, or the same study with different settings
            beyond ``study.selects``.
    """
    path = folder / "result.json"
    record = _open(path, name, to_json(settings), study.selects)
    if again is not None:
        _forget(record, again)
        write(path, dumps(record).encode())
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


def _open(
    path: Path, name: str, settings: dict[str, Any], selects: Collection[str]
) -> dict[str, Any]:
    """The record in the folder, or a new record."""
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
    names = [key for key in {**found, **settings} if key not in selects]
    other = [key for key in names if found.get(key) != settings.get(key)]
    if other:
        raise ConfigError(
            f"{path} was made with another {', '.join(other)}; name another --out, or remove it"
        )
    chosen = {}
    for key in selects:
        new = settings[key]
        old = found.get(key, new)
        chosen[key] = list(dict.fromkeys([*old, *new])) if isinstance(new, list) else max(old, new)
    return {**record, "settings": found | chosen}


def _forget(record: dict[str, Any], text: str) -> None:
    """Remove the cells whose names contain a text.

    Raises:
        ConfigError: No cell has such a name.
    """
    names = [name for name in record["cells"] if text in name]
    if not names:
        raise ConfigError(
            f"no cell's name contains {text!r}; leave --again out, or see result.json"
        )
    for name in names:
        del record["cells"][name]
    for session in record["sessions"]:
        session["cells"] = [name for name in session["cells"] if name not in names]


#: A list of numbers over several lines. Strings in JSON have no line breaks.
_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def dumps(record: Mapping[str, Any]) -> str:
    """Readable JSON of a record: a line for each value or list of numbers."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def write(path: Path, content: bytes) -> None:
    """Write a file completely or leave it unchanged. The folder is made if missing."""
    with atomic_write(path) as file:
        file.write(content)


#: Strings for the numbers that are not finite, which JSON lacks.
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
    """The value behind :func:`to_json`; dataclasses stay dictionaries, and tuples stay lists."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def corpus_file(name: str) -> Path:
    """The file of a corpus.

    Args:
        name: A name, or the path of a file. The name ``ap`` means ``ap.npz`` in the folder of the
            variable ``LNTM_DATA``, or in ``../shared/data`` without the variable.

    Raises:
        ConfigError: The file does not exist.
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
    """Check the numbers among the settings, alone or in tuples.

    Args:
        settings: The dataclass.
        whole: Names of whole numbers, with the smallest allowed value of each.
        positive: Names of positive numbers.
        not_negative: Names of positive numbers or 0.

    Raises:
        ConfigError: A value is out of range.
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


def check_filled(settings: object, *names: str) -> None:
    """Check that settings hold at least a value each.

    Args:
        settings: The dataclass.
        *names: The settings.

    Raises:
        ConfigError: A setting is empty.
    """
    for name in names:
        if not getattr(settings, name):
            raise ConfigError(f"{name} is empty; give some")


def check_choices(settings: object, name: str, known: Collection[str]) -> None:
    """Check a setting that holds names.

    Args:
        settings: The dataclass.
        name: The setting.
        known: The allowed names.

    Raises:
        ConfigError: The setting is empty, or holds an unknown name.
    """
    chosen = getattr(settings, name)
    if not chosen or any(value not in known for value in chosen):
        raise ConfigError(
            f"{name} are {', '.join(chosen) or 'none'}; expected some of {', '.join(known)}"
        )
