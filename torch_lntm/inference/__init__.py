"""Inference engines: variational EM over any guide, and Hamiltonian Monte Carlo per document."""

from torch_lntm.inference.annealing import ANNEALING, Annealing
from torch_lntm.inference.document_hmc import DocumentHMC, DocumentSamples
from torch_lntm.inference.statistics import Statistics, sufficient_statistics
from torch_lntm.inference.variational_em import FitResult, VariationalEM

__all__ = [
    "ANNEALING",
    "Annealing",
    "DocumentHMC",
    "DocumentSamples",
    "FitResult",
    "Statistics",
    "VariationalEM",
    "sufficient_statistics",
]
