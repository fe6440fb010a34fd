"""Evaluation: held-out likelihood, completion, coherence, accuracy of posteriors."""

from torch_lntm.evaluation.accuracy import Accuracy, PosteriorAccuracy, posterior_accuracy
from torch_lntm.evaluation.alignment import Alignment, align_topics
from torch_lntm.evaluation.coherence import coherence, topic_diversity
from torch_lntm.evaluation.completion import (
    CompletionResult,
    completion_perplexity,
    document_completion,
    unigram_perplexity,
)
from torch_lntm.evaluation.dispersion import Dispersion, residual_dispersion
from torch_lntm.evaluation.exclusivity import exclusivity
from torch_lntm.evaluation.fair import ExactCompletion, completion_of, paired_difference
from torch_lntm.evaluation.likelihood import (
    AIS,
    AISBracket,
    Importance,
    LikelihoodEstimate,
    LikelihoodMethod,
    Quadrature,
    ais_bracket,
    log_likelihood,
)

__all__ = [
    "AIS",
    "AISBracket",
    "Accuracy",
    "Alignment",
    "CompletionResult",
    "Dispersion",
    "ExactCompletion",
    "Importance",
    "LikelihoodEstimate",
    "LikelihoodMethod",
    "PosteriorAccuracy",
    "Quadrature",
    "ais_bracket",
    "align_topics",
    "coherence",
    "completion_of",
    "completion_perplexity",
    "document_completion",
    "exclusivity",
    "log_likelihood",
    "paired_difference",
    "posterior_accuracy",
    "residual_dispersion",
    "topic_diversity",
    "unigram_perplexity",
]
