"""Guides: the posteriors of the papers as Pyro guides over pure solvers."""

from torch_lntm.guides.dirichlet import DirichletGuide, EPGuide
from torch_lntm.guides.factor import FactorGuide
from torch_lntm.guides.guide import DEFAULT_POSTERIORS, GUIDES, Effort, Guide, Posterior, make_guide
from torch_lntm.guides.logistic_normal import (
    BleiLaffertyGuide,
    KhanBouchardGuide,
    LaplaceGuide,
    LogisticNormalGuide,
    TaylorGuide,
)
from torch_lntm.solvers.dirichlet import DirichletPosterior
from torch_lntm.solvers.factor import FactorPosterior
from torch_lntm.solvers.gaussian import GaussianPosterior

__all__ = [
    "DEFAULT_POSTERIORS",
    "GUIDES",
    "BleiLaffertyGuide",
    "DirichletGuide",
    "DirichletPosterior",
    "EPGuide",
    "Effort",
    "FactorGuide",
    "FactorPosterior",
    "GaussianPosterior",
    "Guide",
    "KhanBouchardGuide",
    "LaplaceGuide",
    "LogisticNormalGuide",
    "Posterior",
    "TaylorGuide",
    "make_guide",
]
