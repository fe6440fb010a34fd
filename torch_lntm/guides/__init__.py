"""Guides: posteriors of documents by solvers, as Pyro guides."""

from torch_lntm.guides.dirichlet import DirichletGuide, EPGuide
from torch_lntm.guides.factor import FactorGuide
from torch_lntm.guides.guide import (
    GUIDES,
    Guide,
    SolverOptions,
    guides_for,
    make_guide,
    require_guide,
)
from torch_lntm.guides.normal import (
    BleiLaffertyGuide,
    KhanBouchardGuide,
    LaplaceGuide,
    NormalGuide,
    TaylorGuide,
)
from torch_lntm.guides.warm_starts import WarmStarts

__all__ = [
    "GUIDES",
    "BleiLaffertyGuide",
    "DirichletGuide",
    "EPGuide",
    "FactorGuide",
    "Guide",
    "KhanBouchardGuide",
    "LaplaceGuide",
    "NormalGuide",
    "SolverOptions",
    "TaylorGuide",
    "WarmStarts",
    "guides_for",
    "make_guide",
    "require_guide",
]
