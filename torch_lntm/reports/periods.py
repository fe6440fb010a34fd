"""Words over time in a report: top words by period, words that rose or fell, and their paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.models.levels import Level
from torch_lntm.models.topics.dynamic import quantile_of
from torch_lntm.plotting.lines import path_plot
from torch_lntm.plotting.style import shorten
from torch_lntm.reports.sections import Block, PageData, Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Limits of the page: topics in the picture, words of a panel, panels in a row, periods of the
#: table; and width and height of a panel in inches.
_PANELS, _LINES, _COLUMNS, _PERIODS, _PANEL = 12, 4, 3, 6, (3.6, 2.4)
#: Columns of the frame of words that rose or fell.
_FRAME = ("topic", "name", "drift", "change", "term", "first", "last", "ratio", "lower", "upper")


class WordChange(NamedTuple):
    """Change of a word's probability in a topic, from the first period to the last.

    Attributes:
        word: The word.
        first: Probability in the first period.
        last: Probability in the last period.
        ratio: ``last / first``.
        lower: Lower end of the interval of ``ratio``.
        upper: Upper end of the interval of ``ratio``.
    """

    word: str
    first: float
    last: float
    ratio: float
    lower: float
    upper: float


@dataclass(frozen=True)
class MovingTopic:
    """A topic over time.

    Attributes:
        topic: Number of the topic.
        name: Name of the topic.
        drift: Distance of the last period from the first, between 0 and 1; see
            :meth:`DynamicTopics.drift`.
        periods: Names of the selected periods.
        words: Most probable words in each selected period.
        rose: Words with an interval above 1, the largest changes of probability first.
        fell: Words with an interval below 1, the largest changes of probability first.
    """

    topic: int
    name: str
    drift: float
    periods: tuple[Level, ...]
    words: tuple[tuple[str, ...], ...]
    rose: tuple[WordChange, ...]
    fell: tuple[WordChange, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows of a frame, a row for each word that rose or fell."""
        changes = [("rose", word) for word in self.rose] + [("fell", word) for word in self.fell]
        return [
            dict(zip(_FRAME, (self.topic, self.name, self.drift, change, *x), strict=True))
            for change, x in changes
        ]


@torch.no_grad()
def moving_topics(
    model: TopicModel,
    *,
    level: float = 0.95,
    top_n: int = 8,
    num_changes: int = 5,
    num_periods: int = _PERIODS,
) -> Rows[MovingTopic]:
    """Topics of a model with moving words: their top words by period, and words that rose or fell.

    The intervals are those of :meth:`DynamicTopics.log_changes`. They hold for each word by itself,
    and take the topics of the tokens as known.

    Args:
        model: A model with moving words, ``models.stm(..., content="~ rw(year)")``.
        level: Coverage probability of the intervals.
        top_n: Top words of each period.
        num_changes: Most words that rose, and most words that fell, of each topic.
        num_periods: Most periods with top words. The first and the last are among them.

    Returns:
        The topics. ``frame()`` has a row for each word that rose or fell: ``topic``, ``name``,
        ``drift``, ``change``, ``term``, ``first``, ``last``, ``ratio``, ``lower``, ``upper``.

    Raises:
        ConfigError: The words of the model stand still, or a number is out of range.

    Example:
        >>> years = lntm.models.stm(5, posts, content="~ rw(year)")
        >>> topic = lntm.reports.moving_topics(years, top_n=3)[0]
        >>> len(topic.words) == len(topic.periods), topic.rose
        (True, ())
    """
    topics = model.topics
    if not isinstance(topics, DynamicTopics):
        raise ConfigError(
            "the words of the model's topics do not move with time; make it by "
            "models.stm(num_topics, corpus, content='~ rw(year)')"
        )
    require_whole(1, top_n=top_n, num_changes=num_changes)
    require_whole(2, num_periods=num_periods)
    width, levels = quantile_of(level), topics.content.levels
    chosen = sorted({round(x) for x in np.linspace(0, len(levels) - 1, num_periods)})
    periods, drift = tuple(levels[t] for t in chosen), topics.drift()[:, -1].tolist()
    rows = Rows[MovingTopic](columns=_FRAME)
    for k, name in enumerate(model.topic_names):
        log_probs = topics.log_paths(k).log_probs.cpu()
        change, error = (x.cpu() for x in topics.log_changes(k))
        best = log_probs[chosen].topk(min(top_n, topics.num_words), 1).indices
        first, last = log_probs[0].exp(), log_probs[-1].exp()
        lower, upper = change - width * error, change + width * error
        table = torch.stack([first, last, change.exp(), lower.exp(), upper.exp()])
        words = tuple(model.words_at(row) for row in best.tolist())
        rose, fell = (_largest(model, table, x, num_changes) for x in (lower > 0, upper < 0))
        rows.append(MovingTopic(k, name, drift[k], periods, words, rose, fell))
    return rows


