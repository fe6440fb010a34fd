"""Topics whose words differ by level of documents, the content model of structural models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions import Laplace, TorchDistribution
from torch import Tensor, nn

from torch_lntm.errors import ConfigError
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models.levels import Levels
from torch_lntm.models.topics.dirichlet import LevelTopics, softmax_by_level
from torch_lntm.solvers.deviations import LevelWords, sparse_deviations


class ContentTopics(LevelTopics):
    """Topics with word probabilities of their own at each level of a column.

    The levels share their topics, from which each deviates in a few words: φ_gkv ∝ exp(logits_kv +
    levels_gv + cells_gkv) (*Roberts, Stewart & Airoldi 2016; Eisenstein, Ahmed & Xing 2011*). The
    shared topics have the prior of :class:`DirichletTopics`, and every deviation has the prior
    Laplace(0, 1/penalty), which makes most of them exactly 0. The documents determine the
    probabilities at each level, but may leave open how these split into shared topics and
    deviations.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        content: The levels of documents.
        penalty: Precision of the deviations' prior, in tokens. A deviation is 0 if the word's count
            differs from its expectation without the deviation by at most ``penalty``.
        **settings: Settings of :class:`DirichletTopics` for the shared topics, such as
            ``smoothing``, ``probs``, ``keywords`` and ``dtype``.

    Attributes:
        penalty: Precision of the deviations' prior.
        logits: ``(num_words, num_topics)`` logits of the shared topics.
        levels: ``(num_levels, num_words)`` deviations of levels in all topics.
        cells: ``(num_levels, num_words, num_topics)`` deviations of levels in each topic.

    Raises:
        ConfigError: A size, ``penalty``, ``smoothing`` or ``probs`` is out of range.

    Example:
        >>> parties = lntm.models.Levels.of(posts, "party")
        >>> topics = lntm.models.ContentTopics(5, posts.num_words, parties, penalty=3.0)
        >>> topics.num_levels, topics.probs.shape[1] == 2 * posts.num_words
        (2, True)
    """

    def __init__(
        self, num_topics: int, num_words: int, content: Levels, *, penalty: float, **settings: Any
    ) -> None:
        if not 0 < penalty < math.inf:
            raise ConfigError(f"content penalty is {penalty}; expected a positive number")
        super().__init__(num_topics, num_words, content=content, **settings)
        self.penalty = float(penalty)
        size = self.num_levels
        self.levels = nn.Parameter(self.logits.new_zeros(size, num_words))
        self.cells = nn.Parameter(self.logits.new_zeros(size, num_words, num_topics))

    @property
    def deviations(self) -> Tensor:
        """``(num_topics, num_levels, num_words)`` deviations of the logits: levels plus cells."""
        return (self.levels.unsqueeze(-1) + self.cells).detach().permute(2, 0, 1)

    @property
    def differing_words(self) -> Tensor:
        """See :attr:`Topics.differing_words`. Words with a nonzero deviation."""
        return (self.deviations != 0).any(1)

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`. Deviations count if they are nonzero."""
        deviations = torch.count_nonzero(self.levels) + torch.count_nonzero(self.cells)
        return super().num_free_parameters + int(deviations)

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """See :meth:`Topics.set_`. All deviations become 0."""
        super().set_(probs)
        if hasattr(self, "cells"):  # the base class sets the topics before deviations exist
            self.levels.zero_()
            self.cells.zero_()

    def _improved(self, counts: Tensor, factors: LevelWords, rounds: int) -> LevelWords:
        return sparse_deviations(
            counts,
            factors,
            smoothing=self._pseudo_counts(factors.shared.dtype),
            penalty=self.penalty,
            floor=probability_floor(self.logits.dtype),
            rounds=rounds,
            # Tolerance of an M-step, in tokens.
            tolerance=1e-3,
        )

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`: ``"topics"`` (shared), ``"levels"`` and ``"cells"``."""
        zero = self.logits.new_zeros(self.num_topics, self.num_levels, self.num_words)
        return {
            **super().sites(),
            "levels": Laplace(zero[0], 1 / self.penalty).to_event(2),
            "cells": Laplace(zero, 1 / self.penalty).to_event(3),
        }

    def compute_probs(  # type: ignore[override]
        self, *, topics: Tensor, levels: Tensor, cells: Tensor
    ) -> Tensor:
        """See :meth:`Topics.compute_probs`."""
        topics = super().compute_probs(topics=topics)
        logits = topics.log().unsqueeze(-2) + levels.unsqueeze(-3) + cells
        return torch.softmax(logits, -1).flatten(-2)

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        deviations = {"levels": self.levels, "cells": self.cells.permute(2, 0, 1)}
        return super().latents() | deviations

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """See :meth:`Topics.log_prior`. The sum of the priors of shared topics and deviations."""
        sizes = [value.double().abs().sum() for value in (self.levels, self.cells)]
        return super().log_prior(normalisers) - self.penalty * (sizes[0] + sizes[1])

    def extra_repr(self) -> str:
        """Sizes, smoothing and levels, for ``repr``."""
        return f"{super().extra_repr()}, penalty={self.penalty}"

    @torch.no_grad()
    def _factorised(self, dtype: torch.dtype) -> LevelWords:
        """The parameters as factors of probabilities."""
        # In float64, because sums over the words of a float32 softmax are inaccurate.
        shared = self._shared_probs().to(dtype)
        levels, cells = self.levels.unsqueeze(-1).to(dtype), self.cells.to(dtype)
        return LevelWords(shared, levels.exp(), cells.exp())

    @torch.no_grad()
    def _keep(self, factors: LevelWords) -> None:
        """Set the parameters from factors of probabilities."""
        self.logits.copy_(factors.shared.log())
        self.levels.copy_(factors.levels.log().squeeze(-1))
        self.cells.copy_(factors.cells.log())

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        logits = self._allowed(self.logits) + self.levels.unsqueeze(-1) + self.cells
        return self._floored(softmax_by_level(logits)).mT
