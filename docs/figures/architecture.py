"""Draws ``architecture.png``: the rooms of the package on their floors, and their imports.

python docs/figures/architecture.py
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "torch_lntm"
FIGURE = Path(__file__).with_suffix(".png")
#: The purpose of each room in a few words, by groups with a title and a colour.
ROOMS = {
    ("ground", "#e6e6ec"): {
        "errors": "errors, warnings, checks",
        "files": "safe reading, atomic writing",
        "budget": "documents per batch",
        "progress": "progress bars",
        "frames": "rows by name, tables as text",
        "options": "signatures as options",
    },
    ("observed data", "#d9e7f7"): {
        "corpus": "counts, metadata, readers",
        "formulas": "columns to design matrices",
        "kernels": "the sparse operation",
        "noise": "random numbers by key",
        "distributions": "bags of words in Pyro",
    },
    ("posterior of a document", "#dff0dc"): {
        "latents": "coordinates of a document",
        "posteriors": "results of a solver",
        "solvers": "one file per approximation",
        "sampling": "HMC, Gibbs, AIS, integrals",
    },
    ("models and fits", "#fae6cd"): {
        "models": "prior + topics + words",
        "guides": "solvers as Pyro guides",
        "inference": "EM, chains, draws of theta",
        "recipes": "fits by name",
        "testing": "checks of the contracts",
    },
    ("results and doors", "#f1deee"): {
        "evaluation": "held-out scores",
        "io": "folders of models and runs",
        "reports": "tables and the report page",
        "plotting": "pictures",
        "effects": "regression of proportions",
        "outcomes": "regression on topics",
        "measurement": "codebooks, human checks",
        "fitting": "documents to a run",
        "selection": "number of topics",
        "estimators": "scikit-learn",
        "interop": "other libraries",
        "cli": "uses all rooms",
    },
}
GROUND = set(next(iter(ROOMS.values())))
#: The one way up: methods of a fit's result and of a model call functions of later rooms
#: (tests/test_imports.py).
DOORS = {
    PACKAGE / "inference" / "fitted.py": {"effects", "reports"},
    PACKAGE / "models" / "model.py": {"io"},
}
#: Width and height of a box, and the distances of their centres, in inches.
WIDTH, HEIGHT, ACROSS, UP = 2.0, 0.46, 2.25, 0.78


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports. A room is a subpackage or module of the package."""
    rooms = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if not room.startswith("__"):
            rooms[path] = room
    graph: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for path, room in rooms.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            targets = {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE.name}.")}
            graph[room] |= (targets & set(graph)) - {room} - DOORS.get(path, set())
    # The command line imports the package, and through it every room.
    graph["cli"] = set(graph) - {"cli"}
    return graph


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """Floor of each room: 0 for rooms without imports, else 1 above the highest import."""
    heights: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in heights:
            heights[room] = max((1 + floor(below) for below in graph[room]), default=0)
        return heights[room]

    for room in graph:
        floor(room)
    return heights


def direct(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports to draw.

    Imports of the ground and of the command line are left out, and so is an import that a chain of
    other imports implies.
    """

    def reached(room: str) -> set[str]:
        return graph[room].union(*(reached(below) for below in graph[room]))

    return [
        (room, below)
        for room in graph
        if room != "cli"
        for below in sorted(graph[room] - GROUND)
        if not any(below in reached(other) for other in graph[room])
    ]


def places(graph: dict[str, set[str]], heights: dict[str, int]) -> dict[str, tuple[float, float]]:
    """Centre of each box. Rooms that only the command line imports stand at the right."""
    used = set().union(*(graph[room] for room in graph if room != "cli"))
    lines = direct(graph)
    centres: dict[str, tuple[float, float]] = {}
    levels = sorted({heights[room] for room in graph if room not in GROUND})
    for row, level in enumerate(levels):
        rooms = [room for room in graph if heights[room] == level and room not in GROUND]

        def middle(room: str) -> float:
            below = [centres[b][0] for a, b in lines if a == room and b in centres]
            return sum(below) / len(below) if below else 0.0

        inner = sorted((room for room in rooms if room in used or room == "cli"), key=middle)
        for position, room in enumerate(inner):
            centres[room] = ((position - (len(inner) - 1) / 2) * ACROSS, row * UP)
        for position, room in enumerate(room for room in rooms if room not in inner):
            centres[room] = ((1.6 + position) * ACROSS, row * UP)
    centres["formulas"] = (-1.3 * ACROSS, centres["formulas"][1])
    for position, room in enumerate(sorted(GROUND)):
        centres[room] = ((position % 4 - 1.5) * ACROSS, (-1.25 - position // 4 * 0.75) * UP)
    return centres


def main() -> None:
    """Draw the picture."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

    graph = imports()
    heights, lines = floors(graph), direct(graph)
    centres = places(graph, heights)
    looks = {
        room: (purpose, colour)
        for (_, colour), rooms in ROOMS.items()
        for room, purpose in rooms.items()
    }
    top = max(y for _, y in centres.values())
    figure, axes = plt.subplots(figsize=(12, top + 2.4))
    for room, below in lines:
        (x, y), (u, v) = centres[room], centres[below]
        # Arrows leave and reach a box at the side that faces the other box.
        across = max(-0.33, min(0.33, (u - x) / ACROSS)) * WIDTH
        bend = 0.0 if y - v < 1.5 * UP else 0.2 * (1 if x >= u else -1)
        axes.add_patch(
            FancyArrowPatch(
                (x + across, y - HEIGHT / 2),
                (u - across, v + HEIGHT / 2),
                arrowstyle="-|>",
                mutation_scale=7,
                linewidth=0.8,
                color="#8a8f9c",
                connectionstyle=f"arc3,rad={bend}",
                zorder=1,
            )
        )
    for room, (x, y) in centres.items():
        purpose, colour = looks[room]
        axes.add_patch(
            FancyBboxPatch(
                (x - WIDTH / 2, y - HEIGHT / 2),
                WIDTH,
                HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=colour,
                edgecolor="#5b6070",
                linewidth=0.8,
                zorder=2,
            )
        )
        axes.text(x, y + 0.08, room, ha="center", va="center", weight="bold", fontsize=9, zorder=3)
        axes.text(x, y - 0.11, purpose, ha="center", va="center", fontsize=7, zorder=3)
    axes.text(-1.5 * ACROSS - WIDTH / 2, -0.62 * UP, "used on every floor:", fontsize=8)
    names = [Patch(facecolor=c, edgecolor="#5b6070", label=name) for name, c in ROOMS]
    axes.legend(handles=names[::-1], loc="upper left", frameon=False, fontsize=8)
    axes.set_xlim(-2.2 * ACROSS, 3.2 * ACROSS)
    axes.set_ylim(-2.4 * UP, top + 0.5)
    axes.set_aspect("equal")
    axes.axis("off")
    # A test compares these floors with the imports of the package.
    figure.savefig(FIGURE, dpi=130, bbox_inches="tight", metadata={"Comment": json.dumps(heights)})


if __name__ == "__main__":
    main()
