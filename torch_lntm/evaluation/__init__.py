"""Evaluation: held-out likelihood, completion, coherence, accuracy of posteriors."""

from torch_lntm.evaluation.accuracy import Accuracy, PosteriorAccuracy, posterior_accuracy
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
    "Accuracy",
    "CompletionResult",
    "LikelihoodEstimate",
    "PosteriorAccuracy",
    "ais_bracket",
    "coherence",
    "completion_perplexity",
    "document_completion",
    "log_likelihood",
    "posterior_accuracy",
    "topic_diversity",
    "unigram_perplexity",
]
