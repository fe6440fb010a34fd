"""How topic proportions depend on the documents' metadata, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.result import Effects

__all__ = ["Effects", "estimate"]
