"""Topic models as Pyro programs: a document prior and a bag-of-words likelihood."""

from torch_lntm.models.dirichlet import DirichletPrior
from torch_lntm.models.factor import IndependentFactorPrior
from torch_lntm.models.logistic_normal import LogisticNormalPrior
from torch_lntm.models.model import BoundModel, TopicModel
from torch_lntm.models.named import MODELS, ctm, iftm, lda
from torch_lntm.models.prior import DocumentPrior
from torch_lntm.models.topics import Topics

__all__ = [
    "MODELS",
    "BoundModel",
    "DirichletPrior",
    "DocumentPrior",
    "IndependentFactorPrior",
    "LogisticNormalPrior",
    "TopicModel",
    "Topics",
    "ctm",
    "iftm",
    "lda",
]
