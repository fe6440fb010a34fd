"""Guides: posteriors of documents by solvers, as Pyro guides."""

from torch_lntm.guides.dirichlet import DirichletGuide, EPGuide
from torch_lntm.guides.guide import GUIDES, Guide, guides_for, make_guide
from torch_lntm.guides.normal import (
    BleiLaffertyGuide,
    FactorGuide,
    KhanBouchardGuide,
    LaplaceGuide,
    TaylorGuide,
)

__all__ = [
    "GUIDES",
    "BleiLaffertyGuide",
    "DirichletGuide",
    "EPGuide",
    "FactorGuide",
    "Guide",
    "KhanBouchardGuide",
    "LaplaceGuide",
    "TaylorGuide",
    "guides_for",
    "make_guide",
]
