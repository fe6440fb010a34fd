"""Scores of a corpus in nats per token, with a standard error over its documents."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from torch_lntm.errors import CorpusError


class PerTokenScore:
    """Base class of results that have a log probability for each document.

    A subclass defines ``_values``: the names of its log probabilities and of its token numbers.
    """

    _values: ClassVar[tuple[str, str]]

    def _per_token(self) -> tuple[float, float]:
        return per_token(*(getattr(self, name) for name in self._values))

    def _figures(self) -> str:
        return (
            f"  per token   {self.nats_per_token:.4f} nats ± "
            f"{self.nats_per_token_standard_error:.2g} (s.e. over documents)\n"
            f"  perplexity  {self.perplexity:.1f} ± {self.perplexity_standard_error:.2g} "
            "(s.e. over documents)"
        )

    @property
    def num_docs(self) -> int:
        """Number of documents with tokens to score, on which all per-token figures rest."""
        return int((getattr(self, self._values[1]) > 0).sum())

    @property
    def nats_per_token(self) -> float:
        """Sum of the documents' log probabilities, divided by their tokens."""
        return self._per_token()[0]

    @property
    def nats_per_token_standard_error(self) -> float:
        """Standard error of ``nats_per_token`` over documents; infinite for a single document."""
        return self._per_token()[1]

    @property
    def perplexity(self) -> float:
        """exp(−nats per token): the equivalent number of equally likely words."""
        return math.exp(-self.nats_per_token)

    @property
    def perplexity_standard_error(self) -> float:
        """Standard error of ``perplexity`` over documents; infinite for a single document."""
        return self.perplexity * self.nats_per_token_standard_error


def per_token(log_likelihood: Tensor, lengths: Tensor) -> tuple[float, float]:
    """The ratio Σ_d L_d / Σ_d N_d and its standard error over documents by the delta method.

    Documents without tokens are left out. If R is the ratio, its standard error is √(D/(D−1) Σ_d
    (L_d − R·N_d)²) / Σ_d N_d, which treats the documents as a random sample from a population. It
    includes any numerical or Monte Carlo noise in L.

    Args:
        log_likelihood: ``(num_docs,)`` nats.
        lengths: ``(num_docs,)`` tokens.

    Returns:
        Nats per token and the standard error, which is infinite for a single document.

    Raises:
        CorpusError: No document has tokens.
    """
    values, tokens = (x[lengths > 0].double() for x in (log_likelihood, lengths))
    num_docs, total = len(values), tokens.sum()
    if not num_docs:
        raise CorpusError("no document has a token to score; give documents with words")
    ratio = values.sum() / total
    if num_docs < 2:
        return float(ratio), math.inf
    residual = (values - ratio * tokens).square().sum()
    return float(ratio), float((residual * num_docs / (num_docs - 1)).sqrt() / total)
