"""Shared parts of the plots: colours, style, names of topics, and the import of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch_lntm.errors import ConfigError, import_extra
from torch_lntm.models import TopicModel
from torch_lntm.reports.labels import topic_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Blue and orange, distinguishable with all common types of colour blindness, and a colour map
#: between them.
NEGATIVE, POSITIVE, NEUTRAL = "#2166ac", "#c25b00", "#4d4d4d"
DIVERGING = ("#123c69", NEGATIVE, "#92c5de", "#f7f7f7", "#f9be82", POSITIVE, "#7a3600")
#: Colour of grid lines.
GRID = "#dddddd"
#: Most letters of a name beside or below a plot.
NAME_LETTERS = 48
#: Colours of lines and groups, in order. The colours also differ in lightness.
PALETTE = (NEGATIVE, POSITIVE, "#35a08a", "#8d5aa6", NEUTRAL)


def use_style() -> None:
    """Set matplotlib's style to the style of this package: palette, grid, frame and sizes.

    The function changes ``matplotlib.rcParams``, which affects all later figures.

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
    """Checked names of topics. Defaults to :func:`~torch_lntm.reports.topic_labels`.

    Raises:
        ConfigError: The numbers of names and topics differ.
    """
    names = topic_labels(model) if labels is None else list(labels)
    if len(names) != model.num_topics:
        raise ConfigError(
            f"{len(names)} labels for {model.num_topics} topics; expected one for each topic"
        )
    return names


def number_and_words(label: str, topic: int) -> tuple[str, str]:
    """Number and words of a label such as ``"3 fire sydney"``.

    The words of another label, such as a topic's name, are the label itself.

    Args:
        label: The label.
        topic: The topic's number.
    """
    number, _, words = label.partition(" ")
    return (number, words) if number == str(topic) else (str(topic), label)


def rule(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Reduce grid and frame to the lines that help to read one axis."""
    ax.grid(False)
    ax.grid(axis=axis, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if axis == "x":  # the rows have names without ticks
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)


def library(module: str) -> Any:
    """Import a plotting module.

    Raises:
        ConfigError: The module cannot be imported. The message names the extra to install.
    """
    return import_extra(module, "viz", "plotting")
