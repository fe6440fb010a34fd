"""Every check that scikit-learn has for estimators."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import torch_lntm as lntm

# Short fits: what they find is tested elsewhere.
FAST = {"start_epochs": 1, "stepwise_epochs": 1}


@parametrize_with_checks([lntm.CorrelatedTopicModel(posterior="taylor", max_iter=1, **FAST)])
def test_the_correlated_model_follows_scikit_learns_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")  # one epoch is few
@parametrize_with_checks(
    [
        lntm.LogisticNormalTopicModel(max_iter=1),
        lntm.IndependentFactorTopicModel(posterior="factor", max_iter=1, **FAST),
        lntm.AspectModel(posterior="vb", max_iter=1, **FAST),
        lntm.StructuralTopicModel(posterior="taylor", max_iter=1, **FAST),
    ]
)
def test_every_estimator_follows_scikit_learns_conventions(estimator, check):
    check(estimator)
