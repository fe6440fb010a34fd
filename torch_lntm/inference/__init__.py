"""Inference engines: variational and Monte-Carlo EM, Hamiltonian Monte Carlo per document."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch_lntm.inference.chains import DocumentHMC, DocumentSamples, to_arviz

#: Public names of the EM engines, and the modules they come from at first use.
_EM = {
    "ANNEALING": "annealing",
    "Annealing": "annealing",
    "FitResult": "variational_em",
    "MonteCarloEM": "monte_carlo_em",
    "MonteCarloResult": "monte_carlo_em",
    "Statistics": "statistics",
    "VariationalEM": "variational_em",
    "sampled_statistics": "statistics",
    "sufficient_statistics": "statistics",
}

__all__ = ["DocumentHMC", "DocumentSamples", "to_arviz", *_EM]


def __getattr__(name: str) -> Any:
    if name in _EM:
        return getattr(import_module(f"{__name__}.{_EM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
