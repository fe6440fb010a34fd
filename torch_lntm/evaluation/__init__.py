"""Evaluation: held-out likelihood, document completion, topic coherence and diversity."""

from torch_lntm.evaluation.annealing import AIS
from torch_lntm.evaluation.bracket import AISBracket, ais_bracket
from torch_lntm.evaluation.coherence import coherence, topic_diversity
from torch_lntm.evaluation.completion import (
    CompletionResult,
    completion_perplexity,
    document_completion,
    unigram_perplexity,
)
from torch_lntm.evaluation.likelihood import LikelihoodEstimate, log_likelihood

__all__ = [
    "AIS",
    "AISBracket",
    "CompletionResult",
    "LikelihoodEstimate",
    "ais_bracket",
    "coherence",
    "completion_perplexity",
    "document_completion",
    "log_likelihood",
    "topic_diversity",
    "unigram_perplexity",
]
