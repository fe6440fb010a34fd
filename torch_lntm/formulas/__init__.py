"""Model formulas such as ``~ party + bs(date, df=6)``: design matrices from metadata."""

from torch_lntm.formulas.formula import Formula

__all__ = ["Formula"]
