"""The package's imports run one way, and its arrays hold no pickles.

Ruff refuses what else executes code from a file (pyproject.toml).
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "torch_lntm"
ROOT = PACKAGE.name

# The rooms from the ground up: a room is a subpackage or module directly below the package. It may
# import itself and the rooms before it, but not those on its own line.
FLOORS = [
    ["errors", "options"],
    ["files", "frames", "budget", "progress"],
    ["corpus"],
    ["kernels", "formulas"],
    ["noise"],
    ["distributions", "latents"],
    ["posteriors"],
    ["solvers", "sampling"],
    ["models"],
    ["guides"],
    ["inference"],
    ["evaluation", "recipes", "testing"],
    ["io"],
    ["plotting"],
    ["reports"],
    ["estimators", "effects", "fitting", "interop", "selection"],
    ["outcomes"],
    ["measurement"],
]
MAY_IMPORT = {
    room: {below for rooms in FLOORS[:level] for below in rooms}
    for level, floor in enumerate(FLOORS)
    for room in floor
}
MAY_IMPORT["cli"] = {*MAY_IMPORT, ROOT}
MAY_IMPORT["__main__"] = {*MAY_IMPORT}
# The one way up: what follows a fit are methods of its result, and what shares a model are methods
# of the model. Each calls the function of the room that does it.
DOORS = {
    ("torch_lntm.inference.fitted", "torch_lntm.reports.report"),
    ("torch_lntm.inference.fitted", "torch_lntm.reports.summarise_corpus"),
    ("torch_lntm.inference.fitted", "torch_lntm.effects.estimate"),
    ("torch_lntm.inference.fitted", "torch_lntm.effects.Effects"),
    ("torch_lntm.inference.fitted", "torch_lntm.inference.steering.refine"),
    ("torch_lntm.io.runs", "torch_lntm.reports.scores"),
    ("torch_lntm.models.model", "torch_lntm.io.hub.push_model"),
    ("torch_lntm.models.model", "torch_lntm.io.hub.pull_model"),
    ("torch_lntm.inference.fitted", "torch_lntm.inference.steering.RefinedResult"),
}
WITHOUT_PYRO = {"kernels", "latents", "posteriors", "solvers", "noise"}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The dotted names that each module of the package imports, at any depth."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        package = path.relative_to(PACKAGE.parent).parent.parts
        module = ".".join(package if path.stem == "__init__" else (*package, path.stem))
        found[module] = imported_names(path.read_text(encoding="utf-8"), package)
    return found


def imported_names(source: str, package: tuple[str, ...]) -> set[str]:
    """Full dotted names of every import in a file of a package."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else ()
            origin = [*parents, *filter(None, [node.module])]
            found |= {".".join([*origin, alias.name]) for alias in node.names}
    return found


def violations(module: str, names: set[str]) -> list[str]:
    """Imports of a module that run against the direction, in words."""
    room, found = module.split(".")[1], []
    for name in names:
        top, *rest = name.split(".")
        if top == "pyro" and room in WITHOUT_PYRO:
            found.append(f"{module} imports {name}: {room} is pure torch")
        if top != ROOT or rest == ["__version__"] or (module, name) in DOORS:
            continue
        target = rest[0] if rest and rest[0] in MAY_IMPORT else ROOT
        if target not in {room, *MAY_IMPORT[room]}:
            found.append(f"{module} imports {name}: {room} may not import {target}")
    return found


def test_imports_run_one_way(imports: dict[str, set[str]]) -> None:
    assert imports.keys() > {"torch_lntm.corpus", "torch_lntm.models.priors.prior"}
    of_rooms = {module: names for module, names in imports.items() if module != ROOT}
    assert [v for module, names in of_rooms.items() for v in violations(module, names)] == []


def test_no_two_files_import_each_other(imports: dict[str, set[str]]) -> None:
    graph: dict[str, set[str]] = {}
    for module, names in imports.items():
        graph[module] = set()
        for name in names:
            target = "" if (module, name) in DOORS else name
            while target and target not in imports:
                target = target.rpartition(".")[0]
            graph[module] |= {target} & imports.keys() - {module, ROOT}
    TopologicalSorter(graph).prepare()  # it names the modules of a circle


def test_arrays_are_read_without_pickles() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not re.search("allow_pickle=(?!False)", path.read_text(encoding="utf-8")), path
