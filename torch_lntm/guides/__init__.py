"""Guides: the posteriors of the papers as Pyro guides over pure solvers."""

from torch_lntm.guides.logistic_normal import (
    GUIDES,
    BleiLaffertyGuide,
    KhanBouchardGuide,
    LaplaceGuide,
    LogisticNormalGuide,
    TaylorGuide,
    make_guide,
)
from torch_lntm.solvers.gaussian import GaussianPosterior

__all__ = [
    "GUIDES",
    "BleiLaffertyGuide",
    "GaussianPosterior",
    "KhanBouchardGuide",
    "LaplaceGuide",
    "LogisticNormalGuide",
    "TaylorGuide",
    "make_guide",
]
