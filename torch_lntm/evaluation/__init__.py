"""Evaluation: held-out likelihood, completion, coherence, classification, retrieval, accuracy."""

from torch_lntm.evaluation.accuracy import Accuracy, PosteriorAccuracy, posterior_accuracy
from torch_lntm.evaluation.alignment import Alignment, align_topics
from torch_lntm.evaluation.classification import (
    Classification,
    accuracy_difference,
    classification,
    resampled_error,
)
from torch_lntm.evaluation.coherence import coherence, topic_diversity
from torch_lntm.evaluation.completion import (
    CompletionResult,
    ExactCompletion,
    completion_of,
    completion_perplexity,
    document_completion,
    fit_cache_weight,
    paired_difference,
    unigram_perplexity,
)
from torch_lntm.evaluation.dispersion import Dispersion, residual_dispersion
from torch_lntm.evaluation.exclusivity import exclusivity
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
from torch_lntm.evaluation.retrieval import (
    Retrieval,
    Similarity,
    average_precision_difference,
    by_cosine,
    by_hellinger,
    by_likelihood,
    by_tfidf,
    retrieval,
)

__all__ = [
    "AIS",
    "AISBracket",
    "Accuracy",
    "Alignment",
    "Classification",
    "CompletionResult",
    "Dispersion",
    "ExactCompletion",
    "Importance",
    "LikelihoodEstimate",
    "LikelihoodMethod",
    "PosteriorAccuracy",
    "Quadrature",
    "Retrieval",
    "Similarity",
    "accuracy_difference",
    "ais_bracket",
    "align_topics",
    "average_precision_difference",
    "by_cosine",
    "by_hellinger",
    "by_likelihood",
    "by_tfidf",
    "classification",
    "coherence",
    "completion_of",
    "completion_perplexity",
    "document_completion",
    "exclusivity",
    "fit_cache_weight",
    "log_likelihood",
    "paired_difference",
    "posterior_accuracy",
    "resampled_error",
    "residual_dispersion",
    "retrieval",
    "topic_diversity",
    "unigram_perplexity",
]
