"""The distribution of a document's counts, given the probabilities of its words.

Kernels compute s_dv = Σ_k theta_dk φ_kv, the probability of word v under the topics of document d.
A :class:`CountLikelihood` says how probable the counts are then. Its log likelihood is a sum of
terms, one for each stored count, and a number for the document:

    log p(c | s) = Σ_v ℓ(s_v, c_v) + h(N)        N = Σ_v c_v

Every ℓ is a convex function of log s. Its derivative in log s, t_v, is the expected number of
tokens of word v that came from the topics, so a bound by independent draws follows:

    ℓ(s')  ≥  ℓ(s) + t (log s' − log s)

Posteriors, statistics and M-steps need counts of independent draws. They take t in the place of c.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError


class Cells:
    """Stored counts in one of three layouts, each with the cells on the last axis.

    A batch has one row of all its cells. Padded documents have a row of cells each, between whose
    chains the counts broadcast. One document under many draws has a row of its cells.

    Args:
        counts: ``(..., num_cells)`` counts; 0 marks padding.
        columns: ``(..., num_cells)`` int64 columns of the topics' word probabilities: words, or
            with groups of documents, group × num_words + word.
        num_repeated: Number of the first cells of each row whose count may be other than 0 or 1.
            Defaults to all.

    Attributes:
        counts: As given.
        columns: As given.
    """

    def __init__(self, counts: Tensor, columns: Tensor, num_repeated: int | None = None) -> None:
        self.counts = counts
        self.columns = columns
        self._batch: DocumentBatch | None = None
        self._first = slice(num_repeated)

    @classmethod
    def of(cls, batch: DocumentBatch) -> Cells:
        """The cells of a batch."""
        cells = cls(batch.counts, batch.word_index)
        cells._batch = batch
        return cells

    @property
    def repeated(self) -> tuple[Tensor | slice, Tensor]:
        """Cells whose count may be other than 0 or 1: an index of the last axis, and the counts.

        The index is a tensor for a batch, and otherwise a slice of the first cells. The counts are
        float64.
        """
        if self._batch is not None:
            return self._batch.repeated
        return self._first, self.counts[..., self._first].double()

    def single(self) -> Cells:
        """The same words with one token each."""
        return Cells(torch.ones_like(self.counts), self.columns, 0)


class CountLikelihood:
    """The distribution of counts given the probabilities of their words.

    Attributes:
        independent: Whether tokens are independent draws, so that the log likelihood is
            Σ_v c_v log s_v. Solvers then take the counts themselves, and theta may be conjugate.
    """

    independent: ClassVar[bool] = False

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        """Terms ℓ of the log likelihood, differentiable in the probabilities.

        Args:
            probability: ``(..., num_cells)`` s, positive.
            cells: The counts, of a shape that broadcasts.

        Returns:
            ``(..., num_cells)`` nats; 0 where the count is 0 (padding).
        """
        raise self._undefined("log_terms")

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        """Expected tokens that came from the topics: derivatives of ℓ in log s.

        Args:
            probability: ``(..., num_cells)`` s, positive.
            cells: The counts.

        Returns:
            ``(..., num_cells)`` in the dtype of ``probability``; 0 where the count is 0.
        """
        raise self._undefined("tokens")

    def _undefined(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} does not define {method}; the docstring of CountLikelihood "
            "says what a likelihood of words defines"
        )

    def slopes(self, probability: Tensor, cells: Cells) -> Tensor:
        """Derivatives of ℓ in s, :meth:`tokens` over the probabilities."""
        return self.tokens(probability, cells) / probability

    def length_term(self, lengths: Tensor) -> Tensor | float:
        """The number h of each document, which depends on its length alone.

        Args:
            lengths: ``(num_docs,)`` tokens.

        Returns:
            ``(num_docs,)`` float64 nats. Defaults to 0 for all documents.
        """
        return 0.0

    def for_single_tokens(self) -> CountLikelihood:
        """The likelihood of tokens that are predicted one by one, given theta alone."""
        return _SingleTokens(self)

    def draw_words(
        self, words: Tensor, document: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Draw the words of tokens, given independent draws from the mixture.

        Args:
            words: ``(num_tokens,)`` int64, each drawn from its document's mixture of topics.
            document: ``(num_tokens,)`` int64 documents of the tokens, ascending.
            generator: Source of random numbers; None is PyTorch's own.

        Returns:
            ``(num_tokens,)`` int64 words.

        Raises:
            ConfigError: The subclass cannot be drawn from.
        """
        raise ConfigError(
            f"{type(self).__name__} has no method draw_words, by which documents are generated"
        )


class Independent(CountLikelihood):
    """Tokens are independent draws from the mixture of topics: ℓ = c log s."""

    independent: ClassVar[bool] = True

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.log_terms`."""
        return probability.log() * cells.counts

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.tokens`; the counts themselves."""
        return cells.counts.to(probability.dtype).expand_as(probability)

    def slopes(self, probability: Tensor, cells: Cells) -> Tensor:
        """See :meth:`CountLikelihood.slopes`."""
        return cells.counts / probability

    def for_single_tokens(self) -> CountLikelihood:
        """See :meth:`CountLikelihood.for_single_tokens`."""
        return self

    def draw_words(
        self, words: Tensor, document: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """See :meth:`CountLikelihood.draw_words`."""
        return words


#: The likelihood of independent draws.
INDEPENDENT = Independent()


class _SingleTokens(CountLikelihood):
    """Every token has the probability that it has as a document's only one."""

    def __init__(self, likelihood: CountLikelihood) -> None:
        self._likelihood = likelihood

    @torch.no_grad()
    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        one = torch.ones((), dtype=torch.float64, device=probability.device)
        alone = self._likelihood.log_terms(probability, cells.single())
        return cells.counts * (alone + self._likelihood.length_term(one))

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        alone = self._likelihood.tokens(probability, cells.single())
        return cells.counts.to(alone.dtype) * alone


@torch.no_grad()
def surrogate(
    likelihood: CountLikelihood, probability: Tensor, batch: DocumentBatch
) -> tuple[DocumentBatch, Tensor]:
    """Independent draws in place of documents, which bound their log likelihood from below.

    Args:
        likelihood: The likelihood of the documents.
        probability: ``(nnz,)`` s at the stored counts, positive, where the bound is tight.
        batch: The documents.

    Returns:
        The same documents with :meth:`CountLikelihood.tokens` for counts; and ``(num_docs,)``
        float64 nats, by which the log likelihood of these is to be raised.
    """
    cells = Cells.of(batch)
    tokens = likelihood.tokens(probability, cells).to(batch.dtype)
    gaps = likelihood.log_terms(probability, cells).double()
    gaps = gaps - tokens.double() * probability.double().log()
    raised = torch.segment_reduce(gaps, "sum", offsets=batch.row_offsets, axis=0, initial=0.0)
    return batch.with_counts(tokens), raised + likelihood.length_term(batch.lengths)
