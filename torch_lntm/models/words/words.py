"""Words: the contract of a likelihood of documents' words given the mixture of their topics."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels.likelihood import CountLikelihood


class Words(nn.Module, CountLikelihood):
    """The likelihood of a document's counts, with the parameters that it has of its own.

    Given theta, word v has the probability s_v = Σ_k theta_k φ_kv under the topics. A subclass says
    how probable the counts are then, by :meth:`log_terms` and :meth:`tokens`. These two suffice for
    ``SVI``, NUTS, chains, every guide, annealed importance sampling and completion. A parameter of
    its own needs :meth:`statistics` and :meth:`m_step`. ``docs/own_words.md`` adds a likelihood,
    which :func:`torch_lntm.testing.check_words` checks.

    Capabilities are methods that a subclass may define:

    * ``draw_words``, for ``model.generate``;
    * :meth:`draw_tokens`, for joint chains;
    * :meth:`overdispersion`, for the residual dispersion.
    """

    def log_prior(self) -> Tensor:
        """Log density of the parameters' prior (scalar, nats). Defaults to 0, a flat prior."""
        return torch.zeros((), dtype=torch.float64)

    @property
    def cache_weight(self) -> float | None:
        """Tokens a that the topics weigh, beside the N observed tokens of a document.

        The next token is word v with probability (c_v + a s_v) / (N + a) then. None, the default,
        says that the next token depends on theta alone.
        """
        return None

    def statistics(
        self, probability: Tensor, batch: DocumentBatch, weights: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Sums over documents that :meth:`m_step` takes, by name.

        Args:
            probability: ``(nnz,)`` s at the stored counts.
            batch: The documents.
            weights: ``(num_docs,)`` weight of each document. Defaults to 1.

        Returns:
            Tensors that add up over documents. Defaults to none.
        """
        return {}

    def m_step(self, **sums: Tensor) -> None:
        """Set the parameters by the sums of :meth:`statistics`. Defaults to nothing."""

    def draw_tokens(
        self, probability: Tensor, batch: DocumentBatch, rng: np.random.Generator
    ) -> Tensor:
        """Draw how many tokens of each stored count came from the topics, given theta.

        Args:
            probability: ``(nnz,)`` s at the stored counts, float64.
            batch: The documents, float64.
            rng: Source of random numbers.

        Returns:
            ``(nnz,)`` int64, at most the counts.

        Raises:
            ConfigError: The subclass has no such draw.
        """
        raise _lacks(self, "draw_tokens", "a joint chain draws the tokens of topics")

    def overdispersion(self, lengths: Tensor) -> Tensor:
        """Variances of counts over those of independent draws with the same means.

        Args:
            lengths: ``(num_docs,)`` float64 tokens.

        Returns:
            ``(num_docs,)`` float64.

        Raises:
            ConfigError: The subclass does not say.
        """
        raise _lacks(self, "overdispersion", "residuals are scaled")


def _lacks(words: Words, method: str, purpose: str) -> ConfigError:
    return ConfigError(
        f"{type(words).__name__} has no method {method}, by which {purpose}; define it, or take "
        "Multinomial or DirichletMultinomial words"
    )
