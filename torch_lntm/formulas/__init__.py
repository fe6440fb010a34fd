"""Model formulas such as ``~ party + bs(date, df=6)``: design matrices from metadata."""

from torch_lntm.formulas.formula import Formula
from torch_lntm.formulas.language import check_formula as check_formula

__all__ = [
    "Formula",
]
