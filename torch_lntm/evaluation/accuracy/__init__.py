"""Accuracy of guides' posteriors: distances from long chains of the same documents."""

from torch_lntm.evaluation.accuracy.accuracy import posterior_accuracy
from torch_lntm.evaluation.accuracy.result import Accuracy, PosteriorAccuracy

__all__ = ["Accuracy", "PosteriorAccuracy", "posterior_accuracy"]
