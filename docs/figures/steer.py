"""Draws ``steer.png``: effects, words that move, and groups of one model.

The model is the model of the notebook ``notebooks/steer.ipynb``.

python docs/figures/steer.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

import torch_lntm as lntm

FIGURE = Path(__file__).with_suffix(".png")
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "steer.ipynb"


def main() -> None:
    """Run the notebook, and draw its results side by side."""
    told: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), told)
    plt.close("all")
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 3.3), width_ratios=(1, 1.2, 1), layout="constrained"
    )
    blue, orange = lntm.plotting.use_style()[:2]
    for row, one in enumerate(told["difference"].itertuples()):
        left.plot([one.lower, one.upper], [row, row], color=blue)
        left.plot(one.estimate, row, "o", color=blue)
        left.plot(told["true"][one.name], row, "x", color=orange)
    left.axvline(0, color="grey", linewidth=0.8)
    left.set_yticks(range(6), told["difference"]["name"])
    left.invert_yaxis()
    left.set_title("Effects of a column, 95 % intervals")
    left.set_xlabel("right minus left, blogs at random (cross: truth)")
    lntm.plotting.path_plot(told["model"], "economy", told["moved"], ax=middle)
    middle.set_title("Words of a topic move with time, 95 % bands")
    lntm.plotting.tree_plot(told["tree"], ax=right)
    right.set_title("Topics in groups", pad=16)
    figure.savefig(FIGURE, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
