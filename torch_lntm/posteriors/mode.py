"""Modes of documents, and moments of documents whose covariances are known for a sample only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.posteriors.normal import EtaPosterior
from torch_lntm.posteriors.posterior import Moments, Posterior, Rows


@dataclass(eq=False, kw_only=True, repr=False)
class ModePosterior(EtaPosterior):
    """The posterior of each document taken as the point where it is densest.

    It has no spread: its covariances are 0 and its draws are the mode. It is what the Taylor and
    Laplace posteriors cost without their covariances, num_topics³ a document.
    The means are the modes.
    """

    @property
    def covariance(self) -> Tensor:
        """See :attr:`Posterior.covariance`; zeros."""
        return self.variance.diag_embed()

    @property
    def variance(self) -> Tensor:
        """See :attr:`Posterior.variance`; zeros."""
        return torch.zeros_like(self.mean)

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`; zeros."""
        dim = self.mean.shape[1]
        return self.mean.new_zeros(dim, dim, dtype=torch.float64)

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`; log theta at the mode."""
        return torch.log_softmax(self.space.lift(self.mean).double(), -1)

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`; every draw is the mode."""
        mode = self.mean[rows].double()
        return mode.expand(*key.shape[:-1], *mode.shape)


class SampledMoments(Moments):
    """Moments of documents whose covariances are known for a sample of them.

    Only sums are kept of the sample, so that a large one can be added part by part.

    Args:
        modes: All documents.
        weight: How many documents each of the sample stands for.
    """

    def __init__(self, modes: Posterior, weight: float) -> None:
        self.mean = modes.mean
        self._modes, self._weight = modes, weight
        self._covariance_sum = modes.covariance_sum()
        self._objective = modes.objective.sum()

    def add(self, sample: Posterior, rows: Tensor) -> None:
        """Add documents to the sample.

        Args:
            sample: Their posteriors, with covariances.
            rows: ``(num_sampled,)`` int64 which of all documents these are.
        """
        self._covariance_sum += self._weight * sample.covariance_sum()
        added = sample.objective - self._modes.objective[rows]
        self._objective += self._weight * added.sum()

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`; an estimate."""
        return self._covariance_sum

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`; of the modes, without their spread."""
        return self._modes.expected_log_theta()

    def objective(self) -> Tensor:
        """Sum of the posteriors' objectives (scalar), nats; what covariances add is an estimate."""
        return self._objective
