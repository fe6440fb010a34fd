"""Gradient steps in the topics' parameters, instead of exact M-steps."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.models import Topics

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
            f"{number}.{name}": value
            for number, parameter in enumerate(self._topics.parameters())
            for name, value in self._optimizer.state[parameter].items()
        }

    def resume(self, state: dict[str, Tensor]) -> None:
        """Continue from a state of :meth:`step`. An empty state changes nothing."""
        for key, value in state.items():
            number, _, name = key.partition(".")
            parameter = list(self._topics.parameters())[int(number)]
            # Adam counts its steps on the CPU.
            home = parameter.device if value.dim() else value.device
            self._optimizer.state[parameter][name] = value.to(home)
