"""Guides with a normal posterior of eta."""

from __future__ import annotations

from typing import ClassVar, cast

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
from torch_lntm.latents import EtaSpace, FactorSpace, LatentSpace, NormalSpace
from torch_lntm.latents.factor import GaussianFactorSpace
from torch_lntm.models import IndependentFactorPrior
from torch_lntm.posteriors import (
    FactorPosterior,
    LowRankPosterior,
    NormalPosterior,
    Posterior,
)
from torch_lntm.solvers.blei_lafferty import blei_lafferty
from torch_lntm.solvers.bounds import gaussian_bound, tangent_weights
from torch_lntm.solvers.factor import factor
from torch_lntm.solvers.khan_bouchard import khan_bouchard
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.taylor import mode as solve_mode
from torch_lntm.solvers.taylor import taylor


class NormalGuide(Guide[NormalPosterior]):
    """Normal posterior of every document's eta; see :class:`Guide`.

    In an independent factor model with Gaussian sources, the posterior is solved under eta's
    marginal prior Normal(loc, AAᵀ + Λ⁻¹), and the site ``"source"`` is emitted given eta.

    Args:
        model: The model. Its parameters are read at every call.
        tolerance: Convergence tolerance of a document, in nats. Under Taylor and Laplace it bounds
            twice the gain of another Newton step, and under Blei–Lafferty and Khan–Bouchard the
            gain of the last round.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The prior of eta is not normal.
        ConfigError: A setting is zero or negative.

    Example:
        >>> guide.bound(batch).shape
        torch.Size([5])
    """

    anneals = True
    space_type: ClassVar[type[LatentSpace]] = EtaSpace  # type: ignore[type-abstract]
    needs = "a normal prior of eta"
    #: Kind of the bound of :meth:`bound`.
    default_bound: ClassVar[str] = "tilted"

    def _geometric_mean(self, posterior: NormalPosterior) -> Tensor:
        return tangent_weights(posterior)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """Emit the posterior as a Pyro guide.

        Returns:
            The draw of eta ``(num_docs, latent_dim)``.
        """
        posterior = self._cached_posterior(batch)
        space = self.model.prior.space(batch)
        with self.model.plate(batch):
            eta = pyro.sample("eta", _distribution(posterior))
            if isinstance(space, GaussianFactorSpace):
                mean, tril = space.source_posterior(eta)
                pyro.sample("source", MultivariateNormal(mean, scale_tril=tril))
            return eta

    @torch.no_grad()
    def bound(
        self,
        batch: DocumentBatch,
        posterior: NormalPosterior | None = None,
        kind: str | None = None,
    ) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior at the prior's current parameters. Defaults to a new
                solution.
            kind: Bound on the expected log normaliser, ``"tangent"`` or ``"tilted"``. Defaults to
                the tilted one, which is tighter, except in :class:`FactorGuide`.

        Returns:
            ``(num_docs,)`` float64 nats.

        Raises:
            ConfigError: The posterior was solved at other parameters of the prior, or the kind is
                unknown.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        else:
            self._require_current(batch, posterior.space)
        batch, offset = self.as_independent(batch, posterior)
        kind = kind or self.default_bound
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind) + offset

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`. Adds the square of eta's dimension."""
        return self.memory_of_means(entries) + self.model.latent_dim**2


def _distribution(posterior: NormalPosterior) -> TorchDistribution:
    """The posterior of eta as a Pyro distribution."""
    if isinstance(posterior, LowRankPosterior):
        return LowRankMultivariateNormal(posterior.mean, posterior.loading, posterior.diagonal)
    if posterior.std is not None:
        return Normal(posterior.mean, posterior.std).to_event(1)
    return MultivariateNormal(posterior.mean, scale_tril=posterior.scale_tril)


class ModeGuide(NormalGuide):
    """Normal posterior around the mode, which does not depend on the covariance."""

    @property
    def separates_means(self) -> bool:
        """See :attr:`Guide.separates_means`. False for factor priors with cheap covariances."""
        return issubclass(self.model.prior.space_type, NormalSpace)

    def _geometric_mean(self, posterior: Posterior) -> Tensor:
        # The objective is the density at the mode, without an expectation over theta.
        return posterior.topic_weights()

    _solve_means = staticmethod(solve_mode)


class TaylorGuide(ModeGuide):
    """Normal posterior by a second-order Taylor expansion (*Ahmed & Xing 2007, eqs 8–12*).

    It is the fastest guide for normal priors, and therefore their default. Its covariance is full
    but too narrow, because it omits the uncertainty of the topic assignments, which
    :class:`LaplaceGuide` includes.

    Example:
        >>> posterior = lntm.guides.TaylorGuide(model).posterior(batch)
        >>> posterior.mean.shape, posterior.covariance.shape
        (torch.Size([5, 10]), torch.Size([5, 10, 10]))
    """

    name = "taylor"
    objective = "Laplace approximation of log p(w) with the complete-data information"
    _solve = staticmethod(taylor)


class LaplaceGuide(ModeGuide):
    """Normal posterior by the Laplace approximation (*Roberts et al. 2016*).

    It has the mode of :class:`TaylorGuide`, but its covariance is the inverse of the observed
    information, which includes the uncertainty of the topic assignments.

    Example:
        >>> laplace = lntm.guides.LaplaceGuide(model).posterior(batch)
        >>> bool((laplace.variance > guide.posterior(batch).variance).all())
        True
    """

    name = "laplace"
    objective = "Laplace approximation of log p(w)"
    _solve = staticmethod(laplace)


class BleiLaffertyGuide(NormalGuide):
    """Normal posterior with a diagonal covariance, which maximises the tangent bound.

    This is the method of Blei and Lafferty (*Ahmed & Xing 2007, §3.3, eqs 13–15*).

    Example:
        >>> lntm.guides.BleiLaffertyGuide(model).posterior(batch).std.shape
        torch.Size([5, 10])
    """

    name = "blei-lafferty"
    objective = "tangent bound on log p(w)"
    space_type = NormalSpace
    needs = "a normal prior of eta alone, without sources"
    _solve = staticmethod(blei_lafferty)

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`. A diagonal covariance adds no square."""
        return self.memory_of_means(entries)


class KhanBouchardGuide(NormalGuide):
    """Normal posterior with a full covariance, which maximises the tangent bound.

    This is the method of *Khan & Bouchard 2009, eqs 33–38*. It is the slowest guide for normal
    priors, because a round updates one topic after another and costs num_topics³ operations per
    document.

    Example:
        >>> khan_bouchard = lntm.guides.KhanBouchardGuide(model)
        >>> khan_bouchard.posterior(batch).covariance.shape
        torch.Size([5, 10, 10])
    """

    name = "khan-bouchard"
    objective = "tangent bound on log p(w)"
    space_type = NormalSpace
    needs = "a normal prior of eta alone, without sources"
    _solve = staticmethod(khan_bouchard)


class FactorGuide(NormalGuide):
    """Independent normal posteriors of sources and of each eta_k (*Putthividhya et al. 2009, §2*).

    q(source) has a full covariance and q(eta) a diagonal one, and both maximise the tangent bound,
    the default of :meth:`bound`. The density of Laplace sources is bounded by its convex dual. The
    cost is linear in the number of topics.

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
    anneals = False
    objective = "tangent bound on log p(w)"
    space_type = FactorSpace
    needs = "sources"
    default_bound = "tangent"
    _solve = staticmethod(factor)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """Emit the posterior as a Pyro guide.

        Returns:
            The draw of eta ``(num_docs, num_topics)``.
        """
        posterior = cast(FactorPosterior, self._cached_posterior(batch))
        assert posterior.std is not None
        source = MultivariateNormal(posterior.source_mean, scale_tril=posterior.source_tril)
        with self.model.plate(batch):
            pyro.sample("source", source)
            return pyro.sample("eta", Normal(posterior.mean, posterior.std).to_event(1))

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`. Laplace sources add a covariance per document."""
        prior = cast(IndependentFactorPrior, self.model.prior)
        # With Laplace sources, every document has its own covariance: a root in float64.
        squares = 0 if prior.space_type.shares_source_covariance else 2
        return self.memory_of_means(entries) + squares * prior.num_sources**2
