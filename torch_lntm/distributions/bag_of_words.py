"""BagOfWords: the word counts of a document given its topic proportions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.kernels import mixture_log_likelihood


class BagOfWords(TorchDistribution):
    """Words drawn independently from a mixture of topics, the topic of each word summed out.

    ``log_prob`` is that of the document's tokens in a given order, Σ_v c_v log Σ_k θ_k φ_kv: it has
    no multinomial coefficient, so that perplexities follow from it directly.

    Args:
        theta: ``(..., num_docs, num_topics)`` topic proportions.
        topics: ``(num_topics, num_words)`` word probabilities of each topic.
        lengths: ``(num_docs,)`` tokens per document, needed only to ``sample``.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"theta": constraints.simplex}
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(
        self,
        theta: Tensor,
        topics: Tensor,
        lengths: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if theta.shape[-1] != topics.shape[0]:
            raise ValueError(
                f"theta has {theta.shape[-1]} topics in its last dimension and topics has "
                f"{topics.shape[0]} rows; they must agree"
            )
        self.theta = theta
        self.topics = topics
        self.lengths = lengths
        super().__init__(theta.shape[:-1], topics.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BagOfWords:
        """The same distribution with its batch dimensions expanded to ``batch_shape``."""
        theta = self.theta.expand(*batch_shape, self.theta.shape[-1])
        return BagOfWords(theta, self.topics, self.lengths, validate_args=False)

    def log_prob(self, value: DocumentBatch | Tensor) -> Tensor:
        """Log probability of each document's tokens.

        Args:
            value: The counts ``(num_docs, num_words)``: a batch, or a sparse CSR or dense tensor.

        Returns:
            ``(..., num_docs)`` float64 nats.

        Raises:
            ValueError: The counts have another shape than this distribution's last batch dimension
                and vocabulary.
        """
        if not isinstance(value, DocumentBatch):
            csr = value if value.layout == torch.sparse_csr else value.to_sparse_csr()
            value = DocumentBatch.from_csr(csr)
        expected = (self.batch_shape[-1], self.event_shape[0])
        if tuple(value.shape) != expected:
            raise ValueError(
                f"counts of shape {tuple(value.shape)} given to a BagOfWords over "
                f"(num_docs, num_words) = {expected}"
            )
        # Samplers move a float32 model's eta in the double precision of its log densities.
        dtype = self.theta.dtype
        topics = self.topics.to(dtype)
        return mixture_log_likelihood(self.theta, topics, value.to(self.theta.device, dtype))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw the counts of every document, with the global generator, as Pyro does.

        Returns:
            A sparse CSR tensor ``(num_docs, num_words)``.

        Raises:
            ValueError: No ``lengths`` were given, or more than one draw per document was asked
                for (draws of different sparsity do not stack).
        """
        return self.sample_counts(None, sample_shape)

    def sample_counts(
        self, generator: torch.Generator | None, sample_shape: Sequence[int] = ()
    ) -> Tensor:
        """:meth:`sample` with an explicit generator."""
        if self.lengths is None:
            raise ValueError("BagOfWords needs lengths=(num_docs,) token counts to be sampled")
        if len(sample_shape) > 0 or len(self.batch_shape) != 1:
            raise ValueError(
                f"BagOfWords samples one bag per document: got sample_shape {tuple(sample_shape)} "
                f"and batch_shape {tuple(self.batch_shape)}; sample in a loop instead"
            )
        with torch.no_grad():
            num_docs, num_words = self.batch_shape[0], self.event_shape[0]
            lengths = self.lengths.long()
            rows = torch.repeat_interleave(torch.arange(num_docs, device=lengths.device), lengths)
            cumulative = self.theta.double().cumsum(-1)
            u = torch.rand(
                rows.numel(), 1, generator=generator, dtype=torch.float64, device=rows.device
            )
            token_topic = (u * cumulative[rows, -1:] > cumulative[rows]).sum(-1)
            token_word = torch.empty_like(rows)
            for k in range(self.topics.shape[0]):
                tokens = (token_topic == k).nonzero().squeeze(-1)
                if tokens.numel():
                    token_word[tokens] = torch.multinomial(
                        self.topics[k], tokens.numel(), replacement=True, generator=generator
                    )
            cells, counts = torch.unique(rows * num_words + token_word, return_counts=True)
            row_sizes = torch.bincount(cells // num_words, minlength=num_docs)
            row_offsets = torch.cat([row_sizes.new_zeros(1), row_sizes.cumsum(0)])
            return torch.sparse_csr_tensor(
                row_offsets,
                cells % num_words,
                counts.to(self.theta.dtype),
                size=(num_docs, num_words),
                check_invariants=False,
            )
