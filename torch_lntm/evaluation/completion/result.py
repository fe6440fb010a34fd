"""Results of document completion, and the paired difference of two of them."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.evaluation.per_token import PerTokenScore, per_token

#: Largest split R-hat of chains that agree.
LARGEST_RHAT = 1.05


@dataclass(frozen=True, eq=False, repr=False)
class CompletionResult(PerTokenScore):
    """Scores of held-out tokens.

    Attributes:
        log_predictive: ``(num_docs,)`` float64, log probability of each document's held-out tokens
            in nats; 0 without held-out tokens.
        held_out_tokens: ``(num_docs,)`` int64.
        theta: ``"mode"``, ``"mean"`` or ``"exact"`` (see :func:`document_completion`), or
            ``"unigram"`` for :func:`unigram_perplexity`.
        method: The model, the guide and the estimate of theta, in words.
        observed_fraction: Share of each document's tokens that was observed; None if unknown.
        seed: Seed of the hold-out; None if unknown.
        corpus_name: Name of the corpus.
        fingerprint: :meth:`WordHoldOut.fingerprint`, the SHA-256 of the observed and scored tokens;
            None if unknown.
        documents: Names of the documents, the index of the corpus's metadata; None if unknown.
    """

    log_predictive: Tensor
    held_out_tokens: Tensor
    theta: str
    method: str
    observed_fraction: float | None = None
    seed: int | None = None
    corpus_name: str | None = None
    fingerprint: str | None = None
    documents: pd.Index | None = None

    _values = ("log_predictive", "held_out_tokens")

    def frame(self) -> pd.DataFrame:
        """A row for each document, by name.

        The columns are ``held_out_tokens``, ``log_predictive``, and for an exact score
        ``variance``, ``bias``, ``rhat`` and ``num_draws``.
        """
        names = ("held_out_tokens", "log_predictive", "variance", "bias", "rhat", "num_draws")
        columns = {name: getattr(self, name).numpy() for name in names if hasattr(self, name)}
        return pd.DataFrame(columns, self.documents)

    def __repr__(self) -> str:
        where = f" of {self.corpus_name}" if self.corpus_name else ""
        split = "a hold-out of your own"
        if self.observed_fraction is not None:
            split = f"{self.observed_fraction:.0%} observed, seed {self.seed}"
        return (
            f"CompletionResult: {int(self.held_out_tokens.sum())} held-out tokens of "
            f"{self.num_docs} documents{where} by {self.method}; {split}\n{self._figures()}"
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactCompletion(CompletionResult):
    """Scores of held-out tokens at the exact posterior mean of theta, with the simulation's error.

    Attributes:
        tolerance: Requested limit of ``simulation_error`` and ``simulation_bias``, nats per token.
        variance: ``(num_docs,)`` float64 Monte-Carlo variance of ``log_predictive``, nats², from
            the spread of few chains. Use it in sums over documents. The variance of a single
            document can be far too small if all of its chains missed a rare mode.
        bias: ``(num_docs,)`` float64 bias of the score at the chains' mean of theta, nats. It comes
            from the concave logarithm, and is estimated by the jackknife over chains.
            ``log_predictive`` is corrected for it.
        rhat: ``(num_docs,)`` float64 split R-hat of the held-out tokens' log probability.
        num_draws: ``(num_docs,)`` int64 kept draws of each chain, after a warm-up of the same
            length.
        num_chains: Chains of each document.
    """

    tolerance: float
    variance: Tensor
    bias: Tensor
    rhat: Tensor
    num_draws: Tensor
    num_chains: int

    @property
    def simulation_error(self) -> float:
        """Monte-Carlo standard error of ``nats_per_token``, from independent chains."""
        return float(self.variance.sum().sqrt() / self.held_out_tokens.sum())

    @property
    def simulation_bias(self) -> float:
        """Bias that was removed by the jackknife, nats per token."""
        return float(self.bias.sum() / self.held_out_tokens.sum())

    @property
    def within_tolerance(self) -> bool:
        """Whether the error and the removed bias are both within ``tolerance``."""
        return max(self.simulation_error, abs(self.simulation_bias)) <= self.tolerance

    @property
    def max_rhat(self) -> float:
        """Largest R-hat of a document with held-out tokens."""
        return float(self.rhat[self.held_out_tokens > 0].max())

    @property
    def share_above_rhat(self) -> float:
        """Share of the documents with held-out tokens whose R-hat is above 1.05."""
        return float((self.rhat[self.held_out_tokens > 0] > LARGEST_RHAT).double().mean())

    def __repr__(self) -> str:
        reached = "" if self.within_tolerance else f", NOT within {self.tolerance:g}"
        return (
            f"{super().__repr__()}\n"
            f"  simulation  s.e. {self.simulation_error:.2g}, bias removed "
            f"{self.simulation_bias:.2g} nats per token{reached}, of all documents together; "
            f"{self.num_chains} chains of up to {int(self.num_draws.max())} draws\n"
            f"  R-hat       at most {self.max_rhat:.3f}; above {LARGEST_RHAT} in "
            f"{self.share_above_rhat:.1%} of the documents"
        )


def paired_difference(ours: CompletionResult, other: CompletionResult) -> tuple[float, float]:
    """Difference of two scores of the same hold-out, in nats per held-out token.

    Args:
        ours: A result. The difference is positive if this result is better.
        other: Another result for the same hold-out.

    Returns:
        The difference, and its standard error over documents.

    Raises:
        ConfigError: The results score different tokens.
    """
    fingerprints = ours.fingerprint, other.fingerprint
    different = None not in fingerprints and fingerprints[0] != fingerprints[1]
    if different or not torch.equal(ours.held_out_tokens, other.held_out_tokens):
        raise ConfigError("the results are of different held-out tokens; score one hold-out")
    return per_token(ours.log_predictive - other.log_predictive, ours.held_out_tokens)
