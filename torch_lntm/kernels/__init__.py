"""Sparse kernels: mixtures of topics at the words of a batch, likelihoods and expected counts."""

from torch_lntm.kernels.chains import PaddedWords, SparseWords
from torch_lntm.kernels.contraction import sum_over_docs, sum_over_words
from torch_lntm.kernels.dense import log_likelihood_at
from torch_lntm.kernels.likelihood import INDEPENDENT, Cells, CountLikelihood, surrogate
from torch_lntm.kernels.mixture import (
    ExpectedCounts,
    expected_counts,
    expected_topic_counts,
    expected_word_counts,
    mixture_log_likelihood,
    mixture_log_likelihood_reference,
    probability_floor,
    responsibility_covariance,
    word_probabilities,
)

__all__ = [
    "INDEPENDENT",
    "Cells",
    "CountLikelihood",
    "ExpectedCounts",
    "PaddedWords",
    "SparseWords",
    "expected_counts",
    "expected_topic_counts",
    "expected_word_counts",
    "log_likelihood_at",
    "mixture_log_likelihood",
    "mixture_log_likelihood_reference",
    "probability_floor",
    "responsibility_covariance",
    "sum_over_docs",
    "sum_over_words",
    "surrogate",
    "word_probabilities",
]
