"""Draws: moments of documents' latent variables from weighted draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torch_lntm.posteriors.posterior import Moments, SourceSums


@dataclass(eq=False)
class Draws(Moments):
    """Weighted draws of the latent variables of documents.

    Attributes:
        latents: ``(num_chains, num_docs, dim)`` values by the names of the sites. The main site is
            the last.
        logits: ``(num_chains, num_docs, num_topics)`` logits of theta.
        weights: ``(num_chains, num_docs)`` float64 weights of the chains. They sum to 1 for every
            document.
    """

    latents: Mapping[str, Tensor]
    logits: Tensor
    weights: Tensor

    @property
    def _main(self) -> Tensor:
        """Draws of the main site, float64."""
        return list(self.latents.values())[-1].double()

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        """See :class:`Moments`. In float64."""
        return (self.weights[..., None] * self._main).sum(0)

    def outer_sum(self) -> Tensor:
        """See :meth:`Moments.outer_sum`."""
        x = self._main.flatten(0, 1)
        return x.mT @ (self.weights.flatten()[:, None] * x)

    def square_sum(self) -> Tensor:
        """See :meth:`Moments.square_sum`."""
        return (self.weights[..., None] * self._main.square()).sum((0, 1))

    def covariance_sum(self) -> Tensor:
        """See :meth:`Moments.covariance_sum`. Covariances of each document's draws."""
        return self.outer_sum() - self.mean.mT @ self.mean

    def expected_log_theta(self) -> Tensor:
        """See :meth:`Moments.expected_log_theta`."""
        log_theta = torch.log_softmax(self.logits.double(), -1)
        return (self.weights[..., None] * log_theta).sum(0)

    def source_sums(self) -> SourceSums | None:
        """See :meth:`Moments.source_sums`."""
        if "source" not in self.latents:
            return None
        eta = self._main.flatten(0, 1)
        source = self.latents["source"].double().flatten(0, 1)
        weighted = self.weights.flatten()[:, None] * source
        return SourceSums(weighted.sum(0), eta.mT @ weighted, source.mT @ weighted)
