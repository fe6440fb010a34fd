"""Inference engines: variational EM over any guide, its starts, annealing and statistics."""

from torch_lntm.inference.annealing import ANNEALING, Annealing
from torch_lntm.inference.statistics import Statistics, sufficient_statistics
from torch_lntm.inference.variational_em import FitResult, VariationalEM

__all__ = [
    "ANNEALING",
    "Annealing",
    "FitResult",
    "Statistics",
    "VariationalEM",
    "sufficient_statistics",
]
