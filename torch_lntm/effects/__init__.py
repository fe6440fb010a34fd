"""Effects: how topic proportions depend on what is known of the documents, with intervals."""

from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.joint import JointDraws, joint_draws
from torch_lntm.effects.numbers import Effect, Prediction
from torch_lntm.effects.permutation import PermutationTest, permutation_test
from torch_lntm.effects.result import Effects, frame_of
from torch_lntm.inference import chain_draws

__all__ = [
    "Effect",
    "Effects",
    "JointDraws",
    "PermutationTest",
    "Prediction",
    "chain_draws",
    "estimate",
    "frame_of",
    "joint_draws",
    "permutation_test",
]
