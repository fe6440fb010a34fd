"""The package's imports run one way, and nothing that it loads from a file can execute code."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

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
    ["estimators", "effects", "interop", "selection"],
]
MAY_IMPORT = {
    room: {below for rooms in FLOORS[:level] for below in rooms}
    for level, floor in enumerate(FLOORS)
    for room in floor
}
MAY_IMPORT["cli"] = {*MAY_IMPORT, ROOT}
MAY_IMPORT["__main__"] = {*MAY_IMPORT}
# The one way up: what a fit is followed by are methods of its result, each of which calls the
# function of the room that does it.
DOORS = {
    ("torch_lntm.inference.fitted", "torch_lntm.reports.report"),
    ("torch_lntm.inference.fitted", "torch_lntm.effects.estimate"),
    ("torch_lntm.inference.fitted", "torch_lntm.effects.Effects"),
}
WITHOUT_PYRO = {"kernels", "latents", "posteriors", "solvers", "noise"}

# Whatever unpickles or evaluates what a file says.
EXECUTING = {
    *("cloudpickle", "dill", "marshal", "pickle", "shelve"),
    *("eval", "exec", "joblib.dump", "joblib.load"),
    *("torch.jit.load", "torch.load", "torch.save"),
    *("yaml.full_load", "yaml.load", "yaml.unsafe_load"),
}


@functools.cache
def parsed(source: str) -> ast.Module:
    """The tree of a source, which several tests read."""
    return ast.parse(source)


def imported_names(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """Yields (local name, full dotted name) of every import, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".") + [""] * is_package
                origin = ".".join([*parents[: -node.level], *filter(None, [origin])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{origin}.{alias.name}"


def import_violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports that run against the direction, in words."""
    room = module.split(".")[1]
    if room not in MAY_IMPORT:
        return [f"{module} is in no known room: give {room!r} its place in MAY_IMPORT"]
    violations = []
    for _, name in imported_names(parsed(source), module, is_package):
        top, *rest = name.split(".")
        if top == "pyro" and room in WITHOUT_PYRO:
            violations.append(f"{module} imports {name}: {room} is pure torch")
        if top != ROOT or rest == ["__version__"] or (module, name) in DOORS:
            continue
        target = rest[0] if rest and rest[0] in MAY_IMPORT else ROOT
        if target not in {room, *MAY_IMPORT[room]}:
            violations.append(f"{module} imports {name}: {room} may not import {target}")
    return violations


def dotted_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted_name(node.value)):
        return f"{base}.{node.attr}"
    return None


def executing_uses(source: str, module: str, is_package: bool = False) -> list[str]:
    """Uses of what executes code from files, in words."""
    tree = parsed(source)
    full_names = dict(imported_names(tree, module, is_package))
    used = set(full_names.values())
    for node in ast.walk(tree):
        if name := dotted_name(node):
            first, _, rest = name.partition(".")
            used.add(".".join(filter(None, [full_names.get(first, first), rest])))
    uses = [
        f"{module} uses {name}"
        for name in sorted(used)
        if name in EXECUTING or name.split(".")[0] in EXECUTING - {"eval", "exec"}
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            uses += [] if refused else [f"{module}:{node.value.lineno} may allow pickles"]
    return uses


def modules() -> Iterator[tuple[str, str, bool]]:
    """Yields (source, dotted name, whether it is a package) of every module in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        yield path.read_text(encoding="utf-8"), name, is_package


def test_imports_run_one_way() -> None:
    checked = [module for module in modules() if module[1] != ROOT]
    assert {"corpus", "kernels", "models", "solvers"} <= {m.split(".")[1] for _, m, _ in checked}
    assert [v for module in checked for v in import_violations(*module)] == []


def circles(sources: dict[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """Modules that import themselves through others, at whatever depth the imports stand."""
    imported: dict[str, set[str]] = {module: set() for module in sources}
    for module, source in sources.items():
        for _, name in imported_names(parsed(source), module, module in packages):
            target = "" if (module, name) in DOORS else name
            while target and target not in sources:
                target = target.rpartition(".")[0]
            imported[module] |= {target} & set(sources) - {module, ROOT}

    def reached(module: str) -> set[str]:
        found: set[str] = set()
        waiting = set(imported[module])
        while waiting:
            found.add(latest := waiting.pop())
            waiting |= imported[latest] - found
        return found

    return [module for module in sources if module in reached(module)]


def test_no_two_files_import_each_other() -> None:
    checked = list(modules())
    packages = frozenset(name for _, name, is_package in checked if is_package)
    assert circles({name: source for source, name, _ in checked}, packages) == []


def test_loading_executes_no_code() -> None:
    assert [use for module in modules() for use in executing_uses(*module)] == []
