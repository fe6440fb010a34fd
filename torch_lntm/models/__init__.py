"""Topic models as Pyro programs: a document prior and a bag-of-words likelihood."""

from torch_lntm.models.constructors import ctm, iftm, lda, lntm
from torch_lntm.models.diagonal import DiagonalNormalPrior
from torch_lntm.models.dirichlet import DirichletPrior
from torch_lntm.models.factor import IndependentFactorPrior
from torch_lntm.models.logistic_normal import LogisticNormalPrior
from torch_lntm.models.model import BoundModel, Construction, TopicModel
from torch_lntm.models.prior import DocumentPrior
from torch_lntm.models.registry import CONSTRUCTORS, construct, find_constructor, register
from torch_lntm.models.topics import NormalTopics, Topics

__all__ = [
    "CONSTRUCTORS",
    "BoundModel",
    "Construction",
    "DiagonalNormalPrior",
    "DirichletPrior",
    "DocumentPrior",
    "IndependentFactorPrior",
    "LogisticNormalPrior",
    "NormalTopics",
    "TopicModel",
    "Topics",
    "construct",
    "ctm",
    "find_constructor",
    "iftm",
    "lda",
    "lntm",
    "register",
]
