"""Model formulas such as ``~ party + bs(date, df=6)``, which turn metadata into design matrices."""

from torch_lntm.formulas.formula import Formula

__all__ = ["Formula"]
