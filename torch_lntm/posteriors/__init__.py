"""Posteriors of documents: results of solvers and samplers."""

from torch_lntm.posteriors.dirichlet import DirichletPosterior
from torch_lntm.posteriors.normal import (
    FactorPosterior,
    LowRankPosterior,
    ModePosterior,
    NormalPosterior,
)
from torch_lntm.posteriors.posterior import Draws, Moments, Posterior

__all__ = [
    "DirichletPosterior",
    "Draws",
    "FactorPosterior",
    "LowRankPosterior",
    "ModePosterior",
    "Moments",
    "NormalPosterior",
    "Posterior",
]
