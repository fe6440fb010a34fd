"""BagOfWords, the distribution of a document's word counts given its topic proportions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.ops.provenance import detach_provenance, extract_provenance, track_provenance
from torch import Tensor
from torch.distributions import constraints

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.distributions.word_counts import WordCounts
from torch_lntm.kernels.likelihood import INDEPENDENT, CountLikelihood
from torch_lntm.kernels.mixture import mixture_log_likelihood
from torch_lntm.kernels.uncompiled import uncompiled


class BagOfWords(TorchDistribution):
    """Words drawn from a mixture of topics, with the topic of each word summed out.

    ``log_prob`` is the log probability of a document's tokens in a given order, which for
    independent draws is Σ_v c_v log Σ_k θ_k φ_kv. It leaves out the multinomial coefficient, so
    that perplexities follow directly.

    Args:
        theta: ``(..., num_docs, num_topics)`` topic proportions.
        topics: ``(num_topics, num_words)`` word probabilities of each topic, or ``(..., 1,
            num_topics, num_words)`` for different topics at each index of the leading dimensions.
        lengths: ``(num_docs,)`` number of tokens of each document, which only draws need.
        words: Likelihood of the words given the mixture, such as
            :class:`~torch_lntm.models.DirichletMultinomial`. Defaults to independent draws.

    Raises:
        ValueError: Shapes disagree, or theta is off the simplex and ``validate_args`` is set.

    Example:
        >>> theta = guide.posterior(batch).theta_mean()
        >>> words = lntm.distributions.BagOfWords(theta, model.topics.probs)
        >>> words.log_prob(batch).shape
        torch.Size([5])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"theta": constraints.simplex}
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(
        self,
        theta: Tensor,
        topics: Tensor,
        lengths: Tensor | None = None,
        words: CountLikelihood = INDEPENDENT,
        validate_args: bool | None = None,
    ) -> None:
        if theta.shape[-1] != topics.shape[-2]:
            raise ValueError(
                f"theta has {theta.shape[-1]} topics in its last dimension and topics has "
                f"{topics.shape[-2]} rows; they must agree"
            )
        if topics.dim() > 2:
            if topics.shape[-3] != 1:
                raise ValueError(
                    f"topics of shape {tuple(topics.shape)}; expected (num_topics, num_words) or "
                    "(..., 1, num_topics, num_words): all documents share their topics"
                )
            leading = torch.broadcast_shapes(theta.shape[:-2], topics.shape[:-3])
            theta = theta.expand(*leading, *theta.shape[-2:])
        self.theta: Tensor = theta
        self.topics: Tensor = topics
        self.lengths = lengths
        self.words = words
        super().__init__(theta.shape[:-1], topics.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BagOfWords:
        """This distribution with batch dimensions expanded to ``batch_shape``."""
        theta = self.theta.expand(*batch_shape, self.theta.shape[-1])
        return BagOfWords(theta, self.topics, self.lengths, self.words, validate_args=False)

    @uncompiled
    def log_prob(self, value: DocumentBatch | Tensor) -> Tensor:
        """Log probability of each document's tokens.

        Args:
            value: Counts ``(num_docs, num_words)``: a batch, :class:`WordCounts`, or a sparse CSR
                or dense tensor. Leading dimensions are broadcast against theta's.

        Returns:
            ``(..., num_docs)`` float64 nats.

        Raises:
            ValueError: The number of documents or words differs from this distribution's, or
                leading dimensions do not broadcast.
        """
        counts = _word_counts(value)
        expected = (self.batch_shape[-1], self.event_shape[0])
        if tuple(counts.shape[-2:]) != expected:
            raise ValueError(
                f"counts of shape {tuple(counts.shape)} given to a BagOfWords over "
                f"(num_docs, num_words) = {expected}"
            )
        # Pyro's inspection can only track values through dense functions.
        parameters: Any
        parameters, provenance = extract_provenance((self.theta, self.topics))
        theta, topics = parameters
        return track_provenance(_log_prob(theta, topics, counts, self.words), provenance)

    @uncompiled
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw the counts of every document with PyTorch's global generator.

        Returns:
            :class:`WordCounts` ``(*sample_shape, ..., num_docs, num_words)``.

        Raises:
            ValueError: ``lengths`` are missing.
        """
        leading = (*sample_shape, *self.batch_shape[:-1])
        batches = [
            DocumentBatch.from_csr(self._draw(theta, topics))
            for theta, topics in _stacked(self.theta, self.topics, leading)
        ]
        return WordCounts(batches, leading)

    def sample_counts(self, generator: torch.Generator) -> Tensor:
        """Draw the counts of every document with an explicit generator.

        Returns:
            A sparse CSR tensor ``(num_docs, num_words)``.

        Raises:
            ValueError: ``lengths`` are missing, or theta has leading dimensions.
        """
        if len(self.batch_shape) != 1 or self.topics.dim() != 2:
            raise ValueError(
                f"sample_counts draws one bag per document: got batch_shape "
                f"{tuple(self.batch_shape)}; use sample() instead"
            )
        return self._draw(self.theta, self.topics, generator)

    @torch.no_grad()
    def _draw(
        self, theta: Tensor, topics: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Counts ``(num_docs, num_words)`` as a sparse CSR tensor."""
        if self.lengths is None:
            raise ValueError("BagOfWords needs lengths, the (num_docs,) numbers of tokens, to draw")
        num_docs, num_words = theta.shape[0], topics.shape[1]
        lengths = self.lengths.long()
        rows = torch.repeat_interleave(torch.arange(num_docs, device=lengths.device), lengths)
        cumulative = theta.double().cumsum(-1)
        u = torch.rand(
            rows.numel(), 1, generator=generator, dtype=torch.float64, device=rows.device
        )
        token_topic = (u * cumulative[rows, -1:] > cumulative[rows]).sum(-1)
        token_word = torch.empty_like(rows)
        for k in range(topics.shape[0]):
            tokens = (token_topic == k).nonzero().squeeze(-1)
            if tokens.numel():
                token_word[tokens] = torch.multinomial(
                    topics[k], tokens.numel(), replacement=True, generator=generator
                )
        if not self.words.independent:
            token_word = self.words.draw_words(token_word, rows, generator)
        cells, counts = torch.unique(rows * num_words + token_word, return_counts=True)
        row_sizes = torch.bincount(cells // num_words, minlength=num_docs)
        row_offsets = torch.cat([row_sizes.new_zeros(1), row_sizes.cumsum(0)])
        return torch.sparse_csr_tensor(
            row_offsets,
            cells % num_words,
            counts.to(theta.dtype),
            size=(num_docs, num_words),
            check_invariants=False,
        )


def _stacked(
    theta: Tensor, topics: Tensor, leading: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Theta and topics at each index of the leading dimensions, in row-major order."""
    topics = topics if topics.dim() == 2 else topics.squeeze(-3)
    # The extra first dimension covers the case of zero leading dimensions.
    theta = theta.expand(1, *leading, *theta.shape[-2:]).flatten(0, -3)
    topics = topics.expand(1, *leading, *topics.shape[-2:]).flatten(0, -3)
    return zip(theta, topics, strict=True)


def _log_prob(theta: Tensor, topics: Tensor, counts: WordCounts, words: CountLikelihood) -> Tensor:
    """Log probabilities ``(..., num_docs)`` of counts, with broadcast leading dimensions."""
    # Samplers pass float64 eta even for a float32 model: its log densities are float64.
    to: Any = {"device": theta.device, "dtype": theta.dtype}
    topics = topics.to(**to)
    leading = torch.broadcast_shapes(theta.shape[:-2], counts.shape[:-2])
    if len(counts.batches) == 1 and topics.dim() == 2:
        result = mixture_log_likelihood(theta, topics, counts.batches[0].to(**to), words)
        return result.expand(*leading, -1)
    parts = zip(_stacked(theta, topics, leading), counts.batches_at(leading), strict=True)
    rows = [mixture_log_likelihood(t, phi, batch.to(**to), words) for (t, phi), batch in parts]
    return torch.stack(rows).reshape(*leading, -1)


def _word_counts(value: DocumentBatch | Tensor) -> WordCounts:
    """Counts of any type as :class:`WordCounts`."""
    if isinstance(value, DocumentBatch):
        return WordCounts(value)
    # Pyro's inspection wraps values in tensors with provenance.
    value = detach_provenance(value)
    if isinstance(value, WordCounts):
        return value
    if value.layout == torch.sparse_csr:
        return WordCounts(DocumentBatch.from_csr(value))
    *leading, num_docs, num_words = value.shape
    parts = value.reshape(-1, num_docs, num_words)
    return WordCounts([DocumentBatch.from_csr(part.to_sparse_csr()) for part in parts], leading)
