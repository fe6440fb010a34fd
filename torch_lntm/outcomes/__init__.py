"""How outcomes of the documents depend on their topics."""

from torch_lntm.outcomes.estimate import estimate
from torch_lntm.outcomes.result import Outcomes

__all__ = ["Outcomes", "estimate"]
