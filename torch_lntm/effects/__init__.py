"""Effects of documents' metadata on topic proportions, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.numbers import Effect, Prediction
from torch_lntm.effects.permutation import PermutationTest, permutation_test
from torch_lntm.effects.result import Effects, to_frame

__all__ = [
    "Effect",
    "Effects",
    "PermutationTest",
    "Prediction",
    "estimate",
    "permutation_test",
    "to_frame",
]
