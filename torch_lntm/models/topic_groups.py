"""TopicGroups, whose proportions are sums over topics, and the words of merged topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models.model import TopicModel
from torch_lntm.models.names import check_name, find_topics


@dataclass(frozen=True)
class TopicGroups:
    """Groups of topics by name.

    The proportion of a group is the sum of its topics' proportions, draw by draw, so it keeps their
    uncertainty. Groups may overlap and need not hold all topics, which is why their proportions
    need not sum to 1. Functions with an argument ``groups`` accept a mapping such as ``{"economy":
    [3, 7, "trade"]}``.

    Attributes:
        names: Name of each group.
        members: Numbers of each group's topics, ascending.
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, topic_names: Sequence[str], groups: Mapping[str, Sequence[int | str]] | TopicGroups
    ) -> TopicGroups:
        """Groups of a model's topics.

        Args:
            topic_names: Names of the topics, ``model.topic_names``.
            groups: Topics of each group, by number or name.

        Raises:
            ConfigError: There is no group, a group is empty, a topic does not exist or is in a
                group twice, or a group has the name of another topic or group.

        Example:
            >>> lntm.models.TopicGroups.of(model.topic_names, {"news": [3, 7]}).members
            ((3, 7),)
        """
        if isinstance(groups, TopicGroups):
            groups = dict(zip(groups.names, groups.members, strict=True))
        if not isinstance(groups, Mapping) or not groups:
            raise ConfigError(
                f"groups is {groups!r:.60}; expected topics by name, {{'economy': [3, 7]}}"
            )
        names, members = [], []
        for name, topics in groups.items():
            numbers = tuple(sorted(find_topics(topic_names, topics, f"group {name!r:.60}")))
            if str(name) in topic_names and topic_names[numbers[0]] == name and len(numbers) == 1:
                name = str(name)  # the group is the topic
            else:
                name = check_name(name, "name of a group")
                if name in topic_names:
                    raise ConfigError(
                        f"the group {name!r} has the name of a topic; expected another name"
                    )
            if name in names:
                raise ConfigError(f"two groups have the name {name!r}; expected different names")
            names.append(name)
            members.append(numbers)
        return cls(tuple(names), tuple(members))

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.names)

    def sums(self, theta: Tensor) -> Tensor:
        """Proportions of the groups.

        Args:
            theta: ``(..., num_topics)`` proportions of the topics.

        Returns:
            ``(..., num_groups)``.
        """
        return torch.stack([theta[..., list(topics)].sum(-1) for topics in self.members], -1)


@torch.no_grad()
def merged_topics(
    model: TopicModel,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups,
    tokens: Sequence[float] | Tensor | None = None,
) -> Tensor:
    """Word distributions of groups of topics: Σ_k m_k φ_k / Σ_k m_k over the topics of a group.

    Args:
        model: The model.
        groups: The groups; see :class:`TopicGroups`.
        tokens: ``(num_topics,)`` tokens m of the topics, or their shares, which are proportional to
            the tokens in documents of equal lengths. Defaults to equal numbers.

    Returns:
        ``(num_groups, num_words)`` probabilities, float64, on the CPU.

    Raises:
        ConfigError: A group is refused, or the numbers of tokens are not positive.

    Example:
        >>> merged = lntm.models.topic_groups.merged_topics
        >>> words = merged(model, {"news": [3, 7]}, result.topic_shares)
        >>> tuple(words.shape), round(float(words.sum()), 4)
        ((1, 2132), 1.0)
    """
    found = TopicGroups.of(model.topic_names, groups)
    weights = torch.ones(model.num_topics) if tokens is None else torch.as_tensor(tokens)
    weights = weights.detach().double().cpu()
    if weights.shape != (model.num_topics,) or not bool((weights >= 0).all()):
        raise ConfigError(
            f"tokens of shape {tuple(weights.shape)}; expected {model.num_topics} numbers from 0"
        )
    probs = model.topics.mean_probs.detach().double().cpu()
    rows = []
    for topics in found.members:
        part = weights[list(topics)]
        # A group without tokens has the mean of its topics.
        part = part / part.sum() if part.sum() > 0 else torch.full_like(part, 1 / len(part))
        rows.append(part @ probs[list(topics)])
    return torch.stack(rows)


def as_groups(model: TopicModel, groups: Any) -> TopicGroups | None:
    """Checked groups of an optional argument."""
    return None if groups is None else TopicGroups.of(model.topic_names, groups)


def topics_of(
    model: TopicModel, groups: TopicGroups | None, name: int | str, what: str
) -> list[int]:
    """Topics of a group by its name, or a topic by its number or name.

    Args:
        model: The model.
        groups: The groups, if any.
        name: The name or number.
        what: What it is, for messages.

    Raises:
        ConfigError: There is none.
    """
    of_groups = () if groups is None else groups.names
    if groups is not None and str(name) in of_groups:
        return list(groups.members[of_groups.index(str(name))])
    try:
        return find_topics(model.topic_names, [name], what)
    except ConfigError as error:
        known = f", or groups: {', '.join(map(repr, of_groups))}" if of_groups else ""
        raise ConfigError(f"{error}{known}") from None


def with_groups(theta: Tensor, groups: TopicGroups | None) -> Tensor:
    """Proportions of the topics ``(..., num_topics)``, followed by those of the groups, if any."""
    return theta if groups is None else torch.cat([theta, groups.sums(theta)], -1)
