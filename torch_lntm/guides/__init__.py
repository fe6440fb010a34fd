"""Guides, which solve documents' posteriors and present them as Pyro guides."""

from torch_lntm.guides.dirichlet import DirichletGuide, EPGuide
from torch_lntm.guides.guide import GUIDES as GUIDES
from torch_lntm.guides.guide import Guide, make_guide
from torch_lntm.guides.guide import guides_for as guides_for
from torch_lntm.guides.normal import (
    BleiLaffertyGuide,
    FactorGuide,
    KhanBouchardGuide,
    LaplaceGuide,
    TaylorGuide,
)

__all__ = [
    "BleiLaffertyGuide",
    "DirichletGuide",
    "EPGuide",
    "FactorGuide",
    "Guide",
    "KhanBouchardGuide",
    "LaplaceGuide",
    "TaylorGuide",
    "make_guide",
]
