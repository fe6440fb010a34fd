"""Draws ``quality.png``: held-out perplexity against CPU time of every system, at K = 50.

python docs/figures/quality.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import torch_lntm as lntm

FIGURE = Path(__file__).with_suffix(".png")
RESULTS = FIGURE.parents[2] / "studies" / "results"
#: Corpora from short documents to long ones, with their panels' titles.
PANELS = {
    "cora": "abstracts, 57 tokens (cora)",
    "ap": "news, 194 tokens (ap)",
    "nips_uci": "papers, 1,247 tokens (nips_uci)",
}
#: Names of the drawn systems.
SYSTEMS = {
    "torch_lntm ctm, auto": "auto",
    "torch_lntm ctm, auto, 4 epochs": "auto, 4 epochs",
    "torch_lntm ctm": "variational EM",
    "topica LDA": "topica LDA",
    "topica CTM": "topica CTM",
    "tomotopy LDA": "tomotopy LDA",
    "gensim LDA": "gensim LDA",
    "scikit-learn LDA": "scikit-learn LDA",
}
#: Vertical offsets of names beside a marker, in points, for crowded systems.
LOWER = {"torch_lntm ctm, auto, 4 epochs": -14, "torch_lntm ctm, auto": -3, "topica LDA": -12}


#: Labelled seconds of the logarithmic axis.
TICKS = (1, 3, 10, 30, 100, 300)


def scores(corpus: str) -> dict[str, tuple[float, float]]:
    """CPU seconds and perplexity of every system, averaged over its splits."""
    cells = json.loads((RESULTS / f"quality-{corpus}.json").read_text())["cells"]
    tokens = {
        cell["seed"]: np.fromstring(cell["tokens"], sep=" ").sum()
        for name, cell in cells.items()
        if name.startswith("split")
    }
    rows = defaultdict(list)
    for name, cell in cells.items():
        if not name.startswith("split") and cell["system"] in SYSTEMS and "failed" not in cell:
            nats = np.fromstring(cell["log_predictive"], sep=" ").sum() / tokens[cell["seed"]]
            rows[cell["system"]].append((cell["cpu_seconds"], nats))
    means = {system: np.mean(row, axis=0) for system, row in rows.items()}
    return {system: (seconds, float(np.exp(-nats))) for system, (seconds, nats) in means.items()}


def main() -> None:
    """Draw a panel for each corpus."""
    lntm.plotting.use_style()
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11.5, 3.9), layout="constrained")
    ours, peers = lntm.plotting.style.POSITIVE, lntm.plotting.style.NEGATIVE
    for ax, (corpus, title) in zip(axes, PANELS.items(), strict=True):
        for system, (seconds, perplexity) in scores(corpus).items():
            own = system.startswith("torch_lntm")
            ax.plot(seconds, perplexity, "o" if own else "s", color=ours if own else peers)
            ax.annotate(
                SYSTEMS[system],
                (seconds, perplexity),
                xytext=(5, LOWER.get(system, 3)),
                textcoords="offset points",
                fontsize=8,
            )
        ax.set(xscale="log", title=title, xlabel="CPU seconds of the fit")
        ax.margins(0.3, 0.12)
        ax.set_xticks(TICKS, [str(tick) for tick in TICKS])
        ax.minorticks_off()
        seconds = [line.get_xdata()[0] for line in ax.get_lines()]
        ax.set_xlim(0.6 * min(seconds), 5 * max(seconds))
    axes[0].set_ylabel("perplexity of held-out words (lower is better)")
    figure.savefig(FIGURE, dpi=115, metadata={"Software": None})


if __name__ == "__main__":
    main()
