"""Draws pictures of guides by the code of their pages.

python docs/figures/guides.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch

import torch_lntm as lntm

HERE = Path(__file__).resolve().parent
#: The page of each picture, and the call that draws it.
CALLS = {
    "time.png": ("time.md", "lntm.plotting.path_plot(model, old, top_n=3)"),
    "outcomes.png": ("outcomes.md", "found.plot(per=0.1)"),
    "ages.png": ("short_texts.md", 'effects.plot("age")'),
    "tree.png": ("from_bertopic.md", "lntm.plotting.tree_plot(tree)"),
}


def main() -> None:
    """Run the pages, and save a picture of each."""
    torch.set_num_threads(1)
    lntm.plotting.use_style()
    for picture, (page, call) in CALLS.items():
        text = (HERE.parent / page).read_text(encoding="utf-8")
        names: dict[str, Any] = {"lntm": lntm}
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            (Path(folder) / "two_languages.csv").symlink_to(HERE.parent / "two_languages.csv")
            for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
                exec(compile(code, page, "exec"), names)
            ax = eval(call, names)
            getattr(ax, "figure", ax).savefig(HERE / picture, dpi=90, bbox_inches="tight")
            os.chdir(HERE)
        plt.close("all")


if __name__ == "__main__":
    main()
