"""Words of topics by group of documents, for models with content covariates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows
from torch_lntm.models import TopicModel


@dataclass(frozen=True)
class GroupWords:
    """Words that a group of documents uses for a topic more often than the groups on average.

    Attributes:
        topic: The topic's number, from 0.
        name: Name of the topic; its number as text if it has no name.
        group: The group's value of the column.
        words: Words of the group, the most typical first. Few or none if the groups write alike.
        probabilities: Probabilities of the words in the group's topic.
        averages: Probabilities of the words in the topic, averaged over the groups.
    """

    topic: int
    name: str
    group: Any
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    averages: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """Rows of a frame, a row for each word."""
        about = {"topic": self.topic, "name": self.name, "group": self.group}
        return [
            {**about, "term": word, "probability": probability, "average": average}
            for word, probability, average in zip(
                self.words, self.probabilities, self.averages, strict=True
            )
        ]


def group_words(model: TopicModel, *, num_words: int = 7) -> Rows[GroupWords]:
    """The most typical words of each group in each topic.

    The score of word v in topic k and group g is φ_gkv log(φ_gkv / φ̄_kv), its part of the group's
    relative entropy to the mean φ̄ over groups. Words with equal probabilities in all groups score
    0 and are left out.

    Args:
        model: A model with content covariates, ``models.stm(..., content="party")``.
        num_words: Most words of each topic and group.

    Returns:
        The words, topic by topic and group by group. The columns of ``frame()`` are ``topic``,
        ``name``, ``group``, ``term``, ``probability`` and ``average``.

    Raises:
        ConfigError: The number of words is below 1, or the model has no content covariates.
    """
    require_whole(1, num_words=num_words)
    topics: Any = model.topics
    if topics.num_groups == 1:
        raise ConfigError(
            "the model's topics are the same in all documents; make it by "
            "models.stm(num_topics, corpus, content='party')"
        )
    probs = topics.double_probs.cpu().unflatten(1, (topics.num_groups, topics.num_words))
    average = probs.mean(1, keepdim=True)
    scores = probs * (probs / average).log()
    scores = torch.where(topics.differing_words.cpu().unsqueeze(1), scores, 0.0)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :num_words]
    columns = ("topic", "name", "group", "term", "probability", "average")
    summaries: Rows[GroupWords] = Rows(columns=columns)
    for k in range(topics.num_topics):
        for g, level in enumerate(topics.column.levels):
            found = best[k, g][scores[k, g][best[k, g]] > 0]
            summaries.append(
                GroupWords(
                    topic=k,
                    name=model.topic_names[k],
                    group=level,
                    words=model.words_at(found.tolist()),
                    probabilities=tuple(probs[k, g][found].tolist()),
                    averages=tuple(average[k, 0][found].tolist()),
                )
            )
    return summaries
