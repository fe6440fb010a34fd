"""Document completion: how well a part of each document predicts the rest of it."""

from torch_lntm.evaluation.completion.completion import (
    completion_of,
    document_completion,
    fit_own_words,
)
from torch_lntm.evaluation.completion.given import completion_perplexity, unigram_perplexity
from torch_lntm.evaluation.completion.result import (
    CompletionResult,
    ExactCompletion,
    paired_difference,
)

__all__ = [
    "CompletionResult",
    "ExactCompletion",
    "completion_of",
    "completion_perplexity",
    "document_completion",
    "fit_own_words",
    "paired_difference",
    "unigram_perplexity",
]
