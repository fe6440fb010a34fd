"""Guides with a normal posterior of eta: Taylor, Laplace, Blei–Lafferty, Khan–Bouchard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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
from torch_lntm.latents import EtaSpace, GaussianFactorSpace, LatentSpace, NormalSpace
from torch_lntm.posteriors import LowRankPosterior, ModePosterior, NormalPosterior, Posterior
from torch_lntm.solvers.blei_lafferty import blei_lafferty
from torch_lntm.solvers.bounds import gaussian_bound, tangent_weights
from torch_lntm.solvers.khan_bouchard import khan_bouchard
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.mode import mode
from torch_lntm.solvers.taylor import taylor


class NormalGuide(Guide[NormalPosterior]):
    """A normal posterior of every document's eta; see :class:`Guide`.

    Under an independent factor model with Gaussian sources, it is solved under eta's marginal prior
    Normal(loc, AAᵀ + Λ⁻¹), and the site ``"source"`` is emitted given eta.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Nats at which a document has converged: twice what a Newton step would still gain
            (Taylor, Laplace), or what the last round gained (Blei–Lafferty, Khan–Bouchard).
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: Eta does not have a normal prior.
        ConfigError: A setting that is not positive.
    """

    anneals = True
    space_type: ClassVar[type[LatentSpace]] = EtaSpace  # type: ignore[type-abstract]
    needs = "a normal prior of eta"
    _solver: ClassVar[Callable[..., NormalPosterior]]

    def _solve(
        self, batch: DocumentBatch, topics: Tensor, space: EtaSpace, **settings: Any
    ) -> NormalPosterior:
        return type(self)._solver(batch, topics, space, **settings)

    def _geometric_mean(self, posterior: NormalPosterior) -> Tensor:
        return tangent_weights(posterior)

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta ``(num_docs, latent_dim)``."""
        batch = self.model.check_batch(batch)
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
        self, batch: DocumentBatch, posterior: NormalPosterior | None = None, kind: str = "tilted"
    ) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior at the prior's present parameters, solved here if not given.
            kind: ``"tangent"`` or ``"tilted"``, the bound on the expected log normaliser.

        Returns:
            ``(num_docs,)`` float64 nats.

        Raises:
            ConfigError: The posterior was solved at other parameters of the prior.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        else:
            self._require_current(batch, posterior.space)
        batch, raised = self.as_independent(batch, posterior)
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind) + raised

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`; the square of eta's dimension too."""
        return self.memory_of_means(entries) + self.model.latent_dim**2


def _distribution(posterior: NormalPosterior) -> TorchDistribution:
    """The posterior of eta as a Pyro distribution."""
    if isinstance(posterior, LowRankPosterior):
        return LowRankMultivariateNormal(posterior.mean, posterior.loading, posterior.diagonal)
    if posterior.std is not None:
        return Normal(posterior.mean, posterior.std).to_event(1)
    return MultivariateNormal(posterior.mean, scale_tril=posterior.scale_tril)


class ModeGuide(NormalGuide):
    """A normal posterior around the mode, which does not depend on the covariance."""

    @property
    def separates_means(self) -> bool:
        """See :attr:`Guide.separates_means`; but priors of low rank have cheap covariances."""
        return issubclass(self.model.prior.space_type, NormalSpace)

    def _geometric_mean(self, posterior: Posterior) -> Tensor:
        # Their objective is that of the mode, and takes no expectation of theta.
        return posterior.topic_weights()

    def _solve_means(
        self, batch: DocumentBatch, topics: Tensor, space: EtaSpace, **settings: Any
    ) -> ModePosterior:
        return mode(batch, topics, space, **settings)


class TaylorGuide(ModeGuide):
    """Full covariance by a second-order Taylor expansion (*Ahmed & Xing 2007, eqs 8–12*).

    The fastest, and the default for training. Its covariance is too narrow, since it leaves out
    the uncertainty of the topic assignments; see :class:`LaplaceGuide`.
    """

    name = "taylor"
    objective = "Laplace approximation of log p(w) with the complete-data information"
    _solver = staticmethod(taylor)


class LaplaceGuide(ModeGuide):
    """The same mode as Taylor's with the observed information (*Roberts et al. 2016*)."""

    name = "laplace"
    objective = "Laplace approximation of log p(w)"
    _solver = staticmethod(laplace)


class BleiLaffertyGuide(NormalGuide):
    """Diagonal covariance on the tangent bound (*Ahmed & Xing 2007, §3.3, eqs 13–15*)."""

    name = "blei-lafferty"
    objective = "tangent bound on log p(w)"
    space_type = NormalSpace
    needs = "a normal prior of eta alone, without sources"
    _solver = staticmethod(blei_lafferty)

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`; no square here."""
        return self.memory_of_means(entries)


class KhanBouchardGuide(NormalGuide):
    """Full covariance on the tangent bound (*Khan & Bouchard 2009, eqs 33–38*).

    The slowest of the four: every round costs num_topics³ a document, one topic after another.
    """

    name = "khan-bouchard"
    objective = "tangent bound on log p(w)"
    space_type = NormalSpace
    needs = "a normal prior of eta alone, without sources"
    _solver = staticmethod(khan_bouchard)
