"""The page on the architecture: its paths and names exist, and its picture shows today's rooms."""

from __future__ import annotations

import importlib
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


@pytest.mark.parametrize("page", [PAGE, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_and_name_on_the_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(spans(text)) > 10
    assert missing_paths(text) == []
    assert missing_names(text) == []


def test_every_room_is_described_and_drawn() -> None:
    drawing = runpy.run_path(str(FIGURES / "architecture.py"))
    rooms = set(drawing["imports"]())
    described = re.findall(r"^\* \*\*(\w+)\*\*(?: and \*\*(\w+)\*\*)?:", PAGE.read_text(), re.M)
    assert {name for pair in described for name in pair if name} == rooms
    drawn = {room for group in drawing["ROOMS"].values() for room in group}
    assert drawn == rooms
