"""NormalPrior, the base class of normal priors of eta with any mean and covariance."""

from __future__ import annotations

import pyro
import torch
from pyro.distributions import MultivariateNormal, TorchDistribution
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, undefined
from torch_lntm.latents import NormalSpace
from torch_lntm.latents.contrasts import ContrastSpace
from torch_lntm.models.priors.prior import DocumentPrior, centred_logits
from torch_lntm.posteriors import Moments


class NormalPrior(DocumentPrior):
    """Base class of priors eta ~ Normal(location, LLᵀ), theta = softmax(eta).

    A subclass defines its parameters, :meth:`location`, :attr:`scale_tril` and :meth:`m_step`, and
    then works with every guide for normal priors, every sampler and every evaluator. If its M-step
    needs more than the sums of eta and eta etaᵀ, it extends :meth:`statistics` as well.
    ``docs/own_parts.md`` has complete examples.

    Two parameterisations describe the same family of distributions of theta (*Ahmed & Xing 2007,
    §2.2*). *Free*: eta has K components, and the softmax ignores their common shift. *Anchored*:
    eta has K - 1 components, and the last topic's component is fixed at 0.

    Args:
        num_topics: Number of topics K.
        anchored: Fix the last topic's component at 0.

    Raises:
        ConfigError: A single topic is anchored.

    Example:
        >>> isinstance(model.prior, lntm.models.NormalPrior), model.prior.location(batch).shape
        (True, torch.Size([10]))
    """

    latent = "eta"
    has_correlations = True

    def __init__(self, num_topics: int, *, anchored: bool = False) -> None:
        super().__init__()
        if anchored and num_topics < 2:
            raise ConfigError("one topic has no free component if anchored; use anchored=False")
        self.num_topics = num_topics
        self.anchored = anchored

    @property
    def latent_dim(self) -> int:
        """Dimension of eta: K, or K - 1 if anchored."""
        return self.num_topics - 1 if self.anchored else self.num_topics

    def location(self, batch: DocumentBatch) -> Tensor:
        """Mean of eta, differentiable in the parameters.

        Args:
            batch: The documents.

        Returns:
            ``(latent_dim,)`` for a common mean, or ``(num_docs, latent_dim)``.
        """
        raise undefined(self, "location")

    @property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of the covariance ``(latent_dim, latent_dim)``, differentiable."""
        raise undefined(self, "scale_tril")

    @property
    def covariance(self) -> Tensor:
        """Covariance of eta ``(latent_dim, latent_dim)``."""
        tril = self.scale_tril
        return (tril.double() @ tril.double().mT).to(tril.dtype)

    @property
    def space_type(self) -> type[NormalSpace]:
        """See :attr:`DocumentPrior.space_type`."""
        return NormalSpace

    def space(self, batch: DocumentBatch) -> NormalSpace:
        """See :meth:`DocumentPrior.space`. The coordinates are z = L⁻¹(eta − location)."""
        location = self.location(batch).detach().clone()  # later M-steps must not change a space
        return NormalSpace(location, self.scale_tril.detach().double(), self.anchored)

    def identified(self, batch: DocumentBatch) -> ContrastSpace:
        """See :meth:`DocumentPrior.identified`. The K − 1 contrasts of eta, whitened."""
        return ContrastSpace.of(self.space(batch))

    def lift(self, eta: Tensor) -> Tensor:
        """Logits of theta ``(..., num_topics)`` from eta ``(..., latent_dim)``."""
        if not self.anchored:
            return eta
        return torch.cat([eta, eta.new_zeros(*eta.shape[:-1], 1)], -1)

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from eta ``(..., latent_dim)``."""
        return torch.softmax(self.lift(latent), -1)

    def distribution(self, batch: DocumentBatch) -> TorchDistribution:
        """Prior of the documents' eta as a Pyro distribution, differentiable."""
        return MultivariateNormal(self.location(batch), scale_tril=self.scale_tril)

    def emit(self, batch: DocumentBatch) -> Tensor:
        """Emit the site ``"eta"``; see :meth:`DocumentPrior.emit`."""
        return pyro.sample("eta", self.distribution(batch))

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """See :meth:`DocumentPrior.statistics`.

        Returns:
            ``latent_sum`` ``(latent_dim,)`` Σ_d E eta and ``latent_outer``
            ``(latent_dim, latent_dim)`` Σ_d E eta etaᵀ.
        """
        return {"latent_sum": moments.mean.double().sum(0), "latent_outer": moments.outer_sum()}

    def start_latents(self, theta: Tensor) -> Tensor:
        """See :meth:`DocumentPrior.start_latents`.

        Log proportions: centred if eta is free, relative to the last topic if anchored.
        """
        eta = centred_logits(theta)
        return eta[:, :-1] - eta[:, -1:] if self.anchored else eta

    def contrast_covariance(self) -> Tensor:
        """See :meth:`DocumentPrior.contrast_covariance`. Equal in both parameterisations."""
        tril = self.scale_tril.detach().double()
        lifted = torch.cat([tril, tril.new_zeros(1, tril.shape[1])]) if self.anchored else tril
        centred = lifted - lifted.mean(0, keepdim=True)
        return centred @ centred.mT
