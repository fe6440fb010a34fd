"""Document completion: scores of held-out tokens, given the other tokens of each document."""

from torch_lntm.evaluation.completion.completion import (
    completion_of,
    document_completion,
    fit_cache_weight,
)
from torch_lntm.evaluation.completion.perplexity import completion_perplexity, unigram_perplexity
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
    "fit_cache_weight",
    "paired_difference",
    "unigram_perplexity",
]
