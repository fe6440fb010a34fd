"""The guide of independent factor topic models."""

from __future__ import annotations

import pyro
import torch
from pyro.distributions import MultivariateNormal, Normal
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides.logistic_normal import LogisticNormalGuide
from torch_lntm.models import IndependentFactorPrior
from torch_lntm.solvers.factor import FactorPosterior, factor
from torch_lntm.solvers.gaussian import GaussianPosterior


class FactorGuide(LogisticNormalGuide):
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
    families = ("iftm(source='gaussian')", "iftm(source='laplace')")
    objective = "tangent bound on log p(w)"
    anneals = False

    @torch.no_grad()
    def posterior(  # type: ignore[override]
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> FactorPosterior:
        """Solve the posterior of every document; see :meth:`Guide.posterior`.

        Returns:
            The posterior, with ``source_mean`` and ``source_tril`` beside eta's ``mean`` and
            ``std``.
        """
        batch = self.model.check_batch(batch)
        prior = self.model.prior
        assert isinstance(prior, IndependentFactorPrior)
        return factor(
            batch,
            self.model.topics.probs,
            prior.solver_prior(),
            start=self._start(batch, init),
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations if max_iterations is None else max_iterations,
        )

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta ``(num_docs, num_topics)``."""
        posterior = self.posterior(batch)
        assert posterior.std is not None
        source = MultivariateNormal(posterior.source_mean, scale_tril=posterior.source_tril)
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            pyro.sample("source", source)
            return pyro.sample("eta", Normal(posterior.mean, posterior.std).to_event(1))

    @torch.no_grad()
    def bound(
        self,
        batch: DocumentBatch,
        posterior: GaussianPosterior | None = None,
        kind: str = "tangent",
    ) -> Tensor:
        """As :meth:`LogisticNormalGuide.bound`, by default the bound that this guide maximises.

        ``"tilted"`` forms a matrix of num_topics² for each document.
        """
        return super().bound(batch, posterior, kind)

    def numbers_per_document(self, entries: float) -> float:
        """K (L + 1) and L²."""
        prior = self.model.prior
        assert isinstance(prior, IndependentFactorPrior)
        return float((prior.num_topics + prior.num_sources) * (prior.num_sources + 1))
