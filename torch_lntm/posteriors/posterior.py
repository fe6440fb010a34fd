"""Posterior and Moments: what engines and evaluations may ask of the result of any solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.latents.factor import GaussianFactorSpace
from torch_lntm.latents.space import LatentSpace

#: Which rows of a batch: all, a part, or some by their positions.
Rows = slice | Tensor


class SourceSums(NamedTuple):
    """Moments of the sources, float64 sums over documents.

    Attributes:
        source: ``(num_sources,)`` Σ_d E s.
        eta_source: ``(num_topics, num_sources)`` Σ_d E eta sᵀ.
        outer: ``(num_sources, num_sources)`` Σ_d E ssᵀ.
    """

    source: Tensor
    eta_source: Tensor
    outer: Tensor


class Moments(ABC):
    """Expectations of some documents' latent variables, from a posterior or from draws.

    They are what a prior's ``statistics`` are made of. The main latent variable, x below, is eta,
    or theta under a Dirichlet prior.
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
            ConfigError: These moments do not determine it.
        """

    def source_sums(self) -> SourceSums | None:
        """Moments of the sources; None where sources are integrated out, or there are none."""
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
    """The posteriors of the documents of a batch, as a solver left them.

    Attributes:
        mean: ``(num_docs, latent_dim)`` posterior mean of eta, or of theta.
        index: ``(num_docs,)`` int64 positions of the documents in their corpus.
        converged: ``(num_docs,)`` bool, the solver met its tolerance.
        iterations: ``(num_docs,)`` int64 iterations used.
        objective: ``(num_docs,)`` float64 nats, the solver's own objective at the solution.
    """

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
        """Its diagonals ``(num_docs, latent_dim)``."""

    @abstractmethod
    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` of latent variables ``(..., latent_dim)``."""

    @abstractmethod
    def topic_weights(self, temperature: float = 1.0) -> Tensor:
        """Weights t of the topics in the responsibilities ∝ t_k φ_kv ``(num_docs, num_topics)``.

        Args:
            temperature: Inverse temperature of deterministic annealing.

        Returns:
            Positive, normalised over topics, in the dtype of the model.
        """

    @abstractmethod
    def draw(self, key: Tensor, rows: Rows = slice(None)) -> Tensor:
        """Draws of the latent variable, each a function of its key.

        Args:
            key: ``(..., num_rows)`` int64 keys of :mod:`torch_lntm.noise`.
            rows: The documents, all by default.

        Returns:
            ``(..., num_rows, latent_dim)`` float64.
        """

    def source_moments(self, space: LatentSpace) -> tuple[Tensor, Tensor]:
        """Posterior means and standard deviations of the sources ``(num_docs, num_sources)``.

        By default from the moments of eta, for sources that are normal given eta.

        Args:
            space: The documents' space, that of a prior with sources.
        """
        return cast(GaussianFactorSpace, space).source_moments(self.mean, self.covariance)

    @property
    def warm_start(self) -> Tensor:
        """What the next ``guide.posterior`` of the same documents should start from.

        The means ``(num_docs, latent_dim)``, unless the guide says otherwise.
        """
        return self.mean

    def samples(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draws of the latent variable ``(num_samples, num_docs, latent_dim)``.

        They are functions of the seed and the documents' positions in their corpus: independent
        between documents, and the same in every batch and on every device.
        """
        require_whole(1, num_samples=num_samples)
        key = noise.document_keys(seed, self.index, num_samples)
        return self.draw(key).to(self.mean.dtype)

    def theta_mode(self) -> Tensor:
        """Topic proportions ``(num_docs, num_topics)`` at the mode on the softmax scale."""
        return self.theta(self.mean)

    def theta_samples(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draws of the topic proportions ``(num_samples, num_docs, num_topics)``.

        See :meth:`samples`.
        """
        require_whole(1, num_samples=num_samples)
        key = noise.document_keys(seed, self.index, num_samples)
        return self.theta(self.draw(key)).to(self.mean.dtype)

    def theta_mean(self, num_samples: int = 200, seed: int = 0) -> Tensor:
        """Posterior mean of the topic proportions ``(num_docs, num_topics)``, by draws.

        A posterior that knows the mean does without draws; see :attr:`has_exact_theta_mean`.
        """
        return self.theta_samples(num_samples, seed).mean(0)

    @property
    def has_exact_theta_mean(self) -> bool:
        """Whether :meth:`theta_mean` takes no draws."""
        return False

    def theta_interval(
        self, level: float = 0.9, num_samples: int = 1000, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Equal-tailed intervals of the topic proportions, by draws.

        Args:
            level: Probability that each interval covers under this posterior, between 0 and 1.
            num_samples: Draws.
            seed: Seed of the draws.

        Returns:
            ``(lower, upper)``, each ``(num_docs, num_topics)``.

        Raises:
            ConfigError: ``level`` is not between 0 and 1, or there are no draws.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
        tail = (1.0 - level) / 2.0
        draws = self.theta_samples(num_samples, seed)
        lower, upper = torch.quantile(draws, torch.tensor([tail, 1 - tail]).to(draws), dim=0)
        return lower, upper

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_docs} documents, {self.num_topics} topics, "
            f"{int((~self.converged).sum())} not converged)"
        )


#: What a guide's warm start has one row for: a document, or a stored count of the batch.
WarmStartRows = Literal["documents", "entries"]
