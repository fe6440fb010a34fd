"""The guide of independent factor topic models."""

from __future__ import annotations

from typing import cast

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
from torch_lntm.solvers.options import SolveOptions


class FactorGuide(Guide[FactorPosterior]):
    """Independent normal posteriors of sources and of each eta_k (*Putthividhya et al. 2009, §2*).

    q(source) is normal with a full covariance, and q(eta) is normal with a diagonal covariance.
    Both maximise the tangent bound. The density of Laplace sources is bounded by its convex dual.
    The cost is linear in the number of topics.

    Args:
        model: The model. Its parameters are read at every call.
        tolerance: Convergence tolerance of a document: gain of the bound in the last round, in
            nats.
        max_iterations: Bound on the rounds of each document.

    Raises:
        IncompatibleGuideError: The model's prior lacks sources.
        ConfigError: A setting is zero or negative.

    Example:
        >>> iftm = lntm.models.iftm(12, corpus.num_words, num_sources=3)
        >>> lntm.guides.FactorGuide(iftm).posterior(batch)
        FactorPosterior(5 documents, 12 topics, 0 not converged)
    """

    name = "factor"
    objective = "tangent bound on log p(w)"
    space_type = FactorSpace
    needs = "sources"

    def _solve(
        self, batch: DocumentBatch, topics: Tensor, space: FactorSpace, options: SolveOptions
    ) -> FactorPosterior:
        return factor(batch, topics, space, options)

    def _geometric_mean(self, posterior: FactorPosterior) -> Tensor:
        return tangent_weights(posterior)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """Emit the posterior as a Pyro guide.

        Returns:
            The draw of eta ``(num_docs, num_topics)``.
        """
        posterior = self._cached_posterior(batch)
        assert posterior.std is not None
        source = MultivariateNormal(posterior.source_mean, scale_tril=posterior.source_tril)
        with self.model.plate(batch):
            pyro.sample("source", source)
            return pyro.sample("eta", Normal(posterior.mean, posterior.std).to_event(1))

    @torch.no_grad()
    def bound(
        self, batch: DocumentBatch, posterior: FactorPosterior | None = None, kind: str = "tangent"
    ) -> Tensor:
        """See :meth:`NormalGuide.bound`. Defaults to ``"tangent"``, the bound this guide maximises.

        ``"tilted"`` forms a matrix ``(num_topics, num_topics)`` for each document.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        else:
            self._require_current(batch, posterior.space)
        batch, offset = self.as_independent(batch, posterior)
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind) + offset

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`. Laplace sources add a covariance per document."""
        prior = cast(IndependentFactorPrior, self.model.prior)
        # With Laplace sources, every document has its own covariance: a root in float64.
        squares = 0 if prior.space_type.shares_source_covariance else 2
        return self.memory_of_means(entries) + squares * prior.num_sources**2
