"""Accuracy of guides' posteriors: distances from long chains of the same documents."""

from studies.scores.accuracy.accuracy import posterior_accuracy
from studies.scores.accuracy.result import Accuracy, PosteriorAccuracy

__all__ = ["Accuracy", "PosteriorAccuracy", "posterior_accuracy"]
