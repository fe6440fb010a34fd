"""The picture of :mod:`torch_lntm.experiments.ahmed_xing_simulation`; needs the extra ``viz``."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch_lntm.errors import ConfigError
from torch_lntm.experiments.ahmed_xing_simulation import ASPECTS, BASELINE, SimulationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(result: SimulationResult) -> Figure:
    """The paper's Figure 4: a column per aspect; rows of errors, differences and iterations.

    Solid lines are the Taylor posterior's and dotted ones Blei and Lafferty's, as in the paper.
    Bars are one standard error over repetitions.

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

    # Taylor on top; Laplace, which has its mode, shows as a ring around it.
    styles: dict[str, dict[str, Any]] = {
        "taylor": {"color": "#2166ac", "linestyle": "-", "marker": "o", "zorder": 4},
        "laplace": {"color": "#5aae61", "linestyle": "none", "marker": "o", "markersize": 8},
        "blei-lafferty": {"color": "#c25b00", "linestyle": ":", "marker": "^", "zorder": 3},
        "khan-bouchard": {"color": "#762a83", "linestyle": "-.", "marker": "D"},
        "taylor-as-printed": {"color": "#92c5de", "linestyle": "-", "marker": "s"},
        "blei-lafferty-as-printed": {"color": "#f9b26b", "linestyle": ":", "marker": "v"},
    }
    styles["laplace"]["markerfacecolor"] = "none"
    panels = {
        "error_converged": "L2 error of θ\n(converged documents)",
        "difference": "error less Taylor's\n(all documents)",
        "iterations": "iterations",
    }
    aspects = [name for name in ASPECTS if len(result.sweep(name)) > 1] or list(ASPECTS)[:1]
    plot = Figure(figsize=(3.1 * len(aspects) + 0.8, 7.6), layout="constrained")
    axes = plot.subplots(len(panels), len(aspects), squeeze=False, sharex="col", sharey="row")
    for column, aspect in enumerate(aspects):
        values = [value for value, _ in result.sweep(aspect)]
        for row, (statistic, label) in enumerate(panels.items()):
            ax = axes[row, column]
            for name in result.settings.posteriors:
                # Where Taylor's printed iteration does not settle, its error would set the scale.
                if statistic == "difference" and name in (BASELINE, "taylor-as-printed"):
                    continue
                cells = [cell for _, cell in result.sweep(aspect)]
                means, errors = zip(
                    *(result.average(cell, name, statistic) for cell in cells), strict=True
                )
                bars = None if any(map(math.isnan, errors)) else errors
                style = {"markersize": 4, "linewidth": 1.4, **styles[name]}
                ax.errorbar(values, means, bars, label=name, **style)
            if statistic == "difference":
                ax.axhline(0.0, color="#4d4d4d", lw=0.8)
            if statistic == "iterations":
                ax.set_yscale("log")
                ax.set_yticks(ticks := [5, 10, 20, 50, 100, 200, 500], [str(t) for t in ticks])
                ax.set_xlabel(ASPECTS[aspect])
            if column == 0:
                ax.set_ylabel(label)
            if max(values) >= 8 * min(values):
                ax.set_xscale("log")
            ax.set_xticks(values, [f"{value:g}" for value in values])
            ax.minorticks_off()
            ax.grid(alpha=0.25)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return plot
