"""Tree of topics: similar topics merged step by step, and the groups at each level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform
from torch import Tensor

from torch_lntm.errors import ConfigError, require_one
from torch_lntm.frames import render
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.names import MAX_NAME, distinct_words, is_named, telling_words
from torch_lntm.models.topic_groups import merged_topics
from torch_lntm.plotting.style import topic_labels

Array = NDArray[np.float64]

#: Meaning of the distance between two topics.
Similarity = Literal["words", "correlation"]
#: Words of a group's name, and the most words where fewer name another group too.
_WORDS, _LONGEST = 3, 12


@dataclass(frozen=True, eq=False, repr=False)
class TopicTree:
    """A tree of topics: the result of :func:`topic_tree`.

    Nodes 0 to K - 1 are the topics. Node K + i is the result of merge i.

    Attributes:
        merges: ``(num_topics - 1, 4)`` merges in scipy's form, the closest pair first: two nodes,
            their distance, and the number of topics.
        members: Numbers of the topics of each node.
        names: Name of each node. All names differ.
        labels: Labels of the topics; see :func:`topic_labels`.
        levels: Numbers of groups that were asked for, the largest first.
        by: ``"words"`` or ``"correlation"``.
    """

    merges: Array
    members: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    levels: tuple[int, ...]
    by: Similarity

    @property
    def num_topics(self) -> int:
        """Number of topics."""
        return len(self.merges) + 1

    def groups(self, level: int | None = None) -> dict[str, tuple[int, ...]]:
        """Groups of topics, for any argument ``groups``.

        Args:
            level: Number of groups. Defaults to the groups of all :attr:`levels` together, each
                once.

        Returns:
            Topics of each group by name. A group of a single topic has the topic's name.

        Raises:
            ConfigError: The level is out of range, or there are no levels.
        """
        if level is None:
            if not self.levels:
                raise ConfigError("the tree has no levels; give groups a number of groups")
            return {name: ks for each in self.levels for name, ks in self.groups(each).items()}
        _check_level(level, self.num_topics)
        num_merges = self.num_topics - level
        merged = set(self.merges[:num_merges, :2].astype(int).ravel().tolist())
        nodes = [n for n in range(self.num_topics + num_merges) if n not in merged]
        nodes.sort(key=lambda n: self.members[n])
        return {self.names[n]: self.members[n] for n in nodes}

    def frame(self) -> pd.DataFrame:
        """Groups of each level: ``level``, ``group``, and ``topics``, names of topics."""
        rows = [
            (level, name, ", ".join(self.names[k] for k in topics))
            for level in self.levels
            for name, topics in self.groups(level).items()
        ]
        return pd.DataFrame(rows, columns=["level", "group", "topics"])

    def __repr__(self) -> str:
        return f"TopicTree of {self.num_topics} topics, by {self.by}\n{render(self.frame())}"


def _check_level(level: Any, num_topics: int) -> int:
    if not isinstance(level, int | np.integer) or not 1 <= level <= num_topics:
        raise ConfigError(
            f"level is {level!r:.60}; expected a number of groups from 1 to {num_topics}"
        )
    return int(level)


@torch.no_grad()
def topic_tree(
    model: TopicModel,
    levels: Sequence[int] = (),
    *,
    by: Similarity | None = None,
    shares: Sequence[float] | Tensor | None = None,
) -> TopicTree:
    """Merge similar topics step by step, by agglomerative clustering.

    Each step merges the pair that adds least to the squared distances within groups (*Ward 1963*),
    so that the groups of a level come out similar in size.

    Args:
        model: The model.
        levels: Numbers of groups, such as ``[40, 10]``, for :meth:`TopicTree.groups` and pictures.
        by: Distance of topics. By ``"correlation"`` it is √(2 - 2r) for the correlation r of two
            topics' logits, so that topics of the same documents are close. By ``"words"`` it is the
            Hellinger distance of their word distributions, which is also the default for priors
            without correlations, as in ``lda`` and ``lntm``.
        shares: ``(num_topics,)`` shares of the topics, such as ``result.topic_shares``, for the
            words in the names of groups. Defaults to equal shares.

    Returns:
        The tree.

    Raises:
        ConfigError: A level is out of range, the distance is unknown, or the model has one topic.

    Example:
        >>> tree = lntm.topic_tree(model, levels=[5, 2])
        >>> len(tree.groups(5)), sum(map(len, tree.groups(2).values()))
        (5, 10)
    """
    require_one((None, *get_args(Similarity)), by=by)
    size = model.num_topics
    if size < 2:
        raise ConfigError("the model has a single topic; a tree needs at least 2 topics")
    numbers = {_check_level(level, size) for level in levels}
    if by is None:
        by = "correlation" if model.prior.has_correlations else "words"
    if by == "words":
        distance = hellinger_distances(model.topics.mean_probs.detach().double().cpu().numpy())
    else:
        distance = np.sqrt((2 - 2 * model.topic_correlation().cpu().numpy()).clip(0))
    np.fill_diagonal(distance, 0.0)
    pairs = squareform(distance, checks=False)
    merges = optimal_leaf_ordering(linkage(pairs, "ward"), pairs)
    members = [(k,) for k in range(size)]
    for first, second, *_ in merges.astype(int).tolist():
        members.append(tuple(sorted(members[first] + members[second])))
    names, labels = tuple(_node_names(model, members, shares)), tuple(topic_labels(model))
    return TopicTree(merges, (*members,), names, labels, (*sorted(numbers, reverse=True),), by)


def hellinger_distances(probs: Array) -> Array:
    """Hellinger distances ``(num_topics, num_topics)`` between word distributions."""
    roots = np.sqrt(probs / probs.sum(1, keepdims=True))
    return np.asarray(np.sqrt((1 - roots @ roots.T).clip(0)))


def _node_names(model: TopicModel, members: Sequence[tuple[int, ...]], shares: Any) -> list[str]:
    """Names of all nodes: names of the topics, or words of the merged topic; all different."""
    names = list(model.topic_names)
    labels = tuple(f"node {node}" for node in range(len(members)))
    probs = merged_topics(model, TopicGroups(labels, tuple(members)), shares)
    words = [model.words_at(row) for row in telling_words(probs, probs[-1])]  # the root has all
    for node, topics in list(enumerate(members))[model.num_topics :]:
        named = [names[k] for k in topics if is_named(model.topic_names, k)]
        candidates = []
        if len(named) == len(topics):
            more = f" and {len(topics) - 2} more" if len(topics) > 2 else ""
            candidates.append(f"{named[0]} + {named[1]}{more}")
        candidates += [
            " ".join(distinct_words(words[node], number)) for number in range(_WORDS, _LONGEST + 1)
        ]
        candidates = [c for c in candidates if c.isprintable() and len(c) <= MAX_NAME]
        candidates.append(f"merge {node - model.num_topics}")
        names.append(next(c for c in candidates if c not in names and not c.isdigit()))
    return names
