"""Words over time: top words by period, and the words of each topic that rose or fell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import DynamicTopics, TopicModel
from torch_lntm.models.topics.dynamic import quantile_of

_COLUMNS = ("topic", "name", "drift", "change", "word", "first", "last", "ratio", "lower", "upper")


@torch.no_grad()
def moving_topics(model: TopicModel, *, level: float = 0.95, top_n: int = 5) -> pd.DataFrame:
    """Words of a model with moving words that rose or fell from the first period to the last.

    The intervals are those of :meth:`DynamicTopics.log_changes`. They hold for each word by itself,
    and take the topics of the tokens as known.

    Args:
        model: A model with moving words, ``models.stm(..., content="~ rw(year)")``.
        level: Coverage probability of the intervals.
        top_n: Most words that rose, and most words that fell, of each topic.

    Returns:
        A row for each word, the largest changes of probability first: ``topic`` and ``name``; the
        topic's ``drift`` (:meth:`DynamicTopics.drift`); the ``change``, ``"rose"`` or ``"fell"``;
        the ``word``; its probability in the ``first`` and the ``last`` period; their ``ratio``,
        with the ``lower`` and the ``upper`` end of an interval that leaves out 1.

    Raises:
        ConfigError: The words of the model stand still, or a number is out of range.

    Example:
        >>> years = lntm.models.stm(5, posts, content="~ rw(year)")
        >>> lntm.reports.moving_topics(years)["word"].tolist()
        []
    """
    topics, width = _moving(model), quantile_of(level)
    require_whole(1, top_n=top_n)
    drift, rows = topics.drift()[:, -1].tolist(), []
    for k, name in enumerate(model.topic_names):
        change, error = (x.cpu() for x in topics.log_changes(k))
        first, last = topics.log_paths(k).log_probs.cpu()[[0, -1]].exp()
        ends = change - width * error, change + width * error
        table = torch.stack([first, last, change.exp(), ends[0].exp(), ends[1].exp()])
        for kind, chosen in (("rose", ends[0] > 0), ("fell", ends[1] < 0)):
            size = torch.where(chosen, (last - first).abs(), -1.0)
            best = [v for v in size.topk(min(top_n, len(size))).indices.tolist() if chosen[v]]
            words = zip(model.words_at(best), table[:, best].T.tolist(), strict=True)
            rows += [(k, name, drift[k], kind, word, *numbers) for word, numbers in words]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


@torch.no_grad()
def words_by_period(model: TopicModel, *, top_n: int = 8, num_periods: int = 6) -> pd.DataFrame:
    """Most probable words of each topic in some periods, the first and the last among them.

    Args:
        model: A model with moving words.
        top_n: Words in each period.
        num_periods: Most periods.

    Returns:
        A row for each topic: its number ``topic``, its ``drift``, and a column of words for each
        period.
    """
    topics = _moving(model)
    levels = topics.content.levels
    chosen = sorted({round(x) for x in np.linspace(0, len(levels) - 1, num_periods)})
    drift = topics.drift()[:, -1].tolist()
    frame = pd.DataFrame({"topic": range(model.num_topics), "drift": drift})
    paths = torch.stack([topics.log_paths(k).log_probs[chosen].cpu() for k in frame["topic"]])
    best = paths.topk(min(top_n, topics.num_words), -1).indices.tolist()
    for i, t in enumerate(chosen):
        frame[str(levels[t])] = [" ".join(model.words_at(row[i])) for row in best]
    return frame


def _moving(model: TopicModel) -> DynamicTopics:
    """The topics of a model whose words move."""
    if not isinstance(model.topics, DynamicTopics):
        raise ConfigError(
            "the words of the model's topics do not move with time; make it by "
            "models.stm(num_topics, corpus, content='~ rw(year)')"
        )
    return model.topics
