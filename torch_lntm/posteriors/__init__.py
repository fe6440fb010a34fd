"""Posteriors of documents: results of solvers and samplers."""

from torch_lntm.posteriors.dirichlet import DirichletPosterior
from torch_lntm.posteriors.normal import (
    FactorPosterior,
    LowRankPosterior,
    ModePosterior,
    NormalPosterior,
)
from torch_lntm.posteriors.posterior import Draws as Draws
from torch_lntm.posteriors.posterior import Moments as Moments
from torch_lntm.posteriors.posterior import Posterior

__all__ = [
    "DirichletPosterior",
    "FactorPosterior",
    "LowRankPosterior",
    "ModePosterior",
    "NormalPosterior",
    "Posterior",
]
