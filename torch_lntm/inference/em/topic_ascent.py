"""Gradient steps in the topics' parameters, in the place of exact M-steps."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models import Topics
from torch_lntm.models.topics.topics import TopicUpdate

#: Epochs after which the learning rate is half of what it began with.
LEARNING_DELAY = 10.0


class TopicAscent:
    """Steps of Adam in the topics' parameters, along gradients of mini-batches.

    Args:
        topics: The topics.
        learning_rate: Adam's learning rate at first.
    """

    def __init__(self, topics: Topics, learning_rate: float) -> None:
        self._topics, self._learning_rate = topics, learning_rate
        self._optimizer = torch.optim.Adam(topics.parameters(), maximize=True)

    @staticmethod
    def check(topics: Topics, topic_update: TopicUpdate | None) -> TopicUpdate:
        """The update of the topics that was asked for, or their own choice.

        Raises:
            ConfigError: These topics do not have the update.
        """
        topic_update = topic_update or topics.updates[0]
        if topic_update not in topics.updates:
            raise ConfigError(
                f"topic_update {topic_update!r}; expected one of {', '.join(topics.updates)} for "
                f"{type(topics).__name__}"
            )
        return topic_update

    def step(self, word_counts: Tensor, epoch: int) -> dict[str, Tensor]:
        """One step along the gradient at expected counts of the whole corpus.

        Args:
            word_counts: ``(num_topics, num_words)``.
            epoch: The epoch, from 0, which the learning rate falls with.

        Returns:
            The optimiser's state, by the parameters' positions and names of its own.
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
        """Go on from a state that :meth:`step` returned, if it has returned one."""
        parts: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            position, _, name = key.partition(".")
            parts.setdefault(int(position), {})[name] = value
        if parts:
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": parts, "param_groups": groups})
