"""Model formulas such as ``~ party + bs(date, df=6)``: from documents' columns to numbers."""

from torch_lntm.formulas.formula import Formula
from torch_lntm.formulas.language import check_formula

__all__ = ["Formula", "check_formula"]
