"""The topics of a model as text, JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from torch_lntm.models import TopicSummary, TopicTable
from torch_lntm.reports.tables import TableFormat, check_text, to_csv


def format_topics(topics: Sequence[TopicSummary], format: TableFormat = "text") -> str:
    """Topics as a text table, as JSON, or as CSV with a row per topic.

    CSV has a column ``name`` if a topic has a name.

    Args:
        topics: The table of a :meth:`~torch_lntm.models.TopicModel.topic_table`, or some of its
            topics.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: The format has another name.

    Example:
        >>> print(lntm.reports.format_topics(result.topic_table(num_words=2), "csv"))
        topic,share,words,correlated,opposed
        ...
    """
    if format == "json":
        return json.dumps([asdict(topic) for topic in topics], indent=2, ensure_ascii=False)
    if format == "csv":
        has_names = any(topic.name != str(topic.topic) for topic in topics)
        head = ["topic", *(["name"] if has_names else [])]
        rows = [[*head, "share", "words", "correlated", "opposed"]]
        for topic in topics:
            name = [topic.name] if has_names else []
            share = "" if topic.share is None else f"{topic.share:.6f}"
            partners = [
                " ".join(f"{k}:{r:.4f}" for k, r in pairs)
                for pairs in (topic.correlated, topic.opposed)
            ]
            rows.append([str(topic.topic), *name, share, " ".join(topic.words), *partners])
        return to_csv(rows)
    check_text(format)
    return str(topics if isinstance(topics, TopicTable) else TopicTable(tuple(topics)))