def _largest(model: TopicModel, table: Tensor, chosen: Tensor, most: int) -> tuple[WordChange, ...]:
    """The largest changes among chosen words, from the numbers ``(5, num_words)`` of all words."""
    size = torch.where(chosen, (table[1] - table[0]).abs(), -1.0)
    best = [v for v in size.topk(min(most, len(size))).indices.tolist() if chosen[v]]
    words = zip(model.words_at(best), table[:, best].T.tolist(), strict=True)
    return tuple(WordChange(word, *numbers) for word, numbers in words)


def period_section(page: PageData) -> list[Block]:
    """The report's section on words over time."""
    periods: Any = page.model.topics.content
    found = moving_topics(page.model, level=page.level)
    rows = [found[summary.topic] for summary in page.topics]
    first, last, level = periods.levels[0], periods.levels[-1], f"{page.level:.0%}"
    intro = (
        f"The words of every topic follow a random walk over {len(periods.levels)} periods of "
        f"{periods.column}, from {first} to {last}. The drift is the share of a topic's words in "
        "the last period that would have to be other words to equal the first period."
    )
    shown = rows[0].periods
    strip = Table(
        ("topic", "drift", *map(str, shown)),
        [(page.names[r.topic], f"{r.drift:.0%}", *map(" ".join, r.words)) for r in rows],
        f"Most probable words of each topic in {len(shown)} of the {len(periods.levels)} periods.",
    )
    moving = sorted((r for r in rows if r.rose or r.fell), key=lambda r: -r.drift)
    if not moving:
        return [intro, strip, "Every interval of a change includes 1: the words stand still."]
    changes = Table(
        ("topic", "", "word", "first", "last", "factor", "from", "to"),
        [(page.names[r.topic], *list(x.values())[3:]) for r in rows for x in r.records()],
        f"Factor: probability in {last} over {first}, with its {level} interval. Shown are words "
        "with an interval on one side of 1. Each interval holds for its word alone, and takes the "
        "tokens of the topic as known.",
    )
    moving = moving[:_PANELS]
    described = "; ".join(
        f"{page.names[r.topic]}: {', '.join(f'{x.word} × {x.ratio:.2g}' for x in r.rose + r.fell)}"
        for r in moving
    )
    caption = (
        f"Probabilities of words over {periods.column} on a logarithmic scale, with their {level} "
        f"bands: the {len(moving)} topics with the largest drift."
    )
    chart = path_chart(page.model, moving, page.names, page.level)
    return [intro, strip, Picture(chart, f"Paths of words. {described}", caption), changes]


def path_chart(
    model: TopicModel, rows: Sequence[MovingTopic], names: Sequence[str], level: float
) -> Figure:
    """Paths of the words that rose or fell, a panel for each topic.

    Args:
        model: The model.
        rows: The topics.
        names: Names of all topics of the model.
        level: Coverage probability of the bands.
    """
    from matplotlib.figure import Figure

    vocabulary = model.words_at(range(model.num_words))
    columns = min(len(rows), _COLUMNS)
    lines = math.ceil(len(rows) / columns)
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * lines), layout="constrained")
    for place, row in enumerate(rows, 1):
        changes = sorted(row.rose + row.fell, key=lambda x: -abs(x.last - x.first))[:_LINES]
        ax = figure.add_subplot(lines, columns, place)
        words = [vocabulary.index(change.word) for change in changes]
        path_plot(model, row.topic, words, level=level, ax=ax)
        ax.set_title(shorten(names[row.topic], 40), fontsize=9, parse_math=False)
        periods: Any = model.topics.content
        ends = [str(periods.levels[0]), str(periods.levels[-1])]
        ax.set_xticks([periods.positions[0], periods.positions[-1]], ends, parse_math=False)
        ax.set(xlabel="", ylabel="")
        ax.tick_params(which="both", labelsize=8)
    return figure
