"""The package's metadata say what its files need, and say it alike everywhere."""

from __future__ import annotations

import ast
import configparser
import functools
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "torch_lntm"
#: The distributions that each module comes from; the first call reads those of the environment.
distributions_of = functools.cache(packages_distributions)


@pytest.fixture(scope="module")
def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return parser


def normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def required(metadata: configparser.ConfigParser, section: str, key: str) -> set[str]:
    """The distributions of a list of requirements, those of the extras that it names included."""
    found = set()
    for line in metadata[section][key].split("\n"):
        if not line:
            continue
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", line).groups()
        if normalised(name) == "torch-lntm":
            for extra in extras.split(","):
                found |= required(metadata, "options.extras_require", extra)
        else:
            found.add(normalised(name))
    return found


@pytest.mark.long
def test_every_third_party_import_is_declared(metadata: configparser.ConfigParser) -> None:
    """An import at the top of a file is of the core; one in a function may be of an extra."""
    core = required(metadata, "options", "install_requires")
    extras = metadata["options.extras_require"]
    both = core.union(*(required(metadata, "options.extras_require", extra) for extra in extras))
    problems = []
    # Triton comes with torch's CUDA builds; its file is imported where it has been found.
    for path in {*PACKAGE.rglob("*.py")} - {*PACKAGE.rglob("triton_ops.py")}:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for top in {name.partition(".")[0] for name in names} - {*sys.stdlib_module_names}:
                of = {normalised(name) for name in distributions_of().get(top, [top])}
                if top != "torch_lntm" and not of & (core if node in tree.body else both):
                    problems.append(f"{path}: {top}")
    assert problems == []


def test_the_minimum_python_version_is_the_same_everywhere(
    metadata: configparser.ConfigParser,
) -> None:
    least = re.fullmatch(r">=(\d+\.\d+)", metadata["options"]["python_requires"]).group(1)
    files = {
        "pyproject.toml": r'target-version = "py(3)(\d+)"',
        "Makefile": r"sys\.exit\(v < \((\d), (\d+)\)",
        "README.md": r"Python (\d)\.(\d+)",
        ".ci/run": r"Python (\d)\.(\d+)",
        "constraints.txt": r"Python (\d)\.(\d+)",
    }
    for name, pattern in files.items():
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert {".".join(found) for found in re.findall(pattern, text)} == {least}, name
    classifiers = metadata["metadata"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert min(versions, key=lambda version: int(version.partition(".")[2])) == least


def test_the_installation_page_lists_every_extra(metadata: configparser.ConfigParser) -> None:
    page = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(metadata["options.extras_require"])
    assert len(listed) <= 5


def test_the_version_is_the_same_everywhere(metadata: configparser.ConfigParser) -> None:
    version = metadata["metadata"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [version]
