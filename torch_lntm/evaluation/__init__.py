"""Evaluation: held-out likelihood, completion, coherence, exclusivity, alignment, dispersion."""

from torch_lntm.evaluation.alignment import align_topics
from torch_lntm.evaluation.coherence import coherence, exclusivity, topic_diversity
from torch_lntm.evaluation.completion.completion import document_completion, unigram_perplexity
from torch_lntm.evaluation.completion.result import CompletionResult as CompletionResult
from torch_lntm.evaluation.completion.result import ExactCompletion as ExactCompletion
from torch_lntm.evaluation.completion.result import paired_difference
from torch_lntm.evaluation.dispersion import residual_dispersion
from torch_lntm.evaluation.likelihood.annealed import AIS, ais_bracket
from torch_lntm.evaluation.likelihood.estimate import LikelihoodEstimate as LikelihoodEstimate
from torch_lntm.evaluation.likelihood.estimate import LikelihoodMethod as LikelihoodMethod
from torch_lntm.evaluation.likelihood.importance import Importance as Importance
from torch_lntm.evaluation.likelihood.methods import log_likelihood

__all__ = [
    "AIS",
    "ais_bracket",
    "align_topics",
    "coherence",
    "document_completion",
    "exclusivity",
    "log_likelihood",
    "paired_difference",
    "residual_dispersion",
    "topic_diversity",
    "unigram_perplexity",
]
