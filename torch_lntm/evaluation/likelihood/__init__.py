"""Held-out log likelihood of documents, topic proportions integrated out."""

from torch_lntm.evaluation.likelihood.annealed import AIS
from torch_lntm.evaluation.likelihood.bracket import AISBracket, ais_bracket
from torch_lntm.evaluation.likelihood.estimate import (
    PARETO_K_LIMIT,
    LikelihoodEstimate,
    LikelihoodMethod,
)
from torch_lntm.evaluation.likelihood.importance import Importance
from torch_lntm.evaluation.likelihood.methods import METHODS, log_likelihood
from torch_lntm.evaluation.likelihood.quadrature import Quadrature

__all__ = [
    "AIS",
    "METHODS",
    "PARETO_K_LIMIT",
    "AISBracket",
    "Importance",
    "LikelihoodEstimate",
    "LikelihoodMethod",
    "Quadrature",
    "ais_bracket",
    "log_likelihood",
]
