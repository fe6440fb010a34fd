"""The guide of independent factor topic models."""

from __future__ import annotations

from typing import Any, cast

import pyro
import torch
from pyro.distributions import MultivariateNormal, Normal
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides.guide import Guide
from torch_lntm.latents import FactorSpace
from torch_lntm.models import IndependentFactorPrior
from torch_lntm.posteriors import FactorPosterior
from torch_lntm.solvers.bounds import gaussian_bound, tangent_weights
from torch_lntm.solvers.factor import factor


class FactorGuide(Guide[FactorPosterior]):
    """Independent normal posteriors of sources and of each eta_k (*Putthividhya et al. 2009, §2*).

    q(source) is normal with full covariance, q(eta) normal and diagonal, on the tangent bound;
    Laplace sources through their convex dual. Its cost is linear in the number of topics.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Gain of the bound in the last round, nats, at which a document has converged.
        max_iterations: Bound on the rounds of each document.

    Raises:
        IncompatibleGuideError: The model's prior has no sources.
        ConfigError: A setting that is not positive.
    """

    name = "factor"
    objective = "tangent bound on log p(w)"
    space_type = FactorSpace
    needs = "sources"

    def _solve(
        self,
        batch: DocumentBatch,
        topics: Tensor,
        space: FactorSpace,
        *,
        temperature: float,
        **settings: Any,
    ) -> FactorPosterior:
        return factor(batch, topics, space, **settings)

    def _geometric_mean(self, posterior: FactorPosterior) -> Tensor:
        return tangent_weights(posterior)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta ``(num_docs, num_topics)``."""
        posterior = self._cached_posterior(batch)
        assert posterior.std is not None
        source = MultivariateNormal(posterior.source_mean, scale_tril=posterior.source_tril)
        with self.model.plate(batch):
            pyro.sample("source", source)
            return pyro.sample("eta", Normal(posterior.mean, posterior.std).to_event(1))

    @torch.no_grad()
    def bound(
        self,
        batch: DocumentBatch,
        posterior: FactorPosterior | None = None,
        kind: str = "tangent",
    ) -> Tensor:
        """As :meth:`NormalGuide.bound`, by default the bound that this guide maximises.

        ``"tilted"`` forms a matrix of num_topics² for each document.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        else:
            self._require_current(batch, posterior.space)
        batch, raised = self.as_independent(batch, posterior)
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind) + raised

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`; Laplace sources have squares too."""
        prior = cast(IndependentFactorPrior, self.model.prior)
        # With Laplace sources a document has its own covariance of them: its root, in float64.
        squares = 0 if prior.space_type.shares_source_covariance else 2
        return self.memory_of_means(entries) + squares * prior.num_sources**2
