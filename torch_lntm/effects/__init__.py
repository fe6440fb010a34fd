"""Effects of documents' metadata on topic proportions, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.result import Effects

__all__ = ["Effects", "estimate"]
