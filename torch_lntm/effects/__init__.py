"""Effects of documents' metadata on topic proportions, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.numbers import Estimates as Estimates
from torch_lntm.effects.permutation import PermutationTest as PermutationTest
from torch_lntm.effects.permutation import permutation_test
from torch_lntm.effects.result import Effects

__all__ = ["Effects", "estimate", "permutation_test"]
