"""Posterior and Moments, the interface that results of solvers and samplers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import require_level, require_whole
from torch_lntm.latents.factor import GaussianFactorSpace
from torch_lntm.latents.space import LatentSpace

#: Rows of a batch: a slice, or positions.
Rows = slice | Tensor


class SourceSums(NamedTuple):
    """Moments of the sources, summed over documents; float64.

    Attributes:
        source: ``(num_sources,)`` Σ_d E s.
        eta_source: ``(num_topics, num_sources)`` Σ_d E eta sᵀ.
        outer: ``(num_sources, num_sources)`` Σ_d E ssᵀ.
    """

    source: Tensor
    eta_source: Tensor
    outer: Tensor


class Moments(ABC):
    """Expectations of documents' latent variables, from a posterior or from draws.

    They are what a prior computes its ``statistics`` from. The main latent variable, called x
    below, is eta, or theta under a Dirichlet prior.
    """

    #: ``(num_docs, latent_dim)`` E x.
    mean: Tensor

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return self.mean.shape[0]

    @abstractmethod
    def covariance_sum(self) -> Tensor:
        """Σ_d Cov x ``(latent_dim, latent_dim)`` float64."""

    @abstractmethod
    def expected_log_theta(self) -> Tensor:
        """E log theta ``(num_docs, num_topics)`` float64.

        Raises:
            ConfigError: The moments have no closed form of E log theta.
        """

    def source_sums(self) -> SourceSums | None:
        """Moments of the sources. ``None`` if sources are integrated out, or absent."""
        return None

    def outer_sum(self) -> Tensor:
        """Σ_d E xxᵀ ``(latent_dim, latent_dim)`` float64."""
        mean = self.mean.double()
        return mean.mT @ mean + self.covariance_sum()

    def square_sum(self) -> Tensor:
        """Σ_d E x² ``(latent_dim,)`` float64, the diagonal of :meth:`outer_sum`."""
        return self.outer_sum().diagonal()


@dataclass(eq=False, kw_only=True, repr=False)
class Posterior(Moments):
    """Posteriors of the documents of a batch.

    Attributes:
        mean: ``(num_docs, latent_dim)`` posterior mean of eta, or of theta.
        index: ``(num_docs,)`` int64 positions of the documents in their corpus.
        converged: ``(num_docs,)`` bool, whether the solver met its tolerance.
        iterations: ``(num_docs,)`` int64 iterations used.
        objective: ``(num_docs,)`` float64 nats, the solver's objective at the solution.
    """

    #: Whether :meth:`theta_mean` is exact rather than a mean of draws.
    has_exact_theta_mean: ClassVar[bool] = False

    index: Tensor
    converged: Tensor
    iterations: Tensor
    objective: Tensor

    @property
    @abstractmethod
    def num_topics(self) -> int:
        """Number of topics K."""

    @property
    @abstractmethod
    def covariance(self) -> Tensor:
        """Posterior covariance ``(num_docs, latent_dim, latent_dim)`` of eta, or of theta."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Diagonals of the covariances ``(num_docs, latent_dim)``."""

    @abstractmethod
    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from latent variables ``(..., latent_dim)``."""

    @abstractmethod
    def topic_weights(self, inverse_temperature: float = 1.0) -> Tensor:
        """Weights t ``(num_docs, num_topics)`` of the topics in the responsibilities ∝ t_k φ_kv.

        Args:
            inverse_temperature: Inverse temperature of deterministic annealing.

        Returns:
            Positive weights that sum to 1 over topics, in the dtype of the model.
        """

    @abstractmethod
    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """Draws of the latent variable, each of them a function of its key.

        Args:
            key: ``(..., num_rows)`` int64 keys of :mod:`torch_lntm.noise`.
            rows: The documents. Defaults to all.

        Returns:
            ``(..., num_rows, latent_dim)`` float64.
        """

    def source_moments(self, space: LatentSpace) -> tuple[Tensor, Tensor]:
        """Posterior means and standard deviations of the sources ``(num_docs, num_sources)``.

        By default they follow from the moments of eta, for sources that are normal given eta.

        Args:
            space: The documents' latent space under a prior with sources.
        """
        return cast(GaussianFactorSpace, space).source_moments(self.mean, self.covariance)

    @property
    def warm_start(self) -> Tensor:
        """Initial values for the next ``guide.posterior`` of the same documents.

        Defaults to the means ``(num_docs, latent_dim)``.
        """
        return self.mean

    def samples(self, num_draws: int, seed: int = 0) -> Tensor:
        """Draws of the latent variable ``(num_draws, num_docs, latent_dim)``.

        Documents draw independently. Because a draw is a function of the seed and of the document's
        position in its corpus, it is the same in every batch and, up to rounding, on every device.

        Args:
            num_draws: Number of draws.
            seed: Seed of the draws.
        """
        require_whole(1, num_draws=num_draws)
        key = noise.document_keys(seed, self.index, num_draws)
        return self.draw(key).to(self.mean.dtype)

    def theta_mode(self) -> Tensor:
        """Topic proportions ``(num_docs, num_topics)`` at the mean of eta, or the mean of theta."""
        return self.theta(self.mean)

    def theta_samples(self, num_draws: int, *, seed: int = 0) -> Tensor:
        """Draws of the topic proportions ``(num_draws, num_docs, num_topics)``.

        See :meth:`samples`.
        """
        require_whole(1, num_draws=num_draws)
        key = noise.document_keys(seed, self.index, num_draws)
        return self.theta(self.draw(key)).to(self.mean.dtype)

    def theta_mean(self, num_draws: int = 200, *, seed: int = 0) -> Tensor:
        """Posterior mean of the topic proportions ``(num_docs, num_topics)``, by draws.

        Posteriors with an exact mean ignore the arguments; see :attr:`has_exact_theta_mean`.
        """
        return self.theta_samples(num_draws, seed=seed).mean(0)

    def theta_interval(
        self, level: float = 0.9, num_draws: int = 1000, *, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Equal-tailed intervals of the topic proportions, by draws.

        Args:
            level: Posterior probability of each interval, between 0 and 1.
            num_draws: Number of draws.
            seed: Seed of the draws.

        Returns:
            ``(lower, upper)``, each ``(num_docs, num_topics)``.

        Raises:
            ConfigError: ``level`` is not between 0 and 1, or ``num_draws`` is less than 1.
        """
        require_level(level)
        tail = (1.0 - level) / 2.0
        draws = self.theta_samples(num_draws, seed=seed)
        lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).to(draws), dim=0)
        return lower, upper

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_docs} documents, {self.num_topics} topics, "
            f"{int((~self.converged).sum())} not converged)"
        )


#: Rows of a guide's warm start: documents, or stored counts ("entries").
WarmStartRows = Literal["documents", "entries"]


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

    @cached_property
    def _main(self) -> Tensor:
        """Draws of the main site, float64."""
        return list(self.latents.values())[-1].double()

    @cached_property
    def mean(self) -> Tensor:  # type: ignore[override]
        """See :class:`Moments`. In float64."""
        return self._weighted.sum(0)

    @cached_property
    def _weighted(self) -> Tensor:
        """Weights times :attr:`_main`. A single chain has the weight 1."""
        return self._main if len(self.weights) == 1 else self.weights[..., None] * self._main

    def outer_sum(self) -> Tensor:
        """See :meth:`Moments.outer_sum`."""
        return self._main.flatten(0, 1).mT @ self._weighted.flatten(0, 1)

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
