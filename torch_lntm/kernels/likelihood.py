"""Distribution of a document's counts, given the mixture probabilities of its words.

Kernels compute s_dv = Σ_k theta_dk φ_kv, the probability of word v under the topics of document d.
A :class:`CountLikelihood` gives the probability of the counts at these s. The log likelihood sums a
term for each stored count and a number for the document:

    log p(c | s) = Σ_v ℓ(s_v, c_v) + h(N)        N = Σ_v c_v

Every ℓ is a convex function of log s. Its derivative t_v in log s is the expected number of tokens
of word v from the topics. Convexity gives a lower bound by independent draws:

    ℓ(s')  ≥  ℓ(s) + t (log s' − log s)

Posteriors, statistics and M-steps, which need counts of independent draws, use t in place of c.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import lacks, undefined

#: Bound on the size of a table of probabilities of a document's words in memory.
MAX_ELEMENTS = 2**22


class Cells(Protocol):
    """Stored counts in one of 3 layouts, each with the cells on the last axis.

    * A batch has a single row with all its cells, and is itself an instance.
    * Padded documents (:class:`CellRows`) have a row each. Their counts broadcast over chains.
    * A single document under many draws (:class:`CellRows` too) has one row.
    """

    @property
    def counts(self) -> Tensor:
        """``(..., num_cells)`` counts; 0 marks padding."""

    @property
    def word_index(self) -> Tensor:
        """``(..., num_cells)`` int64 columns of the topics' word probabilities.

        A column is a word, or level × num_words + word for content groups of documents.
        """

    @property
    def repeated(self) -> tuple[Tensor | slice, Tensor]:
        """Index on the last axis, and float64 counts, of all cells with counts besides 0 and 1.

        The index is a tensor for a batch, and a slice of the first cells of each row otherwise.
        """


class CellRows:
    """Cells in rows.

    Args:
        counts: See :class:`Cells`.
        word_index: See :class:`Cells`.
        num_repeated: Number n of cells: only the first n of each row may have counts besides 0 and
            1. Defaults to all.
    """

    def __init__(self, counts: Tensor, word_index: Tensor, num_repeated: int | None = None) -> None:
        self.counts = counts
        self.word_index = word_index
        self._first = slice(num_repeated)

    @property
    def repeated(self) -> tuple[Tensor | slice, Tensor]:
        """See :attr:`Cells.repeated`."""
        return self._first, self.counts[..., self._first].double()


class CountLikelihood:
    """Distribution of counts given the probabilities of their words.

    Attributes:
        independent: Whether tokens are independent draws, with log likelihood Σ_v c_v log s_v.
            Solvers then use the counts themselves, and theta may be conjugate.
    """

    independent: ClassVar[bool] = False

    @property
    def compiled_concentration(self) -> float | None:
        """The likelihood for compiled kernels: a of a Dirichlet-multinomial, or None for others.

        It is infinite for independent draws.
        """
        return math.inf if self.independent else None

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        """Terms ℓ of the log likelihood, differentiable in the probabilities.

        Args:
            probability: ``(..., num_cells)`` s, positive.
            cells: The counts, broadcastable to ``probability``.

        Returns:
            ``(..., num_cells)`` nats; 0 for padding (count 0).
        """
        raise undefined(self, "log_terms")

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        """Expected tokens from the topics: derivatives of ℓ in log s.

        Args:
            probability: ``(..., num_cells)`` s, positive.
            cells: The counts.

        Returns:
            ``(..., num_cells)`` in the dtype of ``probability``; 0 for padding (count 0).
        """
        raise undefined(self, "tokens")

    def slopes(self, probability: Tensor, cells: Cells) -> Tensor:
        """Derivatives of ℓ in s: :meth:`tokens` divided by the probabilities."""
        return self.tokens(probability, cells) / probability

    def length_term(self, lengths: Tensor) -> Tensor | float:
        """The number h of each document, a function of its length alone.

        Args:
            lengths: ``(num_docs,)`` tokens.

        Returns:
            ``(num_docs,)`` float64 nats. Defaults to 0 for all documents.
        """
        return 0.0

    def for_single_tokens(self) -> CountLikelihood:
        """Likelihood for predicting each token by itself, given theta alone."""
        return _SingleTokens(self)

    def draw_words(
        self, words: Tensor, document: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Draw the words of tokens, given independent draws from the mixture.

        Args:
            words: ``(num_tokens,)`` int64 independent draws from the mixture of topics of each
                document.
            document: ``(num_tokens,)`` int64 documents of the tokens, ascending.
            generator: Source of random numbers. Defaults to PyTorch's global generator if None.

        Returns:
            ``(num_tokens,)`` int64 words.

        Raises:
            ConfigError: The subclass does not define the method.
        """
        raise lacks(self, "draw_words", "by which documents are generated")


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


