"""Deterministic annealing schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError


@dataclass(frozen=True)
class Annealing:
    """A schedule of inverse temperatures, rising to 1 (*Ahmed & Xing 2007, §3.2*).

    The objective is E_q log p + H(q)/T with T the inverse temperature (the paper prints E_q[p^T],
    which is not it). The paper leaves four things open; here: the topics' temperature T′ enters
    the responsibilities as φ^T′; the M-step uses the untempered covariance (V/T would multiply the
    shared variance by 1/T at every step); every temperature runs ``iterations`` full EM steps; and
    the topics are multiplied by noise whenever the temperature changes. At low temperatures all
    topics become the same, a saddle point that EM by itself does not leave: without noise the
    paper's schedule ends at the unigram model on *ap*.

    Args:
        temperatures: Inverse temperatures of the documents' posteriors.
        topic_temperatures: Inverse temperatures of the topics, as many.
        iterations: EM iterations at each.
        noise: Standard deviation of the log of the noise at a change of temperature; 0 for none.

    Raises:
        ConfigError: Different lengths, a temperature outside (0, 1], or a last one that is not 1.
    """

    temperatures: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    topic_temperatures: tuple[float, ...] = (0.25, 0.75, 1.0, 1.0)
    iterations: int = 10
    noise: float = 0.5

    def __post_init__(self) -> None:
        both = (self.temperatures, self.topic_temperatures)
        if len(both[0]) != len(both[1]) or not both[0]:
            raise ConfigError(
                f"annealing has {len(both[0])} temperatures and {len(both[1])} topic temperatures; "
                "expected as many of each, and at least 1"
            )
        if self.iterations < 1 or not self.noise >= 0:
            raise ConfigError(
                f"annealing has iterations={self.iterations} and noise={self.noise}; expected at "
                "least 1, and a number >= 0"
            )
        if any(not 0 < t <= 1 for row in both for t in row) or any(row[-1] != 1 for row in both):
            raise ConfigError(
                f"annealing temperatures {both[0]} and {both[1]}; expected numbers in (0, 1], the "
                "last of each 1"
            )

    @property
    def steps(self) -> list[tuple[float, float]]:
        """One ``(temperature, topic_temperature)`` per EM iteration."""
        pairs = zip(self.temperatures, self.topic_temperatures, strict=True)
        return [pair for pair in pairs for _ in range(self.iterations)]

    def perturbed(self, topics: Tensor, key: Sequence[int]) -> Tensor:
        """Topics multiplied by the noise that a key gives, not normalised."""
        noise = torch.from_numpy(np.random.default_rng(key).standard_normal(tuple(topics.shape)))
        return topics * (self.noise * noise).exp().to(topics)


#: The presets that :class:`~torch_lntm.inference.VariationalEM` knows by name.
ANNEALING = {"ahmed-xing": Annealing()}
