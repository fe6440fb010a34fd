"""The page on the architecture: its paths and names exist, and its picture shows today's rooms."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
FIGURES = ROOT / "docs" / "figures"
PATH = re.compile(
    r"(?:torch_lntm|tests|studies|docs|configs|notebooks)/[\w./-]*|[\w./-]+\.(?:md|py|cfg)"
)
NAME = re.compile(r"(?:lntm|torch_lntm)(?:\.\w+)+")
#: Names of tests, functions and tables that a page gives without their module.
PLAIN = re.compile(r"test_\w+|[a-z]+(?:_[a-z]+)*_|_[a-z]+|[A-Z]+(?:_[A-Z]+)+|_[A-Z_]+")


def spans(text: str) -> list[str]:
    """The code spans of a page, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def missing_paths(text: str) -> list[str]:
    """Paths of a page that do not exist."""
    return [s for s in spans(text) if PATH.fullmatch(s) and not (ROOT / s).exists()]


def resolve(name: str) -> Any:
    """The object of a dotted name; `lntm` stands for the package.

    Raises:
        AttributeError: There is no such name.
    """
    parts = re.sub(r"^lntm\b", "torch_lntm", name).split(".")
    value: Any = importlib.import_module(parts[0])
    for position, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:position]))
            except ImportError:
                raise AttributeError(name) from None
    return value


def missing_names(text: str) -> list[str]:
    """Names of a page that the package does not have."""
    missing = []
    for name in filter(NAME.fullmatch, spans(text)):
        try:
            resolve(name)
        except AttributeError:
            missing.append(name)
    return missing


def missing_plain(text: str) -> list[str]:
    """Tests, methods and tables of a page that no file of the repository defines."""
    files = [path for room in ("torch_lntm", "tests") for path in (ROOT / room).rglob("*.py")]
    defined = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in files)))
    return [span for span in spans(text) if PLAIN.fullmatch(span) and span not in defined]


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_and_name_on_the_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_paths(text) == []
    assert missing_names(text) == []


def test_every_plain_name_on_the_page_exists() -> None:
    assert missing_plain(PAGE.read_text(encoding="utf-8")) == []


def test_the_page_has_enough_paths_and_names_to_check() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert sum(PATH.fullmatch(span) is not None for span in spans(text)) > 50
    assert sum(NAME.fullmatch(span) is not None for span in spans(text)) > 30


def test_a_path_or_name_that_does_not_exist_is_found() -> None:
    text = "`torch_lntm/nowhere.py`, `lntm.models.Nothing`, `lntm.models.Topics.nothing`, `x + y`"
    assert missing_paths(text) == ["torch_lntm/nowhere.py"]
    assert missing_names(text) == ["lntm.models.Nothing", "lntm.models.Topics.nothing"]
    nowhere = "test_" + "nowhere"  # in parts, because the files of the tests are searched, too
    assert missing_plain(f"`{nowhere}`, `draw_`, `_ANY_MODEL`, `x`") == [nowhere]


def test_plain_names_in_the_table_of_tasks_are_in_a_file_of_their_row() -> None:
    """Tables and methods such as `TEXT_READERS` are named beside their file."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!to do|---)(.+?) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) >= 20
    for task, place in rows:
        names = [span for span in spans(place) if re.fullmatch(r"[A-Z_]{3,}", span)]
        files = [ROOT / span for span in spans(place) if span.endswith(".py")]
        sources = [file.read_text(encoding="utf-8") for file in files]
        assert all(any(name in source for source in sources) for name in names), task
        assert spans(place), task


def test_every_room_is_described_and_drawn() -> None:
    drawing = runpy.run_path(str(FIGURES / "architecture.py"))
    rooms = set(drawing["imports"]())
    described = re.findall(r"^\* \*\*(\w+)\*\*(?: and \*\*(\w+)\*\*)?:", PAGE.read_text(), re.M)
    assert {name for pair in described for name in pair if name} == rooms
    drawn = {room for group in drawing["ROOMS"].values() for room in group}
    assert drawn == rooms


def test_the_picture_shows_the_floors_of_today() -> None:
    image = pytest.importorskip("PIL.Image")
    drawing = runpy.run_path(str(FIGURES / "architecture.py"))
    with image.open(FIGURES / "architecture.png") as picture:
        floors = json.loads(picture.info["Comment"])
    assert floors == drawing["floors"](drawing["imports"]()), (
        "imports have changed; draw the picture again: python docs/figures/architecture.py"
    )


def test_floors_and_arrows_follow_from_imports() -> None:
    drawing = runpy.run_path(str(FIGURES / "architecture.py"))
    graph = {"roof": {"wall", "base"}, "wall": {"base"}, "base": set()}
    assert drawing["floors"](graph) == {"base": 0, "wall": 1, "roof": 2}
    assert drawing["direct"](graph) == [("roof", "wall"), ("wall", "base")]
