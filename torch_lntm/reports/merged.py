"""Groups of topics in words: shares, members, and the words of the merged topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows
from torch_lntm.inference import DocumentTopics
from torch_lntm.models import TopicGroups, TopicModel, merged_topics


@dataclass(frozen=True)
class GroupSummary:
    """A group of topics in words.

    Attributes:
        group: Name of the group.
        share: Sum of the shares of its topics. None if they are unknown.
        topics: Numbers of its topics.
        names: Names of its topics.
        words: Most probable words of the merged topic.
    """

    group: str
    share: float | None
    topics: tuple[int, ...]
    names: tuple[str, ...]
    words: tuple[str, ...]

    def records(self) -> list[dict[str, Any]]:
        """The row of a frame."""
        topics, words = ", ".join(self.names), " ".join(self.words)
        return [{"group": self.group, "share": self.share, "topics": topics, "words": words}]


def summarise_groups(
    model: TopicModel,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups,
    shares: Sequence[float] | Tensor | None = None,
    *,
    num_words: int = 8,
) -> Rows[GroupSummary]:
    """Groups of topics with their shares and the words of the merged topics.

    Args:
        model: The model.
        groups: The groups; see :class:`~torch_lntm.models.TopicGroups`.
        shares: ``(num_topics,)`` shares of the topics, such as ``result.topic_shares``. They weigh
            the topics of a group. Defaults to equal weights.
        num_words: Words of each group.

    Returns:
        The groups, in their order. ``frame()`` has a row for each group.

    Raises:
        ConfigError: A group is refused, a number is below 1, or there is another number of shares.

    Example:
        >>> groups = lntm.reports.summarise_groups(model, {"news": [3, 7]}, num_words=2)
        >>> groups[0].group, groups[0].topics, len(groups[0].words)
        ('news', (3, 7), 2)
    """
    require_whole(1, num_words=num_words)
    found = TopicGroups.of(model.topic_names, groups)
    if shares is not None and len(shares) != model.num_topics:
        raise ConfigError(f"{len(shares)} shares for {model.num_topics} topics; expected as many")
    words = group_words_of(model, found, shares, num_words)
    return Rows(
        GroupSummary(
            name,
            None if shares is None else float(sum(float(shares[k]) for k in topics)),
            topics,
            tuple(model.topic_names[k] for k in topics),
            words[g],
        )
        for g, (name, topics) in enumerate(zip(found.names, found.members, strict=True))
    )


def group_words_of(
    model: TopicModel, groups: TopicGroups, tokens: Sequence[float] | Tensor | None, num_words: int
) -> list[tuple[str, ...]]:
    """Most probable words of each merged topic."""
    merged = merged_topics(model, groups, tokens)
    best = merged.sort(dim=-1, descending=True, stable=True).indices[:, :num_words]
    return [model.words_at(row) for row in best.tolist()]


def topic_tokens(documents: DocumentTopics) -> Tensor:
    """Tokens ``(num_topics,)`` of the topics: proportions times lengths, summed over documents."""
    lengths = torch.from_numpy(documents.lengths.astype("float64"))
    return lengths @ documents.theta.double()
