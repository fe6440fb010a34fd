"""Topics whose words differ between groups of documents: the content model of structural models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from pyro.distributions import Laplace, TorchDistribution
from torch import Tensor, nn

from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor
from torch_lntm.models.groups import Groups
from torch_lntm.models.topics.dirichlet import DirichletTopics
from torch_lntm.solvers.deviations import GroupedWords, sparse_deviations

#: Rounds of an M-step, and the change in tokens that ends them.
ROUNDS, ROUND_TOLERANCE = 25, 1e-3


class ContentTopics(DirichletTopics):
    """Word probabilities of each topic in each group of documents.

    φ_gkv ∝ exp(logits_kv + groups_gv + cells_gkv): a topic that all groups share, and sparse
    deviations from it (*Roberts, Stewart & Airoldi 2016; Eisenstein, Ahmed & Xing 2011*). The
    shared topics have the prior of :class:`DirichletTopics`, and every deviation
    Laplace(0, 1/penalty). The documents determine the groups' probabilities, and not always where
    between them the shared topic lies.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        column: The groups, G of them.
        penalty: Precision of the deviations' prior, in tokens: a deviation is 0 unless the counts
            differ by more from what they are expected to be without it.
        smoothing: As for :class:`DirichletTopics`, of the shared topics.
        probs: ``(num_topics, num_words)`` as for :class:`DirichletTopics`, in all groups.
        dtype: Floating-point type.
        generator: As for :class:`DirichletTopics`.

    Attributes:
        penalty: As given.
        logits: ``(num_words, num_topics)`` of the shared topics.
        groups: ``(num_groups, num_words)`` deviations of groups in all topics.
        cells: ``(num_groups, num_words, num_topics)`` deviations of groups in each topic.

    Raises:
        ConfigError: A size, ``penalty``, ``smoothing`` or ``probs`` that cannot be used.
    """

    def __init__(
        self,
        num_topics: int,
        num_words: int,
        column: Groups,
        *,
        penalty: float,
        smoothing: float = 0.05,
        probs: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 < penalty < math.inf:
            raise ConfigError(f"content penalty is {penalty}; expected a positive number")
        super().__init__(
            num_topics,
            num_words,
            smoothing=smoothing,
            probs=probs,
            groups=column,
            dtype=dtype,
            generator=generator,
        )
        self._factors: GroupedWords | None = None
        self.penalty = float(penalty)
        size = self.num_groups
        self.groups = nn.Parameter(torch.zeros(size, num_words, dtype=dtype))
        self.cells = nn.Parameter(torch.zeros(size, num_words, num_topics, dtype=dtype))

    @property
    def double_probs(self) -> Tensor:
        """See :attr:`Topics.double_probs`; ``(num_topics, num_groups * num_words)``."""
        return self._columns(torch.float64).detach().mT

    @property
    def deviations(self) -> Tensor:
        """``(num_topics, num_groups, num_words)`` deviations of the logits, of groups and cells."""
        return (self.groups.unsqueeze(-1) + self.cells).detach().permute(2, 0, 1)

    @property
    def differing_words(self) -> Tensor:
        """See :attr:`Topics.differing_words`; words with a deviation other than 0."""
        return (self.deviations != 0).any(1)

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`; deviations that are 0 do not count."""
        deviations = torch.count_nonzero(self.groups) + torch.count_nonzero(self.cells)
        return super().num_free_parameters + int(deviations)

    @torch.no_grad()
    def set_(self, probs: Tensor) -> None:
        """As :meth:`Topics.set_`, in all groups: without deviations."""
        super().set_(probs)
        if hasattr(self, "cells"):  # the base class sets the topics before there are deviations
            self.groups.zero_()
            self.cells.zero_()

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """As :meth:`Topics.updated_often`; an M-step is one round, in the parameters' precision."""
        before = self._factors = self._factorised(self.logits.dtype)
        self._cached = before.probs().flatten(0, 1).mT
        try:
            yield
        finally:
            if self._factors is not before:
                self._keep(self._factors)
            self._cached = self._factors = None

    @torch.no_grad()
    def m_step(self, word_counts: Tensor) -> None:
        """Raise the log joint density given expected counts, to its maximum if called often.

        Args:
            word_counts: ``(num_topics, num_groups * num_words)`` expected tokens.
        """
        often = self._factors is not None
        found = sparse_deviations(
            word_counts.mT.unflatten(0, (self.num_groups, self.num_words)),
            self._factors or self._factorised(torch.float64),
            smoothing=self.smoothing,
            penalty=self.penalty,
            floor=probability_floor(self.logits.dtype),
            rounds=1 if often else ROUNDS,
            tolerance=ROUND_TOLERANCE,
        )
        if often:
            self._factors, self._cached = found, found.probs().flatten(0, 1).mT
        else:
            self._keep(found)

    def start_(self, word_counts: Tensor) -> None:
        """See :meth:`Topics.start_`."""
        self.set_(word_counts + max(self.smoothing, probability_floor(self.logits.dtype)))

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`: ``"topics"``, the shared ones, ``"groups"`` and ``"cells"``."""
        zero = self.logits.new_zeros(self.num_topics, self.num_groups, self.num_words)
        return {
            **super().sites(),
            "groups": Laplace(zero[0], 1 / self.penalty).to_event(2),
            "cells": Laplace(zero, 1 / self.penalty).to_event(3),
        }

    def compute_probs(  # type: ignore[override]
        self, *, topics: Tensor, groups: Tensor, cells: Tensor
    ) -> Tensor:
        """See :meth:`Topics.compute_probs`."""
        logits = topics.log().unsqueeze(-2) + groups.unsqueeze(-3) + cells
        return torch.softmax(logits, -1).flatten(-2)

    def latents(self) -> dict[str, Tensor]:
        """See :meth:`Topics.latents`."""
        deviations = {"groups": self.groups, "cells": self.cells.permute(2, 0, 1)}
        return super().latents() | deviations

    def forward(self) -> Tensor:
        """See :meth:`Topics.forward`."""
        return self._columns().mT

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Topics.probs_and_log_prior`."""
        return self.probs, self.log_prior()

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """See :meth:`Topics.log_prior`; with the prior of the deviations."""
        sizes = [value.double().abs().sum() for value in (self.groups, self.cells)]
        return super().log_prior(normalisers) - self.penalty * (sizes[0] + sizes[1])

    def extra_repr(self) -> str:
        """Sizes, smoothing and groups, for ``repr``."""
        return f"{super().extra_repr()}, penalty={self.penalty}"

    @torch.no_grad()
    def _factorised(self, dtype: torch.dtype) -> GroupedWords:
        """The parameters as factors of probabilities."""
        # In double precision: the sums of a softmax in single precision are not those of its words.
        shared = torch.softmax(self.logits.double(), 0).to(dtype)
        groups, cells = self.groups.unsqueeze(-1).to(dtype), self.cells.to(dtype)
        return GroupedWords(shared, groups.exp(), cells.exp())

    @torch.no_grad()
    def _keep(self, factors: GroupedWords) -> None:
        """Set the parameters to those of some factors."""
        self.logits.copy_(factors.shared.log())
        self.groups.copy_(factors.groups.log().squeeze(-1))
        self.cells.copy_(factors.cells.log())

    def _columns(self, dtype: torch.dtype | None = None) -> Tensor:
        shared, groups, cells = (x.to(dtype) for x in (self.logits, self.groups, self.cells))
        logits = shared + groups.unsqueeze(-1) + cells
        weights = (logits - logits.detach().amax(1, keepdim=True)).exp()
        return (weights / weights.sum(1, keepdim=True)).flatten(0, 1)
