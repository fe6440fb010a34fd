"""Inference engines: variational and Monte-Carlo EM, Hamiltonian Monte Carlo per document."""

from torch_lntm.inference.annealing import ANNEALING, Annealing
from torch_lntm.inference.diagnostics import to_arviz
from torch_lntm.inference.document_hmc import DocumentHMC, DocumentSamples
from torch_lntm.inference.documents import DocumentTopics, SourceActivity, transform
from torch_lntm.inference.monte_carlo_em import MonteCarloEM, MonteCarloResult
from torch_lntm.inference.statistics import (
    Statistics,
    sampled_statistics,
    sufficient_statistics,
)
from torch_lntm.inference.variational_em import FitResult, VariationalEM

__all__ = [
    "ANNEALING",
    "Annealing",
    "DocumentHMC",
    "DocumentSamples",
    "DocumentTopics",
    "FitResult",
    "MonteCarloEM",
    "MonteCarloResult",
    "SourceActivity",
    "Statistics",
    "VariationalEM",
    "sampled_statistics",
    "sufficient_statistics",
    "to_arviz",
    "transform",
]
