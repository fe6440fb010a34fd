"""Topics whose words differ between groups of documents: the content model of structural models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from pyro.distributions import Laplace
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels import probability_floor
from torch_lntm.models.groups import CONTENT, Groups, Level
from torch_lntm.models.topics import Topics
from torch_lntm.solvers.deviations import GroupedWords, sparse_deviations

#: Rounds of an M-step, and the change in tokens that ends them.
ROUNDS, ROUND_TOLERANCE = 25, 1e-3


class ContentTopics(Topics):
    """Word probabilities of each topic in each group of documents.

    φ_gkv ∝ exp(logits_kv + groups_gv + cells_gkv): a topic that all groups share, and sparse
    deviations from it (*Roberts, Stewart & Airoldi 2016; Eisenstein, Ahmed & Xing 2011*). The
    shared topics have the prior of :class:`Topics`, and every deviation Laplace(0, 1/penalty).
    Where between those of the groups a shared topic lies, the documents may leave open. The
    groups' probabilities are what they determine.

    Group g writes its words in columns of its own, g·V to (g + 1)·V − 1. :meth:`place` moves the
    words of a batch there, and :attr:`probs` holds all groups side by side. So what computes with
    topics and batches need not know of groups.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        column: The groups, G of them.
        penalty: Precision of the deviations' prior, in tokens: a deviation is 0 unless the counts
            differ by more from what they are expected to be without it.
        smoothing: As for :class:`Topics`, of the shared topics.
        probs: ``(num_topics, num_words)`` as for :class:`Topics`, in all groups.
        dtype: Floating-point type.
        generator: As for :class:`Topics`.

    Attributes:
        column: As given.
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
            dtype=dtype,
            generator=generator,
        )
        self._factors: GroupedWords | None = None
        self.column = column
        self.penalty = float(penalty)
        size = len(column.levels)
        self.groups = nn.Parameter(torch.zeros(size, num_words, dtype=dtype))
        self.cells = nn.Parameter(torch.zeros(size, num_words, num_topics, dtype=dtype))

    @property
    def num_groups(self) -> int:
        """Number of groups G."""
        return self.groups.shape[0]

    @property
    def mean_probs(self) -> Tensor:
        """See :attr:`Topics.mean_probs`; every group weighs alike."""
        return self.probs.unflatten(1, (self.num_groups, self.num_words)).mean(1)

    @property
    def double_probs(self) -> Tensor:
        """See :attr:`Topics.double_probs`; ``(num_topics, num_groups * num_words)``."""
        return self._columns(torch.float64).detach().mT

    @property
    def deviations(self) -> Tensor:
        """``(num_topics, num_groups, num_words)`` deviations of the logits, of groups and cells."""
        return (self.groups.unsqueeze(-1) + self.cells).detach().permute(2, 0, 1)

    @property
    def num_free(self) -> int:
        """See :attr:`Topics.num_free`; deviations that are 0 do not count."""
        deviations = torch.count_nonzero(self.groups) + torch.count_nonzero(self.cells)
        return super().num_free + int(deviations)

    def in_group(self, level: Level | None = None) -> Topics:
        """The topics of one group, or their mean over groups, as topics of a plain model.

        Args:
            level: The group's value of the column; None for the mean.

        Raises:
            ConfigError: There is no such group.
        """
        probs = self.double_probs.unflatten(1, (self.num_groups, self.num_words))
        probs = probs.mean(1) if level is None else probs[:, self.column.position(level)]
        plain = Topics(
            self.num_topics,
            self.num_words,
            smoothing=self.smoothing,
            probs=probs,
            dtype=self.logits.dtype,
        )
        return plain.to(self.logits.device)

    def encode(self, corpus: Corpus) -> Corpus:
        """See :meth:`Topics.encode`; derives the array ``"content"``."""
        return self.column.encode(corpus)

    def place(self, batch: DocumentBatch) -> DocumentBatch:
        """See :meth:`Topics.place`.

        Raises:
            ConfigError: The batch does not say which groups its documents are of.
        """
        if batch.num_words == self.num_groups * self.num_words:
            return batch
        if CONTENT not in batch.covariates:
            raise ConfigError(
                "the batch does not say which groups its documents are of, which this model's "
                "topics depend on; make it by model.encode(corpus).batch()"
            )
        return batch.in_blocks(CONTENT, self.num_groups)

    def by_group(self, batch: DocumentBatch, probs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """See :meth:`Topics.by_group`."""
        self.place(batch)  # checks the groups
        groups, whole = batch.covariates[CONTENT], probs.split(self.num_words, 1)
        return [
            ((groups == g).nonzero().squeeze(1), whole[g]) for g in groups.unique().long().tolist()
        ]

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
        self._fixed = before.probs().flatten(0, 1)
        try:
            yield
        finally:
            if self._factors is not before:
                self._keep(self._factors)
            self._fixed = self._factors = None

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
            self._factors, self._fixed = found, found.probs().flatten(0, 1)
        else:
            self._keep(found)

    def start_from_counts(self, word_counts: Tensor) -> None:
        """As :meth:`Topics.start_from_counts`; a start's topics are the same in all groups."""
        self.set_(word_counts + max(self.smoothing, probability_floor(self.logits.dtype)))

    def emit(self) -> Tensor:
        """Emit the sites ``"topics"``, the shared ones, ``"groups"`` and ``"cells"``, deviations.

        Returns:
            ``(num_topics, num_groups * num_words)`` word probabilities.
        """
        logits = super().emit().log().unsqueeze(-2)
        sizes = (self.num_groups, self.num_words)
        zero = self.logits.new_zeros(self.num_topics, *sizes)
        groups = pyro.sample("groups", Laplace(zero[0], 1 / self.penalty).to_event(2))
        cells = pyro.sample("cells", Laplace(zero, 1 / self.penalty).to_event(3))
        return torch.softmax(logits + groups.unsqueeze(-3) + cells, -1).flatten(-2)

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Topics.probs_and_log_prior`."""
        return self.probs, self.log_prior()

    def log_prior(self, normalisers: Tensor | None = None) -> Tensor:
        """As :meth:`Topics.log_prior`, with that of the deviations."""
        sizes = [value.double().abs().sum() for value in (self.groups, self.cells)]
        return super().log_prior(normalisers) - self.penalty * (sizes[0] + sizes[1])

    def extra_repr(self) -> str:
        """Sizes, smoothing and groups, for ``repr``."""
        levels = ", ".join(map(str, self.column.levels))
        about = f"penalty={self.penalty}, groups of {self.column.column}: {levels}"
        return f"{super().extra_repr()}, {about}"

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
