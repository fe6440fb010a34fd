"""Draws ``first_screen.png``, the picture at the top of the README.

python docs/figures/first_screen.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import torch_lntm as lntm

NUM_TOPICS, NUM_SHOWN = 15, 5
FIGURE = Path(__file__).with_suffix(".png")


def main() -> None:
    """Fit the news articles, and draw how topics correlate and one document's proportions."""
    torch.set_num_threads(1)
    lntm.plotting.use_style()
    corpus = lntm.lee_corpus()
    train, test = corpus.split(test_fraction=0.1, seed=0)
    model = lntm.models.ctm(NUM_TOPICS, corpus)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, progress=False).fit(train)

    labels = lntm.reports.topic_labels(model)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 5.2), width_ratios=(2.1, 1), layout="constrained"
    )
    shares = lntm.inference.topic_shares(guide, train)
    lntm.plotting.correlation_graph(model, shares=shares, labels=labels, ax=left)
    left.set_title(f"{NUM_TOPICS} topics of {len(train)} news articles, and which come together")

    # Intervals of the model's exact posterior.
    samples = lntm.inference.DocumentHMC(model, num_chains=4).run(test.batch(), progress=False)
    document = int(samples.mean().topk(2).values[:, 1].argmax())  # two topics share it
    draws = samples.theta()[:, :, document].flatten(0, 1)
    largest = draws.mean(0).topk(NUM_SHOWN).indices.flip(0)
    lower, upper = draws[:, largest].quantile(torch.tensor([0.05, 0.95]), dim=0)
    rows = range(NUM_SHOWN)
    right.hlines(rows, lower, upper, linewidth=2.5, alpha=0.55)
    right.plot(draws.mean(0)[largest], rows, "o", clip_on=False)
    right.set_yticks(rows, [labels[k] for k in largest.tolist()], fontsize=9)
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
