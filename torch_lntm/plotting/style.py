"""Shared parts of plots and reports: colours, style, labels of topics, and numbers as text."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from torch_lntm.models import TopicModel
from torch_lntm.models.names import labels, name_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Blue and orange, distinguishable with all common types of colour blindness, and grey.
NEGATIVE, POSITIVE, NEUTRAL = "#2166ac", "#c25b00", "#4d4d4d"
#: Colour of grid lines.
GRID = "#dddddd"
#: Most letters of a name beside or below a plot.
NAME_LETTERS = 48


def use_style() -> tuple[str, ...]:
    """Set matplotlib's style to the style of this package: colours, grid, frame and sizes.

    This changes ``matplotlib.rcParams``, so it affects all later figures.

    Returns:
        The five colours of lines and groups: blue, orange, green, purple and grey.

    Example:
        >>> blue, orange, *others = lntm.plotting.use_style()
        >>> blue
        '#2166ac'
    """
    import matplotlib.pyplot as plt

    plt.style.use(Path(__file__).with_name("torch_lntm.mplstyle"))
    return tuple(plt.rcParams["axes.prop_cycle"].by_key()["color"])


def topic_labels(model: TopicModel, top_n: int = 3, *, numbered: bool = True) -> list[str]:
    """Short labels of the topics: the name, or the number and words that tell the topic.

    The words are frequent in the topic and rarer in others
    (:func:`~torch_lntm.models.names.telling_words`). No word is in the labels of two topics, and
    no label has two inflections of a word. Without a vocabulary, labels are numbers.

    Args:
        model: The model.
        top_n: Most words in the label of a topic without a name; 0 for the number alone.
        numbered: Whether the number comes before the words.

    Returns:
        ``num_topics`` labels such as ``"3 fire sydney nsw"``.

    Example:
        >>> lntm.reports.topic_labels(model)[0].split()[0], len(lntm.reports.topic_labels(model))
        ('0', 10)
    """
    number = 0 if model.vocabulary is None else top_n
    words = name_words(model.topics.mean_probs, model.words_at, number)
    return labels(model.topic_names, words, numbered)


def shorten(text: str, letters: int) -> str:
    """A text cut to a number of letters, wide letters counted twice."""
    room, kept = letters, ""
    for letter in text:
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return kept[:-1].rstrip() + "…"
        kept += letter
    return kept


def is_skewed(values: NDArray[np.float64]) -> bool:
    """Whether numbers need a logarithmic axis.

    Numbers count as skewed if they are positive and half of them lie in the first tenth of their
    range, where a linear axis would crowd them.
    """
    smallest, largest = values.min(), values.max()
    return bool(smallest > 0 and np.median(values) - smallest < 0.1 * (largest - smallest))


def format_number(value: float) -> str:
    """A number as text; from 10,000 on, an integer with separators of thousands."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:g}"


def axes_of(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes, or those of a new figure of a width and a height in inches."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax


def rule(ax: Axes, axis: Literal["x", "y"]) -> None:
    """Reduce grid and frame to the lines that help to read one axis."""
    ax.grid(False)
    ax.grid(axis=axis, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if axis == "x":  # the rows have names without ticks
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
