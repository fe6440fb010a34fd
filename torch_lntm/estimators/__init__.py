"""Topic models as scikit-learn estimators."""

from torch_lntm.estimators.base import TopicModelEstimator as TopicModelEstimator
from torch_lntm.estimators.structural import StructuralTopicModel
from torch_lntm.estimators.topic_models import (
    AspectModel,
    CorrelatedTopicModel,
    IndependentFactorTopicModel,
    LogisticNormalTopicModel,
)

__all__ = [
    "AspectModel",
    "CorrelatedTopicModel",
    "IndependentFactorTopicModel",
    "LogisticNormalTopicModel",
    "StructuralTopicModel",
]
