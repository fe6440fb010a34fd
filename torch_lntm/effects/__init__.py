"""Effects of documents' metadata on topic proportions, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.numbers import Estimates
from torch_lntm.effects.permutation import PermutationTest, permutation_test
from torch_lntm.effects.result import Effects

__all__ = ["Effects", "Estimates", "PermutationTest", "estimate", "permutation_test"]
