"""GroupedTopics: topics that differ between groups, fitted by rounds over factors of words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models.topics.dirichlet import DirichletTopics

#: Bound on the rounds of an M-step.
ROUNDS = 25


class GroupedTopics(DirichletTopics):
    """Base class of topics with a shared part, and deviations from it in groups of documents.

    An M-step runs rounds over factors of the word probabilities. Within :meth:`updated_often` the
    factors stay, with one round for each M-step, and the parameters follow at its end. A subclass
    defines :meth:`_factorised`, :meth:`_improved`, :meth:`_keep` and :meth:`_columns`.
    """

    _factors: Any = None

    @property
    def double_probs(self) -> Tensor:
        """See :attr:`Topics.double_probs`; ``(num_topics, num_groups * num_words)``."""
        return self._columns(torch.float64).detach().mT

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """See :meth:`Topics.updated_often`. An M-step is a single round, in the model's dtype."""
        before = self._factors = self._factorised(self.logits.dtype)
        self._cached = before.probs(self.dtype).flatten(0, 1).mT
        try:
            yield
        finally:
            if self._factors is not before:
                self._keep(self._factors)
            self._cached = self._factors = None

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Raise the log joint density given expected counts. Repeated calls reach the maximum.

        Args:
            word_counts: ``(num_topics, num_groups * num_words)`` expected tokens.
        """
        often = self._factors is not None
        counts = word_counts.mT.unflatten(0, (self.num_groups, self.num_words))
        counts = self._allowed(counts, 0.0)
        factors = self._factors if often else self._factorised(torch.float64)
        factors = self._improved(counts, factors, 1 if often else ROUNDS)
        if often:
            self._factors, self._cached = factors, factors.probs(self.dtype).flatten(0, 1).mT
        else:
            self._keep(factors)

    def start_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.start_`."""
        counts = word_counts + max(self.smoothing, probability_floor(self.logits.dtype))
        self.set_(counts if self.keywords is None else self.keywords.add_to_(counts))

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        return self._columns().mT

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Topics.probs_and_log_prior`."""
        return self.probs, self.log_prior()

    def _pseudo_counts(self, dtype: torch.dtype) -> float | Tensor:
        """Pseudo-counts of the shared part: ``(num_words, num_topics)``, or one number."""
        if self.keywords is None:
            return self.smoothing
        counts = torch.full_like(self.logits.mT, self.smoothing, dtype=dtype)
        return self.keywords.add_to_(counts).mT

    def _factorised(self, dtype: torch.dtype) -> Any:
        """The parameters as factors of probabilities."""
        raise self._undefined("_factorised")

    def _improved(self, counts: Tensor, factors: Any, rounds: int) -> Any:
        """Factors of a higher log joint density.

        Args:
            counts: ``(num_groups, num_words, num_topics)`` expected tokens.
            factors: The present factors.
            rounds: Largest number of rounds.
        """
        raise self._undefined("_improved")

    def _keep(self, factors: Any) -> None:
        """Set the parameters from factors of probabilities."""
        raise self._undefined("_keep")

    def _columns(self, dtype: torch.dtype | None = None) -> Tensor:
        """Probabilities ``(num_groups * num_words, num_topics)`` at the parameters."""
        raise self._undefined("_columns")


def softmax_in_groups(logits: Tensor) -> Tensor:
    """Probabilities ``(num_groups * num_words, num_topics)``; words of a group sum to 1.

    Args:
        logits: ``(num_groups, num_words, num_topics)``.
    """
    weights = (logits - logits.detach().amax(1, keepdim=True)).exp()
    return (weights / weights.sum(1, keepdim=True)).flatten(0, 1)
