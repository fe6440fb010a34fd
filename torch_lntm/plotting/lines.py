"""Plots of values with intervals: proportions of topics, effects, and words over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import ConfigError, require_level, require_whole
from torch_lntm.guides.theta_draws import ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.models.topics.dynamic import require_moving
from torch_lntm.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's colours, distinguishable with all common types of colour blindness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", style.NEUTRAL)
#: Marker, dashes and colour of each line of a picture with many lines.
LOOKS = [
    (*look, colour)
    for look in (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))
    for colour in COLOURS
]
#: Width and height of a figure in inches, and additional height for each level or legend line.
WIDTH, HEIGHT, PER_LEVEL = 7.0, 3.6, 0.22
#: Columns of small multiples, and width and smallest height of a panel in inches.
_COLUMNS, _ACROSS, _DOWN = 3, 3.2, 2.0
#: Most periods with a label.
MOST_LABELS = 12


class Series(NamedTuple):
    """Values and proportions that share a colour.

    Attributes:
        label: Name in the legend, or of a panel.
        values: Values of the column.
        proportions: ``(num_values, 3)`` expected proportions, lower and upper ends of the
            intervals.
    """

    label: str
    values: Any
    proportions: NDArray[np.float64]


def plot_effects(
    panels: Mapping[str, Sequence[Series]],
    kind: str,
    across: str,
    along: str,
    *,
    ax: Axes | None,
    classes: str | None = None,
) -> Axes:
    """Plot values with intervals: lines over numbers and dates, rows of points for levels.

    Args:
        panels: The series of each panel, by its title. Several panels are small multiples with
            scales in common, in a new figure.
        kind: ``"number"``, ``"date"`` or ``"text"``.
        across: Name of the column, or of the rows.
        along: What the values are.
        ax: Axes to draw a single panel into. Defaults to a new figure.
        classes: Title of the legend.

    Returns:
        The axes, of the first panel if there are several.
    """
    import matplotlib.pyplot as plt

    every = list(panels.values())
    # The legend has a line for each series.
    num_rows = len(every[0]) * (len(every[0][0].values) if kind == "text" else 1)
    if len(panels) == 1:
        axes = [style.axes_of(ax, WIDTH, max(HEIGHT, 1.0 + PER_LEVEL * num_rows))]
    else:
        lines = math.ceil(len(panels) / _COLUMNS)
        down = max(_DOWN, 0.7 + PER_LEVEL * num_rows * (kind == "text"))
        look: dict[str, Any] = {"sharex": True, "sharey": True, "layout": "constrained"}
        size = (_ACROSS * _COLUMNS, down * lines + 0.8)
        grid = plt.subplots(lines, _COLUMNS, figsize=size, squeeze=False, **look)[1]
        axes, spare = grid.flat[: len(panels)], grid.flat[len(panels) :]
        for each in spare:
            each.remove()
        for each in axes[-_COLUMNS:]:
            each.tick_params(axis="x", labelbottom=True)
    for each, (title, series) in zip(axes, panels.items(), strict=True):
        _draw_panel(each, series, kind)
        letters = style.NAME_LETTERS if len(panels) > 1 else len(title)
        each.set_title(style.shorten(title, letters), fontsize="medium", parse_math=False)
    if kind == "text":
        names = {"xlabel": along.replace(", ", ",\n"), "ylabel": across}
    else:
        names = {"xlabel": across, "ylabel": along}
    options: dict[str, Any] = {"frameon": False, "fontsize": "small", "title": classes}
    if len(panels) == 1:
        axes[0].set(**names)
        if len(every[0]) > 1:
            axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **options)
        return axes[0]
    figure = axes[0].figure
    figure.supxlabel(names["xlabel"], fontsize="medium")
    figure.supylabel(names["ylabel"].replace(", ", ",\n"), fontsize="medium")
    if len(every[0]) > 1:
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper left", ncols=4, **options)
    return axes[0]


def _draw_panel(ax: Axes, series: Sequence[Series], kind: str) -> None:
    if kind == "text":
        _draw_rows(ax, series)
        return
    unit = "datetime64[D]" if kind == "date" else np.float64
    draw_lines(ax, [line._replace(values=np.array(line.values, unit)) for line in series])
    if kind == "date":
        ax.tick_params(axis="x", rotation=30)
    elif style.is_skewed(np.array(series[0].values, np.float64)):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: style.format_number(x))


def _draw_rows(ax: Axes, series: Sequence[Series]) -> None:
    """Points with intervals. Each value has a row, in which the series lie side by side."""
    for j, line in enumerate(series):
        marker, _, colour = LOOKS[j % len(LOOKS)]
        # An interval of unknown width is not drawn.
        mean, lower, upper = np.where(np.isfinite(line.proportions), line.proportions, np.nan).T
        y = np.arange(len(line.values)) + 0.6 * ((j + 0.5) / len(series) - 0.5)
        label, ends = style.shorten(line.label, style.NAME_LETTERS), [mean - lower, upper - mean]
        ax.errorbar(mean, y, xerr=ends, fmt=marker, color=colour, label=label)
    values = series[0].values
    ax.set_yticks(
        range(len(values)), [style.shorten(str(value), style.NAME_LETTERS) for value in values]
    )
    for between in np.arange(1, len(values)) - 0.5:
        ax.axhline(between, color=style.GRID, linewidth=0.8, zorder=0)
    ax.set_ylim(len(values) - 0.5, -0.5)
    style.rule(ax, "x")


def draw_lines(ax: Axes, series: Sequence[Series]) -> None:
    """Lines over numbers or days, with bands of their intervals."""
    for j, line in enumerate(series):
        _, dashes, colour = LOOKS[j % len(LOOKS)]
        mean, lower, upper = line.proportions.T
        name = style.shorten(line.label, style.NAME_LETTERS)
        ax.plot(line.values, mean, dashes, color=colour, label=name)
        ax.fill_between(line.values, lower, upper, color=colour, alpha=0.2, linewidth=0)
    style.rule(ax, "y")


def path_plot(
    model: TopicModel,
    topic: int | str,
    words: Sequence[int] | None = None,
    *,
    top_n: int = 5,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Plot the probabilities of words of a topic over time, with their bands.

    The bands are those of :meth:`DynamicTopics.log_paths`.

    Args:
        model: A model with moving words, ``models.stm(..., content="~ rw(year)")``.
        topic: Number or name of the topic.
        words: Positions of the words in the vocabulary. Defaults to the words with the largest
            changes from the first period to the last, weighted by probability.
        top_n: Number of words, if ``words`` is None.
        level: Probability of the bands, at every period by itself.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The words of the model stand still, the topic or a word
            does not exist, or the level is not between 0 and 1.

    Example:
        >>> years = lntm.models.stm(5, posts, content="~ rw(year)")
        >>> lntm.plotting.path_plot(years, 0, top_n=3).get_xlabel()
        'year'
    """
    topics = require_moving(model.topics)
    require_whole(1, top_n=top_n)
    (number,) = find_topics(model.topic_names, [topic])
    if words is None:
        change, _ = topics.log_changes(number)
        weights = topics.log_paths(number).log_probs.exp().mean(0)
        words = (weights * change.abs()).topk(min(top_n, topics.num_words)).indices.tolist()
    periods, names = topics.content, model.words_at(list(words))
    bands = np.stack([x.numpy() for x in topics.log_paths(number, words).bands(level)], -1)
    ax = style.axes_of(ax, WIDTH, HEIGHT)
    draw_lines(ax, [Series(n, periods.positions, bands[:, j]) for j, n in enumerate(names)])
    every = -(-len(periods.levels) // MOST_LABELS)
    ax.set_xticks(periods.positions[::every], [str(x) for x in periods.levels[::every]])
    ax.set(yscale="log", xlabel=periods.column, ylabel="probability in the topic")
    ax.set_title(f"Topic {model.topic_names[number]}", parse_math=False)
    lines = ax.lines[-len(names) :]
    for text in ax.legend(lines, names, frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
    return ax


def document_proportions(
    draws: ThetaDraws,
    document: int = 0,
    *,
    level: float = 0.9,
    num_draws: int = 1000,
    labels: Sequence[str] | None = None,
    num_topics: int | None = 12,
    ax: Axes | None = None,
) -> Axes:
    """Plot a document's topic proportions: posterior means with equal-tailed intervals.

    Args:
        draws: Draws of a corpus, ``inference.theta_draws(source, corpus)``.
        document: Position of the document in the corpus.
        level: Posterior probability of each interval.
        num_draws: Number of draws for the means and intervals.
        labels: Names of the topics, such as :func:`topic_labels`. Defaults to numbers.
        num_topics: Number of topics to show, the largest first; None for all.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The document does not exist, the level is outside
            (0, 1), or the numbers of labels and topics differ.

    Example:
        >>> draws = lntm.inference.theta_draws(guide, corpus)
        >>> ax = lntm.plotting.document_proportions(draws, num_topics=3)
        >>> len(ax.get_yticklabels())
        3
    """
    require_level(level)
    if not isinstance(draws, ThetaDraws) or document not in draws.rows:
        raise ConfigError(f"document {document} is not in {draws!r}; expected a corpus's draws")
    theta = draws.take(np.array([document]), num_draws).theta[:, 0].double().numpy()
    ends = (1 - level) / 2, (1 + level) / 2
    mean, (lower, upper) = theta.mean(0), np.quantile(theta, ends, axis=0)
    names = range(len(mean)) if labels is None else labels
    if len(names) != len(mean):
        raise ConfigError(
            f"{len(names)} labels for {len(mean)} topics; expected one for each topic"
        )
    shown = np.argsort(-mean, kind="stable")[:num_topics][::-1]
    rows = np.arange(len(shown))
    look: dict[str, Any] = {"color": style.NEGATIVE, "clip_on": False}
    ax = style.axes_of(ax, 6.0, 0.3 * len(shown) + 1.1)
    ax.hlines(rows, lower[shown], upper[shown], linewidth=2.2, alpha=0.55, **look)
    ax.plot(mean[shown], rows, "o", **look)
    ax.set_yticks(rows, [str(names[k]) for k in shown], fontsize=9, parse_math=False)
    ax.set_xlim(0, min(1.0, 1.05 * float(upper.max())))
    ax.set_title(f"Document {document}", fontsize=10)
    ax.set_xlabel(f"topic proportion: posterior mean and {level:.0%} interval")
    style.rule(ax, "x")
    return ax
