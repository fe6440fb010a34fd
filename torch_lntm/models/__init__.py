"""Topic models as Pyro programs: a document prior and a bag-of-words likelihood."""

from torch_lntm.models.ctm import ctm
from torch_lntm.models.model import BoundModel, TopicModel
from torch_lntm.models.prior import LogisticNormalPrior
from torch_lntm.models.topics import Topics

__all__ = ["BoundModel", "LogisticNormalPrior", "TopicModel", "Topics", "ctm"]
