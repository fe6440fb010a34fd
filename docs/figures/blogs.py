"""Draws blogs of 2008: ``blogs.png``, topics by rating and day, and ``words.png``, words of one.

python docs/figures/blogs.py

It prints what ``structural.md`` shows of these posts, too. It needs the corpus *poliblog5k* in
``../shared/data`` or the folder of the variable LNTM_DATA.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import torch

import torch_lntm as lntm

HERE = Path(__file__).parent
DATA = Path(os.environ.get("LNTM_DATA", HERE.parents[2] / "shared" / "data"))
#: The other topics are of words such as *get*, *want* and *can*.
OF_POLITICS = range(6)


def main() -> None:
    """Fit the posts, print effects, and draw the topics and the words of one of them."""
    torch.set_num_threads(1)
    lntm.plotting.use_style()
    posts = lntm.read_corpus(DATA / "poliblog5k.npz", metadata=DATA / "poliblog5k.columns.csv")
    formula = "~ rating + bs(day, df=4)"
    run = lntm.fit(posts, 10, prevalence=formula, posterior="taylor", progress=False)
    effects = run.effects(formula)
    print(run, effects.summary(), sep="\n")
    curves = run.effects("~ rating * bs(day, df=4)")
    print(lntm.frames.render(curves.avg_slopes("day", by="rating")))
    groups, outcome = {"government": [4], "war": [5]}, "government / (government + war)"
    share = run.effects(formula, groups=groups, outcome=outcome).predict("rating")
    print(share.to_string(index=False))
    shown = run.effects("~ rating * bs(day, df=4)", topics=OF_POLITICS)
    save(shown.plot("day", by="rating").figure, "blogs.png")
    by_rating = lntm.fit(posts, 10, prevalence=formula, content="rating", progress=False)
    print(by_rating)
    ax = lntm.plotting.perspective_plot(by_rating.model, 5, groups=("Conservative", "Liberal"))
    save(ax.figure, "words.png")


def save(figure: Any, name: str) -> None:
    """Write a picture beside this file."""
    figure.savefig(HERE / name, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
