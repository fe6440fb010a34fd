"""Nats per token of a corpus, with a standard error over its documents."""

from __future__ import annotations

import math

from torch import Tensor


def per_token(log_likelihood: Tensor, lengths: Tensor) -> tuple[float, float]:
    """The ratio Σ_d L_d / Σ_d N_d and its standard error over documents by the delta method.

    Documents without tokens are left out. The standard error,
    √(D/(D−1) Σ_d (L_d − R·N_d)²) / Σ_d N_d, treats the documents as a random sample of a
    population. It includes numerical or Monte Carlo noise in L.

    Args:
        log_likelihood: ``(num_docs,)`` nats.
        lengths: ``(num_docs,)`` tokens.

    Returns:
        Nats per token and the standard error, which is infinite for a single document.
    """
    used = lengths > 0
    values, tokens = log_likelihood[used].double(), lengths[used].double()
    num_docs, total = len(values), tokens.sum()
    ratio = values.sum() / total
    if num_docs < 2:
        return float(ratio), math.inf
    residual = (values - ratio * tokens).square().sum()
    return float(ratio), float((residual * num_docs / (num_docs - 1)).sqrt() / total)
