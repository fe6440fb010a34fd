"""Modes of documents, and moments with covariances estimated from a sample of documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.posteriors.normal import EtaPosterior
from torch_lntm.posteriors.posterior import Moments, Posterior, Rows


@dataclass(eq=False, kw_only=True, repr=False)
class ModePosterior(EtaPosterior):
    """Posterior of each document as a point at its mode.

    It is the Taylor or Laplace posterior without covariances, which would cost num_topics³
    operations per document. The mean and all draws are the mode, and the covariance is 0.
    """

    @property
    def covariance(self) -> Tensor:
        """See :attr:`Posterior.covariance`. Zeros."""
        return self.variance.diag_embed()

    @property
    def variance(self) -> Tensor:
        """See :attr:`Posterior.variance`. Zeros."""
        return torch.zeros_like(self.mean)

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. Zeros."""
        dim = self.mean.shape[1]
        return self.mean.new_zeros(dim, dim, dtype=torch.float64)

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`. The value is log theta at the mode."""
        return torch.log_softmax(self.space.lift(self.mean).double(), -1)

    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """See :meth:`Posterior.draw`. Every draw is the mode."""
        mode = self.mean[rows].double()
        return mode.expand(*key.shape[:-1], *mode.shape)


class SampledMoments(Moments):
    """Moments of documents, with the sum of covariances estimated from a sample of documents.

    Only sums of the sample are kept, so a large sample can be added part by part.

    Args:
        modes: Posteriors of all documents.
        weight: Number of documents that each sampled document represents.
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
            rows: ``(num_sampled,)`` int64 rows of the documents in ``modes``.
        """
        self._covariance_sum += self._weight * sample.covariance_sum()
        gains = sample.objective - self._modes.objective[rows]
        self._objective += self._weight * gains.sum()

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. An estimate."""
        return self._covariance_sum

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`. Values at the modes, ignoring covariances."""
        return self._modes.expected_log_theta()

    def objective(self) -> Tensor:
        """Sum of the posteriors' objectives (scalar, nats). Terms of covariances are estimates."""
        return self._objective
