"""How groups of documents word the same topics: what content covariates found."""

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
    """The words by which a group of documents writes about a topic more than the groups do.

    Attributes:
        topic: The topic's number, from 0.
        group: The group's value of the column.
        words: Its own words, the most telling first; few or none where it writes as the others do.
        probabilities: Their probabilities in the topic of this group.
        averages: Their probabilities in the topic, averaged over the groups.
    """

    topic: int
    group: Any
    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    averages: tuple[float, ...]


def group_words(model: TopicModel, *, num_words: int = 7) -> list[GroupWords]:
    """Each group's own words in each topic.

    A word v of topic k tells φ_gkv log(φ_gkv / φ̄_kv) of group g, with φ̄ the mean over groups: its
    part of the group's relative entropy. Words without a deviation in any group tell nothing.

    Args:
        model: A model with content covariates, ``models.stm(..., content="party")``.
        num_words: Words of each topic and group, at most.

    Returns:
        Topic by topic, group by group.

    Raises:
        ConfigError: A number that cannot be used, or the model's topics are the same in all groups.
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
    telling = probs * (probs / average).log()
    telling = torch.where(topics.differing_words.cpu().unsqueeze(1), telling, 0.0)
    best = telling.sort(dim=-1, descending=True, stable=True).indices[..., :num_words]
    found = []
    for k in range(topics.num_topics):
        for g, level in enumerate(topics.column.levels):
            at = best[k, g][telling[k, g][best[k, g]] > 0]
            found.append(
                GroupWords(
                    topic=k,
                    group=level,
                    words=model.words_at(at.tolist()),
                    probabilities=tuple(probs[k, g][at].tolist()),
                    averages=tuple(average[k, 0][at].tolist()),
                )
            )
    return found


def format_group_words(found: Sequence[GroupWords], format: TableFormat = "text") -> str:
    """Groups' words as text to read, as JSON, or as CSV with a row for each word.

    Args:
        found: What :func:`group_words` gave.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: Another format.
    """
    if format == "json":
        return json.dumps([asdict(one) for one in found], ensure_ascii=False, indent=2)
    if format == "csv":
        rows = [["topic", "group", "word", "probability", "average"]]
        for one in found:
            for word, *numbers in zip(one.words, one.probabilities, one.averages, strict=True):
                rows.append([str(one.topic), str(one.group), word, *(f"{x:.6g}" for x in numbers)])
        return to_csv(rows)
    check_text(format)
    width = max((len(str(one.group)) for one in found), default=0)
    lines, last = [], None
    for one in found:
        begin = "" if one.topic == last else f"topic {one.topic}"
        lines.append(f"{begin:10}  {one.group!s:{width}}  {' '.join(one.words)}".rstrip())
        last = one.topic
    return "\n".join(lines)
