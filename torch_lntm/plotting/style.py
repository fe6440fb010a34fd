"""What the pictures share: colours, names of topics and the libraries that draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch_lntm.errors import ConfigError, import_extra
from torch_lntm.models import TopicModel
from torch_lntm.reports.labels import topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Blue and orange, which every common colour blindness tells apart, and the map between them.
NEGATIVE, POSITIVE, NEUTRAL = "#2166ac", "#c25b00", "#4d4d4d"
DIVERGING = ("#123c69", NEGATIVE, "#92c5de", "#f7f7f7", "#f9be82", POSITIVE, "#7a3600")
#: Colour of lines that help to read.
GRID = "#dddddd"
#: Most letters of a name beside or below a picture.
NAME_LETTERS = 48
#: What is told apart by colour, in this order; the colours differ in lightness too.
PALETTE = (NEGATIVE, POSITIVE, "#35a08a", "#8d5aa6", NEUTRAL)


def use_style() -> None:
    """Make matplotlib's figures look like those of this package: palette, grid, frame and sizes.

    It changes ``matplotlib.rcParams`` until they are changed again.

    Raises:
        ConfigError: matplotlib is missing.
    """
    matplotlib = library("matplotlib")
    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "axes.labelsize": 9,
            "figure.dpi": 80,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "legend.fontsize": 8.5,
            "legend.frameon": False,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
        }
    )


def labels_or_default(model: TopicModel, labels: Sequence[str] | None) -> list[str]:
    """The names given, or those of :func:`~torch_lntm.reports.topic_labels`.

    Raises:
        ConfigError: There is another number of names than of topics.
    """
    names = topic_labels(model) if labels is None else list(labels)
    if len(names) != model.num_topics:
        raise ConfigError(f"{len(names)} labels for {model.num_topics} topics; expected as many")
    return names


def rule(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Leave of grid and frame what helps to read numbers off one axis."""
    ax.grid(False)
    ax.grid(axis=axis, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if axis == "x":  # the rows have names, and no numbers
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)


def library(module: str) -> Any:
    """A module that draws.

    Raises:
        ConfigError: It cannot be imported; the message says what to install.
    """
    return import_extra(module, "viz", "plotting")
