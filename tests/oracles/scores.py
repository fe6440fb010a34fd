"""Tests of estimates against the truth by z-scores."""

from __future__ import annotations

import torch

from torch_lntm.evaluation import LikelihoodEstimate


def z_scores(estimate: LikelihoodEstimate, truth: torch.Tensor) -> tuple[float, float]:
    """The z-score of the mean over documents, and the mean square of the documents' z-scores.

    Estimates of p(w) are unbiased, so the differences are relative ones of probabilities.
    """
    used = estimate.lengths > 0
    excess, error = (estimate.log_likelihood - truth)[used].expm1(), estimate.standard_error[used]
    mean = excess.sum() / error.square().sum().sqrt()
    return float(mean), float((excess / error).square().mean())
