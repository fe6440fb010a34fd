"""Names of topics, words that make names, and how topics are found by number or by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError

#: Maximum number of characters of a name.
MAX_NAME = 80
#: Words of a topic that may be in its name: so many of the most probable.
_CANDIDATES = 50


def check_name(name: Any, what: str = "name") -> str:
    """Check the name of a topic or of a group of topics, and strip its white space.

    Args:
        name: The name.
        what: Description of the name, for messages.

    Raises:
        ConfigError: The name is empty, too long, a number, or has characters that do not print.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what} is {name!r:.60}; expected text")
    name = name.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ConfigError(
            f"{what} is {name!r:.100}; expected 1 to {MAX_NAME} printable characters in one line"
        )
    if re.fullmatch(r"[+-]?\d+", name):
        raise ConfigError(
            f"{what} is {name!r}; expected a name with a letter, since numbers denote topics"
        )
    return name


def check_topic_names(names: Any, num_topics: int) -> tuple[str, ...]:
    """Check the topics' names. A topic without one gets its number as text.

    Args:
        names: A name or None for each topic, in order; or names by the number of the topic; or None
            for topics without names.
        num_topics: Number of topics.

    Raises:
        ConfigError: The number of names is wrong, a name is unsuitable, or two topics have the same
            name.
    """
    numbers = tuple(str(k) for k in range(num_topics))
    if names is None:
        return numbers
    if isinstance(names, Mapping):
        by_number = {_number(k, numbers): name for k, name in names.items()}
        names = [by_number.get(k) for k in range(num_topics)]
    is_list = isinstance(names, Sequence | np.ndarray) and not isinstance(names, str)
    if not is_list or len(names) != num_topics:
        raise ConfigError(
            f"topic_names is {names!r:.60}; expected a name for each of the {num_topics} topics, "
            "or names of some by number, {3: 'economy'}"
        )
    checked = tuple(
        number if name is None or name == number else check_name(name, f"name of topic {number}")
        for number, name in zip(numbers, names, strict=True)
    )
    for k, name in enumerate(checked):
        first = checked.index(name)
        if first != k:
            raise ConfigError(
                f"topics {first} and {k} have the same name {name!r}; expected different names"
            )
    return checked


def is_named(names: Sequence[str], topic: int) -> bool:
    """Whether a topic has a name of its own, besides its number."""
    return names[topic] != str(topic)


def find_topics(names: Sequence[str], topics: Sequence[Any], what: str = "topics") -> list[int]:
    """Numbers of topics given by number or name.

    Args:
        names: The names of all topics, ``model.topic_names``.
        topics: Numbers from 0, or names.
        what: Description of the argument, for messages.

    Raises:
        ConfigError: There is no topic, a topic does not exist, or a topic is given twice.
    """
    if isinstance(topics, str) or not isinstance(topics, Sequence | np.ndarray | range):
        raise ConfigError(f"{what} is {topics!r:.60}; expected a list of topics: numbers or names")
    numbers = [_number(topic, names, what) for topic in topics]
    if not numbers:
        raise ConfigError(f"{what} is empty; expected at least one topic")
    for position, k in enumerate(numbers):
        if k in numbers[:position]:
            raise ConfigError(f"{what}: topic {names[k]} is given twice; expected different topics")
    return numbers


def _number(topic: Any, names: Sequence[str], what: str = "topic_names") -> int:
    """Number of a topic given by number or name."""
    size = len(names)
    if isinstance(topic, str):
        if topic.strip() in names:
            return names.index(topic.strip())
        if re.fullmatch(r"\d{1,9}", topic.strip()):
            topic = int(topic)
    if isinstance(topic, int | np.integer) and not isinstance(topic, bool) and 0 <= topic < size:
        return int(topic)
    named = [name for k, name in enumerate(names) if is_named(names, k)]
    listed = ", ".join(repr(name) for name in named[:8]) + (", …" if len(named) > 8 else "")
    raise ConfigError(
        f"{what}: topic {topic!r:.100}; expected numbers from 0 to {size - 1}"
        + (f", or names: {listed}" if named else "; the topics have no names of their own")
    )


