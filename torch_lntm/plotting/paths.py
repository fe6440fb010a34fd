"""Plots of words over time, for topics whose words move with periods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.effects import Series, draw_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Most periods with a label.
MOST_LABELS = 12


def path_plot(
    model: TopicModel,
    topic: int | str,
    words: Sequence[int] | None = None,
    *,
    num_words: int = 5,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Plot the probabilities of words of a topic over time, with their bands.

    The bands take the topics of the tokens as known; see :meth:`DynamicTopics.log_paths`.

    Args:
        model: A model with moving words, ``models.stm(..., content="~ rw(year)")``.
        topic: Number or name of the topic.
        words: Positions of the words in the vocabulary. Defaults to the words with the largest
            changes from the first period to the last, weighted by probability.
        num_words: Number of words, if ``words`` is None.
        level: Probability of the bands, at every period by itself.
        ax: Axes to draw into. Defaults to a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: The words of the model stand still, the topic or a word
            does not exist, or the level is not between 0 and 1.

    Example:
        >>> years = lntm.models.stm(5, posts, content="~ rw(year)")
        >>> lntm.plotting.path_plot(years, 0, num_words=3).get_xlabel()
        'year'
    """
    import matplotlib.pyplot as plt

    topics = model.topics
    if not isinstance(topics, DynamicTopics):
        raise ConfigError(
            "the words of the model's topics do not move with time; make it by "
            "models.stm(num_topics, corpus, content='~ rw(year)')"
        )
    require_whole(1, num_words=num_words)
    (number,) = find_topics(model.topic_names, [topic])
    if words is None:
        change, _ = topics.log_changes(number)
        weights = topics.log_paths(number).log_probs.exp().mean(0)
        words = (weights * change.abs()).topk(min(num_words, topics.num_words)).indices.tolist()
    periods, names = topics.column, model.words_at(list(words))
    bands = np.stack([x.numpy() for x in topics.log_paths(number, words).bands(level)], -1)
    if ax is None:
        _, ax = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
    draw_lines(ax, [Series(n, periods.positions, bands[:, j]) for j, n in enumerate(names)])
    every = -(-len(periods.levels) // MOST_LABELS)
    ax.set_xticks(periods.positions[::every], [str(x) for x in periods.levels[::every]])
    ax.set(yscale="log", xlabel=periods.column, ylabel="probability in the topic")
    ax.set_title(f"Topic {model.topic_names[number]}", parse_math=False)
    lines = ax.lines[-len(names) :]
    for text in ax.legend(lines, names, frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
    return ax
