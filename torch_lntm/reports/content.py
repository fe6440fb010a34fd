"""Words of topics by group of documents, for models with content covariates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import TopicModel
from torch_lntm.reports.tables import TableFormat, check_text, to_csv


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


def group_words(model: TopicModel, *, num_words: int = 7) -> list[GroupWords]:
    """The most typical words of each group in each topic.

    The score of word v in topic k and group g is φ_gkv log(φ_gkv / φ̄_kv), its part of the group's
    relative entropy to the mean φ̄ over groups. Words with equal probabilities in all groups score
    0 and are left out.

    Args:
        model: A model with content covariates, ``models.stm(..., content="party")``.
        num_words: Most words of each topic and group.

    Returns:
        The words, topic by topic and group by group.

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
    summaries = []
    for k in range(topics.num_topics):
        for g, level in enumerate(topics.column.levels):
            columns = best[k, g][scores[k, g][best[k, g]] > 0]
            summaries.append(
                GroupWords(
                    topic=k,
                    name=model.topic_names[k],
                    group=level,
                    words=model.words_at(columns.tolist()),
                    probabilities=tuple(probs[k, g][columns].tolist()),
                    averages=tuple(average[k, 0][columns].tolist()),
                )
            )
    return summaries


def format_group_words(summaries: Sequence[GroupWords], format: TableFormat = "text") -> str:
    """Words of groups as a text table, as JSON, or as CSV with a row for each word.

    Args:
        summaries: The result of :func:`group_words`.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: The format is unknown.
    """
    if format == "json":
        return json.dumps([asdict(summary) for summary in summaries], ensure_ascii=False, indent=2)
    if format == "csv":
        has_names = any(summary.name != str(summary.topic) for summary in summaries)
        head = ["topic", *(["name"] if has_names else [])]
        rows = [[*head, "group", "word", "probability", "average"]]
        for summary in summaries:
            columns = (summary.words, summary.probabilities, summary.averages)
            for word, *numbers in zip(*columns, strict=True):
                name = [summary.name] if has_names else []
                cells = [str(summary.topic), *name, str(summary.group), word]
                rows.append([*cells, *(f"{x:.6g}" for x in numbers)])
        return to_csv(rows)
    check_text(format)
    width = max((len(str(summary.group)) for summary in summaries), default=0)
    first = max([10, *(len(f"topic {summary.name}") for summary in summaries)])
    lines, last_topic = [], None
    for summary in summaries:
        title = "" if summary.topic == last_topic else f"topic {summary.name}"
        lines.append(
            f"{title:{first}}  {summary.group!s:{width}}  {' '.join(summary.words)}".rstrip()
        )
        last_topic = summary.topic
    return "\n".join(lines)
