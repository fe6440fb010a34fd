"""Density of documents in the coordinates of a normal approximation of their posteriors.

With q(z) = N(m, FFᵀ) and z = m + F u, the approximation is standard normal in u, and

    log p(w, z(u)) + log|F| = log N(u; 0, I) + U(u)

for a function U that is the flatter, the better q is. A :class:`Bridge` presents N(0, I) as the
prior of u and U as its log likelihood. A path with tempered U therefore goes from q to the
posterior, q^(1−t) p^t, whereas one with tempered likelihood has to go the whole way from the prior.
The integral over u is p(w) for every q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.latents.normal import standard_normal_log_density


@dataclass(frozen=True, eq=False, kw_only=True)
class Bridge(DocumentTarget):
    """Target in coordinates u in which q is standard normal; see the module.

    The prior of a :class:`DocumentTarget` is q here. The logits of the space must be affine in z.

    Attributes:
        loc: ``(num_docs, dim)`` m, in the dtype of ``topics``.
        factor: ``(num_docs, dim, dim)`` F, lower triangular with a positive diagonal.
    """

    space: IdentifiedSpace
    loc: Tensor
    factor: Tensor

    @cached_property
    def _origin(self) -> Tensor:
        """Logits and z at u = 0, ``(num_docs, 1, num_topics + dim)``."""
        return torch.cat([self.space.logits(self.loc), self.loc], -1)[:, None]

    @cached_property
    def _loading(self) -> Tensor:
        """Change of logits and z with u, ``(num_docs, dim, num_topics + dim)``."""
        eye = torch.eye(self.space.num_topics, dtype=self.loc.dtype, device=self.loc.device)
        logit_loading = self.space.pull(eye, self.loc[:1]).mT
        return torch.cat([self.factor.mT @ logit_loading, self.factor.mT], -1)

    @cached_property
    def _log_volume(self) -> Tensor:
        """log|F| minus the log normaliser of N(0, I), ``(num_docs,)`` float64."""
        log_det = self.factor.double().diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return log_det - standard_normal_log_density(self.factor.new_zeros(self.dim))

    @property
    def form(self) -> None:
        """See :attr:`DocumentTarget.form`; None, because U depends on u through the prior too."""
        return None

    def moved(self, mean: Tensor, scale: Tensor) -> Bridge:
        """Bridge from another normal q, given by independent normal distributions of u.

        Args:
            mean: ``(num_docs, dim)`` means of u.
            scale: ``(num_docs, dim)`` standard deviations of u.
        """
        loc = self.loc + (self.factor @ mean[..., None]).squeeze(-1)
        return replace(self, loc=loc, factor=self.factor * scale[:, None])

    def locate(self, latents: Mapping[str, Tensor], key: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.locate`; returns u."""
        centred = super().locate(latents, key) - self.loc
        unknown = torch.linalg.solve_triangular(self.factor, centred[..., None], upper=False)
        return unknown.squeeze(-1)

    def _at(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Theta ``(..., num_docs, num_topics)`` and z at u."""
        # Documents are outermost in memory, as all batched products need them.
        both = torch.baddbmm(self._origin, u.transpose(0, 1), self._loading)
        theta = torch.softmax(both[..., : self.space.num_topics], -1)
        return theta.transpose(0, 1), both[..., self.space.num_topics :].transpose(0, 1)

    def theta(self, z: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.theta`; a function of u."""
        return self._at(z)[0]

    def log_prior(self, z: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.log_prior`; log density of u under q."""
        return standard_normal_log_density(z)

    def prior_gradient(self, z: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.prior_gradient`; gradient in u under q."""
        return -z

    def draw_prior(self, key: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.draw_prior`; draws of q."""
        return noise.normal(noise.fold_in(key, 0), self.dim).to(self.topics.dtype)

    def log_joint(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`DocumentTarget.log_joint`; log density of u under q, and U."""
        return self.log_prior(z), self.likelihood(z)[0]

    def likelihood(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`DocumentTarget.likelihood`; U and its gradient in u."""
        theta, inner = self._at(z)
        value, topic_counts = self._layout.expected_counts(theta)
        excess = self.space.log_density(inner) + 0.5 * z.double().square().sum(-1)
        return (value + excess + self._log_volume, self._gradient_at(z, theta, inner, topic_counts))

    def likelihood_gradient(self, z: Tensor) -> Tensor:
        """See :meth:`DocumentTarget.likelihood_gradient`; gradient of U."""
        theta, inner = self._at(z)
        return self._gradient_at(z, theta, inner, self._layout.expected_topic_counts(theta))

    def _gradient_at(self, u: Tensor, theta: Tensor, z: Tensor, topic_counts: Tensor) -> Tensor:
        in_logits = self._logits_gradient(theta, topic_counts)
        gradients = torch.cat([in_logits, self.space.gradient(z)], -1).transpose(0, 1)
        return torch.baddbmm(u.transpose(0, 1), gradients, self._loading.mT).transpose(0, 1)
