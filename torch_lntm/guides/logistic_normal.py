"""Guides with a normal posterior of eta: Taylor, Laplace, Blei–Lafferty, Khan–Bouchard."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pyro
import torch
from pyro.distributions import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TorchDistribution,
)
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides.guide import Guide
from torch_lntm.kernels import expected_counts
from torch_lntm.models import IndependentFactorPrior, LogisticNormalPrior
from torch_lntm.solvers.blei_lafferty import blei_lafferty
from torch_lntm.solvers.bounds import gaussian_bound
from torch_lntm.solvers.factor import LowRankPosterior, conditional_sources
from torch_lntm.solvers.gaussian import GaussianPosterior
from torch_lntm.solvers.khan_bouchard import khan_bouchard
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.taylor import taylor


class LogisticNormalGuide(Guide):
    """A normal posterior of every document's eta; see :class:`Guide`.

    Under an independent factor model with Gaussian sources, it is solved under eta's marginal prior
    Normal(loc, AAᵀ + Λ⁻¹), and the site ``"source"`` is emitted given eta.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Nats at which a document has converged: twice what a Newton step would still gain
            (Taylor, Laplace), or what the last round gained (Blei–Lafferty, Khan–Bouchard).
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The posterior is not one of this kind of model.
        ConfigError: A setting that is not positive.
    """

    anneals = True
    _solve: ClassVar[Callable[..., GaussianPosterior]]

    @torch.no_grad()
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        temperature: float = 1.0,
        topic_temperature: float = 1.0,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> GaussianPosterior:
        """Solve the posterior of every document of a batch at the model's present parameters.

        Args:
            batch: The documents, over the model's vocabulary.
            init: ``(num_docs, latent_dim)`` means to start from; the prior mean by default. Any
                start leads to a local mode; a document's own earlier mean is the best one.
            temperature: Inverse temperature of deterministic annealing (*Ahmed & Xing 2007,
                §3.2*); 1 is the posterior itself.
            topic_temperature: The topics' own inverse temperature, φ^T.
            tolerance: Overrides the guide's.
            max_iterations: Overrides the guide's.

        Returns:
            The posterior; documents that did not converge are marked in ``converged``.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or ``init`` another
                shape or an entry that is not finite.
            NumericalError: A document's posterior could not be computed; names documents.
        """
        batch = self.model.check_batch(batch)
        return type(self)._solve(
            batch,
            self._topics(topic_temperature),
            self._prior().solver_prior(),
            start=self._start(batch, init),
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations if max_iterations is None else max_iterations,
            temperature=temperature,
        )

    def _prior(self) -> LogisticNormalPrior | IndependentFactorPrior:
        assert isinstance(self.model.prior, LogisticNormalPrior | IndependentFactorPrior)
        return self.model.prior

    def _topics(self, temperature: float) -> Tensor:
        topics = self.model.topics.probs
        return topics if temperature == 1.0 else topics.pow(temperature)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta ``(num_docs, latent_dim)``."""
        posterior = self.posterior(batch)
        prior = self._prior()
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            eta = pyro.sample("eta", _distribution(posterior))
            if isinstance(prior, IndependentFactorPrior):
                mean, tril = conditional_sources(prior.solver_prior(), eta)
                pyro.sample("source", MultivariateNormal(mean, scale_tril=tril))
            return eta

    @torch.no_grad()
    def bound(
        self, batch: DocumentBatch, posterior: GaussianPosterior | None = None, kind: str = "tilted"
    ) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior, solved here if not given.
            kind: ``"tangent"`` or ``"tilted"``, the bound on the expected log normaliser.

        Returns:
            ``(num_docs,)`` float64 nats.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind)

    @torch.no_grad()
    def word_counts(
        self,
        batch: DocumentBatch,
        posterior: GaussianPosterior,
        *,
        temperature: float = 1.0,
        topic_temperature: float = 1.0,
    ) -> Tensor:
        """Expected tokens of each word under each topic; see :meth:`Guide.word_counts`.

        Under responsibilities ∝ exp(T·E eta_k) φ_kv^T′ (*Ahmed & Xing 2007, eq. 12; Khan &
        Bouchard 2009, eq. 31; Putthividhya et al. 2009, eq. 5*).

        Args:
            batch: The documents.
            posterior: Their posterior.
            temperature: Inverse temperature T of annealing.
            topic_temperature: That of the topics, T′.
        """
        batch = self.model.check_batch(batch)
        logits = temperature * posterior.prior.lift(posterior.mean)
        found = expected_counts(
            torch.softmax(logits, -1), self._topics(topic_temperature), batch, word_counts=True
        )
        assert found.word_counts is not None
        return found.word_counts.double()

    def numbers_per_document(self, entries: float) -> float:
        """The square of eta's dimension."""
        return float(self.model.latent_dim**2)


def _distribution(posterior: GaussianPosterior) -> TorchDistribution:
    """The posterior of eta as a Pyro distribution."""
    if isinstance(posterior, LowRankPosterior):
        return LowRankMultivariateNormal(posterior.mean, posterior.loading, posterior.diagonal)
    if posterior.std is not None:
        return Normal(posterior.mean, posterior.std).to_event(1)
    return MultivariateNormal(posterior.mean, scale_tril=posterior.scale_tril)


class TaylorGuide(LogisticNormalGuide):
    """Full covariance by a second-order Taylor expansion (*Ahmed & Xing 2007, eqs 8–12*).

    The fastest, and the default for training. Its covariance is too narrow, since it leaves out
    the uncertainty of the topic assignments; see :class:`LaplaceGuide`.
    """

    name = "taylor"
    families = ("ctm", "lntm", "iftm(source='gaussian')")
    objective = "Laplace approximation of log p(w) with the complete-data information"
    _solve = staticmethod(taylor)


class LaplaceGuide(LogisticNormalGuide):
    """The same mode as Taylor's with the observed information (*Roberts et al. 2016*)."""

    name = "laplace"
    families = ("ctm", "lntm", "iftm(source='gaussian')")
    objective = "Laplace approximation of log p(w)"
    _solve = staticmethod(laplace)


class BleiLaffertyGuide(LogisticNormalGuide):
    """Diagonal covariance on the tangent bound (*Ahmed & Xing 2007, §3.3, eqs 13–15*)."""

    name = "blei-lafferty"
    families = ("ctm", "lntm")
    objective = "tangent bound on log p(w)"
    _solve = staticmethod(blei_lafferty)


class KhanBouchardGuide(LogisticNormalGuide):
    """Full covariance on the tangent bound (*Khan & Bouchard 2009, eqs 33–38*)."""

    name = "khan-bouchard"
    families = ("ctm", "lntm")
    objective = "tangent bound on log p(w)"
    _solve = staticmethod(khan_bouchard)
