"""Gradient steps in the topics' parameters, instead of exact M-steps."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models import Topics
from torch_lntm.models.topics.topics import TopicUpdate

#: Number of epochs after which the learning rate has fallen by half.
LEARNING_DELAY = 10.0


class TopicAscent:
    """Steps of Adam in the topics' parameters, along gradients of mini-batches.

    Args:
        topics: The topics.
        learning_rate: Adam's learning rate in the first epoch.
    """

    def __init__(self, topics: Topics, learning_rate: float) -> None:
        self._topics, self._learning_rate = topics, learning_rate
        self._optimizer = torch.optim.Adam(topics.parameters(), maximize=True)

    @staticmethod
    def check(topics: Topics, topic_update: TopicUpdate | None) -> TopicUpdate:
        """Check the kind of the topics' update. ``None`` stands for the default of the topics.

        Raises:
            ConfigError: The topics lack this update.
        """
        topic_update = topic_update or topics.updates[0]
        if topic_update not in topics.updates:
            raise ConfigError(
                f"topic_update {topic_update!r}; expected one of {', '.join(topics.updates)} for "
                f"{type(topics).__name__}"
            )
        return topic_update

    def step(self, word_counts: Tensor, epoch: int) -> dict[str, Tensor]:
        """Make a step along the gradient at expected counts.

        Args:
            word_counts: ``(num_topics, num_words)`` counts, scaled to the entire corpus.
            epoch: Number of the epoch, from 0. The learning rate falls with this number.

        Returns:
            The optimiser's state. A key is the position of a parameter, a dot, and the optimiser's
            name for the value.
        """
        rate = self._learning_rate / (1.0 + epoch / LEARNING_DELAY)
        self._optimizer.param_groups[0]["lr"] = rate
        self._topics.gradient_(word_counts)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {
            f"{position}.{name}": value
            for position, of_parameter in self._optimizer.state_dict()["state"].items()
            for name, value in of_parameter.items()
        }

    def resume(self, state: dict[str, Tensor]) -> None:
        """Continue from a state of :meth:`step`. An empty state changes nothing."""
        parts: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            position, _, name = key.partition(".")
            parts.setdefault(int(position), {})[name] = value
        if parts:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": parts, "param_groups": groups})
