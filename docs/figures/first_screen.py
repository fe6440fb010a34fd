"""Draws ``first_screen.png``, the picture at the top of the README.

python docs/figures/first_screen.py

It needs the corpus *bbc* in ``../shared/data`` or the folder of the variable LNTM_DATA.
"""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib.patheffects as effects
import matplotlib.pyplot as plt
import numpy as np
import torch

import torch_lntm as lntm
from torch_lntm.reports.atlas import colour_groups, places

NUM_TOPICS, NUM_SHOWN = 20, 5
FIGURE = Path(__file__).with_suffix(".png")
DATA = Path(os.environ.get("LNTM_DATA", FIGURE.parents[3] / "shared" / "data"))
#: Colours that differ for colour-blind readers too (Okabe & Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")


def main() -> None:
    """Fit the news articles, and draw a map of them and one new article's proportions."""
    torch.set_num_threads(1)
    lntm.plotting.use_style()
    corpus = lntm.read_corpus(DATA / "bbc.npz")
    train, test = corpus.split(test_fraction=0.1, seed=0)
    run = lntm.fit(train, NUM_TOPICS, progress=False)
    model, theta = run.model, run.transform(progress=False).theta.double().numpy()
    names = lntm.reports.topic_labels(model, 2, numbered=False)
    groups = colour_groups(model, None)
    of_topic = {k: at for at, topics in enumerate(groups.values()) for k in topics}

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 5.6), width_ratios=(2.3, 1), layout="constrained"
    )
    at, main_topic = places(theta, 0), theta.argmax(1)
    left.scatter(*at.T, s=7, lw=0, alpha=0.8, c=[COLOURS[of_topic[k]] for k in main_topic])
    halo = [effects.withStroke(linewidth=3, foreground="white")]
    for k in range(NUM_TOPICS):
        x, y = np.median(at[main_topic == k], axis=0)
        style = {"size": 10, "weight": "bold", "ha": "center", "va": "center"}
        left.text(x, y, names[k].replace(" ", "\n"), path_effects=halo, linespacing=0.9, **style)
    left.set_axis_off()
    left.set_title(f"{len(train):,} BBC articles, each near others about the same topics")

    samples = lntm.inference.DocumentHMC(model, num_chains=4).run(test.batch(), progress=False)
    document = int(samples.mean().topk(2).values[:, 1].argmax())  # two topics share it
    draws = samples.theta()[:, :, document].flatten(0, 1)
    largest = draws.mean(0).topk(NUM_SHOWN).indices.flip(0)
    lower, upper = draws[:, largest].quantile(torch.tensor([0.05, 0.95]), dim=0)
    rows, colours = range(NUM_SHOWN), [COLOURS[of_topic[k]] for k in largest.tolist()]
    right.hlines(rows, lower, upper, linewidth=2.5, alpha=0.55, colors=colours)
    right.scatter(draws.mean(0)[largest], rows, c=colours, clip_on=False, zorder=3)
    right.set_yticks(rows, [names[k].replace(" ", "\n") for k in largest.tolist()], fontsize=10)
    right.set_xlim(0, None)
    right.set_ylim(-0.6, NUM_SHOWN - 0.4)
    right.grid(visible=False, axis="y")
    right.tick_params(axis="y", length=0)
    right.spines["left"].set_visible(False)
    words = (-test[document].to_scipy().toarray()[0]).argsort(kind="stable")[:3]
    said = ", ".join(test.vocabulary[v] for v in words)
    right.set_title(f"A new article\n({said} …)")
    right.set_xlabel("proportion of the topic, 90 % interval")
    figure.savefig(FIGURE, dpi=115, metadata={"Software": None})


if __name__ == "__main__":
    main()
