"""Effects: how topic proportions depend on what is known of the documents, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.result import Effect, Effects, Prediction

__all__ = ["Effect", "Effects", "Prediction", "estimate"]
