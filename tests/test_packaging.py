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
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "torch_lntm"
#: The distributions that each module comes from.
DISTRIBUTIONS = packages_distributions()


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


def imports(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[str, str | None, bool]]:
    """Yields (module, the extra that it names, whether it may be missing) of every import.

    An import in a function, or for annotations alone, may be missing: something before it has said
    what to install.
    """
    for node in ast.iter_child_nodes(tree):
        inside = guarded or isinstance(node, ast.FunctionDef) or is_for_annotations(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", None, inside
        elif is_guard(node):
            yield node.args[0].value, ast.literal_eval(node.args[1]), True
        yield from imports(node, inside)


def is_guard(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "import_extra"
        and isinstance(node.args[0], ast.Constant)
    )


def is_for_annotations(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def undeclared(source: str, metadata: configparser.ConfigParser) -> list[str]:
    """Third-party modules that a source imports and setup.cfg does not declare, in words."""
    core = required(metadata, "options", "install_requires")
    extras = {
        extra: required(metadata, "options.extras_require", extra)
        for extra in metadata["options.extras_require"]
    }
    problems = []
    for module, extra, may_be_missing in imports(ast.parse(source)):
        top = module.partition(".")[0]
        if top == "torch_lntm" or top in sys.stdlib_module_names:
            continue
        distributions = {normalised(name) for name in DISTRIBUTIONS.get(top, [top])}
        allowed = core | extras.get(extra, set()) if extra else core
        if may_be_missing and not extra:
            allowed = core.union(*extras.values())
        if not distributions & allowed:
            problems.append(f"{module} is not in {extra or 'install_requires or an extra'}")
    return problems


def test_every_third_party_import_is_declared(metadata: configparser.ConfigParser) -> None:
    problems = [
        f"{path.relative_to(REPOSITORY)}: {problem}"
        for path in sorted(PACKAGE.rglob("*.py"))
        # Triton comes with torch's CUDA builds; this file is imported where it has been found.
        if path.name != "triton_ops.py"
        for problem in undeclared(path.read_text(encoding="utf-8"), metadata)
    ]
    assert problems == []


@pytest.mark.parametrize(
    "source",
    [
        "from pytest import mark",
        "import anndata",
        "def f():\n    import attr",
        "import_extra('anndata', 'arviz', 'cells')",
        "import_extra('anndata', 'cells', 'cells')",
        "if TYPE_CHECKING:\n    from attr import s",
    ],
)
def test_an_undeclared_import_is_found(source: str, metadata: configparser.ConfigParser) -> None:
    assert len(undeclared(source, metadata)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from yaml import safe_load",
        "from typing import Any",
        "import matplotlib.pyplot",
        "def f():\n    from anndata import AnnData",
        "import_extra('anndata', 'files', 'cells')",
    ],
)
def test_a_declared_import_is_accepted(source: str, metadata: configparser.ConfigParser) -> None:
    assert undeclared(source, metadata) == []


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


def test_the_hooks_have_the_pinned_version_of_ruff() -> None:
    pinned = re.search(
        r"^ruff==(\S+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (ruff,) = (repo for repo in hooks["repos"] if "ruff" in repo["repo"])
    assert ruff["rev"] == f"v{pinned[1]}"
    assert {hook["id"] for hook in ruff["hooks"]} == {"ruff-check", "ruff-format"}


def test_the_forms_for_issues_are_complete() -> None:
    forms = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.name for form in forms] == ["bug.yml", "config.yml", "feature.yml"]
    for form in (forms[0], forms[2]):
        fields = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert fields["name"]
        assert fields["description"]
        for field in fields["body"]:
            assert field["type"] in ("input", "textarea")
            assert field["id"]
            assert field["attributes"]["label"]
