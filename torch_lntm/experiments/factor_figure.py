"""The picture of :mod:`torch_lntm.experiments.factor_simulation`; needs the extra ``viz``."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_lntm.errors import ConfigError
from torch_lntm.experiments.factor_simulation import CANDIDATES, FactorResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Dashed: without a prior on the covariance.
_STYLES: dict[str, dict[str, Any]] = {
    "ctm": {"color": "#2166ac", "marker": "o"},
    "iftm": {"color": "#c25b00", "marker": "^"},
    "lda": {"color": "#4d4d4d", "marker": "s"},
    "ctm-ml": {"color": "#2166ac", "marker": "o", "linestyle": "--", "markerfacecolor": "white"},
    "ctm-taylor-ml": {"color": "#5aae61", "marker": "D", "linestyle": "--"},
}


def figure(result: FactorResult) -> Figure:
    """The paper's Figure 3: held-out log likelihood, and completion by the observed share.

    Bars are one standard error over folds of the difference from the models' average: how hard a
    fold's documents are is common to all models.

    Args:
        result: What :func:`run` returned.

    Returns:
        A matplotlib figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("the figure needs matplotlib; pip install 'torch-lntm[viz]'")
    from matplotlib.figure import Figure

    settings = result.settings
    fitted = settings.completion_topics
    topics, shares = sorted(settings.num_topics), sorted(settings.observed_shares)
    plot = Figure(figsize=(9.6, 4.3), layout="constrained")
    left, right = plot.subplots(1, 2)
    likelihoods = [
        [[row.log_likelihood for row in result.select(name, k)] for k in topics]
        for name in settings.models
    ]
    perplexities = [
        [
            [math.exp(-row.completions[share]) for row in result.select(name, fitted)]
            for share in shares
        ]
        for name in settings.models
    ]
    percent = [100.0 * share for share in shares]
    for ax, x, values in ((left, topics, likelihoods), (right, percent, perplexities)):
        found = np.array(values)  # models × points × folds
        bars = (found - found.mean(0)).std(-1, ddof=1) / math.sqrt(settings.folds)
        for name, mean, bar in zip(settings.models, found.mean(-1), bars, strict=True):
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **_STYLES[name]}
            ax.errorbar(x, mean, bar, label=CANDIDATES[name].label, **style)
        ax.grid(alpha=0.25)
    left.set_xscale("log")
    left.set_xticks(topics, [str(k) for k in topics])
    left.minorticks_off()
    left.set_xlabel("topics K")
    left.set_ylabel("held-out log likelihood, nats")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.set_xlabel("observed share of a document's words, %")
    right.set_ylabel(f"perplexity of the rest, K = {fitted}")
    handles, labels = left.get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot
