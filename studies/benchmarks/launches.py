"""Kernels that a GPU would be asked to launch, and times that the host would wait for it.

Every part of a fit runs on the tests' pretend device, which counts them without a GPU: see
``tests/support/pretend.py`` for what is counted and what is an estimate. Launches and waits hardly
depend on the sizes; bytes do.

    python studies/benchmarks/launches.py [--num-topics 50] [--only TaylorGuide] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.costs import Cost
from support.launches import Parts, Shape
from support.pretend import PretendDevice

#: Of an H200 under eager PyTorch, to weigh the three against each other.
LAUNCH_US, WAIT_US, BYTES_PER_US = 5.0, 15.0, 3.5e6


def run(shape: Shape, only: str = "") -> dict[str, Cost]:
    """The costs of the parts whose names contain ``only``."""
    with PretendDevice() as device:
        parts = Parts(device, shape).by_name()
        return {name: count() for name, count in parts.items() if only in name}


def table(costs: dict[str, Cost]) -> str:
    """The costs as Markdown, with the times they would take."""
    lines = [
        "| | launches | waits | MB | launches and waits, ms | bytes, ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, cost in costs.items():
        host = (cost.launches * LAUNCH_US + cost.waits * WAIT_US) / 1e3
        lines.append(
            f"| {name} | {cost.launches:,} | {cost.waits:,} | {cost.bytes / 1e6:,.1f} "
            f"| {host:,.2f} | {cost.bytes / BYTES_PER_US / 1e3:,.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Count, print the table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for field in dataclasses.fields(Shape):
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=int, default=field.default)
    parser.add_argument("--only", default="", help="count the parts whose names contain this")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = vars(parser.parse_args())
    out, only = options.pop("out"), options.pop("only")
    shape = Shape(**options)
    costs = run(shape, only)
    print(table(costs))
    if out is not None:
        result = {
            "shape": dataclasses.asdict(shape),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "costs": {name: dataclasses.asdict(cost) for name, cost in costs.items()},
        }
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
