"""Words, the contract of a likelihood of documents' words, and independent draws."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import lacks
from torch_lntm.kernels.likelihood import CountLikelihood, Independent


class Words(nn.Module, CountLikelihood):
    """Likelihood of a document's counts, possibly with parameters.

    Given theta, the topics give word v the probability s_v = Σ_k theta_k φ_kv. A subclass defines
    the probability of the counts from s, by :meth:`log_terms` and :meth:`tokens`. These two methods
    suffice for ``SVI``, NUTS, chains, every guide, annealed importance sampling and completion.
    EM of parameters also needs :meth:`statistics` and :meth:`m_step`. ``docs/own_parts.md`` shows
    how to write a likelihood, and :func:`torch_lntm.testing.check_words` checks a likelihood.

    Optional methods of a subclass:

    * ``draw_words``, for ``model.generate``;
    * :meth:`draw_tokens`, for joint chains;
    * :meth:`overdispersion`, for the residual dispersion.
    """

    def log_prior(self) -> Tensor:
        """Log density of the parameters' prior (scalar, nats). Defaults to a flat prior, 0."""
        return torch.zeros((), dtype=torch.float64)

    @property
    def cache_weight(self) -> float | None:
        """Weight a of the topics, in tokens, against the N observed tokens of a document.

        The next token is word v with probability (c_v + a s_v) / (N + a), where c_v is the number
        of observed tokens of the word. Defaults to ``None``: the next token depends on theta only.
        """
        return None

    def statistics(
        self, probability: Tensor, batch: DocumentBatch, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Sums over documents for :meth:`m_step`, by name.

        Args:
            probability: ``(nnz,)`` s at the stored counts.
            batch: The documents.
            weights: ``(num_docs,)`` weight of each document. Defaults to 1.

        Returns:
            Tensors that add up over documents. Defaults to an empty dictionary.
        """
        return {}

    def m_step(self, **sums: Tensor) -> None:
        """Update the parameters from the sums of :meth:`statistics`. Does nothing by default."""

    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """Draw how many tokens of each stored count came from the topics, given theta.

        Args:
            probability: ``(nnz,)`` s at the stored counts, float64.
            batch: The documents, float64.
            rng: Random number generator.

        Returns:
            ``(nnz,)`` int64 numbers of tokens, at most the counts.

        Raises:
            ConfigError: The subclass does not define the draw.
        """
        raise lacks(self, "draw_tokens", "which a joint chain needs")

    def overdispersion(self, lengths: Tensor) -> Tensor:
        """Variances of counts, divided by the variances of independent draws with equal means.

        Args:
            lengths: ``(num_docs,)`` float64 tokens.

        Returns:
            ``(num_docs,)`` float64.

        Raises:
            ConfigError: The subclass does not define the ratio.
        """
        raise lacks(self, "overdispersion", "which the dispersion of residuals needs")


class Multinomial(Independent, Words):
    """Tokens are independent draws from the mixture of topics.

    The log likelihood is the log probability of a document's tokens in a given order, Σ_v c_v log
    s_v. The multinomial coefficient is left out, so that perplexities follow directly.

    Example:
        >>> lntm.models.ctm(10, 500).words
        Multinomial()
    """

    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """See :meth:`Words.draw_tokens`. All tokens come from the topics."""
        return batch.counts.round().long()

    def overdispersion(self, lengths: Tensor) -> Tensor:
        """See :meth:`Words.overdispersion`. The ratio is 1."""
        return torch.ones_like(lengths)
