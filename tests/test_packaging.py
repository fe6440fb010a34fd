"""The package's metadata say what its files need, and say it alike everywhere."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "torch_lntm"


@pytest.fixture(scope="module")
def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return parser


def required(metadata: configparser.ConfigParser, section: str, key: str) -> set[str]:
    """The distributions of a list of requirements, those of the extras that it names included."""
    found = set()
    for line in filter(None, metadata[section][key].split("\n")):
        requirement = Requirement(line)
        found.add(canonicalize_name(requirement.name))
        for extra in requirement.extras if requirement.name == "torch_lntm" else ():
            found |= required(metadata, "options.extras_require", extra)
    return found


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The modules that a file imports, each with the list that must declare it.

    An import at the top of a file is of the core. An import in a function, or for annotations
    alone, may be of an extra: something before it has said what to install.
    """
    source = path.read_text(encoding="utf-8")
    yield from re.findall(r"import_extra\(['\"]([\w.]+)['\"], ['\"](\w+)", source)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        declared = "core" if node in tree.body else "any"
        if isinstance(node, ast.Import):
            yield from ((alias.name, declared) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module, declared


@pytest.mark.slow
def test_every_third_party_import_is_declared(metadata: configparser.ConfigParser) -> None:
    section = "options.extras_require"
    lists = {extra: required(metadata, section, extra) for extra in metadata[section]}
    lists["core"] = required(metadata, "options", "install_requires")
    lists["any"] = set().union(*lists.values())
    origins = packages_distributions()
    for path in sorted(PACKAGE.rglob("*.py")):
        # Triton comes with torch's CUDA builds; this file is imported where it has been found.
        # So are the others, of Numba's kernels.
        if {"triton_ops.py", "numba_ops", "caching.py"} & {path.name, path.parent.name}:
            continue
        for module, declared in imports(path):
            top = module.partition(".")[0]
            found = {canonicalize_name(name) for name in origins.get(top, [top])}
            known = top in {PACKAGE.name, *sys.stdlib_module_names} or found & lists[declared]
            assert known, f"{path.name}: {module} is not in setup.cfg's list {declared}"


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
    assert len(listed) <= 6


def test_the_version_is_the_same_everywhere(metadata: configparser.ConfigParser) -> None:
    version = metadata["metadata"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.MULTILINE) == [version]
