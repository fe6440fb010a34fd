"""Names of topics, and how topics are found by number or by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_lntm.errors import ConfigError

#: Maximum number of characters of a name.
MAX_NAME = 80


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
        + (f", or names: {listed}" if named else "; the topics have no names")
    )