def telling_words(probs: Tensor, average: Tensor | None = None) -> list[list[int]]:
    """Frequent words of each topic that tell it from the others, the best first.

    Word v of topic k scores √φ_kv log(φ_kv/φ̄_v), where φ_kv is its probability and φ̄ the average of
    the topics. A word that all topics use alike scores 0, and a word that is less probable in the
    topic than on average does not count.

    Args:
        probs: ``(num_topics, num_words)`` probabilities.
        average: ``(num_words,)`` probabilities to tell the topics from. Defaults to their mean.

    Returns:
        Positions in the vocabulary, of at most 50 words of each topic. The more probable of two
        words with equal scores comes first.
    """
    probs = probs.detach().cpu()
    top, at = probs.topk(min(_CANDIDATES, probs.shape[1]))
    usual = (probs.mean(0) if average is None else average)[at].double()
    lift = (top.double() / usual.clamp_min(torch.finfo(torch.float64).tiny)).log()
    order = np.lexsort((at, -top, -top.double().sqrt() * lift))
    return [row[by][gain[by] >= 0].tolist() for row, by, gain in zip(at, order, lift, strict=True)]


def name_words(
    probs: Tensor, words_at: Callable[[Sequence[int]], Sequence[str]], number: int
) -> list[tuple[str, ...]]:
    """Words that name each topic: its :func:`telling_words`, of which no two topics share one.

    A word belongs to the topic in which it is most probable. A topic with too few words of its own
    takes others that no name has yet, in the order of the topics. Inflections of a name's earlier
    words are left out.

    Args:
        probs: ``(num_topics, num_words)`` probabilities.
        words_at: Words at positions of the vocabulary.
        number: Most words of a name.

    Returns:
        At most ``number`` words of each topic, the best first.

    Example:
        >>> words = lntm.models.names.name_words(model.topics.probs, model.words_at, 3)
        >>> len(words), len({word for name in words for word in name})
        (10, 30)
    """
    names: list[list[str]] = [[] for _ in probs]
    ranked, taken = telling_words(probs), set[str]()
    owner = probs.detach().cpu().max(0).indices.tolist()
    for own in (True, False):
        for k, row in enumerate(ranked):
            pairs = zip(row, words_at(row), strict=True)
            free = [w for v, w in pairs if (owner[v] == k or not own) and w not in taken]
            names[k] = distinct_words([*names[k], *free], number)
            taken.update(names[k])
    return [tuple(name) for name in names]


def labels(
    names: Sequence[str], words: Sequence[Sequence[str]], numbered: bool = True
) -> list[str]:
    """The names of topics, and numbers with words for topics without one.

    Args:
        names: The names of all topics, ``model.topic_names``.
        words: Words of each topic.
        numbered: Whether the number comes before the words.
    """
    first = 0 if numbered else 1
    return [
        name if is_named(names, k) else " ".join([name, *words[k]][first:]) or name
        for k, name in enumerate(names)
    ]


def distinct_words(words: Iterable[str], number: int) -> list[str]:
    """The first words of a ranking without inflections of earlier words.

    Two words count as inflections of each other if they begin alike: they must share at least three
    letters, and all letters of the shorter word except perhaps its last. Examples are *file* and
    *files*, or *party* and *parties*.

    Args:
        words: Words, the best first.
        number: Most words to return.
    """
    distinct: list[str] = []
    for word in words:
        if len(distinct) < number and not any(_begin_alike(word, w) for w in distinct):
            distinct.append(word)
    return distinct


def _begin_alike(first: str, second: str) -> bool:
    pairs = zip(first.casefold(), second.casefold(), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return shared >= max(3, min(len(first), len(second)) - 1)