#: Likelihood of independent draws.
INDEPENDENT = Independent()


class _SingleTokens(CountLikelihood):
    """Likelihood of tokens as documents of length 1."""

    def __init__(self, likelihood: CountLikelihood) -> None:
        self._likelihood = likelihood

    def log_terms(self, probability: Tensor, cells: Cells) -> Tensor:
        one = torch.ones((), dtype=torch.float64, device=probability.device)
        alone = self._likelihood.log_terms(probability, self._single(cells))
        return cells.counts * (alone + self._likelihood.length_term(one))

    def tokens(self, probability: Tensor, cells: Cells) -> Tensor:
        alone = self._likelihood.tokens(probability, self._single(cells))
        return cells.counts.to(alone.dtype) * alone

    @staticmethod
    def _single(cells: Cells) -> CellRows:
        """Cells of the same words with a single token each."""
        return CellRows(torch.ones_like(cells.counts), cells.word_index, 0)


@torch.no_grad()
def surrogate(
    likelihood: CountLikelihood, probability: Tensor, batch: DocumentBatch
) -> tuple[DocumentBatch, Tensor]:
    """Independent draws with a lower bound on the log likelihood of documents.

    Args:
        likelihood: Likelihood of the documents.
        probability: ``(nnz,)`` positive s at the stored counts. The bound is tight there.
        batch: The documents.

    Returns:
        The documents with :meth:`CountLikelihood.tokens` for counts, and ``(num_docs,)`` float64
        nats to add to their log likelihood.
    """
    tokens = likelihood.tokens(probability, batch).to(batch.dtype)
    terms = likelihood.log_terms(probability, batch).double()
    terms = terms - tokens.double() * probability.double().log()
    offset = torch.segment_reduce(terms, "sum", offsets=batch.row_offsets, axis=0, initial=0.0)
    return batch.with_counts(tokens), offset + likelihood.length_term(batch.lengths)


def log_likelihood_at(
    logits: Tensor,
    words: Tensor,
    cells: Cells,
    likelihood: CountLikelihood = INDEPENDENT,
) -> Tensor:
    """Log likelihood of a single document at many topic proportions.

    :func:`~torch_lntm.kernels.mixture.mixture_log_likelihood` takes a vector of weights for each
    document. For many vectors and a single document, a dense product is faster.

    Args:
        logits: ``(num_points, num_topics)`` logits of θ.
        words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
        cells: Counts of these words.
        likelihood: Distribution of the counts. Defaults to independent draws.

    Returns:
        ``(num_points,)`` nats, in the dtype of ``logits``.
    """
    chunks = logits.split(max(1, MAX_ELEMENTS // max(1, *words.shape)))
    return torch.cat(
        [log_likelihood_of(torch.softmax(x, -1) @ words.mT, cells, likelihood) for x in chunks]
    )


def log_likelihood_of(
    probability: Tensor, cells: Cells, likelihood: CountLikelihood = INDEPENDENT
) -> Tensor:
    """Log likelihood of a single document ``(num_points,)`` at probabilities of its words.

    Args:
        probability: ``(num_points, nnz)``, overwritten.
        cells: The counts.
        likelihood: Distribution of the counts. Defaults to independent draws.
    """
    probability.clamp_min_(torch.finfo(probability.dtype).tiny)
    if likelihood.independent:
        return probability.log_() @ cells.counts
    terms = likelihood.log_terms(probability, cells).double().sum(-1)
    length_term = likelihood.length_term(cells.counts.double().sum())
    return (terms + length_term).to(probability.dtype)
