"""Dirichlet priors of theta in the logits of broken sticks, where they are products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.space import LatentSpace

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class StickSpace(LatentSpace):
    """theta ~ Dirichlet(α) in x = logit v, theta_k = v_k ∏_{j<k} (1 − v_j).

    Under Dirichlet(α) the v_k ~ Beta(α_k, Σ_{j>k} α_j) are independent, so x has a product of
    densities v^a (1 − v)^b / B(a, b), smooth for every α > 0. Topics are broken off in the order of
    ``order``.

    Attributes:
        concentration: ``(num_topics,)`` float64 α.
        order: ``(num_topics,)`` int64 topics in the order of the sticks.
    """

    concentration: Tensor
    order: Tensor

    sites = ("theta",)

    @classmethod
    def of(cls, concentration: Tensor) -> Self:
        """The sticks in the order of the topics."""
        alpha = concentration.double()
        return cls(alpha, torch.arange(len(alpha), device=alpha.device))

    def ordered(self, order: Tensor) -> Self:
        """The same prior with sticks in another order of topics ``(num_topics,)``."""
        return replace(self, order=order)

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.concentration) - 1

    @property
    def num_topics(self) -> int:
        """See :attr:`LatentSpace.num_topics`."""
        return len(self.concentration)

    @property
    def dtype(self) -> torch.dtype:
        """See :attr:`LatentSpace.dtype`."""
        return self.concentration.dtype

    @property
    def centre(self) -> Tensor:
        """See :attr:`LatentSpace.centre`; α/Σα."""
        return self.concentration / self.concentration.sum()

    @property
    def exponents(self) -> Tensor:
        """Parameters ``(2, num_topics - 1)`` of the beta distributions of v."""
        return stick_parameters(self.concentration[self.order])

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`; log theta."""
        log_v, log_rest = F.logsigmoid(z), F.logsigmoid(-z)
        rest = log_rest.cumsum(-1)
        sticks = torch.cat([log_v[..., :1], log_v[..., 1:] + rest[..., :-1], rest[..., -1:]], -1)
        log_theta = torch.empty_like(sticks)
        log_theta[..., self.order] = sticks
        return log_theta

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        own, after = self.exponents
        normaliser = torch.lgamma(own) + torch.lgamma(after) - torch.lgamma(own + after)
        return F.logsigmoid(z) @ own + F.logsigmoid(-z) @ after - normaliser.sum()

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        own, after = self.exponents
        return own * torch.sigmoid(-z) - after * torch.sigmoid(z)

    def pull(self, gradient: Tensor, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.pull`."""
        sticks = gradient[..., self.order]
        # All topics after a stick share what its breaking leaves.
        later = sticks[..., 1:].flip(-1).cumsum(-1).flip(-1)
        return torch.sigmoid(-z) * sticks[..., :-1] - torch.sigmoid(z) * later

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        parts = self.exponents.flatten().expand(*key.shape, 2 * self.dim)
        own, after = noise.log_gamma(key, parts).chunk(2, -1)
        return own - after

    def latents(self, z: Tensor) -> dict[str, Tensor]:
        """See :meth:`LatentSpace.latents`."""
        return {"theta": torch.softmax(self.logits(z), -1)}

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`; a proportion of 0 counts as the smallest number."""
        theta = latents["theta"].double()
        return self.from_log_theta(theta.clamp_min(torch.finfo(theta.dtype).tiny).log())

    def from_log_theta(self, log_theta: Tensor) -> Tensor:
        """The z ``(..., num_topics - 1)`` of log proportions ``(..., num_topics)``."""
        sticks = log_theta[..., self.order]
        after = sticks[..., 1:].flip(-1).logcumsumexp(-1).flip(-1)
        return sticks[..., :-1] - after

    def place(self, latent: Tensor, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.place`."""
        return self.locate({"theta": latent}, key)

    def select(self, rows: Tensor) -> Self:
        """See :meth:`LatentSpace.select`; itself, which all documents share."""
        return self

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        return replace(self, concentration=self.concentration.to(dtype))


def stick_parameters(concentration: Tensor) -> Tensor:
    """Beta parameters of the sticks of Dirichlet(α): α_k and Σ_{j>k} α_j.

    Args:
        concentration: ``(..., num_topics)`` α in the order of the sticks.

    Returns:
        ``(2, ..., num_topics - 1)``.
    """
    after = concentration[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return torch.stack([concentration[..., :-1], after])
