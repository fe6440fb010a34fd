"""Draws of documents' topic proportions by guides, chains or joint chains, or from an array."""

from torch_lntm.inference.draws.joint import joint_draws
from torch_lntm.inference.draws.shares import topic_shares
from torch_lntm.inference.draws.sources import DrawSource, require_source, theta_draws
from torch_lntm.inference.draws.theta import DrawnDocuments, ThetaDraws, enough_draws

__all__ = [
    "DrawSource",
    "DrawnDocuments",
    "ThetaDraws",
    "enough_draws",
    "joint_draws",
    "require_source",
    "theta_draws",
    "topic_shares",
]
