"""Topic models as Pyro programs: a document prior, topics, and a likelihood of words."""

from typing import TYPE_CHECKING, Any

from torch_lntm.errors import no_attribute
from torch_lntm.models.constructors import ctm, iftm, lda, lntm, stm
from torch_lntm.models.levels import Levels, Periods
from torch_lntm.models.model import TopicModel
from torch_lntm.models.priors.covariates import Covariates
from torch_lntm.models.priors.dirichlet import DirichletPrior
from torch_lntm.models.priors.factor import IndependentFactorPrior
from torch_lntm.models.priors.logistic_normal import LogisticNormalPrior
from torch_lntm.models.priors.normal import NormalPrior
from torch_lntm.models.priors.prior import DocumentPrior
from torch_lntm.models.priors.structural import StructuralPrior
from torch_lntm.models.registry import register
from torch_lntm.models.topic_groups import TopicGroups
from torch_lntm.models.topics.content import ContentTopics
from torch_lntm.models.topics.dirichlet import DirichletTopics
from torch_lntm.models.topics.dynamic import DynamicTopics
from torch_lntm.models.topics.keywords import Keywords
from torch_lntm.models.topics.topics import Topics
from torch_lntm.models.words.dirichlet_multinomial import DirichletMultinomial
from torch_lntm.models.words.words import Words

__all__ = [
    "ContentTopics",
    "Covariates",
    "DirichletMultinomial",
    "DirichletPrior",
    "DirichletTopics",
    "DocumentPrior",
    "DynamicTopics",
    "IndependentFactorPrior",
    "Keywords",
    "Levels",
    "LogisticNormalPrior",
    "NormalPrior",
    "Periods",
    "StructuralPrior",
    "TopicGroups",
    "TopicModel",
    "Topics",
    "Words",
    "ctm",
    "iftm",
    "lda",
    "lntm",
    "register",
    "stm",
]


if not TYPE_CHECKING:  # type checkers find names themselves

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
